"""Payoffs, Nash averaging and the Hodge decomposition: closed forms, clones, and planted cycles."""

from math import log

import numpy as np
import pytest

from benchmarks.synthetic_matches import make_match_arrays, simulate_payoff_matches, simulate_ranked_matches
from league.analysis.payoff import decompose_payoff, make_payoff_matrix, wilson_intervals
from league.analysis.population import decompose, nash_average
from schemas.errors import UsageError

RPS = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
LADDER = np.subtract.outer([3.0, 1.0, 0.0, -2.0], [3.0, 1.0, 0.0, -2.0])


def clone(matrix: np.ndarray, which: int, times: int) -> np.ndarray:
    places = [*range(len(matrix)), *[which] * times]
    return matrix[np.ix_(places, places)]


def test_payoffs_count_a_match_once_however_many_seats_two_agents_hold() -> None:
    matches = make_match_arrays(
        np.array([[0, 0, 1], [0, 1, 1], [0, 1, 2]]), np.array([[2.0, 0, 1], [1, 1, 0], [0, 5, 5]]), ["a", "b", "c"]
    )
    found = make_payoff_matrix(matches)
    assert found.agents == ["a", "b", "c"]
    assert found.matches == [[0, 3, 1], [3, 0, 1], [1, 1, 0]]
    assert found.share[0][1] == pytest.approx((0.5 + 0.75 + 0.0) / 3)
    assert found.share[1][0] == pytest.approx(1 - (0.5 + 0.75 + 0.0) / 3)
    assert found.share[1][2] == 0.5
    assert found.share[0][0] is None


def test_payoff_intervals_are_wilsons() -> None:
    low, high = wilson_intervals(np.array([8.0, 0.0]), np.array([10.0, 0.0]))
    assert (low[0], high[0]) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert (low[1], high[1]) == (0.0, 1.0)
    covered = []
    for seed in range(300):
        found = make_payoff_matrix(simulate_payoff_matches(np.array([[0, 1.0], [-1.0, 0]]), 40, seed))
        low, high = found.low[0][1], found.high[0][1]
        covered.append(low <= 1 / (1 + np.exp(-1)) <= high)
    assert 0.93 <= np.mean(covered) <= 0.97


def test_log_odds_are_antisymmetric_finite_and_refuse_who_never_met() -> None:
    chain = make_match_arrays(np.array([[0, 1], [1, 2]]), np.array([[1.0, 0.0]] * 2), ["a", "b", "c"])
    with pytest.raises(UsageError, match="'a' and 'c' never met"):
        make_payoff_matrix(chain).log_odds()
    odds = make_payoff_matrix(chain).log_odds(unmet_even=True)
    assert odds[0, 1] == -odds[1, 0] == pytest.approx(log(3))
    assert odds[0, 2] == 0


def test_nash_of_rock_paper_scissors_is_uniform_and_of_a_ladder_its_top() -> None:
    assert nash_average(RPS).share == pytest.approx([1 / 3] * 3, abs=1e-6)
    assert nash_average(RPS).worth == pytest.approx([0] * 3, abs=1e-6)
    top = nash_average(LADDER)
    assert top.share == pytest.approx([1, 0, 0, 0], abs=1e-6)
    assert top.worth == pytest.approx([0, -2, -3, -5], abs=1e-5)


def test_nash_of_unequal_cycles_has_its_closed_form() -> None:
    a, b, c = 1.0, 2.0, 5.0
    matrix = np.array([[0, a, -b], [-a, 0, c], [b, -c, 0]])
    assert nash_average(matrix).share == pytest.approx(np.array([c, b, a]) / (a + b + c), abs=1e-5)


def test_of_many_equilibria_the_one_of_greatest_entropy_is_found() -> None:
    assert nash_average(np.zeros((4, 4))).share == pytest.approx([0.25] * 4)
    found = nash_average(clone(LADDER, 0, 2))
    assert found.share == pytest.approx([1 / 3, 0, 0, 0, 1 / 3, 1 / 3], abs=1e-6)
    assert found.entropy == pytest.approx(log(3), abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_nash_of_random_games_is_an_equilibrium_and_clones_do_not_move_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(9, 9))
    matrix -= matrix.T
    plain, cloned = nash_average(matrix), nash_average(clone(matrix, seed, 4))
    assert max(plain.worth) < 1e-5
    assert sum(plain.share) == pytest.approx(1)
    assert cloned.worth[:9] == pytest.approx(plain.worth, abs=1e-5)
    assert cloned.worth[9:] == pytest.approx([plain.worth[seed]] * 4, abs=1e-5)
    assert sum(cloned.share[9:]) + cloned.share[seed] == pytest.approx(plain.share[seed], abs=1e-5)


