"""The active pool: never more than fit, the ones that matter always in it, and still while ratings only tremble."""

from collections.abc import Sequence
from math import inf, nan
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.matchmaking import pool
from league.matchmaking.schedule import has_expired, retirements
from league.state import LeagueState, LeagueStateSnapshot
from schemas import events as e
from schemas.config import (
    CheckpointScheduleConfig,
    EvaluationConfig,
    LeagueConfig,
    MatchmakingConfig,
    convert,
    to_builtins,
)
from schemas.errors import ConfigError
from tests.simulated_history import Simulation


class League:
    """A state that events are told to."""

    def __init__(self, most: int | None, **schedule: int) -> None:
        self.state = LeagueState()
        self.most = most
        self.schedule = CheckpointScheduleConfig(**{"recent_window": 10_000, **schedule})
        self.tell(e.LeagueOpened(league="t", config=to_builtins(self.config), model="m"))
        self.tell(e.AgentRegistered(agent="base_model", kind="base", baseline=True, rating=1000.0))

    @property
    def config(self) -> LeagueConfig:
        return LeagueConfig(schedule=self.schedule, matchmaking=MatchmakingConfig(max_active_adapters=self.most))

    def tell(self, *events: e.Event) -> None:
        for event in events:
            self.state.apply(self.state.sequence + 1, event)

    def configure(self, most: int | None) -> None:
        self.most = most
        self.tell(e.LeagueConfigured(config=to_builtins(self.config), config_digest="", after=self.state.sequence))

    def join(self, version: int, reason: str = "recent", policy: str = "main") -> None:
        joined = e.CheckpointAdded(
            agent=f"{policy}@{version}",
            policy=policy,
            version=version,
            parent="base_model",
            reason=reason,
            adapter=f"{version:064d}",
        )
        self.tell(joined)

    def rate(self, **ratings: float) -> None:
        changes = [e.RatingChange(name.replace("_", "@"), 0.0, rating) for name, rating in ratings.items()]
        number = self.state.sequence + 1
        update = e.RatingUpdated(
            match_id=f"w-{number}", match_sequence=number, game="diplomacy", system="elo", changes=changes
        )
        self.tell(update)

    def publish(self, version: int, policy: str = "main") -> None:
        self.tell(e.PolicyPublished(policy=policy, version=version, adapter="1" * 64, parent="x"))

    def settle(self) -> list[pool.PoolChange]:
        """Do what the pool says; nothing is left to be done then."""
        changes = pool.pool_changes(self.state)
        active = len(self.active)
        for change in changes:
            self.tell(change)
            assert self.most is None or len(self.active) <= max(self.most, active)
        assert pool.pool_changes(self.state) == []
        return changes

    @property
    def active(self) -> set[str]:
        return {agent.name for agent in self.state.checkpoints if agent.active}


def with_past(most: int | None = 4, versions: Sequence[int] = range(10, 100, 10)) -> League:
    """Checkpoints rated 100 points apart from each other; the live version stands at the last of them."""
    league = League(most)
    for version in versions:
        league.join(version)
        league.rate(**{f"main_{version}": 1000.0 + 10 * version})
    league.publish(95)
    return league


def test_without_a_bound_everybody_stays_active() -> None:
    league = with_past(most=None)
    assert league.settle() == []
    assert len(league.active) == 9


def test_the_newest_the_best_and_those_near_the_live_rating_are_active() -> None:
    league = with_past(most=4)
    league.rate(main_20=2500.0)
    changes = league.settle()
    assert league.active == {"main@90", "main@20", "main@80", "main@70"}
    assert {type(change) for change in changes} == {e.AgentRetired}
    assert all(change.resting for change in changes if isinstance(change, e.AgentRetired))
    assert changes[0].reason == "rests: 4 others of the active pool come before it"


