"""A foreign registry becomes events, or is refused with the place of what is wrong."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from league.history.registry_import import (
    ImportedRegistry,
    imported_events,
    merge_baselines,
    parse_registry,
    read_registry,
)
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas import events as e
from schemas.config import LeagueConfig, RatingsConfig, to_builtins
from schemas.errors import UsageError

BASE = {"type": "baseline", "elo": 1000, "matches": 0, "path": None}
V40 = {"type": "checkpoint", "elo": 1100, "path": "run/v40", "step": 40, "created_at": "2025-12-06T10:00:00"}
V50 = {"type": "checkpoint", "elo": 1200.5, "path": "run/v50", "step": 50, "parent": "v40"}
WHOLE: dict[str, Any] = {
    "agents": {"base_model": BASE, "random_bot": {**BASE, "elo": 750}, "v50": V50, "v40": V40},
    "history": [{"step": 50, "p1": "v50", "p2": "v40", "result": 1}, {"p1": "v40", "p2": "random_bot", "result": 0.5}],
    "metadata": {"run_name": "grpo", "best_agent": "v50"},
}


def registry(**changes: Any) -> ImportedRegistry:
    return parse_registry(json.dumps({**WHOLE, **changes}).encode(), "league.json")


def agents(**changes: Any) -> dict[str, Any]:
    return {"agents": {**WHOLE["agents"], **changes}}


def result_of(result: Any) -> tuple[float, float]:
    first, second = registry(history=[{"p1": "v50", "p2": "v40", "result": result}]).history[0].seats
    return first.score, second.score


def events(told: ImportedRegistry, config: LeagueConfig, **adapters: str) -> list[e.Event]:
    return [event for event, _ in imported_events(told, config, adapters)]


def folded(told: ImportedRegistry, config: LeagueConfig, **adapters: str) -> tuple[LeagueState, RatingFold]:
    opening = [e.LeagueOpened(league="x", config=to_builtins(config), model="none")]
    joining = [
        e.AgentRegistered(agent=name, kind=agent.kind, baseline=agent.baseline, rating=agent.rating)
        for name, agent in config.agents.items()
    ]
    state, fold = LeagueState(), RatingFold()
    for sequence, event in enumerate([*opening, *joining, *events(told, config, **adapters)], 1):
        state.apply(sequence, event)
        for update in fold.apply(sequence, event):
            assert update.changes
    return state, fold


def test_baselines_override_the_configured_agents() -> None:
    config = merge_baselines(LeagueConfig(), registry())
    assert config.agents["random_bot"].rating == 750.0
    assert (config.agents["base_model"].kind, config.agents["base_model"].rating) == ("base", 1000.0)
    assert config.agents["chaos_bot"].rating == LeagueConfig().agents["chaos_bot"].rating


def test_agents_stand_where_the_registry_says_and_those_without_adapter_are_retired() -> None:
    config = merge_baselines(LeagueConfig(), registry())
    state, _ = folded(registry(), config, v50="a" * 64)
    table = state.standings().agents
    assert (table["main@50"].rating, table["main@50"].active, table["main@50"].reason) == (1200.5, True, "elite")
    assert (table["main@40"].rating, table["main@40"].active, table["main@40"].reason) == (1100.0, False, "first")
    assert state.published["main"][50].adapter == "a" * 64
    assert 40 not in state.published["main"]
    live = state.live_version("main")
    assert live is not None
    assert (live.version, live.rating) == (50, 1200.5)
    retired = [event for event in events(registry(), config, v50="a") if isinstance(event, e.AgentRetired)]
    assert [(event.agent, event.reason) for event in retired] == [("main@40", "imported without its adapter")]


def test_events_keep_parents_times_and_the_origin() -> None:
    told = list(imported_events(registry(), LeagueConfig(), {"v40": "a", "v50": "b"}))
    added = [(event, time) for event, time in told if isinstance(event, e.CheckpointAdded)]
    assert [(event.agent, event.parent) for event, _ in added] == [("main@40", "base_model"), ("main@50", "main@40")]
    assert [time for _, time in added] == [1_765_015_200_000_000_000, None]
    first = told[0][0]
    assert isinstance(first, e.HistoryImported)
    assert (first.source, first.agents, first.matches) == ("league.json", 4, 2)
    assert first.metadata["run_name"] == "grpo"
    assert first.metadata["imported_names"] == {"v40": "main@40", "v50": "main@50"}


def test_matches_are_recorded_as_imported_and_move_no_rating_unless_told() -> None:
    config = merge_baselines(LeagueConfig(), registry())
    state, _ = folded(registry(), config, v50="a")
    assert (state.finished_matches("imported"), state.finished_matches()) == (2, 2)
    matches = [event for event in events(registry(), config) if isinstance(event, e.MatchFinished)]
    assert [seat.agent for seat in matches[0].seats] == ["main@50", "main@40"]
    assert ([seat.score for seat in matches[0].seats], [seat.rank for seat in matches[0].seats]) == ([1, 0], [1, 2])
    assert (matches[0].winner, matches[1].winner, matches[0].purpose) == (0, None, "imported")
    assert matches[0].seats[0].metrics == {"step": 50.0}

    counting = LeagueConfig(agents=config.agents, ratings=RatingsConfig(purposes=("imported",)))
    fold, updates = RatingFold(amend=lambda _: counting.ratings), []
    for sequence, event in enumerate(events(registry(), counting, v50="a"), 1):
        updates += fold.apply(sequence, event)
    assert [update.match_id for update in updates] == ["import-0", "import-1"]
    before = {change.agent: change.before for change in updates[0].changes}
    assert before == {"main@50": 1200.5, "main@40": 1100.0}


@pytest.mark.parametrize(
    ("result", "scores"),
    [
        (1, (1.0, 0.0)),
        (0.5, (0.5, 0.5)),
        (0, (0.0, 1.0)),
        ("p1", (1.0, 0.0)),
        ("loss", (0.0, 1.0)),
        ("draw", (0.5, 0.5)),
        ({"v40": 7, "v50": 3}, (3.0, 7.0)),
        ([2.5, 9], (2.5, 9.0)),
    ],
)
def test_every_form_of_a_result_is_understood(result: Any, scores: tuple[float, float]) -> None:
    assert result_of(result) == scores


@pytest.mark.parametrize(
    "result", [None, 2, -1, True, float("nan"), "maybe", [1], [1, 2, 3], [1, "2"], [1, float("inf")], {"v50": 1}, {}]
)
def test_any_other_result_is_refused_with_its_place(result: Any) -> None:
    with pytest.raises(UsageError, match=r"history\[0\]\.result(\[1\])?: .*; expected (1, 0\.5 or 0|a finite number)"):
        result_of(result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": None}, "agents: expected `object`, got `null`"),
        ({"agents": []}, "agents: expected `object`, got `array`"),
        (agents(v50={**V50, "elo": float("nan")}), "agents.v50.elo: nan; expected a finite number"),
        (agents(v50={**V50, "elo": "high"}), "agents.v50.elo: expected `float`, got `str`"),
        (agents(v50={**V50, "elo": True}), "agents.v50.elo: expected `float`, got `bool`"),
        (agents(v50={**V50, "step": None}), "agents.v50.step: expected `int`, got `null`"),
        (agents(v50={**V50, "step": 1.5}), "agents.v50.step: expected `int`, got `float`"),
        (agents(v50={**V50, "step": -1}), "agents.v50.step: -1; expected 0 to"),
        (agents(v50={**V50, "step": 40}), "agents.v40.step: 40 is also the step of 'v50'"),
        (agents(v50={**V50, "path": 3}), "agents.v50.path: expected `str | null`, got `int`"),
        (agents(v50={**V50, "parent": "v30"}), "agents.v50.parent: 'v30' is not among the agents; expected"),
        (agents(v50={**V50, "created_at": "..."}), "agents.v50.created_at: found '...'; expected a time"),
        (agents(v50={**V50, "type": "human"}), "agents.v50.type: found 'human'; expected 'baseline' or 'checkpoint'"),
        (agents(v50=7), "agents.v50: expected `object`, got `int`"),
        (agents(**{"a bot": BASE}), "agents.a bot: 'a bot' cannot be a name"),
        (agents(**{"": V50 | {"step": 60}}), "the empty name"),
        ({"history": {}}, "history: expected `array`, got `object`"),
        ({"history": [5]}, "history[0]: expected `object`, got `int`"),
        (
            {"history": [*WHOLE["history"], {"p1": "v50", "p2": "ghost", "result": 1}]},
            "history[2].p2: 'ghost' is not among the agents",
        ),
        ({"history": [{"p2": "v50", "result": 1}]}, "history[0]: object missing required field `p1`"),
        (
            {"history": [{"p1": "v50", "p2": "v40", "result": 1, "step": "x"}]},
            "history[0].step: expected `int | null`, got `str`",
        ),
        ({"metadata": "none"}, "metadata: expected `object`, got `str`"),
        (
            {"metadata": {"released_from": {"version": "0.1.0", "schema": 1}}},
            "a release written by version '0.1.0' (events of schema 1); expected schema 2: import it with that "
            "version of event-sourced-league, or take a newer release",
        ),
        (
            {"metadata": {"released_from": {"version": "0.9.0", "schema": 9}}},
            "a release written by version '0.9.0' (events of schema 9); expected schema 2: import it with that "
            "version of event-sourced-league, or upgrade this one",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        registry(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"agents": {}, "metadata": {"a": "\\ud800"}}', "cannot be recorded"),
        (b"[]", "the file: found []; expected a table"),
        (b'{"agents": {"a": {"type": "baseline", "elo": 1}, "a": {}}}', "the name 'a' occurs twice"),
    ],
)
def test_a_file_that_is_no_registry_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_registry(data, "league.json")
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json: cannot be read"):
        read_registry(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json: agents: expected `object`, got `null`"):
        read_registry(tmp_path / "bad.json")


def test_a_file_without_history_and_metadata_is_whole() -> None:
    told = parse_registry(json.dumps({"agents": {"base_model": BASE}}).encode(), "league.json")
    assert (told.history, told.metadata, told.checkpoints) == ([], {}, [])


POWERS = ("AUSTRIA", "ENGLAND", "FRANCE", "GERMANY", "ITALY", "RUSSIA", "TURKEY")
SEVEN = {
    "game_id": "g-1",
    "step": 50,
    "power_agents": dict.fromkeys(POWERS, "dumb_bot") | {"FRANCE": "run/adapter_v50"},
    "scores": dict.fromkeys(POWERS, 1.0) | {"FRANCE": 12.5},
    "rankings": dict.fromkeys(POWERS, 2) | {"FRANCE": 1},
    "num_years": 5,
    "winner": "run/adapter_v50",
}
AS_WRITTEN = {
    "agents": {
        "base_model": {**BASE, "mu": 25.0, "sigma": 25 / 3},
        "dumb_bot": {**BASE, "elo": 850.0, "mu": 21.25, "sigma": 25 / 3},
        "run/adapter_v50": {**V50, "parent": None, "elo": 1000.0, "mu": 31.0, "sigma": 2.0, "matches": 40},
    },
    "history": [SEVEN],
    "metadata": {"run_name": "grpo", "best_mu": 31.0, "best_agent": "run/adapter_v50", "latest_step": 50},
}


def test_a_registry_as_league_training_writes_it_is_read() -> None:
    told = parse_registry(json.dumps(AS_WRITTEN).encode(), "league.json")
    assert {baseline.name: baseline.elo for baseline in told.baselines} == {"base_model": 1000.0, "dumb_bot": 850.0}
    assert told.checkpoints[0].elo == 1240.0
    told = msgspec.structs.replace(told, outsiders=["dumb_bot"])
    config = merge_baselines(LeagueConfig(), told)
    assert "dumb_bot" not in config.agents
    state, _ = folded(told, config, **{"run/adapter_v50": "a" * 64})
    assert state.standings().agents["dumb_bot@0"].kind == "external"
    (match,) = [event for event in events(told, config) if isinstance(event, e.MatchFinished)]
    assert [seat.role for seat in match.seats] == list(POWERS)
    assert [seat.agent for seat in match.seats][1:4] == ["dumb_bot@0", "main@50", "dumb_bot@0"]
    assert (match.winner, match.length, [seat.rank for seat in match.seats][:3]) == (2, 5, [2, 2, 1])


def test_the_form_of_a_registry_can_be_told() -> None:
    flat = json.dumps({"agents": {"path": "a", "elo": 1000}}).encode()
    assert [one.name for one in parse_registry(flat, "league.json", "flat").checkpoints] == ["agents"]
    with pytest.raises(UsageError, match="agents"):
        parse_registry(flat, "league.json")
    with pytest.raises(UsageError, match="--format json: expected 'flat' or 'league-training'"):
        parse_registry(flat, "league.json", "json")


def test_a_flat_registry_is_read() -> None:
    flat = {"random_bot": {"elo": 800}, "gen_2": {"type": "ppo", "path": "b", "elo": 1100.0, "games": 3}}
    told = parse_registry(json.dumps(flat | {"gen_1": {"path": "a", "elo": 1000}}).encode(), "league.json")
    assert [(one.name, one.step, one.elo, one.path) for one in told.checkpoints] == [
        ("gen_1", 1, 1000.0, "a"),
        ("gen_2", 2, 1100.0, "b"),
    ]
    assert [baseline.name for baseline in told.baselines] == ["random_bot"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"gen_1": {"path": "a"}}, "gen_1: found .*; the file is a flat registry, with an entry for each generation"),
        ({"gen_1": {"path": "a", "elo": 1}, "gen_2": 3}, "gen_2: found 3; the file is a flat registry"),
        (
            AS_WRITTEN | {"history": [SEVEN | {"scores": {"FRANCE": 1.0}}]},
            r"history\[0\]: a match of League Training; .* expected an agent and a score for each power",
        ),
        (
            AS_WRITTEN | {"history": [SEVEN | {"power_agents": dict.fromkeys(POWERS, "gone")}]},
            r"history\[0\]\.seats\.AUSTRIA: 'gone' is not among the agents",
        ),
    ],
)
def test_what_is_nearly_a_known_registry_is_named(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_registry(json.dumps(value).encode(), "league.json")