def test_clones_move_the_average_but_not_the_clone_robust_board() -> None:
    cloned = clone(RPS, 1, 5)
    assert cloned.mean(1)[0] > 0.5
    assert nash_average(cloned).worth == pytest.approx([0] * 8, abs=1e-6)


def test_a_cycle_is_all_cyclic_and_a_ladder_not_at_all() -> None:
    assert decompose(RPS).cyclic_share == pytest.approx(1)
    ladder = decompose(LADDER)
    assert ladder.cyclic_share == pytest.approx(0, abs=1e-12)
    assert ladder.potential == pytest.approx(np.array([3, 1, 0, -2]) - 0.5)
    assert decompose(np.zeros((3, 3))).cyclic_share == 0


def test_the_two_parts_are_orthogonal_so_their_shares_add_up() -> None:
    mixed = 2.0 * RPS + np.subtract.outer([1.0, 0.0, -1.0], [1.0, 0.0, -1.0])
    ladder = 2 * (1 + 4 + 1)
    assert decompose(mixed).cyclic_share == pytest.approx(24 / (24 + ladder))


def test_weights_and_missing_pairs_count() -> None:
    weight = 1.0 - np.eye(3)
    weight[0, 1] = weight[1, 0] = 0
    found = decompose(RPS, weight)
    assert (found.cycles, found.cyclic_share, found.p_value) == (0, pytest.approx(0, abs=1e-12), 1.0)
    two = np.zeros((6, 6))
    two[:3, :3], two[3:, 3:] = RPS, RPS
    apart = (two != 0).astype(float)
    assert decompose(two, apart).cyclic_share == pytest.approx(1)
    assert decompose(two, apart).cycles == 2


def test_a_planted_cycle_is_detected_among_many_agents() -> None:
    strength = np.linspace(-0.5, 0.5, 7)
    odds = np.subtract.outer(strength, strength)
    odds[:3, :3] += 1.5 * RPS
    found = decompose_payoff(make_payoff_matrix(simulate_payoff_matches(odds, 4200, 1)))
    assert found.p_value < 1e-6
    assert found.beyond_chance == pytest.approx(decompose(odds).cyclic_share, abs=0.12)
    assert nash_average(make_payoff_matrix(simulate_payoff_matches(RPS, 3000, 2)).log_odds()).share == pytest.approx(
        [1 / 3] * 3, abs=0.05
    )


def test_chance_alone_is_seldom_called_a_cycle() -> None:
    strength = np.linspace(-0.6, 0.6, 7)
    odds = np.subtract.outer(strength, strength)
    alarms = [
        decompose_payoff(make_payoff_matrix(simulate_payoff_matches(odds, 2100, seed))).p_value < 0.05
        for seed in range(200)
    ]
    assert np.mean(alarms) < 0.1


def test_seven_seats_of_a_transitive_league_have_little_that_goes_round() -> None:
    results = make_payoff_matrix(simulate_ranked_matches([700 + 100 * k for k in range(7)], 3000, 7, 0))
    found, agents = decompose_payoff(results), results.agents
    assert found.cyclic_share < 0.01
    order = [name for _, name in sorted(zip(found.potential, agents, strict=True))]
    assert order == [f"agent{k}" for k in range(7)]


@pytest.mark.parametrize("board", [nash_average, decompose])
def test_matrices_that_are_no_payoffs_are_refused(board: object) -> None:
    for matrix, message in [
        (np.array([[0.0, np.nan], [0.0, 0.0]]), "row 0, column 1 is nan"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), "each to be minus the other"),
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        (np.zeros((0, 0)), r"shape \(0, 0\)"),
    ]:
        with pytest.raises(UsageError, match=message):
            board(matrix)


def test_a_single_agent_is_its_own_board() -> None:
    alone = np.zeros((1, 1))
    assert nash_average(alone).share == [1.0]
    assert decompose(alone).cyclic_share == 0


def test_bad_settings_say_what_was_expected() -> None:
    with pytest.raises(UsageError, match="weights"):
        decompose(RPS, -np.ones((3, 3)))
