"""Who each sampler draws and how often, in numbers worked out by hand; bad settings."""

import math
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from league.samplers import SAMPLERS, OpponentSampler, bucket_shares, make_sampler
from league.samplers.unstable_baselines import match_quality
from schemas.config import Plugin
from schemas.errors import ConfigError, UsageError
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from tests.builders import bot, checkpoint, standings

SEATS = [1, 2, 3, 4, 5, 6]
HERO = "main@200"


def make(sampler: str, **settings: Any) -> OpponentSampler:
    return make_sampler(Plugin(name=sampler, settings=settings))


def per_seat(sampler: OpponentSampler, table: Standings) -> dict[str, float]:
    """Probability of every agent for one seat."""
    shares = Counter[str]()
    for bucket in sampler.distribution(table, "main").values():
        for agent, probability in bucket.probabilities().items():
            shares[agent] += bucket.share * probability
    return {agent: share for agent, share in shares.items() if share}


def buckets(sampler: OpponentSampler, table: Standings) -> dict[str, set[str]]:
    """Who can be drawn from every bucket that has a share."""
    return {
        name: set(bucket.probabilities())
        for name, bucket in sampler.distribution(table, "main").items()
        if bucket.share > 0
    }


# tiered

TIERS = standings(
    checkpoint(10, 1299.0),
    checkpoint(20, 1300.0),
    checkpoint(30, 901.0),
    checkpoint(40, 900.0),
    bot("random_bot", 800.0, baseline=True),
    bot("base_model", 1150.0, baseline=True),
)


def test_tiers_weigh_5_2_and_a_half_by_rating_distance_and_baselines_twice_that() -> None:
    weights = {"main@10": 5.0, "base_model": 10.0, "main@20": 2.0, "main@30": 2.0, "main@40": 0.5, "random_bot": 1.0}
    total = sum(weights.values())
    assert per_seat(make("tiered"), TIERS) == pytest.approx({agent: w / total for agent, w in weights.items()})
    assert buckets(make("tiered"), TIERS) == {
        "peers": {"main@10", "base_model"},
        "near": {"main@20", "main@30"},
        "far": {"main@40", "random_bot"},
    }


def test_an_empty_tier_leaves_its_share_to_the_others_in_proportion() -> None:
    table = standings(checkpoint(10), checkpoint(20, 300.0))
    assert bucket_shares(make("tiered").distribution(table, "main")) == pytest.approx(
        {"peers": 10 / 11, "near": 0.0, "far": 1 / 11, "mirror": 0.0}
    )


def test_tiers_begin_with_baselines_only_until_two_checkpoints_have_joined() -> None:
    cold = (checkpoint(10), bot("greedy_bot", 1200.0), bot("random_bot", 800.0, True), bot("chaos_bot", 1190.0, True))
    assert per_seat(make("tiered"), standings(*cold)) == pytest.approx({"random_bot": 1 / 11, "chaos_bot": 10 / 11})
    assert set(per_seat(make("tiered"), standings(*cold[:2]))) == {"main@10", "greedy_bot"}
    assert len(per_seat(make("tiered"), standings(*cold, checkpoint(20, active=False)))) == 4


def test_an_agent_whose_rating_is_no_number_is_far() -> None:
    table = standings(checkpoint(10, math.nan), checkpoint(20, math.inf), checkpoint(30))
    assert buckets(make("tiered"), table)["far"] == {"main@10", "main@20"}


# pfsp


def test_guests_are_drawn_with_the_baselines_from_the_first_match_on() -> None:
    guests = {"greedy": 3.0, "nobody": 9.0}
    sampler = make("pfsp", mirror=0.1, peers=0.2, exploitable=0.0, baselines=0.7, guest_weights=guests)
    bots = (bot("greedy", 1400.0), bot("mover", 1000.0), bot("random_bot", 800.0, baseline=True))
    assert per_seat(sampler, standings(*bots)) == pytest.approx({"greedy": 0.75, "random_bot": 0.25})
    assert per_seat(sampler, standings(*bots[:2])) == pytest.approx({"greedy": 1.0})
    warm = per_seat(sampler, standings(*bots, checkpoint(10), checkpoint(20, 300.0)))
    assert warm == pytest.approx({"greedy": 0.525, "random_bot": 0.175, "main@10": 0.2, HERO: 0.1})


