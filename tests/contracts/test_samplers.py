"""What every registered opponent sampler does, whatever its mix."""

from collections import Counter
from random import Random

import pytest

from league.samplers.base import SAMPLERS, OpponentSampler, make_sampler
from schemas.config import Plugin
from schemas.errors import ConfigError, UsageError
from schemas.standings import Agent, Live, Record, Standings

samplers = pytest.mark.parametrize("sampler", [make_sampler(Plugin(name=name)) for name in SAMPLERS.names()])
SEATS = [0, 1, 3, 4, 5, 6]


def standings(checkpoints: int = 8, spread: float = 60.0) -> Standings:
    """The hero at 1200; checkpoints on both sides of it, every second one mostly won against."""
    agents = {
        "base_model": Agent("base_model", "base", 1000.0, 9, baseline=True),
        "random_bot": Agent("random_bot", "bot", 800.0, 9, baseline=True),
        "greedy_bot": Agent("greedy_bot", "bot", 1190.0, 9),
        "old_bot": Agent("old_bot", "bot", 1195.0, 9, active=False),
    }
    records = {"random_bot": Record(9, 0, 1), "base_model": Record(5, 0, 5)}
    for place in range(checkpoints):
        name = f"main@{10 * (place + 1)}"
        rating = 1200.0 + spread * (place - checkpoints // 2)
        agents[name] = Agent(name, "checkpoint", rating, 9, policy="main", version=10 * (place + 1), adapter="0" * 64)
        records[name] = Record(1, 0, 2) if place % 2 == 0 else Record(2, 0, 1)
    return Standings(7, agents, {"main": Live("main", 200, "1" * 64, 1200.0)}, {"main": records})


@samplers
def test_every_seat_gets_one_active_agent(sampler: OpponentSampler) -> None:
    table = standings()
    allowed = {name for name, agent in table.agents.items() if agent.active} | {"main@200"}
    for seed in range(200):
        picks = sampler.sample(table, "main", SEATS, Random(seed))
        assert [pick.seat for pick in picks] == SEATS
        assert {pick.agent for pick in picks} <= allowed


@samplers
def test_the_same_rng_draws_the_same_opponents_however_the_table_is_ordered(sampler: OpponentSampler) -> None:
    table = standings()
    turned = Standings(7, dict(reversed(table.agents.items())), table.live, table.records)
    assert sampler.sample(table, "main", SEATS, Random(5)) == sampler.sample(turned, "main", SEATS, Random(5))


@samplers
@pytest.mark.parametrize("checkpoints", [0, 1, 2, 8])
def test_realised_shares_meet_the_target(sampler: OpponentSampler, checkpoints: int) -> None:
    table = standings(checkpoints)
    rng, counts = Random(3), Counter[str]()
    for _ in range(4_000):
        counts.update(pick.bucket for pick in sampler.sample(table, "main", SEATS, rng))
    target = sampler.target_shares(table, "main")
    assert sum(target.values()) == pytest.approx(1.0)
    distance = sum(abs(counts[bucket] / counts.total() - target.get(bucket, 0.0)) for bucket in {*target, *counts}) / 2
    assert distance <= 0.02


@samplers
@pytest.mark.parametrize("checkpoints", [0, 1, 2, 8])
def test_the_distribution_says_who_can_be_drawn_and_how_likely(sampler: OpponentSampler, checkpoints: int) -> None:
    table = standings(checkpoints)
    buckets = sampler.distribution(table, "main")
    assert sum(bucket.share for bucket in buckets.values()) == pytest.approx(1.0)
    for bucket in buckets.values():
        assert sum(bucket.probabilities().values()) == pytest.approx(1.0 if bucket.share else 0.0)
    expected = Counter[str]()
    for bucket in buckets.values():
        for agent, probability in bucket.probabilities().items():
            expected[agent] += bucket.share * probability
    rng, counts = Random(4), Counter[str]()
    for _ in range(4_000):
        counts.update(pick.agent for pick in sampler.sample(table, "main", SEATS, rng))
    assert sum(abs(counts[agent] / counts.total() - share) for agent, share in expected.items()) / 2 <= 0.02
    assert set(counts) <= set(expected)


@samplers
def test_a_draw_tells_the_numbers_it_was_made_from(sampler: OpponentSampler) -> None:
    table = standings()
    buckets = sampler.distribution(table, "main")
    for seed in range(200):
        drawn = sampler.draws(table, "main", SEATS, Random(seed))
        assert [seat.pick for seat in drawn] == sampler.sample(table, "main", SEATS, Random(seed))
        for seat in drawn:
            assert all(step.low <= step.number < step.high for step in seat.steps)
            assert seat.steps[-1].key == seat.pick.agent
            assert seat.pick.agent in buckets[seat.pick.bucket].weights
        numbers = [step.number for seat in drawn for step in seat.steps]
        rng = Random(seed)
        assert numbers == [rng.random() for _ in numbers]


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
