"""OpenSkill: the package's numbers, the paper's formula for two, and what it does where the package overflows."""

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openskill.models import BradleyTerryFull

from league.ratings.base import Side, State, make_rating_system
from league.ratings.openskill import OpenSkill
from schemas.config import Plugin
from schemas.errors import ConfigError

BETA = 400 / (math.log(10) * math.sqrt(2))


def made(**settings: float) -> OpenSkill:
    system = make_rating_system(Plugin(name="openskill", settings=settings))
    assert isinstance(system, OpenSkill)
    return system


def rated(
    system: OpenSkill, states: Sequence[State], scores: Sequence[float], seating: Sequence[int] | None = None
) -> list[State]:
    """States after a match, of the agent in every seat or in the order of a seating."""
    seats = [str(agent) for agent in (range(len(states)) if seating is None else seating)]
    # In the order of their first seats, as the fold has them.
    before = {agent: states[int(agent)] for agent in dict.fromkeys(seats)}
    after = system.update(before, [Side((agent,), score) for agent, score in zip(seats, scores, strict=True)])
    return [after[str(agent)] for agent in range(len(states))]


def package(model: BradleyTerryFull, states: Sequence[State], scores: Sequence[float]) -> list[State]:
    teams = [[model.rating(*state)] for state in states]
    return [(team[0].mu, team[0].sigma) for team in model.rate(teams, ranks=[-score for score in scores])]


def about(states: Sequence[State], rel: float, points: float = 0.0) -> list[object]:
    return [pytest.approx(state, rel=rel, abs=points) for state in states]


def natural(state: State) -> tuple[float, float]:
    return state[1] ** -2, state[0] * state[1] ** -2


@pytest.mark.parametrize("limit_sigma", [False, True])
@pytest.mark.parametrize(("sigma", "tau"), [(2 * BETA, BETA / 50), (4 * BETA, BETA)])
def test_histories_of_two_to_eight_seats_with_draws_agree_with_the_package_to_the_last_digits(
    sigma: float, tau: float, limit_sigma: bool
) -> None:
    rng = Random(f"{sigma}")
    system = made(sigma=sigma, tau=tau, limit_sigma=limit_sigma)
    model = BradleyTerryFull(1000, sigma, BETA, 1e-4, tau=tau, limit_sigma=limit_sigma)
    skills = [rng.gauss(0, 300) for _ in range(20)]
    mine: list[State] = [system.start(1000.0) for _ in skills]
    theirs = list(mine)
    for _ in range(500):
        agents = rng.sample(range(20), rng.randint(2, 8))
        scores = [float(round((skills[agent] + rng.gauss(0, 200)) / 150)) for agent in agents]
        after = rated(system, [mine[agent] for agent in agents], scores)
        expected = package(model, [theirs[agent] for agent in agents], scores)
        for agent, state, other in zip(agents, after, expected, strict=True):
            assert state == pytest.approx(other, rel=0, abs=2e-11)
            mine[agent], theirs[agent] = state, other


