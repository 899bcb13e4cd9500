"""The geometric checkpoint schedule: first, recent, landmark, elite, and who leaves."""

import pytest

from league.matchmaking.schedule import admission_reason, make_checkpoint_added, retirements
from league.state import LeagueState
from schemas import events as e
from schemas.config import CheckpointScheduleConfig, EvaluationConfig, LeagueConfig, to_builtins
from tests.builders import checkpoint_added, fold_events, policy_published
from tests.simulated_history import Simulation

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7))


def state_with(*events: e.Event, config: LeagueConfig = CONFIG) -> LeagueState:
    opening = e.LeagueOpened(league="t", config=to_builtins(config), model="m")
    base = e.AgentRegistered(agent="base_model", kind="base", baseline=True, rating=1000.0)
    return fold_events(opening, base, *events)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (0, None),
        (2, None),
        (9, None),
        (10, "recent"),
        (50, "recent"),
        (100, "landmark"),
        (1000, "landmark"),
        (1001, None),
    ],
)
def test_later_versions_join_by_their_number(version: int, reason: str | None) -> None:
    assert admission_reason(state_with(checkpoint_added(1, "first")), "main", version) == reason


@pytest.mark.parametrize(("version", "reason"), [(0, None), (1, "first"), (7, "first"), (100, "first")])
def test_the_first_version_of_a_policy_always_joins(version: int, reason: str | None) -> None:
    assert admission_reason(state_with(checkpoint_added(10, "first", policy="other")), "main", version) == reason


def test_a_version_joins_once_and_names_its_parent() -> None:
    state = state_with(checkpoint_added(1, "first"), checkpoint_added(10, "recent"))
    assert admission_reason(state, "main", 10) is None
    assert admission_reason(state, "main", 20) == "recent"
    event = make_checkpoint_added(state, "main", 20, "f" * 64, "recent")
    assert event == e.CheckpointAdded(
        agent="main@20", policy="main", version=20, parent="main@10", reason="recent", adapter="f" * 64
    )
    assert make_checkpoint_added(state, "second", 1, "f" * 64, "first").parent == "base_model"


def test_intervals_are_configuration() -> None:
    config = LeagueConfig(schedule=CheckpointScheduleConfig(recent_every=3, landmark_every=12, recent_window=6))
    state = state_with(checkpoint_added(1, "first"), config=config)
    assert [admission_reason(state, "main", v) for v in (3, 10, 12)] == ["recent", None, "landmark"]


def test_recents_retire_when_the_window_has_passed_them() -> None:
    joined = [
        checkpoint_added(1, "first"),
        checkpoint_added(10, "recent"),
        checkpoint_added(20, "recent"),
        checkpoint_added(100, "landmark"),
    ]
    state = state_with(*joined, policy_published(109))
    assert retirements(state, "main") == []
    state.apply(50, policy_published(110))
    assert [event.agent for event in retirements(state, "main")] == ["main@10"]
    for sequence, event in enumerate(retirements(state, "main"), start=51):
        state.apply(sequence, event)
    assert retirements(state, "main") == []
    state.apply(60, policy_published(500))
    assert [event.agent for event in retirements(state, "main")] == ["main@20"]


def test_a_long_run_keeps_landmarks_elite_and_the_last_hundred_versions() -> None:
    simulation = Simulation(CONFIG, skill=lambda agent: 0.0)
    simulation.run(230, 1)
    active = [agent for agent in simulation.state.checkpoints if agent.active]
    kept = {agent.version for agent in active if agent.reason in ("recent", "landmark")}
    assert {100, 200} <= kept | {agent.version for agent in active if agent.reason == "elite"}
    assert all(agent.version > 130 for agent in active if agent.reason == "recent")
    assert {a.version for a in simulation.state.checkpoints} >= {1, *range(10, 231, 10)}