# win_rate


@pytest.mark.parametrize(
    ("weighting", "often_beaten", "never_met", "never_beaten"),
    [
        ("variance", 0.8 * 0.2, 0.25, 0.2 * 0.8),
        ("linear", 0.2, 0.5, 0.8),
        ("linear_capped", 0.2, 0.5, 0.5),
        ("squared", 0.04, 0.25, 0.64),
    ],
)
def test_win_rates_weigh_as_in_alphastar(
    weighting: str, often_beaten: float, never_met: float, never_beaten: float
) -> None:
    # With the prior of one win and one loss: 8 of 10, 1 of 2, and 2 of 10, two draws being a win and a loss.
    records = {"main@10": WinLoss(7, 0, 1), "main@30": WinLoss(0, 2, 6)}
    table = standings(checkpoint(10), checkpoint(20), checkpoint(30), records=records)
    found = per_seat(make("win_rate", weighting=weighting, mirror=0.0), table)
    weights = {"main@10": often_beaten, "main@20": never_met, "main@30": never_beaten}
    assert found == pytest.approx({agent: weight / sum(weights.values()) for agent, weight in weights.items()})


def test_a_stronger_prior_needs_more_games_to_be_moved() -> None:
    table = standings(checkpoint(10), checkpoint(20), records={"main@10": WinLoss(0, 0, 1)})
    shares = [
        per_seat(make("win_rate", prior_wins=n, prior_losses=n, mirror=0.0), table)["main@10"] for n in (0.1, 1.0, 10.0)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7
    assert shares[-1] < 0.55


def test_an_opponent_who_never_won_in_a_long_history_can_still_be_drawn() -> None:
    table = standings(checkpoint(10), checkpoint(20), records={"main@10": WinLoss(wins=10**17)})
    for weighting in ("variance", "linear", "linear_capped", "squared"):
        assert per_seat(make("win_rate", weighting=weighting), table)["main@10"] > 0


def test_the_mirrors_share_is_given_to_it_and_to_it_alone_without_members() -> None:
    table = standings(checkpoint(10), checkpoint(200))
    assert per_seat(make("win_rate"), table) == pytest.approx({HERO: 0.35, "main@10": 0.65})
    assert per_seat(make("win_rate", mirror=0.0), standings()) == {HERO: 1.0}
    assert per_seat(make("win_rate", mirror=1.0), table) == {HERO: 1.0}


# fixed, mirror, random

MIXED = standings(
    bot("random_bot", 800.0, baseline=True),
    bot("greedy_bot", 1000.0),
    bot("old_bot", 1000.0, active=False),
    Agent("hub_model", "remote", 1300.0, 0),
    checkpoint(10),
    checkpoint(20, active=False),
    checkpoint(30, policy="second"),
    checkpoint(200),
)


def test_fixed_draws_alike_whoever_is_no_checkpoint() -> None:
    expected = {"random_bot": 1 / 3, "greedy_bot": 1 / 3, "hub_model": 1 / 3}
    assert per_seat(make("fixed"), MIXED) == pytest.approx(expected)


def test_fixed_draws_those_that_are_named_unless_they_have_retired() -> None:
    sampler = make("fixed", agents=["greedy_bot", "hub_model", "old_bot"])
    assert per_seat(sampler, MIXED) == {"greedy_bot": 0.5, "hub_model": 0.5}
    assert per_seat(make("fixed", agents=["old_bot"]), MIXED) == {HERO: 1.0}


@pytest.mark.parametrize("name", ["gredy_bot", "main@10"])
def test_a_fixed_opponent_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        make("fixed", agents=["greedy_bot", name]).sample(MIXED, "main", SEATS, Random(1))
    assert str(error.value) == (
        f"matchmaking.sampler.settings.agents: {name!r} is not a fixed agent of this league; expected "
        "'greedy_bot', 'hub_model', 'old_bot' or 'random_bot'"
    )


def test_mirror_fills_all_seats_with_the_hero() -> None:
    assert per_seat(make("mirror"), MIXED) == {HERO: 1.0}


def test_random_is_uniform_over_fixed_agents_and_active_checkpoints_of_any_policy() -> None:
    expected = {"fixed": {"random_bot", "greedy_bot", "hub_model"}, "checkpoints": {"main@10", "second@30"}}
    assert buckets(make("random"), MIXED) == expected
    assert per_seat(make("random"), MIXED) == pytest.approx(dict.fromkeys(set().union(*expected.values()), 0.2))


# lagged

PAST = standings(
    *(checkpoint(version, active=version not in (180, 190)) for version in range(100, 200, 10)),
    checkpoint(200),
    checkpoint(150, policy="second"),
    bot("random_bot", 800.0),
)


@pytest.mark.parametrize(
    ("lags", "unit", "drawn"),
    [
        ([20, 50], "versions", {"main@150", "main@160", "main@170"}),
        ([50, 50], "versions", {"main@150"}),
        ([1, 3], "checkpoints", {"main@170"}),
        ([3, 5], "checkpoints", {"main@150", "main@160", "main@170"}),
        ([1, 10_000], "versions", {f"main@{version}" for version in range(100, 180, 10)}),
    ],
)
def test_lagged_draws_alike_the_policys_active_checkpoints_in_the_range(
    lags: list[int], unit: str, drawn: set[str]
) -> None:
    sampler = make("lagged", lag_range=lags, unit=unit)
    assert buckets(sampler, PAST) == {"lagged": drawn}
    assert per_seat(sampler, PAST) == pytest.approx(dict.fromkeys(drawn, 1 / len(drawn)))


@pytest.mark.parametrize(
    ("lags", "unit", "nearest"),
    [
        ([1, 20], "versions", "main@170"),
        ([500, 900], "versions", "main@100"),
        ([45, 45], "versions", "main@160"),
        ([11, 12], "checkpoints", "main@100"),
        ([1, 1], "checkpoints", "main@170"),
    ],
)
def test_a_lag_range_without_an_active_checkpoint_is_met_by_the_nearest(
    lags: list[int], unit: str, nearest: str
) -> None:
    assert buckets(make("lagged", lag_range=lags, unit=unit), PAST) == {"nearest": {nearest}}


def test_without_a_past_lagged_plays_the_mirror() -> None:
    assert per_seat(make("lagged"), standings(checkpoint(0), version=0)) == {"main@0": 1.0}


# match_quality, ts_dist


@pytest.mark.parametrize("gap", [-350.0, -20.0, 0.0, 100.0, 400.0, 900.0])
def test_quality_is_the_draw_probability_relative_to_that_of_equals_in_the_limit(gap: float) -> None:
    def wins_by(margin: float, difference: float) -> float:
        return 1.0 / (1.0 + 10.0 ** ((margin - difference) / 400.0))

    def draws(difference: float, margin: float = 1e-3) -> float:
        return 1.0 - wins_by(margin, difference) - wins_by(margin, -difference)

    expected = wins_by(0.0, gap)
    assert match_quality(gap, 400.0) == pytest.approx(4.0 * expected * (1.0 - expected))
    assert match_quality(gap, 400.0) == pytest.approx(draws(gap) / draws(0.0), rel=1e-4)


def test_quality_is_0_and_no_error_for_ratings_however_far_apart() -> None:
    assert match_quality(1e300, 400.0) < 1e-150
    assert match_quality(-1e300, 1e-300) < 1e-150


def test_match_quality_is_a_softmax_over_qualities() -> None:
    table = standings(checkpoint(10), checkpoint(20, 1600.0), bot("random_bot", 800.0))
    worse = math.exp((40 / 121 - 1) / 0.5)
    found = per_seat(make("match_quality", temperature=0.5), table)
    expected = {"main@10": 1.0, "main@20": worse, "random_bot": worse}
    assert found == pytest.approx({agent: weight / (1 + 2 * worse) for agent, weight in expected.items()})


def test_ts_dist_is_a_softmax_over_negative_rating_distances() -> None:
    table = standings(checkpoint(10, 1210.0), checkpoint(20, 1110.0), bot("random_bot", 1310.0))
    weights = {"main@10": 1.0, "main@20": math.exp(-0.8), "random_bot": math.exp(-1.0)}
    found = per_seat(make("ts_dist"), table)
    assert found == pytest.approx({agent: weight / sum(weights.values()) for agent, weight in weights.items()})


@pytest.mark.parametrize("name", ["match_quality", "ts_dist"])
def test_the_nearer_is_the_likelier_and_a_rating_that_is_no_number_is_never_drawn(name: str) -> None:
    table = standings(
        *(checkpoint(n, 1200.0 + 40.0 * n) for n in range(6)), bot("broken", math.nan), bot("far", math.inf)
    )
    shares = per_seat(make(name), table)
    assert set(shares) == {f"main@{n}" for n in range(6)}
    assert all(shares[f"main@{a}"] > shares[f"main@{b}"] for a, b in pairwise(range(6)))
    everywhere_else = standings(checkpoint(10, math.nan), bot("broken", -math.inf))
    assert per_seat(make(name), everywhere_else) == {HERO: 1.0}


@pytest.mark.parametrize("name", ["match_quality", "ts_dist"])
def test_a_lower_temperature_prefers_the_nearest_more(name: str) -> None:
    table = standings(checkpoint(10), checkpoint(20, 1300.0))
    shares = [per_seat(make(name, temperature=t), table)["main@10"] for t in (1e6, 100.0, 0.1, 1e-300)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.5, abs=1e-3)
    assert shares[-1] == 1.0


# settings that all mixes have, and bad ones


@pytest.mark.parametrize(
    "name", ["fixed", "lagged", "match_quality", "pfsp", "random", "tiered", "ts_dist", "win_rate"]
)
def test_cluster_sampling_clones_few_opponents_and_keeps_the_mix(name: str) -> None:
    table = standings(
        *(checkpoint(version, 1200.0 + version) for version in range(0, 200, 20)), bot("random_bot", 1100.0)
    )
    sampler, rng, counts = make(name, max_distinct=2), Random(2), Counter[str]()
    for _ in range(3_000):
        picks = sampler.sample(table, "main", SEATS, rng)
        assert Counter(pick.agent for pick in picks).most_common(1)[0][1] in (3, 6)
        counts.update(pick.agent for pick in picks)
    expected = per_seat(sampler, table)
    assert sum(abs(counts[agent] / counts.total() - share) for agent, share in expected.items()) / 2 <= 0.03


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("tiered", {"peer_weight": -1.0}, "peer_weight: -1.0; expected 0 or more"),
        ("tiered", {"far_weight": math.inf}, "far_weight: inf; expected a finite number"),
        ("tiered", {"near_weight": math.nan}, "near_weight: nan; expected a finite number"),
        ("tiered", {"peer_weight": 0, "near_weight": 0, "far_weight": 0}, "all are 0; expected one above 0"),
        ("tiered", {"baseline_factor": 0.0}, "baseline_factor: 0.0; expected more than 0"),
        ("tiered", {"near_range": 50.0}, "near_range: 50.0; expected peer_range, 100.0, or more"),
        ("win_rate", {"weighting": "cubed"}, "weighting: 'cubed'; expected 'linear', 'linear_capped'"),
        ("win_rate", {"mirror": 1.5}, "mirror: 1.5; expected 0 to 1"),
        ("win_rate", {"mirror": math.nan}, "mirror: nan; expected a finite number"),
        ("win_rate", {"prior_wins": 0.0}, "prior_wins: 0.0; expected more than 0"),
        ("win_rate", {"prior_losses": -1.0}, "prior_losses: -1.0; expected more than 0"),
        ("fixed", {"agents": ["a", "b", "a"]}, "agents: 'a' named twice; expected distinct agents"),
        ("fixed", {"agents": "random_bot"}, "agents: expected `array`, got `str`"),
        ("lagged", {"lag_range": [-3, 7]}, "lag_range: [-3, 7]; expected two numbers with 1 <= low <= high"),
        ("lagged", {"lag_range": [0, 7]}, "lag_range: [0, 7]; expected two numbers with 1 <= low <= high"),
        ("lagged", {"lag_range": [9, 7]}, "lag_range: [9, 7]; expected two numbers with 1 <= low <= high"),
        ("lagged", {"lag_range": [7]}, "lag_range: expected `array` of length 2"),
        ("lagged", {"unit": "days"}, "unit: 'days'; expected 'checkpoints' or 'versions'"),
        ("match_quality", {"temperature": 0.0}, "temperature: 0.0; expected more than 0"),
        ("match_quality", {"scale": -400.0}, "scale: -400.0; expected more than 0"),
        ("ts_dist", {"temperature": math.inf}, "temperature: inf; expected a finite number"),
        ("random", {"max_distinct": 0}, "max_distinct: 0; expected 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_their_place(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(name, **given)
    assert str(error.value).startswith("matchmaking.sampler.settings.")
    assert message in str(error.value)


@pytest.mark.parametrize("name", SAMPLERS.names())
def test_a_seat_listed_twice_is_refused_and_no_seats_are_no_picks(name: str) -> None:
    with pytest.raises(UsageError, match="seat 3 is listed twice; expected distinct seats"):
        make(name).sample(MIXED, "main", [1, 3, 4, 3], Random(1))
    assert make(name).sample(MIXED, "main", [], Random(1)) == []


@pytest.mark.parametrize("name", SAMPLERS.names())
@pytest.mark.parametrize("rating", [math.nan, math.inf, -math.inf])
def test_a_hero_whose_rating_is_no_number_plays_all_the_same(name: str, rating: float) -> None:
    hero = {"main": LivePolicy("main", 200, "1" * 64, rating)}
    table = Standings(7, PAST.agents, hero, {"main": {"main@100": WinLoss(1, 0, 2)}})
    sampler = make(name)
    shares = bucket_shares(sampler.distribution(table, "main"))
    assert sum(shares.values()) == pytest.approx(1.0)
    picks = sampler.sample(table, "main", SEATS, Random(1))
    assert [pick.seat for pick in picks] == SEATS
    assert all(shares[pick.bucket] > 0 for pick in picks)


# A smaller audit than that of benchmarks/bench_samplers.py, which takes 100,000 matches.


@pytest.mark.parametrize("missing", ["nothing", "peers", "exploitable"])
def test_realised_pfsp_shares_meet_the_redistributed_target(missing: str) -> None:
    lost_to = {} if missing == "exploitable" else {"main@10": WinLoss(1, 0, 2)}
    others = [checkpoint(20, 2000.0)] if missing == "peers" else [checkpoint(20), checkpoint(30, 1250.0)]
    table = standings(checkpoint(10, 900.0), *others, bot("random_bot", 800.0, baseline=True), records=lost_to)
    mix = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
    left = 1.0 - mix.get(missing, 0.0)
    target = {bucket: 0.0 if bucket == missing else share / left for bucket, share in mix.items()}
    sampler, rng, counts = make("pfsp"), Random(9), Counter[str]()
    for _ in range(5_000):
        counts.update(pick.bucket for pick in sampler.sample(table, "main", SEATS, rng))
    assert sum(abs(counts[bucket] / counts.total() - share) for bucket, share in target.items()) / 2 <= 0.02
