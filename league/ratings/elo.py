"""Elo for any number of seats: every pair of seats is a game of two.

Source: the league specification's multi-player Elo ("pairwise decomposition"), which has k = 32 and divides each
pair's step by the number of opponents, 6 in Diplomacy.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import msgspec

from league.ratings.base import SYSTEMS
from schemas.errors import ConfigError
from schemas.events import MatchFinished, RatingChange

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

    def __init__(self, settings: EloSettings) -> None:
        self._settings = settings

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``."""
        return (self._settings.k, _BASE)

    @property
    def fold(self) -> Any:
        """See ``RatingSystem.fold``."""
        return fold_elo

    def start(self, rating: float) -> tuple[float, ...]:
        """See ``RatingSystem.start``: a rating is all there is."""
        return (rating,)

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
    power: float = _BASE ** max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    return 1.0 / (1.0 + power)


def fold_elo(
    begin_M: Any,
    end_M: Any,
    agent_S: Any,
    score_S: Any,
    counted_M: Any,
    source_A: Any,
    state_AW: Any,
    games_A: Any,
    constants: Any,
) -> None:
    """See ``RatingSystem.fold``. One long function, since compiled code can call no plain one."""
    k, base = constants[0], constants[1]
    # Ratings of the seats before the match; written so that numba knows what an empty list is to hold.
    before = [0.0 for _ in range(0)]
    for match in range(len(begin_M)):
        if not counted_M[match]:
            continue
        first, stop = begin_M[match], end_M[match]
        while len(before) < stop - first:
            before.append(0.0)
        for seat in range(first, stop):
            agent = agent_S[seat]
            if games_A[agent] == 0 and source_A[agent] >= 0:
                state_AW[agent, 0] = state_AW[source_A[agent], 0]
            before[seat - first] = state_AW[agent, 0]
        step = k / (stop - first - 1)
        for a in range(first, stop):
            counts = True
            for b in range(first, a):
                counts = counts and agent_S[a] != agent_S[b]
            games_A[agent_S[a]] += counts
            for b in range(a + 1, stop):
                if agent_S[a] == agent_S[b]:
                    continue
                exponent = (before[b - first] - before[a - first]) / _SCALE
                exponent = exponent if exponent < _MAX_EXPONENT else _MAX_EXPONENT
                exponent = exponent if exponent > -_MAX_EXPONENT else -_MAX_EXPONENT
                actual = 1.0 if score_S[a] > score_S[b] else 0.5 if score_S[a] == score_S[b] else 0.0
                delta = step * (actual - 1.0 / (1.0 + base**exponent))
                state_AW[agent_S[a], 0] += delta
                state_AW[agent_S[b], 0] -= delta
