"""Adapter slots: a match never needs more than there are, and every seat still meets whom the sampler says."""

from collections import Counter
from random import Random

import msgspec
import pytest

from league.matchmaking.audit import total_variation
from league.matchmaking.matchmaker import make_match, recompute_draw
from league.matchmaking.pool import fit_to_slots
from league.samplers import bucket_shares, make_sampler
from league.state import LeagueState
from schemas import events as e
from schemas.config import (
    CheckpointScheduleConfig,
    EvaluationConfig,
    InferenceConfig,
    LeagueConfig,
    MatchmakingConfig,
    Plugin,
)
from schemas.events import OpponentPick, OpponentsSampled
from schemas.ids import digest
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.simulated_history import Simulation

BOTS = ("random_bot", "chaos_bot")


def config(slots: int, **sampler: object) -> LeagueConfig:
    return LeagueConfig(
        inference=InferenceConfig(max_adapters=slots),
        matchmaking=MatchmakingConfig(sampler=Plugin(name="pfsp", settings=sampler)),
    )


def checkpoint(version: int, rating: float) -> Agent:
    adapter = digest(str(version).encode())
    return Agent(f"main@{version}", "checkpoint", rating, 9, adapter=adapter, policy="main", version=version)


def league(policies: tuple[str, ...] = ("main",)) -> Standings:
    """Four peers, bots, and one agent that alone is exploitable, so that careless clones would shift the shares."""
    agents = [
        *(Agent(name, "bot", 800.0, 9, baseline=True) for name in BOTS),
        Agent("base_model", "base", 1000.0, 9, baseline=True),
        *(checkpoint(version, 1180.0 + version) for version in (10, 20, 30, 40)),
        checkpoint(50, 700.0),
    ]
    live = {policy: LivePolicy(policy, 200, digest(policy.encode()), 1200.0) for policy in policies}
    return Standings(7, {agent.name: agent for agent in agents}, live, {"main": {"main@50": WinLoss(1, 0, 5)}})


def needed(match_seats: list[str], table: Standings) -> set[str]:
    """Adapters that a match needs."""
    live = {f"{one.policy}@{one.version}": one.adapter for one in table.live.values()}
    found = {table.agents[name].adapter if name in table.agents else live[name] for name in match_seats}
    return {adapter for adapter in found if adapter is not None}


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 6])
def test_a_match_never_needs_more_adapters_than_there_are_slots(slots: int) -> None:
    table, given = league(), config(slots)
    most = 0
    for index in range(500):
        match, sampled = make_match(table, given, "w", index, 7)
        most = max(most, len(needed(match.seats, table)))
        assert recompute_draw(sampled, table, given).agrees
        assert all(match.seats[pick.seat] == pick.agent for pick in sampled.picks)
    assert most == min(slots, 6)


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_shares_stay_on_target_where_slots_are_short(slots: int) -> None:
    table, given = league(), config(slots)
    sampler, rng = make_sampler(given.matchmaking.sampler), Random(3)
    seats: list[Counter[str]] = [Counter() for _ in range(6)]
    buckets = Counter[str]()
    for _ in range(12_000):
        picks = fit_to_slots(sampler.sample(table, "main", range(6), rng), table, given, "main")
        for index, pick in enumerate(picks):
            seats[index][pick.agent] += 1
            buckets[pick.bucket] += 1
    realised = {bucket: count / buckets.total() for bucket, count in buckets.items()}
    assert total_variation(bucket_shares(sampler.distribution(table, "main")), realised) <= 0.01
    target = Counter[str]()
    for bucket in sampler.distribution(table, "main").values():
        for agent, probability in bucket.probabilities().items():
            target[agent] += bucket.share * probability
    for counts in seats:
        assert total_variation(target, {agent: count / counts.total() for agent, count in counts.items()}) <= 0.02


def test_bots_and_the_mirror_are_never_replaced() -> None:
    table, given, sampler = league(), config(2), make_sampler(Plugin(name="pfsp"))
    for seed in range(300):
        drawn = sampler.sample(table, "main", range(6), Random(seed))
        dealt = fit_to_slots(drawn, table, given, "main")
        for before, after in zip(drawn, dealt, strict=True):
            if before.agent in (*BOTS, "base_model", "main@200"):
                assert after == before
            else:
                assert after.agent.startswith("main@")
                assert after.seat == before.seat


def test_draws_that_fit_are_left_as_they_are() -> None:
    table, sampler = league(), make_sampler(Plugin(name="pfsp"))
    few = make_sampler(Plugin(name="pfsp", settings={"max_distinct": 2}))
    for seed in range(200):
        for given, one in ((config(7), sampler), (config(3), few)):
            drawn = one.sample(table, "main", range(6), Random(seed))
            assert fit_to_slots(drawn, table, given, "main") == drawn


