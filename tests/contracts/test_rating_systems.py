"""What every registered rating system does, whatever its formula."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.ratings.base import SYSTEMS, RatingSystem, Side, State, make_rating_system
from schemas.config import Plugin
from schemas.errors import ConfigError

systems = pytest.mark.parametrize("system", [make_rating_system(Plugin(name=name)) for name in SYSTEMS.names()])
AGENTS = ["base_model", "main@1", "main@10", "random_bot"]
Seats = list[tuple[str, float]]


def rate(system: RatingSystem, seats: Seats, ratings: dict[str, float]) -> dict[str, State]:
    """States after a match between new agents with these ratings, each seat for itself."""
    return rate_sides(system, [Side((agent,), score) for agent, score in seats], ratings)


def rate_sides(system: RatingSystem, sides: Sequence[Side], ratings: Mapping[str, float]) -> dict[str, State]:
    agents = dict.fromkeys(agent for side in sides for agent in side.agents)
    return system.update({agent: system.start(ratings[agent]) for agent in agents}, sides)


scores = st.floats(-1e6, 1e6)
line_ups = st.lists(st.tuples(st.sampled_from(AGENTS), scores), min_size=2, max_size=9).filter(
    lambda seats: len({agent for agent, _ in seats}) > 1
)
tables = st.fixed_dictionaries({agent: st.floats(-5_000, 5_000) for agent in AGENTS})


@systems
@given(seats=line_ups, ratings=tables)
def test_every_agent_of_the_match_gets_one_finite_state_of_the_same_length(
    system: RatingSystem, seats: Seats, ratings: dict[str, float]
) -> None:
    after = rate(system, seats, ratings)
    assert list(after) == list(dict(seats))
    assert {len(state) for state in after.values()} == {len(system.start(1000.0))}
    assert all(math.isfinite(number) for state in after.values() for number in state)


@systems
@given(seats=line_ups, ratings=tables)
def test_equal_matches_give_equal_bits(system: RatingSystem, seats: Seats, ratings: dict[str, float]) -> None:
    assert rate(system, seats, ratings) == rate(system, list(seats), dict(reversed(ratings.items())))


@systems
@given(seats=line_ups, ratings=tables)
def test_other_names_for_the_agents_give_the_same_bits(
    system: RatingSystem, seats: Seats, ratings: dict[str, float]
) -> None:
    names = dict(zip(AGENTS, reversed(AGENTS), strict=True))
    renamed = rate(
        system,
        [(names[agent], score) for agent, score in seats],
        {names[agent]: rating for agent, rating in ratings.items()},
    )
    assert renamed == {names[agent]: state for agent, state in rate(system, seats, ratings).items()}


@systems
@given(seats=line_ups, ratings=tables, order=st.integers(0, 1_000))
def test_where_agents_sit_does_not_matter(
    system: RatingSystem, seats: Seats, ratings: dict[str, float], order: int
) -> None:
    moved = rate(system, Random(order).sample(seats, len(seats)), ratings)
    after = rate(system, seats, ratings)
    assert {agent: state[0] for agent, state in moved.items()} == pytest.approx(
        {agent: state[0] for agent, state in after.items()}, abs=1e-6
    )


@systems
@given(
    ratings=st.lists(st.integers(0, 2_000).map(float), min_size=4, max_size=4),
    seats=st.lists(st.integers(0, 4).map(float), min_size=2, max_size=4),
    points=st.integers(-500, 500),
)
def test_only_differences_of_ratings_matter(
    system: RatingSystem, ratings: list[float], seats: list[float], points: int
) -> None:
    line_up = list(zip(AGENTS, seats, strict=False))
    here = rate(system, line_up, dict(zip(AGENTS, ratings, strict=True)))
    there = rate(system, line_up, {agent: rating + points for agent, rating in zip(AGENTS, ratings, strict=True)})
    for agent, state in here.items():
        assert there[agent][0] - points == pytest.approx(state[0], abs=1e-6)


@systems
@given(ratings=tables, other=st.integers(0, 4))
def test_a_better_result_between_two_is_never_worth_less(
    system: RatingSystem, ratings: dict[str, float], other: int
) -> None:
    found = [rate(system, [("main@1", own), ("main@10", float(other))], ratings)["main@1"][0] for own in range(6)]
    assert all(after >= before - 1e-9 for before, after in pairwise(found))
    assert found[-1] >= ratings["main@1"]


@systems
@given(scores=st.lists(st.integers(0, 3).map(float), min_size=2, max_size=7), size=st.integers(1, 3))
def test_among_equals_a_better_rank_never_gains_less(system: RatingSystem, scores: list[float], size: int) -> None:
    sides = [Side(tuple(f"{side}-{seat}" for seat in range(size)), score) for side, score in enumerate(scores)]
    after = rate_sides(system, sides, {agent: 1000.0 for side in sides for agent in side.agents})
    gains = [[after[agent][0] - 1000.0 for agent in side.agents] for side in sides]
    assert all(max(own) - min(own) < 1e-9 for own in gains)
    for own, gained in zip(sides, gains, strict=True):
        assert all(
            gained[0] >= other[0] - 1e-9 for rest, other in zip(sides, gains, strict=True) if own.score >= rest.score
        )


@systems
def test_tied_winners_gain_more_than_the_third(system: RatingSystem) -> None:
    after = rate(system, list(zip("abcde", [4.0, 4.0, 3.0, 2.0, 1.0], strict=True)), dict.fromkeys("abcde", 1000.0))
    assert after["a"] == pytest.approx(after["b"])
    assert after["a"][0] > after["c"][0] > 999.0 > after["e"][0]


teams = st.lists(st.lists(st.sampled_from(AGENTS), min_size=1, max_size=4), min_size=2, max_size=4).filter(
    lambda sides: len({agent for side in sides for agent in side}) > 1
)


@systems
@given(
    sides=teams,
    ratings=tables,
    scores=st.lists(st.integers(0, 2).map(float), min_size=4, max_size=4),
    order=st.integers(),
)
def test_the_order_of_a_teams_seats_changes_nothing(
    system: RatingSystem, sides: list[list[str]], ratings: dict[str, float], scores: list[float], order: int
) -> None:
    after = rate_sides(system, [Side(tuple(side), score) for side, score in zip(sides, scores, strict=False)], ratings)
    assert all(math.isfinite(number) for state in after.values() for number in state)
    moved = [
        Side(tuple(Random(order).sample(side, len(side))), score) for side, score in zip(sides, scores, strict=False)
    ]
    for agent, state in rate_sides(system, moved, ratings).items():
        assert state == pytest.approx(after[agent], rel=1e-9)


@systems
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 4), (1, 5)])
def test_among_equals_every_member_of_the_winning_team_gains(system: RatingSystem, sizes: tuple[int, int]) -> None:
    won, lost = (tuple(f"{side}{seat}" for seat in range(size)) for side, size in zip("ab", sizes, strict=True))
    ratings = dict.fromkeys((*won, *lost), 1000.0)
    after = rate_sides(system, [Side(won, 1.0), Side(lost, -1.0)], ratings)
    assert {after[agent] for agent in won} == {after[won[0]]}
    assert min(after[agent][0] for agent in won) > 1000.0 > max(after[agent][0] for agent in lost)
    tied = rate_sides(system, [Side(won, 0.0), Side(lost, 0.0)], ratings)
    assert [tied[agent][0] for agent in (*won, *lost)] == pytest.approx([1000.0] * sum(sizes), abs=1e-9)


@systems
def test_a_strong_agent_that_wins_with_weak_partners_gains(system: RatingSystem) -> None:
    sides = [Side(("strong", "weak", "weak", "weak"), 1.0), Side(("mid", "mid"), -1.0)]
    after = rate_sides(system, sides, {"strong": 1400.0, "weak": 1000.0, "mid": 1000.0})
    assert after["strong"][0] > 1400.0
    assert after["weak"][0] > 1000.0 > after["mid"][0]


@systems
def test_an_agent_on_both_sides_is_not_compared_with_itself(system: RatingSystem) -> None:
    ratings = {"main@1": 1000.0, "random_bot": 1000.0}
    after = rate_sides(system, [Side(("main@1", "random_bot"), 1.0), Side(("random_bot",) * 4, -1.0)], ratings)
    assert after["main@1"][0] > 1000.0 > after["random_bot"][0]


@systems
def test_ratings_however_far_apart_stay_finite(system: RatingSystem) -> None:
    for upset in (1.0, 3.0):
        after = rate(system, [("main@1", 2.0), ("main@10", upset)], {"main@1": 1e9, "main@10": -1e9})
        assert all(math.isfinite(number) for state in after.values() for number in state)


@systems
def test_a_version_inherits_the_rating(system: RatingSystem) -> None:
    state = system.start(1000.0)
    assert state[0] == 1000.0
    assert system.inherit(state)[0] == 1000.0
    assert len(system.inherit(state)) == len(state)


@systems
@pytest.mark.parametrize("seats", [2, 7])
def test_the_order_of_known_skills_is_recovered_where_many_matches_tie(system: RatingSystem, seats: int) -> None:
    rng = Random(7)
    skills = [600.0 + 100.0 * number for number in range(9)]
    states = {number: system.start(1000.0) for number in range(len(skills))}
    for _ in range(1_500):
        players = rng.sample(range(len(skills)), seats)
        results = [Side((str(player),), round((skills[player] + rng.gauss(0, 200)) / 150)) for player in players]
        after = system.update({str(player): states[player] for player in players}, results)
        states.update((int(player), state) for player, state in after.items())
    found = sorted(states, key=lambda number: states[number][0])
    assert sum(abs(place - number) for place, number in enumerate(found)) <= 4


@systems
def test_an_unknown_setting_is_refused_by_name(system: RatingSystem) -> None:
    with pytest.raises(ConfigError, match=r"ratings\.system\.settings\.surprise: unknown key"):
        make_rating_system(Plugin(name=system.name, settings={"surprise": 1}))


def test_an_unknown_system_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"ratings\.system\.name: 'glicko2'.*'elo', 'openskill' or 'trueskill'"):
        make_rating_system(Plugin(name="glicko2"))
