"""Parts that the rating systems with Gaussian skills share.

Their updates are computed in units of beta, the standard deviation of a performance around the skill.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import NamedTuple

from league.ratings.base import Side, State

_MAX_RATING = 1e300
_MAX_DISTANCE = 1e7
"""Largest distance of two ratings, in units of beta."""
_MIN_DEVIATION = 1e-6
_MAX_DEVIATION = 1e6


class SideGame(NamedTuple):
    """A game that a match is rated as: all of it, or what one agent on several sides played on one of them."""

    sides: dict[int, tuple[str, ...]]
    """Agents of each side, by its place in the match."""
    counted: list[tuple[int, str]]
    """Side and agent of each seat whose result counts."""


def side_games(sides: Sequence[Side]) -> Iterator[SideGame]:
    """Split a match into games: one of all sides for agents on one side, and one per side for agents on several.

    The latter is without the agent's seats on the other sides.
    """
    counts = Counter(agent for side in sides for agent in set(side.agents))
    everyone = {place: side.agents for place, side in enumerate(sides)}
    if single := [(place, agent) for place, agents in everyone.items() for agent in agents if counts[agent] == 1]:
        yield SideGame(everyone, single)
    if len(single) == sum(map(len, everyone.values())):
        return
    for place, agents in everyone.items():
        for agent in dict.fromkeys(agents):
            if counts[agent] > 1:
                others = {at: tuple(o for o in seats if o != agent or at == place) for at, seats in everyone.items()}
                if len(present := {at: seats for at, seats in others.items() if seats}) > 1:
                    yield SideGame(present, [(place, agent)] * agents.count(agent))


def relative_skills(ratings: Mapping[str, State], sides: Sequence[Side], beta: float) -> dict[str, float]:
    """Each agent's rating in units of beta, relative to the mean of the match's seats.

    A side's skill is the sum of its seats', so a seat that a smaller side lacks counts as one of mean rating: among
    equals, the number of seats is no advantage.
    """
    seats = [ratings[agent][0] for side in sides for agent in side.agents]
    # Bounded, since a sum of the largest numbers overflows.
    mean = fsum(max(min(rating, _MAX_RATING), -_MAX_RATING) / len(seats) for rating in seats)
    return {agent: scaled_distance(state[0], mean, beta) for agent, state in ratings.items()}


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