def test_another_policys_live_version_takes_a_slot_and_the_heros_own_does_not() -> None:
    table = league(("main", "other"))
    picks = [
        OpponentPick(1, "main@200", "mirror"),
        OpponentPick(2, "other@200", "live"),
        OpponentPick(3, "main@10", "peers"),
    ]
    assert fit_to_slots(picks, table, config(3), "main") == picks
    assert [pick.agent for pick in fit_to_slots(picks, table, config(2), "main")] == [
        "main@200",
        "other@200",
        "other@200",
    ]


def test_a_league_short_of_slots_and_with_a_pool_records_draws_that_can_be_computed_again() -> None:
    given = LeagueConfig(
        seed=4,
        inference=InferenceConfig(max_adapters=2),
        schedule=CheckpointScheduleConfig(recent_every=2, recent_window=20, landmark_every=5),
        evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7),
        matchmaking=MatchmakingConfig(sampler=Plugin(name="random"), max_active_adapters=4),
    )
    simulation, state = Simulation(given), LeagueState()
    draws = [r.event for r in simulation.run(20, 3) if isinstance(r.event, OpponentsSampled)]
    records = iter(simulation.history)
    cloned = 0
    for event in sorted(draws, key=lambda event: event.standings_sequence):
        while state.sequence < event.standings_sequence:
            recorded = next(records)
            state.apply(recorded.sequence, recorded.event)
        table = state.standings()
        assert recompute_draw(event, table, given).agrees
        free = msgspec.structs.replace(given, inference=InferenceConfig(max_adapters=16))
        cloned += not recompute_draw(event, table, free).agrees
    assert cloned > 10


def worker(name: str, incarnation: str = "a") -> e.WorkerJoined:
    return e.WorkerJoined(worker=name, role="rollout", incarnation=incarnation, host="h", pid=1, version="1")


def reduced(name: str, slots: int, incarnation: str = "a") -> e.AdapterSlotsReduced:
    return e.AdapterSlotsReduced(worker=name, incarnation=incarnation, slots=slots, reason="memory")


def left(name: str, incarnation: str = "a") -> e.WorkerLeft:
    return e.WorkerLeft(worker=name, incarnation=incarnation, reason="done")


def test_slots_are_those_of_the_worker_with_the_least_memory_and_come_back_when_it_leaves() -> None:
    simulation = Simulation(LeagueConfig())
    simulation.open()
    told = []
    for event in (
        worker("a"),
        worker("b"),
        reduced("a", 5),
        reduced("b", 3),
        reduced("b", 2),
        reduced("nobody", 1),
        reduced("a", 1, "of another start"),
        left("b"),
        worker("a", "of another start"),
        reduced("a", 0, "of another start"),
        e.LeagueBranched(origin="o", at=3, digest=""),
    ):
        simulation.append(event)
        told.append(simulation.state.standings().slots)
        again = LeagueState.from_snapshot(simulation.state.to_snapshot())
        assert again.standings() == simulation.state.standings()
        assert again.digest() == simulation.state.digest()
    assert told == [None, None, 5, 3, 2, 2, 2, 5, None, 1, None]


def test_standings_stay_the_same_object_while_workers_with_memory_enough_come_and_go() -> None:
    simulation = Simulation(LeagueConfig())
    simulation.open()
    before = simulation.state.standings()
    for event in (worker("a"), left("a"), worker("a", "b")):
        simulation.append(event)
    assert simulation.state.standings() is before


def test_draws_go_by_the_fewest_slots_and_can_be_computed_again_before_and_after() -> None:
    given = LeagueConfig(
        seed=5,
        schedule=CheckpointScheduleConfig(recent_every=1, recent_window=20, landmark_every=5),
        evaluation=EvaluationConfig(every=50, gatekeeper_games=0, benchmark_games=0),
        matchmaking=MatchmakingConfig(sampler=Plugin(name="random")),
    )
    simulation, state = Simulation(given), LeagueState()
    simulation.run(8, 1)
    most = {}
    for phase, happening in (("enough", worker("w")), ("short", reduced("w", 3)), ("left", left("w"))):
        simulation.append(happening)
        matches = [simulation.play_training_match("rollout-0") for _ in range(60)]
        assert len(matches) == 60
        drawn = [r.event for r in simulation.history if isinstance(r.event, OpponentsSampled)][-60:]
        most[phase] = max(len({pick.agent for pick in one.picks if "@" in pick.agent} - {one.hero}) for one in drawn)
    assert most["short"] == 2
    assert min(most["enough"], most["left"]) > 4
    records = iter(simulation.history)
    draws = [r.event for r in simulation.history if isinstance(r.event, OpponentsSampled)]
    for event in draws:
        while state.sequence < event.standings_sequence:
            recorded = next(records)
            state.apply(recorded.sequence, recorded.event)
        assert recompute_draw(event, state.standings(), given).agrees
