"""Every rating system in leagues whose truth is known, and the properties that all of them share."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.synthetic_matches import simulate_ranked_matches
from league.ratings.arrays import Floats, MatchArrays, RatingRule, fold_arrays
from league.ratings.base import SYSTEMS, RatingSystem, State, make_rating_system, rate_match
from schemas.config import Plugin, RatingsConfig
from schemas.events import MatchFinished
from tests.builders import match_finished

AGENTS = 24
TRUTH = np.random.default_rng(0).permutation(np.linspace(600.0, 1400.0, AGENTS))

names = pytest.mark.parametrize("name", SYSTEMS.names())


def folded(matches: MatchArrays, name: str) -> Floats:
    """Ratings by number of the agent."""
    rules = [RatingRule(0, RatingsConfig(system=Plugin(name=name)))]
    return by_number({rated.agent: rated.rating for rated in fold_arrays(matches, rules)["simulated", name]})


def by_number(ratings: dict[str, float]) -> Floats:
    return np.array([ratings[f"agent{number}"] for number in range(len(ratings))])


def spearman(left: Floats, right: Floats) -> float:
    return float(np.corrcoef(left.argsort().argsort(), right.argsort().argsort())[0, 1])


def kendall(left: Floats, right: Floats) -> float:
    upper = np.triu_indices(len(left), 1)
    signs = [np.sign(np.subtract.outer(values, values)[upper]) for values in (left, right)]
    return float(np.mean(signs[0] * signs[1]))


@pytest.mark.parametrize(("seats", "matches"), [(2, 12_000), (7, 2_500)])
@names
def test_the_order_of_known_skills_is_recovered_where_many_matches_tie(name: str, seats: int, matches: int) -> None:
    league = simulate_ranked_matches(TRUTH.tolist(), matches, seats, 7, levels=1.0)
    score_MN = league.score_S.reshape(-1, seats)
    assert np.mean(score_MN[:, 0] == score_MN[:, 1]) > 0.1
    found = folded(league, name)
    assert spearman(found, TRUTH) > 0.96
    assert kendall(found, TRUTH) > 0.85


@names
def test_without_skill_there_is_no_order_to_find(name: str) -> None:
    league = simulate_ranked_matches([1000.0] * AGENTS, 4_000, 2, 3)
    assert abs(spearman(folded(league, name), TRUTH)) < 0.5


def match(scores: Sequence[float], agents: Sequence[str]) -> MatchFinished:
    return match_finished(*zip(agents, scores, strict=True))


def change_of_first(system: RatingSystem, scores: Sequence[float], states: Sequence[State]) -> float:
    agents = [f"agent{number}" for number in range(len(scores))]
    change = rate_match(system, match(scores, agents), dict(zip(agents, states, strict=False)), {})[0]
    return change.after - change.before


# Whole numbers: trueskill chains seats that tie by their ratings, so their order must not be lost in rounding.
starts = st.lists(st.integers(0, 2_000).map(float), min_size=8, max_size=8)


@names
@given(ratings=starts, other=st.integers(0, 4))
def test_of_two_seats_a_better_result_is_never_worth_less(name: str, ratings: list[float], other: int) -> None:
    system = make_rating_system(Plugin(name=name))
    states = [system.start(rating) for rating in ratings]
    changes = [change_of_first(system, [own, float(other)], states) for own in range(6)]
    assert all(after >= before - 1e-9 for before, after in pairwise(changes))
    assert changes[-1] >= 0 >= changes[0] or other == 0


# With more seats it is a theorem where pairs add up; the messages of trueskill are an approximation.
@pytest.mark.parametrize("name", ["elo", "glicko2"])
@given(ratings=starts, others=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_of_many_seats_a_better_score_is_never_worth_less(name: str, ratings: list[float], others: list[int]) -> None:
    system = make_rating_system(Plugin(name=name))
    states = [system.start(rating) for rating in ratings]
    changes = [change_of_first(system, [own, *map(float, others)], states) for own in range(6)]
    assert all(after >= before - 1e-9 for before, after in pairwise(changes))


@names
@given(ratings=starts, scores=st.lists(st.integers(0, 4), min_size=2, max_size=8), shift=st.integers(-500, 500))
def test_only_differences_of_ratings_matter(name: str, ratings: list[float], scores: list[int], shift: int) -> None:
    system = make_rating_system(Plugin(name=name))
    here, there = ([system.start(rating + offset) for rating in ratings] for offset in (0, shift))
    points = list(map(float, scores))
    assert change_of_first(system, points, there) == pytest.approx(change_of_first(system, points, here), abs=1e-6)


@names
@settings(max_examples=20, deadline=None)
@given(seats=st.integers(2, 8), seed=st.integers(0, 10**6))
def test_other_names_for_the_agents_give_the_same_bits(name: str, seats: int, seed: int) -> None:
    league = simulate_ranked_matches(TRUTH[:9].tolist(), 60, seats, seed, levels=1.0)
    code = np.random.default_rng(seed).permutation(9)
    renamed = replace(league, agent_S=code[league.agent_S].astype(np.int32))
    assert (folded(renamed, name)[code] == folded(league, name)).all()
