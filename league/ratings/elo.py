"""Elo for any number of seats: every pair of seats is a game of two.

Source: the league specification's multi-player Elo ("pairwise decomposition"), which has k = 32 and divides each
pair's step by the number of opponents, 6 in Diplomacy.
"""

from typing import Any

import msgspec

from league.ratings.base import SYSTEMS, Inheritance, State
from schemas.errors import ConfigError

_BASE = 10.0
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
    work_per_seat = 1
    inheritance = (Inheritance(),)

    def __init__(self, settings: EloSettings) -> None:
        self._settings = settings

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``."""
        return (self._settings.k, _BASE)

    @property
    def update(self) -> Any:
        """See ``RatingSystem.update``."""
        return update

    def start(self, rating: float) -> State:
        """See ``RatingSystem.start``: a rating is all there is."""
        return (rating,)


def update(
    seats: Any,
    agents: Any,
    agent_N: Any,
    score_N: Any,
    before: Any,
    after: Any,
    games_A: Any,
    constants: Any,
    work: Any,
) -> None:
    """See ``RatingSystem.update``."""
    step = constants[0] / (seats - 1)
    for i in range(seats):
        a = agent_N[i]
        for j in range(i + 1, seats):
            b = agent_N[j]
            if a != b:
                actual = 1.0 if score_N[i] > score_N[j] else 0.5 if score_N[i] == score_N[j] else 0.0
                delta = step * (actual - expected_score(before[a], before[b], constants[1]))
                after[a] += delta
                after[b] -= delta


def expected_score(rating: Any, opponent: Any, base: Any) -> Any:
    """Share of points that a rating expects against another: 0.76 for 200 more, where the base is 10."""
    exponent = (opponent - rating) / _SCALE
    exponent = exponent if exponent < _MAX_EXPONENT else _MAX_EXPONENT
    exponent = exponent if exponent > -_MAX_EXPONENT else -_MAX_EXPONENT
    return 1.0 / (1.0 + base**exponent)
