"""Two runs side by side: what they share, what differs, and what does not compare."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from league.analysis.summary import wilson_interval
from league.history.compare import (
    RunComparison,
    align_curves,
    config_differences,
    last_shared_sequence,
    make_run_comparison,
    summarise_run,
)
from league.log.base import RecordedEvent
from league.plots.render import draw_comparison
from league.state import LeagueState
from schemas.codec import encode_event
from schemas.config import AgentConfig, EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, RemoteAgentConfig
from schemas.errors import ReplayError
from schemas.events import LeagueBranched
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))


def simulated(config: LeagueConfig = CONFIG, steps: int = 12) -> list[RecordedEvent]:
    return Simulation(config).run(steps, 2)


def shifted(records: list[RecordedEvent], at: int) -> list[RecordedEvent]:
    """A branch: the same up to ``at``, then other times."""
    branched = encode_event(LeagueBranched(origin="other", at=at, digest="d"))
    own = [RecordedEvent(r.sequence + 1, r.time_ns + 7, r.subject, r.producer, r.payload) for r in records[at:]]
    return [*records[:at], RecordedEvent(at + 1, 5, "league.league.league.branched", "branch", branched), *own]


def compared(first: list[RecordedEvent], second: list[RecordedEvent]) -> RunComparison:
    async def main() -> RunComparison:
        logs, states = [], []
        for records in (first, second):
            log, state = MemoryLog("league"), LeagueState()
            await log.copy(records)
            for recorded in records:
                state.apply(recorded.sequence, recorded.event)
            logs.append(log)
            states.append(state)
        sides = [
            await summarise_run(f"run{n}", log, state) for n, (log, state) in enumerate(zip(logs, states, strict=True))
        ]
        return make_run_comparison(*sides, (states[0], states[1]), await last_shared_sequence(*logs))

    return asyncio.run(main())


@pytest.fixture(scope="module")
def history() -> list[RecordedEvent]:
    return simulated()


@pytest.mark.parametrize("at", [1, 2, 57, 100])
def test_a_branch_is_placed_at_the_last_event_that_both_hold(history: list[RecordedEvent], at: int) -> None:
    made = compared(history, shifted(history, at))
    assert made.shared == at
    assert (made.second.branched_from, made.second.branched_at) == ("other", at)
    assert made.first.branched_from is None


def test_gaps_in_a_copied_history_do_not_hide_what_is_shared(history: list[RecordedEvent]) -> None:
    holes = [RecordedEvent(2 * r.sequence, r.time_ns, r.subject, r.producer, r.payload, r.schema) for r in history]
    for at in (40, 41):
        cut = [r if r.sequence <= 2 * at else RecordedEvent(r.sequence, 1, r.subject, "x", r.payload) for r in holes]
        assert compared(holes, cut).shared // 2 == at


def test_a_run_and_itself_are_one_and_the_same(history: list[RecordedEvent]) -> None:
    made = compared(history, history)
    assert made.shared == len(history)
    assert (made.configuration, made.notes) == ([], [])
    assert all(row.same and row.first_rating == row.second_rating for row in made.agents)


def test_runs_that_were_begun_apart_share_nothing(history: list[RecordedEvent]) -> None:
    apart = [RecordedEvent(r.sequence, r.time_ns + 1, r.subject, r.producer, r.payload) for r in history]
    assert compared(history, apart).shared == 0


def test_settings_that_differ_are_named_by_their_dotted_keys(history: list[RecordedEvent]) -> None:
    other = msgspec.structs.replace(
        CONFIG, ratings=RatingsConfig(system=Plugin(name="elo", settings={"k": 16})), seed=5
    )
    made = compared(history, simulated(other))
    assert [(d.key, d.first, d.second) for d in made.configuration] == [
        ("ratings.system.settings", {}, None),
        ("ratings.system.settings.k", None, 16),
        ("seed", 4, 5),
    ]
    assert made.notes == ["ratings are made by different rules, so they are not on one scale"]


def test_keys_that_only_one_configuration_has_are_differences() -> None:
    assert [d.key for d in config_differences({"a": {"b": 1}}, {"a": {"b": 1, "c": None}})] == ["a.c"]


def test_figures_are_those_of_the_state(history: list[RecordedEvent]) -> None:
    side = compared(history, history).first
    assert (side.steps, side.games["training"], side.failed) == (13, 26, 0)
    assert side.finished == "steps"
    assert side.best is not None
    assert side.best.startswith("main@")
    assert [(row.agent, row.games) for row in side.benchmarks] == [("base_model", 7), ("main@12", 7)]
    for row in side.benchmarks:
        assert (row.low, row.high) == wilson_interval(row.wins, row.games)
    assert side.curve.steps == [1, 5, 10, 12]


def test_agents_of_one_name_with_other_weights_are_not_the_same(history: list[RecordedEvent]) -> None:
    swapped = [
        RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, r.payload.replace(b'"adapter":"', b'"adapter":"0'))
        for r in history
    ]
    rows = {row.agent: row for row in compared(history, swapped).agents}
    assert not rows["main@10"].same
    assert rows["random_bot"].same
    assert rows["base_model"].same


def test_a_hosted_model_is_the_same_wherever_it_is_asked() -> None:
    def rows(**settings: Any) -> dict[str, bool]:
        remote = RemoteAgentConfig(**{"url": "http://one/v1", "model": "big", **settings})
        agents = {**CONFIG.agents, "gpt": AgentConfig(kind="remote", rating=1000.0, remote=remote)}
        other = msgspec.structs.replace(first, agents=agents)
        return {row.agent: row.same for row in compared(simulated(first, 2), simulated(other, 2)).agents}

    gpt = AgentConfig(kind="remote", rating=1000.0, remote=RemoteAgentConfig(url="http://one/v1", model="big"))
    first = msgspec.structs.replace(CONFIG, agents={**CONFIG.agents, "gpt": gpt})
    assert rows(url="http://other/v1", timeout_s=5.0)["gpt"]
    assert not rows(model="small")["gpt"]
    assert not rows(temperature=0.0)["gpt"]


def test_runs_of_different_games_are_shown_without_comparing_their_players(history: list[RecordedEvent]) -> None:
    nim = msgspec.structs.replace(CONFIG, game=Plugin(name="nim"))
    made = compared(history, simulated(nim))
    assert made.agents == []
    assert "different games (diplomacy, nim)" in made.notes[0]
    assert made.second.benchmarks
    assert "game.name" in {difference.key for difference in made.configuration}


def test_curves_stand_side_by_side_by_step(history: list[RecordedEvent]) -> None:
    made = compared(history, simulated(steps=7))
    rows = align_curves(made.first.curve, made.second.curve)
    assert [row[0] for row in rows] == [1, 5, 7, 10, 12]
    assert (rows[2][1], rows[3][2]) == (None, None)
    assert rows[1][1] == made.first.curve.hero[1]


def test_a_history_without_a_configuration_is_refused() -> None:
    with pytest.raises(ReplayError, match="run0: its history holds no configuration"):
        compared([], [])


def test_both_curves_are_drawn(history: list[RecordedEvent], tmp_path: Path) -> None:
    made = compared(history, simulated(steps=7))
    draw_comparison({"one": made.first.curve, "two": made.second.curve}, tmp_path / "both.png")
    draw_comparison({}, tmp_path / "none.png")
    assert (tmp_path / "both.png").read_bytes()[:8] == (tmp_path / "none.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "both.png").stat().st_size > (tmp_path / "none.png").stat().st_size


def test_the_comparison_can_be_written_as_json(history: list[RecordedEvent]) -> None:
    value = msgspec.json.decode(msgspec.json.encode(compared(history, simulated(steps=3))))
    assert (value["first"]["run"], value["second"]["steps"]) == ("run0", 4)