SIZES = [(1, 1), (2, 2), (4, 2), (2, 2, 2), (1, 3, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_teams_agree_with_the_package_counted_from_the_mean_of_the_match(sizes: tuple[int, ...]) -> None:
    rng = Random(f"{sizes}")
    for _ in range(20):
        states = [[(rng.gauss(1000, 200), rng.uniform(50, 400)) for _ in range(size)] for size in sizes]
        scores = [float(rng.randint(0, 2)) for _ in sizes]
        mean = math.fsum(mu for team in states for mu, _ in team) / sum(sizes)
        names = [tuple(f"{side}-{seat}" for seat in range(size)) for side, size in enumerate(sizes)]
        before = {
            name: state for team, own in zip(names, states, strict=True) for name, state in zip(team, own, strict=True)
        }
        found = made().update(before, [Side(team, score) for team, score in zip(names, scores, strict=True)])
        model = BradleyTerryFull(1000, 2 * BETA, BETA, 1e-4, tau=BETA / 50)
        teams = [[model.rating(mu - mean, sigma) for mu, sigma in team] for team in states]
        expected = model.rate(teams, ranks=[-score for score in scores])
        for team, own in zip(names, expected, strict=True):
            for name, rating in zip(team, own, strict=True):
                assert found[name] == pytest.approx((rating.mu + mean, rating.sigma), rel=0, abs=1e-9)


def test_the_defaults_have_the_packages_proportions() -> None:
    model, (rating, sigma) = BradleyTerryFull(), made().start(1000.0)
    assert rating == 1000.0
    system = made()
    found = (sigma / system.beta, system.tau / system.beta, system.kappa)
    assert found == pytest.approx((model.sigma / model.beta, model.tau / model.beta, model.kappa))
    assert not model.limit_sigma


@pytest.mark.parametrize("score", [1.0, 0.0])
def test_a_game_of_two_is_the_papers_formula(score: float) -> None:
    (mu_a, sigma_a), (mu_b, sigma_b) = (1100.0, 200.0), (950.0, 120.0)
    variance_a, c = sigma_a**2, math.sqrt(sigma_a**2 + sigma_b**2 + 2 * BETA**2)
    p = 1 / (1 + math.exp((mu_b - mu_a) / c))
    omega = (1.0 if score else 0.5) - p
    delta = variance_a / c**2 * p * (1 - p) * sigma_a / c
    found = rated(made(tau=0), [(mu_a, sigma_a), (mu_b, sigma_b)], [score, 0.0])
    assert found[0] == pytest.approx((mu_a + variance_a / c * omega, sigma_a * math.sqrt(1 - delta)), rel=1e-13)


def test_with_small_deviations_400_points_are_odds_of_ten_to_one_in_a_game_of_two() -> None:
    sigma = 0.01
    (won, _), _ = rated(made(tau=0), [(1400.0, sigma), (1000.0, sigma)], [1.0, 0.0])
    (lost, _), _ = rated(made(tau=0), [(1400.0, sigma), (1000.0, sigma)], [0.0, 1.0])
    assert (1400.0 - lost) / (won - 1400.0) == pytest.approx(10, rel=1e-5)


@st.composite
def matches(draw: st.DrawFn) -> tuple[list[State], list[float], list[int]]:
    """States of up to four agents, scores with ties, and who sits where; up to nine seats."""
    state = st.tuples(st.integers(-3_000, 3_000).map(float), st.integers(1, 1_000).map(float))
    states = draw(st.lists(state, min_size=2, max_size=4))
    seating = [*range(len(states)), *draw(st.lists(st.integers(0, len(states) - 1), max_size=5))]
    scores = draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=len(seating), max_size=len(seating)))
    return states, scores, seating


@given(match=matches(), order=st.integers(0, 10_000))
def test_where_agents_sit_does_not_matter_to_ratings_nor_deviations(
    match: tuple[list[State], list[float], list[int]], order: int
) -> None:
    states, scores, seating = match
    shuffled = Random(order).sample(range(len(seating)), len(seating))
    found = rated(made(), states, scores, seating)
    moved = rated(made(), states, [scores[seat] for seat in shuffled], [seating[seat] for seat in shuffled])
    assert moved == about(found, rel=1e-12, points=1e-8)


@given(match=matches(), tau=st.sampled_from([0.0, 50.0]), limit_sigma=st.booleans())
def test_no_deviation_grows_where_skills_do_not_drift_or_it_is_limited(
    match: tuple[list[State], list[float], list[int]], tau: float, limit_sigma: bool
) -> None:
    for before, after in zip(match[0], rated(made(tau=tau, limit_sigma=limit_sigma), *match), strict=True):
        assert after[1] > 0
        assert after[1] <= before[1] * (1 + 1e-12) or (tau and not limit_sigma)


@given(match=matches())
def test_equal_deviations_make_a_match_a_zero_sum(match: tuple[list[State], list[float], list[int]]) -> None:
    states, scores, _ = match
    even = [(mu, 100.0) for mu, _ in states]
    moved = [after[0] - before[0] for before, after in zip(even, rated(made(), even, scores[: len(even)]), strict=True)]
    assert math.fsum(moved) == pytest.approx(0, abs=1e-9)


