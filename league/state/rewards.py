"""Mean rewards of policies over their last training matches, where populations choose by reward."""

from collections.abc import Collection, Mapping
from math import isfinite

import msgspec

from schemas.events import MatchFinished
from schemas.ids import split_agent

WINDOW = 64
"""Newest training matches of a policy that count."""
FEWEST = 16
"""Matches from which a mean is known."""


class Reward(msgspec.Struct, frozen=True, array_like=True):
    """A policy's reward in a match."""

    match_id: str
    reward: float


class RecentRewards:
    """The rewards of each policy's newest training matches since its last reset.

    A match counts for the policies whose trajectories of it are trained on: a student that is asked nothing, since its
    teacher's question was unusable, has earned nothing and is left out.
    """

    def __init__(self, saved: Mapping[str, list[Reward]] | None = None) -> None:
        self._newest: dict[str, list[Reward]] = dict(saved or {})

    def count(self, match: MatchFinished, starts: Mapping[str, int], policies: Collection[str]) -> bool:
        """Add a match; returns whether it counted for any policy.

        Args:
            match: Once per match.
            starts: The first version of each policy's present training; 0 for a policy that is missing.
            policies: Those that count.
        """
        counted = False
        for seat in match.seats:
            policy, version = split_agent(seat.agent) or ("", 0)
            if not (seat.trainable and policy in policies and isfinite(seat.score)):
                continue
            if version >= starts.get(policy, 0):
                newest = [*self._newest.get(policy, []), Reward(match.match_id, seat.score)]
                self._newest[policy] = newest[-WINDOW:]
                counted = True
        return counted

    def void(self, match: MatchFinished) -> bool:
        """Leave out a match that was taken back; returns whether it had counted."""
        kept = {
            policy: [reward for reward in newest if reward.match_id != match.match_id]
            for policy, newest in self._newest.items()
        }
        changed, self._newest = kept != self._newest, kept
        return changed

    def reset_policy(self, policy: str) -> None:
        """Begin anew with a policy that was reset."""
        self._newest.pop(policy, None)

    def means(self) -> dict[str, float]:
        """The mean of each policy that has enough matches."""
        return {
            policy: sum(one.reward for one in newest) / len(newest)
            for policy, newest in sorted(self._newest.items())
            if len(newest) >= FEWEST
        }

    def to_snapshot(self) -> dict[str, list[Reward]]:
        """Returns the rewards for a snapshot."""
        return self._newest
