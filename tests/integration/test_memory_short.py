"""A league on machines with memory for three adapters, configured for sixteen: it says so and trains to its end."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from league.matchmaking.audit import SamplingAudit, audit_sampling
from league.matchmaking.matchmaker import recompute_draw
from league.run import Run
from league.state import LeagueState
from schemas.codec import decode_event
from schemas.events import (
    AdapterSlotsReduced,
    Event,
    MatchFailed,
    MatchFinished,
    OpponentsSampled,
    TrainingFinished,
    WorkerLeft,
)

pytestmark = pytest.mark.slow

FITS = 3
ONE = 466_944
"""Bytes of one adapter of this league's model, merged weights included; a wrong figure fails the tests."""

CONFIG = f"""
name = "nim"
seed = 3
game = {{ name = "nim", settings = {{ seats = 4, heaps = [2, 3] }} }}
agents.base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
agents.random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}
model.cloning = {{ sequences = 128 }}
rollout.games_in_flight = 8
inference.options = {{ adapter_bytes = {FITS * ONE + ONE // 2} }}
matchmaking.sampler = {{ name = "random" }}
schedule = {{ recent_every = 1, recent_window = 20, landmark_every = 4 }}
evaluation = {{ every = 4, gatekeeper_games = 4, benchmark_games = 4 }}
promotion.rule = "high_score"
trainer.rollouts_per_step = 8
stop.steps = 7
"""


class Line(msgspec.Struct):
    sequence: int
    event: msgspec.Raw


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("short")
    (folder / "league.toml").write_text(CONFIG)
    league(folder, "up", "--config", str(folder / "league.toml"))
    return folder


@pytest.fixture(scope="module")
def history(folder: Path) -> list[tuple[int, Event]]:
    lines = [msgspec.json.decode(line, type=Line) for line in league(folder, "events", "--json").splitlines()]
    return [(line.sequence, decode_event(bytes(line.event))) for line in lines]


def league(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "ui", *arguments, "--run", str(folder / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_it_says_how_many_there_is_memory_for_once_and_trains_to_its_end(history: list[tuple[int, Event]]) -> None:
    reduced = [event for _, event in history if isinstance(event, AdapterSlotsReduced)]
    assert {event.slots for event in reduced} == {FITS}
    assert "rollout-1" in {event.worker for event in reduced}
    assert len({event.key for event in reduced}) == len(reduced)
    assert all("adapter_bytes" in event.reason for event in reduced)
    assert [event.version for _, event in history if isinstance(event, TrainingFinished)] == [7]
    assert {event.reason for _, event in history if isinstance(event, WorkerLeft)} == {"done"}


def test_what_was_drawn_before_may_fail_for_want_of_memory_and_nothing_else_does(
    history: list[tuple[int, Event]],
) -> None:
    failed = [event for _, event in history if isinstance(event, MatchFailed)]
    assert all(event.error.startswith("MemoryShortError: ") for event in failed)
    training = [event for event in failed if event.purpose == "training"]
    played = [event for _, event in history if isinstance(event, MatchFinished) and event.purpose == "training"]
    assert len(training) <= 8 < 50 <= len(played)


def test_matches_drawn_from_then_on_need_no_more_and_every_draw_can_be_computed_again(
    history: list[tuple[int, Event]],
) -> None:
    state, at = LeagueState(), iter(history)
    draws = [event for _, event in history if isinstance(event, OpponentsSampled)]
    widest = {False: 0, True: 0}
    for event in sorted(draws, key=lambda event: event.standings_sequence):
        while state.sequence < event.standings_sequence:
            state.apply(*next(at))
        standings = state.standings()
        assert state.config is not None
        assert recompute_draw(event, standings, state.config).agrees
        distinct = len({pick.agent for pick in event.picks if "@" in pick.agent} - {event.hero})
        widest[standings.slots is not None] = max(widest[standings.slots is not None], distinct)
    assert widest[True] == FITS - 1
    assert state.standings().slots == FITS


def test_the_audit_and_the_replay_agree_with_what_was_recorded(folder: Path) -> None:
    async def audit() -> SamplingAudit:
        async with Run(folder / "run").open_log() as history:
            return await audit_sampling(history, 10)

    audited = asyncio.run(audit())
    assert audited.passed_over == 0
    assert audited.whole.recomputed == audited.whole.draws > 0
    assert "identical" in league(folder, "replay", "--verify")
    # Those who had said so have left.
    assert msgspec.json.decode(league(folder, "status", "--json"))["workers"] == []
