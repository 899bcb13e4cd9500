"""Match quality under uncertain ratings, against TrueSkill's own and against the integral that it stands for."""

import math

import pytest

from league.samplers import make_sampler
from league.samplers.unstable_baselines import match_quality
from schemas.config import Plugin
from schemas.errors import ConfigError
from schemas.standings import Agent, LivePolicy, Standings

PAIRS = [(25.0, 25 / 3, 25.0, 25 / 3), (31.0, 1.2, 24.5, 3.0), (10.0, 0.9, 40.0, 0.9), (25.0, 1e-9, 29.0, 1e-9)]


@pytest.mark.parametrize(("mean", "sigma", "other_mean", "other_sigma"), PAIRS)
def test_with_trueskills_scale_it_is_trueskills_quality(
    mean: float, sigma: float, other_mean: float, other_sigma: float
) -> None:
    trueskill = pytest.importorskip("trueskill")
    theirs = trueskill.quality_1vs1(trueskill.Rating(mean, sigma), trueskill.Rating(other_mean, other_sigma))
    ours = match_quality(mean - other_mean, trueskill.BETA, math.hypot(sigma, other_sigma), "normal")
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("gap", [0.0, -1.0, 0.1, 35.5, 120.0, 399.9, 1e4])
def test_without_deviation_it_is_what_elo_gives_to_the_last_bit(gap: float) -> None:
    reached = math.cosh(min(abs(gap) / 400.0 * math.log(10.0) / 2.0, 350.0))
    assert match_quality(gap, 400.0, 0.0) == match_quality(gap, 400.0) == 1.0 / (reached * reached)


@pytest.mark.parametrize("gap", [0.0, 150.0, 400.0, 700.0])
@pytest.mark.parametrize("deviation", [30.0, 100.0, 250.0, 800.0])
def test_for_uncertain_logistic_skills_it_is_near_the_mean_over_what_they_may_be(gap: float, deviation: float) -> None:
    steps = [-8.0 + 16.0 * place / 4000 for place in range(4001)]
    weights = [math.exp(-0.5 * z * z) for z in steps]
    mean = sum(w * match_quality(gap + z * deviation, 400.0) for w, z in zip(weights, steps, strict=True)) / sum(
        weights
    )
    assert match_quality(gap, 400.0, deviation) == pytest.approx(mean, abs=0.024)


@pytest.mark.parametrize("performance", ["logistic", "normal"])
def test_doubt_makes_equals_less_even_and_strangers_more(performance: str) -> None:
    at = [match_quality(0.0, 400.0, deviation, performance) for deviation in (0.0, 50.0, 200.0, 1e9)]  # type: ignore[arg-type]
    assert at == sorted(at, reverse=True)
    assert at[0] == 1.0
    assert match_quality(2_000.0, 400.0, 400.0, performance) > match_quality(2_000.0, 400.0, 0.0, performance)  # type: ignore[arg-type]
    assert match_quality(1.0, 1e-300, 1e300, performance) == 0.0  # type: ignore[arg-type]


def test_of_two_with_the_same_rating_the_surer_one_is_drawn_more_and_a_deviation_that_is_no_number_never() -> None:
    agents = [
        Agent("sure", "bot", 1200.0, 9, deviation=20.0),
        Agent("unsure", "bot", 1200.0, 9, deviation=300.0),
        Agent("broken", "bot", 1200.0, 9, deviation=math.nan),
        Agent("lost", "bot", 1200.0, 9, deviation=math.inf),
    ]
    table = Standings(
        1, {agent.name: agent for agent in agents}, {"main": LivePolicy("main", 3, None, 1200.0, 40.0)}, {}
    )
    shares = make_sampler(Plugin("match_quality")).distribution(table, "main")["fixed"].probabilities()
    assert set(shares) == {"sure", "unsure"}
    assert shares["sure"] > shares["unsure"]


def test_a_performance_that_is_neither_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"matchmaking\.sampler\.settings\.performance.*'uniform'"):
        make_sampler(Plugin(name="match_quality", settings={"performance": "uniform"}))
