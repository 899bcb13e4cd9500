"""What every registered opponent sampler does, whatever its mix and whatever the history so far."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from league.matchmaking.matchmaker import recompute_draw
from league.samplers import SAMPLERS, OpponentSampler, bucket_shares, make_sampler
from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig, MatchmakingConfig, Plugin
from schemas.errors import ConfigError, UsageError
from schemas.events import OpponentsSampled
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.simulated_history import Simulation

NAMES = SAMPLERS.names()
samplers = pytest.mark.parametrize("sampler", [make_sampler(Plugin(name=name)) for name in NAMES], ids=NAMES)
SEATS = [0, 1, 3, 4, 5, 6]
HERO = "main@200"


def checkpoint(version: int, rating: float, policy: str = "main", active: bool = True) -> Agent:
    name = f"{policy}@{version}"
    return Agent(name, "checkpoint", rating, 9, active=active, policy=policy, version=version, adapter="0" * 64)


def league(*agents: Agent, records: dict[str, WinLoss] | None = None) -> Standings:
    table = {agent.name: agent for agent in agents}
    return Standings(7, table, {"main": LivePolicy("main", 200, "1" * 64, 1200.0)}, {"main": records or {}})


def standings(checkpoints: int = 8, spread: float = 60.0, *more: Agent) -> Standings:
    """The hero at 1200; checkpoints on both sides of it, every second one mostly won against."""
    past = [checkpoint(10 * n, 1200.0 + spread * (n - 1 - checkpoints // 2)) for n in range(1, checkpoints + 1)]
    records = {agent.name: WinLoss(1, 0, 2) if n % 2 == 0 else WinLoss(2, 1, 1) for n, agent in enumerate(past)}
    return league(
        Agent("base_model", "base", 1000.0, 9, baseline=True),
        Agent("random_bot", "bot", 800.0, 9, baseline=True),
        Agent("greedy_bot", "bot", 1190.0, 9),
        Agent("old_bot", "bot", 1195.0, 9, active=False),
        *past,
        *more,
        records={"random_bot": WinLoss(9, 0, 1), "base_model": WinLoss(5, 0, 5), **records},
    )


HISTORIES = {
    "nobody has joined": league(),
    "no checkpoint": standings(0),
    "one checkpoint": standings(1),
    "two checkpoints": standings(2),
    "many checkpoints": standings(8),
    "everybody has the same rating": standings(8, 0.0),
    "ratings far apart": standings(8, 5_000.0),
    "the live version has joined, and so has another policy": standings(
        4, 60.0, checkpoint(200, 1200.0), checkpoint(20, 1210.0, "second"), checkpoint(150, 1100.0, active=False)
    ),
    "everybody has retired": league(
        Agent("random_bot", "bot", 800.0, 9, baseline=True, active=False),
        *(checkpoint(version, 1200.0, active=False) for version in (10, 20, 30)),
    ),
    "ratings that are no numbers": standings(
        2, 60.0, checkpoint(40, float("nan")), checkpoint(50, float("inf")), checkpoint(60, -1e300)
    ),
}
histories = pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)


def expected(sampler: OpponentSampler, table: Standings) -> dict[tuple[str, str], float]:
    """Probability of every bucket and agent for one seat, by the sampler's distribution."""
    return {
        (name, agent): bucket.share * probability
        for name, bucket in sampler.distribution(table, "main").items()
        for agent, probability in bucket.probabilities().items()
    }


def distance(counts: Counter[Any], shares: dict[Any, float]) -> float:
    """Total variation between realised and expected shares."""
    return sum(abs(counts[key] / counts.total() - shares.get(key, 0.0)) for key in {*counts, *shares}) / 2


@samplers
@histories
def test_every_seat_gets_one_active_agent_and_the_hero_only_as_mirror(
    sampler: OpponentSampler, history: Standings
) -> None:
    active = {name for name, agent in history.agents.items() if agent.active and name != HERO}
    for seed in range(200):
        picks = sampler.sample(history, "main", SEATS, Random(seed))
        assert [pick.seat for pick in picks] == SEATS
        assert all(pick.agent == HERO if pick.bucket == "mirror" else pick.agent in active for pick in picks)


