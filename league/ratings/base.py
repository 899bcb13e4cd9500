"""The contract of a rating system, and the systems by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from schemas.config import Plugin
from schemas.events import MatchFinished, RatingChange
from schemas.plugins import Registry


class RatingSystem(Protocol):
    """What one match does to ratings, one at a time and over arrays: pure functions that agree bit for bit."""

    name: str

    def rate(self, match: MatchFinished, ratings: Mapping[str, float]) -> list[RatingChange]:
        """Ratings before and after a match.

        Args:
            match: At least two different agents, all scores finite.
            ratings: Rating of every agent of the match before it.

        Returns:
            One change per different agent, in the order of their first seats. Equal arguments give equal bits.
        """

    def start(self, rating: float) -> tuple[float, ...]:
        """The state of an agent that begins at a rating; its first number is the rating."""

    @property
    def constants(self) -> tuple[float, ...]:
        """What ``fold`` is told of the settings."""

    @property
    def fold(self) -> Callable[..., None]:
        """``rate`` over many matches: a plain function of arrays that numba can compile, at module level.

        It is called with, in this order (M matches, S seats, A agents, W numbers of a state):

        - ``begin_M``, ``end_M``: a match's seats, as a range of the arrays of seats
        - ``agent_S``, ``score_S``: the agent's code and the score of each seat
        - ``counted_M``: False for matches to pass over; the others are as ``rate`` expects them
        - ``source_A``: whose state an agent takes over when it is first rated, as it was before that match; -1 when
          its own row of ``state_AW`` holds its start
        - ``state_AW``, ``games_A``: changed in place; ``games_A`` is 0 for who was never rated
        - ``constants``

        It may call no other Python function, and must form every sum in the order in which ``rate`` does. A constant
        base of a power belongs to ``constants``: compilers replace ``10 ** x`` by another function's other bits.
        """


SYSTEMS: Registry[RatingSystem] = Registry("ratings.system", "league.ratings")


def make_rating_system(plugin: Plugin) -> RatingSystem:
    """The rating system that the configuration names.

    Raises:
        ConfigError: unknown name or bad setting.
    """
    return SYSTEMS.build(plugin)
