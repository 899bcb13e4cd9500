"""Parts that the rating systems with Gaussian skills share.

Their updates are computed in units of beta, the standard deviation of a performance around the skill.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from league.ratings.base import State

_MAX_DISTANCE = 1e7
"""Largest distance of two ratings, in units of beta."""
_MIN_DEVIATION = 1e-6
_MAX_DEVIATION = 1e6


def seat_games(agents: Sequence[str]) -> Iterator[tuple[list[int], list[int]]]:
    """Split a match into games: the seats of each game, and the seats whose results in it count.

    The first is the game of all seats, for agents in one seat. For each seat of the others follows the game of that
    seat and all seats of other agents.
    """
    counts = Counter(agents)
    everyone = list(range(len(agents)))
    if single := [seat for seat in everyone if counts[agents[seat]] == 1]:
        yield everyone, single
    if len(counts) < len(agents):
        for seat, agent in enumerate(agents):
            if counts[agent] > 1:
                yield [other for other in everyone if other == seat or agents[other] != agent], [seat]


def inherit_deviation(state: State, factor: float, most: float) -> State:
    """The same rating, with ``factor`` times its deviation and at most ``most``."""
    return state[0], min(state[1] * factor, most)


def scaled_distance(rating: float, reference: float, beta: float) -> float:
    """Distance of a rating from a reference, in units of beta."""
    x = (rating - reference) / beta
    return x if -_MAX_DISTANCE < x < _MAX_DISTANCE else max(min(x, _MAX_DISTANCE), -_MAX_DISTANCE)


def skill_variance(deviation: float, beta: float, tau: float) -> float:
    """Variance of an agent's skill in a match, in units of beta squared: of its rating, and of its drift since."""
    x = min(max(deviation / beta, _MIN_DEVIATION), _MAX_DEVIATION)
    drift = tau / beta
    return x * x + drift * drift