def test_the_newest_is_active_even_alone() -> None:
    league = with_past(most=1)
    league.rate(main_20=2500.0)
    league.settle()
    assert league.active == {"main@90"}
    league.join(100)
    changes = league.settle()
    assert league.active == {"main@100"}
    assert [change.agent for change in changes] == ["main@90"]


def test_landmarks_are_spread_over_the_history_in_half_of_the_room() -> None:
    league = League(6)
    for version in range(100, 900, 100):
        league.join(version, "landmark")
        league.rate(**{f"main_{version}": 1000.0 + version})
    league.join(850)
    league.rate(main_850=1850.0)
    league.publish(860)
    league.settle()
    # Of the room beside the newest and best, 5, half is 2: every 400th version fits, and 800 and 700 are nearest.
    assert league.active == {"main@850", "main@400", "main@800", "main@700", "main@600", "main@500"}
    # When the history doubles, landmarks at twice the distance stay.
    for version in range(900, 1_700, 100):
        league.join(version, "landmark")
        league.rate(**{f"main_{version}": 1000.0 + version})
    league.publish(1_610)
    league.settle()
    assert {"main@1600", "main@800"} <= league.active
    assert "main@400" not in league.active


def test_the_newest_of_other_policies_has_a_place_after_the_best() -> None:
    league = with_past(most=3)
    league.rate(main_20=2500.0)
    league.join(5, policy="exploiter")
    league.settle()
    assert league.active == {"main@90", "main@20", "exploiter@5"}


def test_ratings_that_move_by_less_than_the_margin_change_nothing() -> None:
    league = with_past(most=4)
    league.settle()
    before, rng = league.active, Random(1)
    for _ in range(200):
        league.rate(
            **{f"main_{version}": 1000.0 + 10 * version + rng.uniform(-24, 24) for version in range(10, 100, 10)}
        )
        league.rate(main_95=1900.0 + rng.uniform(-1, 1))
        assert league.settle() == []
    assert league.active == before
    # One who is nearer to the live policy by more than the margin comes in.
    league.rate(main_10=1890.0)
    changes = league.settle()
    assert [(type(change).__name__, change.agent) for change in changes] == [
        ("AgentRetired", "main@60"),
        ("AgentActivated", "main@10"),
    ]
    assert changes[1].reason == "rated 10 points from main@95"


def test_a_bound_that_is_raised_or_lifted_brings_agents_back() -> None:
    league = with_past(most=2)
    league.settle()
    assert len(league.active) == 2
    league.configure(4)
    assert {type(change) for change in league.settle()} == {e.AgentActivated}
    assert len(league.active) == 4
    league.configure(None)
    league.settle()
    assert len(league.active) == 9


def test_who_has_left_the_schedule_is_never_activated_again() -> None:
    league = League(1, recent_window=30)
    for version in (10, 20, 30):
        league.join(version)
    league.publish(30)
    league.settle()
    assert league.active == {"main@30"}
    league.publish(45)
    gone = retirements(league.state, "main")
    assert [(event.agent, event.resting) for event in gone] == [("main@10", False)]
    # Before its leaving is recorded, and after, and when the schedule is longer again.
    league.configure(3)
    assert has_expired(league.state, league.state.agents["main@10"])
    assert [change.agent for change in pool.pool_changes(league.state)] == ["main@20"]
    league.tell(*gone)
    league.schedule = CheckpointScheduleConfig(recent_window=10_000)
    league.configure(None)
    league.settle()
    assert league.active == {"main@20", "main@30"}
    assert retirements(league.state, "main") == []


def test_a_promoted_agent_can_rest_and_come_back_any_number_of_times() -> None:
    league = with_past(most=2)
    league.settle()
    league.tell(e.CheckpointPromoted(agent="main@10", rating=1.0))
    assert "main@10" in league.active
    keys = [change.key for change in league.settle()]
    for most in (9, 2, 9, 2):
        league.configure(most)
        keys += [change.key for change in league.settle()]
    assert len(league.active) == 2
    assert len(keys) == len(set(keys)) > 25