@samplers
@histories
def test_the_same_rng_draws_the_same_opponents_however_the_table_is_ordered(
    sampler: OpponentSampler, history: Standings
) -> None:
    agents, records = dict(reversed(history.agents.items())), dict(reversed(history.records["main"].items()))
    turned = Standings(7, agents, history.live, {"main": records})
    for seed in range(50):
        drawn = sampler.sample(history, "main", SEATS, Random(seed))
        assert drawn == sampler.sample(turned, "main", SEATS, Random(seed))


@samplers
def test_nothing_but_standings_and_rng_decides(sampler: OpponentSampler) -> None:
    for history in HISTORIES.values():
        before = repr(history)
        used = [sampler.sample(history, "main", SEATS, Random(seed)) for seed in range(20)]
        fresh = make_sampler(_plugin(sampler))
        assert used == [fresh.sample(history, "main", SEATS, Random(seed)) for seed in range(20)]
        assert repr(history) == before


@samplers
def test_a_seats_draw_depends_on_the_seats_before_it_alone(sampler: OpponentSampler) -> None:
    table = standings()
    assert sampler.sample(table, "main", SEATS[:2], Random(6)) == sampler.sample(table, "main", SEATS, Random(6))[:2]


@samplers
@histories
def test_realised_shares_meet_the_target(sampler: OpponentSampler, history: Standings) -> None:
    rng, counts = Random(3), Counter[tuple[str, str]]()
    for _ in range(2_500):
        counts.update((pick.bucket, pick.agent) for pick in sampler.sample(history, "main", SEATS, rng))
    shares = expected(sampler, history)
    assert distance(counts, shares) <= 0.02
    assert all(shares.get(key, 0.0) > 0 for key in counts)
    buckets = Counter[str]()
    for (bucket, _), count in counts.items():
        buckets[bucket] += count
    assert distance(buckets, bucket_shares(sampler.distribution(history, "main"))) <= 0.02


@samplers
@histories
def test_the_distribution_says_who_can_be_drawn_and_how_likely(sampler: OpponentSampler, history: Standings) -> None:
    buckets = sampler.distribution(history, "main")
    assert sum(bucket.share for bucket in buckets.values()) == pytest.approx(1.0)
    for bucket in buckets.values():
        assert sum(bucket.probabilities().values()) == pytest.approx(1.0 if bucket.share else 0.0)
    assert sum(expected(sampler, history).values()) == pytest.approx(1.0)


@samplers
def test_with_nobody_else_the_hero_plays_itself(sampler: OpponentSampler) -> None:
    for name in ("nobody has joined", "everybody has retired"):
        picks = sampler.sample(HISTORIES[name], "main", SEATS, Random(1))
        assert {(pick.agent, pick.bucket) for pick in picks} == {(HERO, "mirror")}


@samplers
def test_every_recorded_draw_of_a_league_can_be_computed_again(sampler: OpponentSampler) -> None:
    config = LeagueConfig(
        seed=4,
        matchmaking=MatchmakingConfig(sampler=_plugin(sampler)),
        evaluation=EvaluationConfig(every=10, gatekeeper_games=7, benchmark_games=7),
    )
    simulation, state, place, drawn = Simulation(config), LeagueState(), 0, set[str]()
    draws = [r.event for r in simulation.run(25, 1) if isinstance(r.event, OpponentsSampled)]
    for event in sorted(draws, key=lambda event: event.standings_sequence):
        while state.sequence < event.standings_sequence:
            recorded = simulation.history[place]
            state.apply(recorded.sequence, recorded.event)
            place += 1
        explanation = recompute_draw(event, state.standings(), config)
        assert explanation.agrees, explanation.differences
        drawn.update(pick.bucket for pick in event.picks)
    assert len(draws) == 26
    assert drawn <= set(bucket_shares(sampler.distribution(state.standings(), "main")))


@samplers
def test_a_policy_without_a_version_is_refused(sampler: OpponentSampler) -> None:
    with pytest.raises(UsageError, match=r"'second' has no published version.*'main'"):
        sampler.sample(standings(), "second", SEATS, Random(0))


@samplers
def test_an_unknown_setting_is_refused_by_name(sampler: OpponentSampler) -> None:
    with pytest.raises(ConfigError, match=r"matchmaking\.sampler\.settings\.surprise: unknown key"):
        make_sampler(Plugin(name=sampler.name, settings={"surprise": 1}))


def test_an_unknown_sampler_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"matchmaking\.sampler\.name: 'nobody'.*'pfsp'"):
        make_sampler(Plugin(name="nobody"))


def _plugin(sampler: OpponentSampler) -> Plugin:
    return Plugin(name=sampler.name)
