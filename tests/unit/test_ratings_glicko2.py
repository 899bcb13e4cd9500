"""Glicko-2 against its paper's example, an independent reference, and its bounds."""

import math
from itertools import product
from math import exp, log, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.ratings.base import RatingSystem, State, inherit_state, make_rating_system, rate_match
from schemas.config import Plugin
from schemas.errors import ConfigError
from schemas.events import MatchFinished, RatingChange
from tests.builders import match_finished

SCALE = 400 / log(10)
MOST = 0.3


def system(**settings: object) -> RatingSystem:
    return make_rating_system(Plugin(name="glicko2", settings=settings))


def match(seats: list[tuple[str, float]]) -> MatchFinished:
    return match_finished(*seats)


def played(glicko: RatingSystem, seats: list[tuple[str, float]], states: dict[str, State]) -> dict[str, State]:
    return {change.agent: state(change) for change in rate_match(glicko, match(seats), states, {})}


def state(change: RatingChange) -> State:
    return (change.after, *change.rest)


def by_the_paper(me: State, games: list[tuple[State, float]], tau: float = 0.5) -> State:
    """One rating period by the paper's steps, with step 5's root by bisection."""
    phi, sigma = me[1] / SCALE, me[2]
    information = surplus = 0.0
    for other, score in games:
        g = 1 / sqrt(1 + 3 * (other[1] / SCALE) ** 2 / pi**2)
        expected = 1 / (1 + exp(-g * (me[0] - other[0]) / SCALE))
        information += g**2 * expected * (1 - expected)
        surplus += g * (score - expected)
    v, delta = 1 / information, surplus / information

    def f(x: float) -> float:
        lead = exp(x) * (delta**2 - phi**2 - v - exp(x)) / (2 * (phi**2 + v + exp(x)) ** 2)
        return lead - (x - log(sigma**2)) / tau**2

    low, high = log(sigma**2) - 10, log(MOST**2)
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    sigma = exp(low / 2)
    phi = 1 / sqrt(1 / (phi**2 + sigma**2) + information)
    return (me[0] + SCALE * phi**2 * surplus, min(SCALE * phi, 350.0), sigma)


def test_the_papers_example_is_a_match_of_four_seats() -> None:
    # Its player beats one and loses to two; what those do among themselves is no business of its own update.
    states = {"me": (1500, 200, 0.06), "won": (1400, 30, 0.06), "lost": (1550, 100, 0.06), "also": (1700, 300, 0.06)}
    found = played(system(), [("me", 1.0), ("won", 0.0), ("lost", 2.0), ("also", 3.0)], states)
    rating, deviation, volatility = found["me"]
    # The paper prints 1464.06, from intermediates rounded to four digits.
    assert rating == pytest.approx(1464.06, abs=0.015)
    assert deviation == pytest.approx(151.52, abs=0.005)
    assert volatility == pytest.approx(0.05999, abs=1e-5)


ratings = st.tuples(st.floats(600, 1400), st.floats(30, 350), st.floats(0.02, 0.2))


@given(
    seats=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), min_size=2, max_size=8).filter(
        lambda seats: len({agent for agent, _ in seats}) > 1
    ),
    table=st.tuples(ratings, ratings, ratings, ratings),
)
def test_any_match_is_a_rating_period_of_the_games_between_its_seats(
    seats: list[tuple[str, int]], table: tuple[State, ...]
) -> None:
    states = dict(zip("abcd", table, strict=True))
    found = played(system(convergence=1e-12), [(agent, float(score)) for agent, score in seats], states)
    for agent, after in found.items():
        games = [
            (states[other], 1.0 if mine > theirs else 0.5 if mine == theirs else 0.0)
            for (me, mine), (other, theirs) in product(seats, seats)
            if me == agent != other
        ]
        assert after == pytest.approx(by_the_paper(states[agent], games), rel=1e-8)


