"""TrueSkill: the package's numbers, the paper's closed form for two, and what it does where the package fails."""

import math
from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random
from statistics import NormalDist

import mpmath
import pytest
import trueskill
from hypothesis import given
from hypothesis import strategies as st

from league.ratings.base import Side, State, make_rating_system
from league.ratings.trueskill import TrueSkill
from schemas.config import Plugin
from schemas.errors import ConfigError

# The package's own normal distribution has seven digits; mpmath's has as many as it is asked for.
mpmath.mp.dps = 30

# The package counts changes of messages in points; here they are counted where beta is 25/6.
MIN_DELTA = 1e-4 * (25 / 6) / 200
NORMAL = NormalDist()


def made(**settings: float) -> TrueSkill:
    system = make_rating_system(Plugin(name="trueskill", settings=settings))
    assert isinstance(system, TrueSkill)
    return system


def environment(draw_probability: float = 0.1, tau: float = 4.0) -> trueskill.TrueSkill:
    return trueskill.TrueSkill(1000, 400, 200, tau, draw_probability, backend="mpmath")


def rated(
    system: TrueSkill, states: Sequence[State], scores: Sequence[float], seating: Sequence[int] | None = None
) -> list[State]:
    """States after a match, of the agent in every seat or in the order of a seating."""
    seats = [str(agent) for agent in (range(len(states)) if seating is None else seating)]
    # In the order of their first seats, as the fold has them.
    before = {agent: states[int(agent)] for agent in dict.fromkeys(seats)}
    after = system.update(before, [Side((agent,), score) for agent, score in zip(seats, scores, strict=True)])
    return [after[str(agent)] for agent in range(len(states))]


def package(env: trueskill.TrueSkill, states: Sequence[State], scores: Sequence[float]) -> list[State]:
    """What the package makes of a match, equal scores in the order of their ratings."""
    order = sorted(range(len(states)), key=lambda seat: (-scores[seat], -states[seat][0], -states[seat][1]))
    return given_in(env, order, states, scores)


def given_in(
    env: trueskill.TrueSkill, order: Sequence[int], states: Sequence[State], scores: Sequence[float]
) -> list[State]:
    teams = [(trueskill.Rating(*states[seat]),) for seat in order]
    found = env.rate(teams, ranks=[-scores[seat] for seat in order], min_delta=MIN_DELTA)
    place = {seat: at for at, seat in enumerate(order)}
    return [(found[place[seat]][0].mu, found[place[seat]][0].sigma) for seat in range(len(states))]


def about(states: Sequence[State], rel: float, points: float = 0.0) -> list[object]:
    return [pytest.approx(state, rel=rel, abs=points) for state in states]


def natural(state: State) -> tuple[float, float]:
    return state[1] ** -2, state[0] * state[1] ** -2


@pytest.mark.parametrize(("draw_probability", "tau"), [(0.1, 4.0), (0.4, 0.0)])
def test_histories_of_two_to_eight_seats_with_draws_agree_with_the_package_to_the_last_digits(
    draw_probability: float, tau: float
) -> None:
    rng = Random(f"{draw_probability}")
    system, env = made(draw_probability=draw_probability, tau=tau), environment(draw_probability, tau)
    skills = [rng.gauss(0, 300) for _ in range(20)]
    mine: list[State] = [(rng.gauss(1000, 200), 400.0) for _ in skills]
    theirs = list(mine)
    for _ in range(150):
        agents = rng.sample(range(20), rng.randint(2, 8))
        scores = [float(round((skills[agent] + rng.gauss(0, 200)) / 150)) for agent in agents]
        after = rated(system, [mine[agent] for agent in agents], scores)
        expected = package(env, [theirs[agent] for agent in agents], scores)
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
        # The package takes equal scores in the order given; here the higher skill goes first.
        order = sorted(range(len(sizes)), key=lambda side: (-scores[side], -sum(mu - mean for mu, _ in states[side])))
        teams = [tuple(trueskill.Rating(mu - mean, sigma) for mu, sigma in states[side]) for side in order]
        rated_teams = environment().rate(teams, ranks=[-scores[side] for side in order], min_delta=MIN_DELTA)
        expected = [rated_teams[order.index(side)] for side in range(len(sizes))]
        for team, own in zip(names, expected, strict=True):
            for name, rating in zip(team, own, strict=True):
                assert found[name] == pytest.approx((rating.mu + mean, rating.sigma), rel=0, abs=1e-9)


@pytest.mark.parametrize("score", [1.0, 0.0, -1.0])
def test_a_game_of_two_is_the_packages_rate_1vs1(score: float) -> None:
    a, b = (1100.0, 300.0), (950.0, 120.0)
    env = environment()
    winner, loser = (b, a) if score < 0 else (a, b)
    best, other = trueskill.rate_1vs1(trueskill.Rating(*winner), trueskill.Rating(*loser), drawn=score == 0, env=env)
    expected = [(best.mu, best.sigma), (other.mu, other.sigma)]
    found = rated(made(), [a, b], [score, 0.0])
    assert found == about(expected[::-1] if score < 0 else expected, rel=1e-13)


