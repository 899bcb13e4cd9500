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
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Record]] = {}

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or with -1 take one back; True if any record changed."""
        policies = {seat.agent: named[0] for seat in match.seats if (named := split_agent(seat.agent)) is not None}
        changed = False
        for own, other in permutations(match.seats, 2):
            if own.agent in policies and own.agent != other.agent and math.isfinite(own.score - other.score):
                records = self._records.setdefault(policies[own.agent], {})
                records[other.agent] = _counted(records.get(other.agent, Record()), own, other, matches)
                changed = True
        return changed

    def table(self) -> dict[str, dict[str, Record]]:
        """``table[policy][agent]``, a copy."""
        return {policy: dict(records) for policy, records in self._records.items()}

    @classmethod
    def restored(cls, table: dict[str, dict[str, Record]]) -> "HeadToHead":
        """The records that ``table`` gave."""
        records = cls()
        records._records = table
        return records


def _counted(record: Record, own: SeatResult, other: SeatResult, matches: int) -> Record:
    if own.score > other.score:
        return Record(record.wins + matches, record.draws, record.losses)
    if own.score < other.score:
        return Record(record.wins, record.draws, record.losses + matches)
    return Record(record.wins, record.draws + matches, record.losses)