def test_a_deviation_falls_with_matches_to_where_the_volatility_holds_it_and_rises_for_a_new_version() -> None:
    glicko = system()
    states = {"a": glicko.start(1000.0), "b": glicko.start(1000.0)}
    deviations = []
    for game in range(400):
        states = played(glicko, [("a", float(game % 2)), ("b", 0.5)], states)
        deviations.append(states["a"][1])
    assert deviations[:20] == sorted(deviations[:20], reverse=True)
    assert deviations[-1] == pytest.approx(deviations[-2], abs=0.1)
    rating, deviation, volatility = inherit_state(glicko, states["a"])
    assert (rating, deviation, volatility) == (states["a"][0], 2 * states["a"][1], states["a"][2])
    assert inherit_state(glicko, (1000.0, 300.0, 0.06))[1] == 350.0
    assert inherit_state(system(inherited_factor=1.0), states["a"]) == states["a"]


def test_results_nobody_would_expect_raise_the_volatility_and_expected_ones_lower_it() -> None:
    states = {"a": (1000.0, 50.0, 0.06), "b": (1300.0, 50.0, 0.06)}
    upset = played(system(), [("a", 1.0), ("b", 0.0)], states)
    expected = played(system(), [("a", 0.0), ("b", 1.0)], states)
    assert upset["a"][2] > 0.06 > expected["a"][2]


@pytest.mark.parametrize("apart", [1_200.0, 1_600.0, 5_000.0, 1e300])
def test_an_upset_however_great_is_an_upset_and_no_new_volatility(apart: float) -> None:
    states = {"a": (0.0, 60.0, 0.06), "b": (apart, 60.0, 0.06)}
    found = played(system(), [("a", 1.0), ("b", 0.0)], states)
    assert 0 < found["a"][0] < 30
    assert found["a"][2] == pytest.approx(0.06, rel=1e-3)


def test_the_volatility_has_a_bound_and_the_deviation_too() -> None:
    wild = system(tau=10.0, max_volatility=0.07)
    states = {"a": (1000.0, 40.0, 0.06), **dict.fromkeys("bcdefg", (1900.0, 40.0, 0.06))}
    found = played(wild, [("a", 1.0), *((name, 0.0) for name in "bcdefg")], states)
    assert found["a"][2] == pytest.approx(0.07)
    unsure = {"a": (1000.0, 350.0, 0.3), "b": (5000.0, 350.0, 0.3)}
    assert played(system(), [("a", 0.0), ("b", 1.0)], unsure)["a"][1] == pytest.approx(350.0)


strange = st.tuples(
    st.floats(allow_nan=False, allow_infinity=False),
    st.one_of(st.floats(0, 1e308), st.just(-1.0)),
    st.one_of(st.floats(0, 1e308), st.just(-1.0)),
)


@given(
    scores=st.lists(st.integers(0, 2), min_size=2, max_size=7),
    table=st.lists(strange, min_size=7, max_size=7),
    tau=st.floats(0.01, 10),
)
def test_whatever_states_come_in_finite_ones_go_out(scores: list[int], table: list[State], tau: float) -> None:
    names = [f"agent{seat}" for seat in range(len(scores))]
    found = played(
        system(tau=tau), list(zip(names, map(float, scores), strict=True)), dict(zip(names, table, strict=False))
    )
    for rating, deviation, volatility in found.values():
        assert math.isfinite(rating)
        assert 0 < deviation <= 350.0000001
        assert 0 < volatility <= 0.3000001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau: 0.0; expected 0.01 to 10"),
        ({"rd": math.nan}, "rd: nan; expected 0.01 to 100,000"),
        ({"rd": -350.0}, "rd: -350.0"),
        ({"volatility": 0.5}, "volatility: 0.5; expected max_volatility, 0.3, or less"),
        ({"max_volatility": math.inf}, "max_volatility: inf"),
        ({"convergence": 0.0}, "convergence: 0.0"),
        ({"inherited_factor": -2.0}, "inherited_factor: -2.0"),
        ({"tau": "high"}, "tau"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"ratings\.system\.settings\.{message}"):
        system(**settings)
