"""Novelty of an agent's play: the share of its n-grams of actions that were new when it played them.

Rollout workers count n-grams and write the counts into each seat's metrics (``workers.match_runner.ngrams``). The sum
of new ones is the number of distinct n-grams an agent has played, per worker that met it.
"""

from math import isfinite

import msgspec

from schemas.events import MatchFinished
from schemas.metrics import NEW_NGRAMS, NGRAMS

PRIOR = 4.0
"""New n-grams added to every agent's count, so that a rarely met agent counts as new."""


class NgramCount(msgspec.Struct, frozen=True, array_like=True):
    """N-grams that one agent played as an opponent."""

    played: float = 0.0
    new: float = 0.0

    @property
    def novelty(self) -> float:
        """Share of new ones, 0 to 1."""
        return (self.new + PRIOR) / (self.played + PRIOR)


class NgramCounts(msgspec.Struct):
    """Counts by agent; snapshots hold them as they are."""

    by_agent: dict[str, NgramCount] = {}

    def count(self, match: MatchFinished) -> bool:
        """Add a match; returns whether it had n-grams of any opponent. Counts that make no sense are ignored."""
        counted = False
        for seat in match.seats:
            played, new = seat.metrics.get(NGRAMS, 0.0), seat.metrics.get(NEW_NGRAMS, 0.0)
            if not seat.trainable and isfinite(played) and 0 <= new <= played and played > 0:
                before = self.by_agent.get(seat.agent, NgramCount())
                self.by_agent[seat.agent] = NgramCount(before.played + played, before.new + new)
                counted = True
        return counted