def test_a_win_in_a_game_of_two_is_the_papers_closed_form() -> None:
    (mu_a, sigma_a), (mu_b, sigma_b) = (1100.0, 300.0), (950.0, 120.0)
    variance_a, variance_b = sigma_a**2 + 4**2, sigma_b**2 + 4**2
    c = math.sqrt(2 * 200**2 + variance_a + variance_b)
    t = (mu_a - mu_b - NORMAL.inv_cdf(0.55) * math.sqrt(2) * 200) / c
    v = NORMAL.pdf(t) / NORMAL.cdf(t)
    w = v * (v + t)
    found = rated(made(), [(mu_a, sigma_a), (mu_b, sigma_b)], [1.0, 0.0])
    assert found[0] == pytest.approx(
        (mu_a + variance_a / c * v, math.sqrt(variance_a * (1 - w * variance_a / c**2))), rel=1e-13
    )
    assert found[1] == pytest.approx(
        (mu_b - variance_b / c * v, math.sqrt(variance_b * (1 - w * variance_b / c**2))), rel=1e-13
    )


@pytest.mark.parametrize("apart", [2_000.0, 5_000.0, 20_000.0])
@pytest.mark.parametrize("score", [1.0, 0.0])
def test_upsets_far_out_in_the_tails_agree_with_the_package(apart: float, score: float) -> None:
    states = [(1000.0, 60.0), (1000.0 + apart, 80.0)]
    expected = package(environment(), states, [score, 0.0])
    assert rated(made(), states, [score, 0.0]) == about(expected, rel=1e-9)


def test_equal_scores_and_states_share_what_the_package_gives_them_over_all_orders() -> None:
    states = [(1000.0, 400.0)] * 3 + [(1200.0, 300.0)]
    scores = [1.0, 1.0, 1.0, 2.0]
    env = environment()
    orders = [given_in(env, [3, *order], states, scores) for order in permutations(range(3))]
    precision, weighted = (sum(natural(order[0])[n] for order in orders) / len(orders) for n in (0, 1))
    shared = (weighted / precision, precision**-0.5)
    found = rated(made(), states, scores)
    assert found[:3] == [found[0]] * 3
    assert found[0] == pytest.approx(shared, rel=1e-12)
    assert found[3] == pytest.approx(orders[0][3], rel=1e-12)


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
    assert moved == [pytest.approx(state, abs=1e-8) for state in found]


@given(match=matches())
def test_every_deviation_falls_where_skills_do_not_drift(match: tuple[list[State], list[float], list[int]]) -> None:
    states, scores, seating = match
    for before, after in zip(states, rated(made(tau=0), states, scores, seating), strict=True):
        assert 0 < after[1] <= before[1] * (1 + 1e-12)


@given(match=matches(), points=st.integers(-10_000, 10_000), scale=st.sampled_from([1 / 64, 2.0, 128.0]))
def test_only_differences_of_ratings_matter_and_the_unit_does_not(
    match: tuple[list[State], list[float], list[int]], points: float, scale: float
) -> None:
    states, scores, seating = match
    found = rated(made(), states, scores, seating)
    larger = made(beta=200 * scale, sigma=400 * scale, tau=4 * scale)
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
    draw_probability=st.sampled_from([0.0, 1e-12, 0.1, 1 - 1e-12]),
    tau=st.sampled_from([0.0, 4.0]),
)
def test_any_finite_state_leads_to_a_finite_rating_and_a_positive_deviation(
    states: list[State], scores: list[float], draw_probability: float, tau: float
) -> None:
    seating = [seat % len(states) for seat in range(7)]
    system = made(draw_probability=draw_probability, tau=tau)
    for mu, sigma in rated(system, states, scores, seating):
        assert math.isfinite(mu)
        assert 0 < sigma < math.inf


def test_results_that_were_certain_change_nothing() -> None:
    found = rated(made(tau=0), [(50_000.0, 100.0), (1000.0, 100.0)], [1.0, 0.0])
    assert found == [pytest.approx((50_000.0, 100.0)), pytest.approx((1000.0, 100.0))]


def test_a_draw_where_there_are_none_means_that_both_performed_alike() -> None:
    a, b = rated(made(draw_probability=0, tau=0), [(1200.0, 300.0), (1000.0, 300.0)], [1.0, 1.0])
    # Both skills were observed with the noise of two performances, as if their difference had been measured at 0.
    variance, noise = 300.0**2, 2 * 200.0**2
    assert a[0] - b[0] == pytest.approx(200 * noise / (noise + 2 * variance), rel=1e-5)
    assert a[0] + b[0] == pytest.approx(2200)


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


@pytest.mark.parametrize(("sigma", "doubled"), [(50.0, 100.0), (300.0, 400.0)])
def test_a_version_inherits_the_rating_with_twice_the_deviation_at_most_the_first(sigma: float, doubled: float) -> None:
    assert made().inherit((1234.0, sigma)) == (1234.0, doubled)
    assert made(inherited_factor=1.5).inherit((1234.0, 100.0)) == (1234.0, 150.0)


@pytest.mark.parametrize("name", ["beta", "sigma", "tau", "draw_probability", "inherited_factor"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: {value}; expected"):
        made(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("draw_probability", 1.0), ("beta", 0.0)])
def test_a_setting_at_the_edge_of_sense_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: {value}; expected"):
        made(**{name: value})
