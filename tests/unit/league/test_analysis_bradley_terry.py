"""Bradley–Terry strengths: known strengths are recovered, intervals cover them, and results do not depend on order."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from league.analysis.bradley_terry import Floats, Ints, MatchResults, Strength, fit_strengths

ELO_PER_LOG_UNIT = 400 / np.log(10)
ORACLE = Path(__file__).parents[2] / "golden" / "boards" / "arena_rank.json"
CASES: dict[str, Any] = json.loads(ORACLE.read_text())
"""Histories with what the package arena-rank makes of them (``tests/golden/boards/write.py``)."""


def results(agent_MN: Ints, score_MN: Floats, names: Sequence[str]) -> MatchResults:
    matches, seats = agent_MN.shape
    match_S, side_S = np.repeat(np.arange(matches), seats), np.tile(np.arange(seats), matches)
    return MatchResults(match_S, side_S, agent_MN.ravel(), score_MN.ravel(), np.ones(matches * seats), names)


def named(count: int) -> list[str]:
    return [f"agent{number:02}" for number in range(count)]


def simulated(elo: Floats, matches: int, seats: int, seed: int, *, clones: bool = False) -> MatchResults:
    """Matches whose pairs are Bradley–Terry in ``elo``; with ``clones`` one agent has all seats but one."""
    rng = np.random.default_rng(seed)
    agent_MN = rng.random((matches, len(elo))).argsort(axis=1)[:, :seats]
    if clones:
        agent_MN = np.where(
            np.arange(seats) == rng.integers(seats, size=(matches, 1)), agent_MN[:, :1], agent_MN[:, 1:2]
        )
    score_MN = elo[agent_MN] / ELO_PER_LOG_UNIT + rng.gumbel(size=agent_MN.shape)
    return results(agent_MN, score_MN, named(len(elo)))


def duels(*wins: tuple[str, str, int]) -> dict[str, Strength]:
    """Fit ``(winner, loser, matches)``."""
    names = sorted({name for winner, loser, _ in wins for name in (winner, loser)})
    agents = [[names.index(winner), names.index(loser)] for winner, loser, count in wins for _ in range(count)]
    return fit_strengths(results(np.array(agents), np.tile([1.0, 0.0], (len(agents), 1)), names))


@pytest.mark.parametrize(("seats", "matches"), [(2, 12_000), (7, 2_500)])
def test_known_strengths_are_recovered(seats: int, matches: int) -> None:
    elo = np.random.default_rng(0).permutation(np.linspace(-400.0, 400.0, 24))
    found = fit_strengths(simulated(elo, matches, seats, 7))
    ratings = np.array([found[name].rating for name in named(24)])
    assert np.abs(ratings - elo).max() < 60
    assert ratings.mean() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("seats", "matches", "clones"), [(2, 200, False), (7, 60, False), (7, 200, True)])
def test_intervals_cover_the_truth_as_often_as_they_say(seats: int, matches: int, clones: bool) -> None:
    rng = np.random.default_rng(1)
    covered = []
    for seed in range(60):
        elo = rng.normal(0.0, 150.0, 8)
        found = fit_strengths(simulated(elo, matches, seats, seed, clones=clones))
        truth = zip(named(8), elo - elo.mean(), strict=True)
        covered += [found[name].low <= value <= found[name].high for name, value in truth]
    assert 0.92 < np.mean(covered) < 0.99


def test_two_agents_stand_as_their_share_says() -> None:
    found = duels(("a", "b", 300), ("b", "a", 100))
    assert found["a"].rating - found["b"].rating == pytest.approx(400 * np.log10(3), rel=0.01)
    # The standard error of a log-odds of n p q is 1 / sqrt(n p q); each agent has half of the difference.
    half = 1.96 / np.sqrt(400 * 0.75 * 0.25) * ELO_PER_LOG_UNIT / 2
    assert found["a"].high - found["a"].rating == pytest.approx(half, rel=0.02)


def test_ties_are_half_a_win_for_each() -> None:
    tied = fit_strengths(results(np.array([[0, 1]] * 50), np.zeros((50, 2)), ["a", "b"]))
    assert tied["a"].rating == pytest.approx(0.0)
    assert not tied["a"].one_sided


def test_an_agent_that_never_lost_is_finite_wide_and_marked() -> None:
    found = duels(("a", "b", 50), ("b", "c", 30), ("c", "b", 20))
    assert found["a"].one_sided
    assert not found["b"].one_sided
    assert 200 < found["a"].rating < 2000
    assert found["a"].high - found["a"].low > 2 * (found["c"].high - found["c"].low)


def test_only_the_largest_connected_group_has_strengths() -> None:
    assert set(duels(("a", "b", 3), ("b", "c", 3), ("x", "y", 9))) == {"a", "b", "c"}


def test_order_and_numbers_of_matches_do_not_matter() -> None:
    drawn = simulated(np.linspace(-200.0, 200.0, 6), 50, 4, 3)
    agent_MN, score_MN = drawn.agent_S.reshape(50, 4), drawn.score_S.reshape(50, 4)
    backward = results(agent_MN[::-1], score_MN[::-1], drawn.agents)
    for name, strength in fit_strengths(drawn).items():
        assert fit_strengths(backward)[name].rating == pytest.approx(strength.rating, abs=1e-6)
        assert fit_strengths(backward)[name].low == pytest.approx(strength.low, abs=1e-6)


def test_equal_arguments_give_equal_bits() -> None:
    drawn = simulated(np.linspace(-200.0, 200.0, 6), 50, 4, 3)
    assert fit_strengths(drawn) == fit_strengths(drawn)


def test_matches_that_compare_nobody_are_left_out() -> None:
    agent_MN, score_MN = np.array([[0, 1], [1, 0], [1, 1], [0, 1]]), np.array([[1.0, 0.0]] * 4)
    score_MN[3] = [np.nan, 0.0]
    found = fit_strengths(results(agent_MN, score_MN, ["a", "b", "idle"]))
    assert set(found) == {"a", "b"}
    assert found["a"].rating == pytest.approx(0.0)
    assert fit_strengths(results(agent_MN[2:3], score_MN[2:3], ["a", "b"])) == {}
    assert fit_strengths(results(np.zeros((0, 2), int), np.zeros((0, 2)), [])) == {}


def of_case(case: dict[str, Any]) -> dict[str, Strength]:
    line_ups, scores = case["agents"].split(), case["scores"].split()
    names = sorted(set("".join(line_ups)))
    agent_MN = np.array([[names.index(agent) for agent in line_up] for line_up in line_ups])
    return fit_strengths(results(agent_MN, np.array([[float(score) for score in match] for match in scores]), names))


@pytest.mark.parametrize("name", CASES)
def test_ratings_are_those_of_arena_rank_but_for_the_prior(name: str) -> None:
    found, expected = of_case(CASES[name]), CASES[name]["ratings"]
    mean = sum(expected.values()) / len(expected)
    for agent, rating in expected.items():
        assert found[agent].rating == pytest.approx(rating - mean, rel=0.03, abs=3)


def test_intervals_are_those_of_arena_ranks_sandwich_where_a_match_is_a_pair() -> None:
    found, half = of_case(CASES["2 seats"]), CASES["2 seats"]["half"]
    ratio = [(found[agent].high - found[agent].low) / (2 * half[agent]) for agent in half]
    assert np.mean(ratio) == pytest.approx(1, abs=0.05)
    # With more seats the package takes the pairs of a match for independent, and is too sure.
    found, half = of_case(CASES["8 seats"]), CASES["8 seats"]["half"]
    assert np.mean([(found[agent].high - found[agent].low) / (2 * half[agent]) for agent in half]) > 1.2