@given(match=matches(), points=st.integers(-10_000, 10_000), scale=st.sampled_from([1 / 64, 2.0, 128.0]))
def test_only_differences_of_ratings_matter_and_the_unit_does_not(
    match: tuple[list[State], list[float], list[int]], points: float, scale: float
) -> None:
    states, scores, seating = match
    found = rated(made(), states, scores, seating)
    larger = made(beta=BETA * scale, sigma=2 * BETA * scale, tau=BETA / 50 * scale)
    moved = rated(larger, [((mu + points) * scale, sigma * scale) for mu, sigma in states], scores, seating)
    expected = [((mu + points) * scale, sigma * scale) for mu, sigma in found]
    assert moved == about(expected, rel=1e-12, points=1e-9 * scale)


@given(match=matches(), who=st.integers(0, 3))
def test_a_better_place_never_gives_a_lower_rating(match: tuple[list[State], list[float], list[int]], who: int) -> None:
    states, who = match[0], who % len(match[0])
    others = [float(seat) for seat in range(1, len(states))]
    places = [place + 0.5 for place in range(len(states))]
    found = [rated(made(), states, [*others[:who], place, *others[who:]])[who][0] for place in places]
    assert all(higher >= lower - 1e-9 for lower, higher in pairwise(found))


extreme = st.floats(allow_nan=False, allow_infinity=False)


@given(
    states=st.lists(st.tuples(extreme, extreme), min_size=2, max_size=5),
    scores=st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=7, max_size=7),
    tau=st.sampled_from([0.0, 2.5]),
)
def test_any_finite_state_leads_to_a_finite_rating_and_a_positive_deviation(
    states: list[State], scores: list[float], tau: float
) -> None:
    for mu, sigma in rated(made(tau=tau), states, scores, [seat % len(states) for seat in range(7)]):
        assert math.isfinite(mu)
        assert 0 < sigma < math.inf


def test_a_match_leaves_at_least_the_share_kappa_of_a_variance() -> None:
    states, scores = [(1000.0, 2000.0), (1000.0, 1.0), (1000.0, 1.0)], [0.0, 1.0, 2.0]
    assert rated(made(tau=0), states, scores)[0][1] < 2000 * math.sqrt(0.9)
    assert rated(made(tau=0, kappa=0.9), states, scores)[0][1] == pytest.approx(2000 * math.sqrt(0.9))


def test_each_seat_of_an_agent_plays_the_others_and_their_changes_of_precision_add_up() -> None:
    hero, bot = (1100.0, 200.0), (900.0, 300.0)
    found = rated(made(tau=0), [hero, bot], [3.0, 2.0, 4.0], [0, 1, 1])
    lost = rated(made(tau=0), [hero, bot], [3.0, 2.0])[1]
    won = rated(made(tau=0), [hero, bot], [3.0, 4.0])[1]
    expected = [natural(lost)[n] + natural(won)[n] - natural(bot)[n] for n in (0, 1)]
    assert natural(found[1]) == pytest.approx(expected, rel=1e-12)
    # The hero met both seats in one game of three.
    three = rated(made(tau=0), [hero, bot, bot], [3.0, 2.0, 4.0])
    assert found[0] == pytest.approx(three[0], rel=1e-12)


def test_drift_is_added_once_however_many_seats_an_agent_has() -> None:
    hero, bot = (1000.0, 50.0), (1000.0, 50.0)
    found = rated(made(tau=30), [hero, bot], [1.0, 0.0, 0.0, 0.0], [0, 1, 1, 1])
    drifted = (1000.0, math.hypot(50, 30))
    assert found == about(rated(made(tau=0), [drifted, drifted], [1.0, 0.0, 0.0, 0.0], [0, 1, 1, 1]), rel=1e-12)


def test_a_version_inherits_the_rating_with_twice_the_deviation_at_most_the_first() -> None:
    assert made().inherit((1234.0, 50.0)) == (1234.0, 100.0)
    assert made().inherit((1234.0, 200.0)) == (1234.0, 2 * BETA)


@pytest.mark.parametrize("name", ["beta", "sigma", "tau", "kappa", "inherited_factor"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: {value}; expected"):
        made(**{name: value})
