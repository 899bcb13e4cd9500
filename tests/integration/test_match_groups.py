"""``rollout.group_size``: matches of one start, seat and line-up are compared, in a league of real processes."""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from league.log.base import RecordedEvent
from league.matchmaking.matchmaker import recompute_draw
from league.state import LeagueState
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, OpponentsSampled, WorkerJoined
from schemas.ids import policy_of
from tests.forks import ForkedCommand
from tests.integration.conftest import League
from workers.process import THREAD_ENVIRONMENT

ROOT = Path(__file__).parents[2]
SIZE = 4


def settings_with_groups(folder: Path, steps: int = 3) -> Path:
    text = (ROOT / "configs" / "nim-tiny.toml").read_text()
    text = text.replace("games_in_flight = 8", f"games_in_flight = 8\ngroup_size = {SIZE}")
    text = text.replace("rollouts_per_step = 8", 'rollouts_per_step = 16\nadvantage = { name = "group_relative" }')
    text = text.replace("settings = { seats = 3, heaps = [2, 3] }", "settings = { seats = 3, heaps = [3, 4, 5] }")
    settings = folder / "groups.toml"
    settings.write_text(text.replace("steps = 3", f"steps = {steps}"))
    return settings


def group_of(match_id: str) -> tuple[str, int]:
    """Worker and number of a match's group."""
    worker, _, index = match_id.rpartition("-")
    return worker, int(index) // SIZE


def test_members_of_a_group_agree_and_have_advantages_and_a_new_size_loses_none(
    league_up: Callable[[Path, Path], League], tmp_path: Path
) -> None:
    league = league_up(tmp_path / "run", settings_with_groups(tmp_path, steps=100_000))
    taken = sum(isinstance(recorded.event, GradientStepTaken) for recorded in league.wait_for_steps(1))
    settings = f"rollout.group_size={2 * SIZE}", f"stop.steps={taken + 10}"
    command = ["config", "set", *settings, "--run", str(league.run)]
    changing = ForkedCommand(command, tmp_path / "set.out", tmp_path / "set.err")
    changing.wait(600)
    assert changing.returncode == 0, (tmp_path / "set.err").read_text()
    league.finish()
    history = league.history()
    events = [recorded.event for recorded in history]
    draws = {event.match_id: event for event in events if isinstance(event, OpponentsSampled)}
    finished = {event.match_id: event for event in events if isinstance(event, MatchFinished)}
    groups = defaultdict(set)
    for match_id, draw in draws.items():
        if match_id not in finished:
            continue
        match = finished[match_id]
        mirrors = {pick.seat for pick in draw.picks if pick.bucket == "mirror"} | {draw.hero_seat}
        seats = [policy_of(seat.agent) if seat.seat in mirrors else seat.agent for seat in match.seats]
        groups[match.seed].add((draw.hero_seat, draw.draw, tuple(seats)))
    assert len(groups) >= 12
    assert all(len(members) == 1 for members in groups.values())
    steps = [event for event in events if isinstance(event, GradientStepTaken)]
    sizes = set()
    for step in steps:
        sizes |= set(Counter(finished[match_id].seed for match_id in step.matches).values())
        assert step.metrics["members_late"] == step.metrics["groups_given_up"] == 0
    assert sizes == {SIZE, 2 * SIZE}
    assert sum(step.metrics["zero_advantage_share"] for step in steps) / len(steps) < 0.9
    check_draws(history)


def check_draws(history: list[RecordedEvent]) -> None:
    """Every draw can be computed again, from the configuration in force when its group began."""
    state, rest = LeagueState(), iter(history)
    draws = [recorded.event for recorded in history if isinstance(recorded.event, OpponentsSampled)]
    for draw in sorted(draws, key=lambda draw: draw.standings_sequence):
        while state.sequence < draw.standings_sequence:
            recorded = next(rest)
            state.apply(recorded.sequence, recorded.event)
        assert state.config is not None
        assert recompute_draw(draw, state.standings(), state.config).agrees


def matches_of(history: list[RecordedEvent], kind: type) -> list[str]:
    return [recorded.event.match_id for recorded in history if isinstance(recorded.event, kind)]


@pytest.mark.slow
def test_a_worker_that_is_killed_within_a_group_leaves_no_part_of_it_to_be_compared(
    league_up: Callable[[Path, Path], League], tmp_path: Path
) -> None:
    league = league_up(tmp_path / "run", settings_with_groups(tmp_path, steps=12))
    killed: set[int] = set()
    for wanted in (1, 4, 7):
        joined = {
            r.event.worker: r.event.pid for r in league.wait_for_steps(wanted) if isinstance(r.event, WorkerJoined)
        }
        assert psutil.Process(joined["rater-1"]).environ().items() >= THREAD_ENVIRONMENT.items()
        for worker in ("rollout-1", "trainer-1"):
            if joined[worker] not in killed:
                os.kill(joined[worker], signal.SIGKILL)
                killed.add(joined[worker])
    out, _ = league.finish()
    assert "identical" in out
    history = league.history()
    failed = {group_of(match_id) for match_id in matches_of(history, MatchFailed)}
    drawn = {group_of(match_id) for match_id in matches_of(history, OpponentsSampled)}
    assert failed, "each kill meets matches that are being played"
    steps = [recorded.event for recorded in history if isinstance(recorded.event, GradientStepTaken)]
    assert [step.step for step in steps] == list(range(1, 13))
    trained: dict[tuple[str, int], int] = defaultdict(int)
    for step in steps:
        of_step: dict[tuple[str, int], int] = defaultdict(int)
        for match_id in step.matches:
            of_step[group_of(match_id)] += 1
        assert all(group not in trained for group in of_step), "a group is trained on in one step"
        # Members that failed count as there, so that the others need not wait for them.
        assert all(count == SIZE or group in failed for group, count in of_step.items())
        trained |= of_step
    assert trained.keys() <= drawn
