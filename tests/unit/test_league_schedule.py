"""The geometric checkpoint schedule: first, recent, landmark, elite, and who leaves."""

import pytest

from league.schedule import joining, joins, promotions, retirements
from league.simulation import Simulation
from league.state import LeagueState
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, ScheduleConfig, plain

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7))


def state_with(*events: e.Event, config: LeagueConfig = CONFIG) -> LeagueState:
    state = LeagueState()
    opening = e.LeagueOpened(league="t", config=plain(config), model="m")
    base = e.AgentRegistered(agent="base_model", kind="base", baseline=True, rating=1000.0)
    for sequence, event in enumerate([opening, base, *events], start=1):
        state.apply(sequence, event)
    return state


def published(version: int, policy: str = "main") -> e.PolicyPublished:
    return e.PolicyPublished(policy=policy, version=version, adapter=f"{version:064d}", parent="base_model")


def added(version: int, reason: str, policy: str = "main") -> e.CheckpointAdded:
    return e.CheckpointAdded(
        agent=f"{policy}@{version}",
        policy=policy,
        version=version,
        parent="base_model",
        reason=reason,
        adapter="0" * 64,
    )


def evaluation(agent: str, ratings: dict[str, float], sequence: int) -> list[e.Event]:
    """A gatekeeper evaluation of one match, its rating, and its end."""
    slug = agent.replace("@", "-")
    seats = [e.SeatResult(seat, f"S{seat}", name, 1.0, 1) for seat, name in enumerate([agent, "base_model"])]
    return [
        e.EvaluationRequested(
            evaluation_id=slug, agent=agent, suite="gatekeepers", opponents=["base_model"], matches=[f"eval-{slug}-0"]
        ),
        e.MatchFinished(
            match_id=f"eval-{slug}-0",
            game="diplomacy",
            purpose="evaluation",
            worker="w",
            seed=0,
            seats=seats,
            winner=None,
            reason="",
            length=1,
            seconds=0.0,
            evaluation_id=slug,
        ),
        e.EvaluationFinished(
            evaluation_id=slug,
            agent=agent,
            suite="gatekeepers",
            opponents=["base_model"],
            games=1,
            failed=0,
            wins=0,
            mean_score=1.0,
            mean_rank=1.0,
        ),
        e.RatingUpdated(
            match_id=f"eval-{slug}-0",
            match_sequence=sequence,
            game="diplomacy",
            system="elo",
            changes=[e.RatingChange(name, 0.0, rating) for name, rating in ratings.items()],
        ),
    ]


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
    assert joins(state_with(added(1, "first")), "main", version) == reason


@pytest.mark.parametrize(("version", "reason"), [(0, None), (1, "first"), (7, "first"), (100, "first")])
def test_the_first_version_of_a_policy_always_joins(version: int, reason: str | None) -> None:
    assert joins(state_with(added(10, "first", policy="other")), "main", version) == reason


def test_a_version_joins_once_and_names_its_parent() -> None:
    state = state_with(added(1, "first"), added(10, "recent"))
    assert joins(state, "main", 10) is None
    event = joining(state, "main", 20, "f" * 64)
    assert event == e.CheckpointAdded(
        agent="main@20", policy="main", version=20, parent="main@10", reason="recent", adapter="f" * 64
    )
    first = joining(state, "second", 1, "f" * 64)
    assert first is not None
    assert first.parent == "base_model"


def test_intervals_are_configuration() -> None:
    config = LeagueConfig(schedule=ScheduleConfig(recent_every=3, landmark_every=12, recent_window=6))
    state = state_with(added(1, "first"), config=config)
    assert [joins(state, "main", v) for v in (3, 10, 12)] == ["recent", None, "landmark"]


def test_recents_retire_when_the_window_has_passed_them() -> None:
    joined = [added(1, "first"), added(10, "recent"), added(20, "recent"), added(100, "landmark")]
    state = state_with(*joined, published(109))
    assert retirements(state, "main") == []
    state.apply(50, published(110))
    assert [event.agent for event in retirements(state, "main")] == ["main@10"]
    for sequence, event in enumerate(retirements(state, "main"), start=51):
        state.apply(sequence, event)
    assert retirements(state, "main") == []
    state.apply(60, published(500))
    assert [event.agent for event in retirements(state, "main")] == ["main@20"]


def test_a_new_high_score_promotes_a_checkpoint_once() -> None:
    history = [added(1, "first"), *evaluation("main@1", {"main@1": 1010.0}, 4), added(10, "recent")]
    state = state_with(*history, *evaluation("main@10", {"main@10": 1020.0}, 9))
    assert promotions(state, "main@10") == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]
    state.apply(50, promotions(state, "main@10")[0])
    assert promotions(state, "main@10") == []
    assert retirements(state, "main") == []


def test_a_published_version_with_a_high_score_joins_as_elite() -> None:
    history = [published(5), added(1, "first"), *evaluation("main@1", {"main@1": 990.0}, 5)]
    state = state_with(*history, *evaluation("main@5", {"main@5": 1001.0}, 9))
    event = promotions(state, "main@5")[0]
    assert isinstance(event, e.CheckpointAdded)
    assert (event.reason, event.parent, event.adapter) == ("elite", "main@1", f"{5:064d}")


def test_without_a_new_high_score_nobody_is_promoted() -> None:
    history = [added(1, "first"), *evaluation("main@1", {"main@1": 1010.0}, 4), added(10, "recent")]
    assert promotions(state_with(*history, *evaluation("main@10", {"main@10": 1010.0}, 9)), "main@10") == []
    off = LeagueConfig(schedule=ScheduleConfig(elite=False))
    better = state_with(*history, *evaluation("main@10", {"main@10": 1500.0}, 9), config=off)
    assert promotions(better, "main@10") == []


def test_promotion_waits_for_the_last_rating_and_does_not_change_afterwards() -> None:
    requested, played, done, rated = evaluation("main@10", {"main@10": 1020.0}, 4)
    state = state_with(added(10, "recent"), requested, played, done)
    assert promotions(state, "main@10") == []
    state.apply(20, rated)
    assert len(promotions(state, "main@10")) == 1
    overtaken = e.RatingUpdated(
        match_id="x-1",
        match_sequence=30,
        game="diplomacy",
        system="elo",
        changes=[e.RatingChange("main@10", 1020.0, 500.0)],
    )
    state.apply(31, overtaken)
    assert promotions(state, "main@10") == [e.CheckpointPromoted(agent="main@10", rating=1020.0)]


def test_an_unrated_newer_checkpoint_does_not_stand_in_the_way() -> None:
    """It stands at the evaluated version's own rating, so it would tie with it."""
    history = [added(10, "first"), added(20, "recent"), *evaluation("main@10", {"main@10": 1020.0}, 6)]
    assert len(promotions(state_with(*history), "main@10")) == 1


def test_a_long_run_keeps_landmarks_elite_and_the_last_hundred_versions() -> None:
    simulation = Simulation(CONFIG, skill=lambda agent: 0.0)
    simulation.run(230, 1)
    active = [agent for agent in simulation.state.checkpoints if agent.active]
    kept = {agent.version for agent in active if agent.reason in ("recent", "landmark")}
    assert {100, 200} <= kept | {agent.version for agent in active if agent.reason == "elite"}
    assert all(agent.version > 130 for agent in active if agent.reason == "recent")
    assert {a.version for a in simulation.state.checkpoints} >= {1, *range(10, 231, 10)}
