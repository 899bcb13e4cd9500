"""Elo for any number of seats: every pair of seats is a game of two.

Source: the league specification's multi-player Elo ("pairwise decomposition"), which has k = 32 and divides each
pair's step by the number of opponents, 6 in Diplomacy.
"""

from collections.abc import Mapping
from itertools import combinations

import msgspec

from league.ratings.base import SYSTEMS
from schemas.errors import ConfigError
from schemas.events import MatchFinished, RatingChange

_SCALE = 400.0
# 10 ** 308 is the largest power that a float holds; ratings so far apart already expect 0 or 1.
_MAX_EXPONENT = 300.0


@SYSTEMS.register("elo")
class EloSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[ratings.system.settings]`` of ``elo``."""

    k: float = 32.0
    """Rating points that a seat can win or lose in one match."""

    def __post_init__(self) -> None:
        """Refuse a step that is not positive."""
        if not 0 < self.k < float("inf"):
            raise ConfigError(f"k: {self.k}; expected more than 0")

    def build(self) -> "Elo":
        """What these settings configure."""
        return Elo(self)


class Elo:
    """Pairwise Elo.

    For seats A and B, ``expected = 1 / (1 + 10 ** ((R_B - R_A) / 400))`` with the ratings before the match,
    ``actual`` is 1, 0.5 or 0 by score, and A gains what B loses: ``k / (seats - 1) * (actual - expected)``.
    An agent in several seats gains the sum over its seats; pairs of its own seats are skipped.
    """

    name = "elo"

    def __init__(self, settings: EloSettings) -> None:
        self._settings = settings

    def rate(self, match: MatchFinished, ratings: Mapping[str, float]) -> list[RatingChange]:
        """See ``RatingSystem.rate``; steps are added in the order of seats, so the sum is the same bit for bit."""
        step = self._settings.k / (len(match.seats) - 1)
        after = {seat.agent: ratings[seat.agent] for seat in match.seats}
        for a, b in combinations(match.seats, 2):
            if a.agent == b.agent:
                continue
            actual = 1.0 if a.score > b.score else 0.5 if a.score == b.score else 0.0
            delta = step * (actual - expected_score(ratings[a.agent], ratings[b.agent]))
            after[a.agent] += delta
            after[b.agent] -= delta
        return [RatingChange(agent=agent, before=ratings[agent], after=rating) for agent, rating in after.items()]


def expected_score(rating: float, opponent: float) -> float:
    """Share of points that a rating expects against another: 0.76 for 200 more."""
    exponent = (opponent - rating) / _SCALE
    power: float = 10.0 ** max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    return 1.0 / (1.0 + power)
