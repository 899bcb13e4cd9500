"""The contract of a rating system, and the systems by name."""

from collections.abc import Mapping
from typing import Protocol

from schemas.config import Plugin
from schemas.events import MatchFinished, RatingChange
from schemas.plugins import Registry


class RatingSystem(Protocol):
    """What one match does to ratings: a pure function."""

    name: str

    def rate(self, match: MatchFinished, ratings: Mapping[str, float]) -> list[RatingChange]:
        """Ratings before and after a match.

        Args:
            match: At least two different agents, all scores finite.
            ratings: Rating of every agent of the match before it.

        Returns:
            One change per different agent, in the order of their first seats. Equal arguments give equal bits.
        """


SYSTEMS: Registry[RatingSystem] = Registry("ratings.system", "league.ratings")


def make_rating_system(plugin: Plugin) -> RatingSystem:
    """The rating system that the configuration names.

    Raises:
        ConfigError: unknown name or bad setting.
    """
    return SYSTEMS.build(plugin)
