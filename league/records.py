"""Who beat whom: a policy's versions against every agent, seat by seat."""

import math
from itertools import permutations

from schemas.events import MatchFinished, SeatResult
from schemas.ids import split_agent
from schemas.standings import Record


class HeadToHead:
    """Results by policy and agent.

    Every seat of a policy's version is compared with every seat of another agent, by score. Versions of one policy
    are pooled on their own side only: ``main@50`` in another seat keeps its name, and an agent is never counted
    against itself (the mirror). Pairs with a score that is not a finite number are left out.

    A reset policy is a new player under an old name: what its versions from before did is not its own any more.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Record]] = {}
        self._begun: dict[str, int] = {}
        """The first version of a policy whose results count; 0 where there is none."""

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or with -1 take one back; True if any record changed."""
        policies = {
            seat.agent: named[0]
            for seat in match.seats
            if (named := split_agent(seat.agent)) is not None and named[1] >= self._begun.get(named[0], 0)
        }
        changed = False
        for own, other in permutations(match.seats, 2):
            if own.agent in policies and own.agent != other.agent and math.isfinite(own.score - other.score):
                records = self._records.setdefault(policies[own.agent], {})
                records[other.agent] = _counted(records.get(other.agent, Record()), own, other, matches)
                changed = True
        return changed

    def begin_anew(self, policy: str, version: int) -> None:
        """Forget what a policy's versions before ``version`` did."""
        if version > self._begun.get(policy, 0):
            self._begun[policy] = version
            self._records.pop(policy, None)

    def table(self) -> dict[str, dict[str, Record]]:
        """``table[policy][agent]``, a copy."""
        return {policy: dict(records) for policy, records in self._records.items()}

    @classmethod
    def restored(cls, table: dict[str, dict[str, Record]], begun: dict[str, int]) -> "HeadToHead":
        """The records that ``table`` gave, of policies that began anew at these versions."""
        records = cls()
        records._records, records._begun = table, dict(begun)
        return records


def _counted(record: Record, own: SeatResult, other: SeatResult, matches: int) -> Record:
    if own.score > other.score:
        return Record(record.wins + matches, record.draws, record.losses)
    if own.score < other.score:
        return Record(record.wins, record.draws, record.losses + matches)
    return Record(record.wins, record.draws + matches, record.losses)