def test_copies_of_changes_do_nothing() -> None:
    league = with_past(most=2)
    league.settle()
    league.configure(4)
    activations = pool.pool_changes(league.state)
    league.tell(*activations)
    league.configure(2)
    rests = league.settle()
    standings = league.state.standings()
    league.tell(*activations, *rests, *rests)
    assert league.state.standings() is standings
    unknown = e.AgentActivated(agent="nobody", reason="x", after=0)
    league.tell(unknown)
    assert league.state.standings() is standings


def test_two_raters_that_decide_at_once_decide_the_same_under_the_same_keys() -> None:
    league = with_past(most=2)
    changes = pool.pool_changes(league.state)
    # The second one has folded only some of what the first one recorded.
    for done in range(len(changes)):
        league.tell(changes[done])
        assert [change.key for change in pool.pool_changes(league.state)] == [c.key for c in changes[done + 1 :]]


def test_who_rests_and_since_when_survives_a_snapshot() -> None:
    league = with_past(most=2)
    league.settle()
    saved = msgspec.msgpack.encode(league.state.to_snapshot())
    again = LeagueState.from_snapshot(msgspec.msgpack.decode(saved, type=LeagueStateSnapshot))
    assert again.digest() == league.state.digest()
    league.configure(5)
    again.apply(
        league.state.sequence,
        e.LeagueConfigured(config=to_builtins(league.config), config_digest="", after=league.state.sequence),
    )
    assert pool.pool_changes(again) == pool.pool_changes(league.state) != []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    ratings=st.lists(st.sampled_from([*range(900, 1300, 10), nan, inf, -inf]), min_size=1, max_size=14),
    later=st.lists(st.tuples(st.integers(0, 13), st.integers(900, 1300)), max_size=6),
    landmarks=st.sets(st.integers(0, 13)),
    most=st.integers(1, 8),
    live=st.integers(900, 1300),
)
def test_the_pool_is_full_never_overfull_and_settles_at_once(
    ratings: list[float], later: list[tuple[int, int]], landmarks: set[int], most: int, live: int
) -> None:
    league = League(most)
    for place, rating in enumerate(ratings):
        league.join(100 * place, "landmark" if place in landmarks else "recent")
        if rating != 1000:
            league.rate(**{f"main_{100 * place}": float(rating)})
        league.settle()
    league.publish(5_000)
    league.rate(main_5000=float(live))
    league.settle()
    for place, rating in later:
        league.rate(**{f"main_{100 * min(place, len(ratings) - 1)}": float(rating)})
        league.settle()
    assert len(league.active) == min(most, len(ratings))
    assert f"main@{100 * (len(ratings) - 1)}" in league.active
    rated = {agent.rating for agent in league.state.checkpoints if agent.games and abs(agent.rating) < inf}
    if most > 1 and rated:
        best = max(agent.rating for agent in league.state.checkpoints if agent.active and abs(agent.rating) < inf)
        assert best >= max(rated) - pool.ACTIVE_MARGIN


def test_a_league_with_a_pool_never_draws_who_rests() -> None:
    config = LeagueConfig(
        seed=4,
        evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7),
        schedule=CheckpointScheduleConfig(recent_every=2, recent_window=20, landmark_every=5),
        matchmaking=MatchmakingConfig(max_active_adapters=3),
    )
    simulation, state, rested = Simulation(config), LeagueState(), 0
    for recorded in simulation.run(40, 2):
        event = recorded.event
        if isinstance(event, e.OpponentsSampled):
            agents = state.standings().agents
            assert len([agent for agent in agents.values() if agent.adapter and agent.active]) <= 3
            assert all(agents[pick.agent].active for pick in event.picks if pick.bucket != "mirror")
        rested += isinstance(event, e.AgentRetired) and event.resting
        state.apply(recorded.sequence, event)
    assert rested > 5


def test_a_pool_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_active_adapters: 0; expected 1 or more"):
        convert({"max_active_adapters": 0}, MatchmakingConfig, "matchmaking")
