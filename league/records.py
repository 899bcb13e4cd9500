"""Who beat whom, seat by seat: a policy's versions against every agent, and every agent against every other."""

import math
from itertools import permutations

from schemas.events import MatchFinished, SeatResult
from schemas.ids import split_agent
from schemas.standings import Record


class _Rows:
    """A table of records that is handed out without a copy of its rows: one is copied before it is changed."""

    def __init__(self, rows: dict[str, dict[str, Record]]) -> None:
        self._rows = rows
        self._own: set[str] = set()
        """Rows that no table which was handed out holds."""
        self._table: dict[str, dict[str, Record]] | None = None

    def row(self, name: str) -> dict[str, Record]:
        """One row, to be changed before the next table is asked for."""
        self._table = None
        if name not in self._own:
            self._rows[name] = dict(self._rows.get(name, {}))
            self._own.add(name)
        return self._rows[name]

    def drop(self, name: str) -> None:
        """Forget a row."""
        self._table = None
        self._rows.pop(name, None)
        self._own.discard(name)

    def table(self) -> dict[str, dict[str, Record]]:
        """All of it as it is now; never changes, and is the same object until something does."""
        if self._table is None:
            self._table = dict(self._rows)
            self._own.clear()
        return self._table


class HeadToHead:
    """Results by policy and agent.

    Every seat of a policy's version is compared with every seat of another agent, by score. Versions of one policy
    are pooled on their own side only: ``main@50`` in another seat keeps its name, and an agent is never counted
    against itself (the mirror). Pairs with a score that is not a finite number are left out.

    A reset policy is a new player under an old name: what its versions from before did is not its own any more.
    """

    def __init__(self) -> None:
        self._records = _Rows({})
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
                records = self._records.row(policies[own.agent])
                records[other.agent] = _counted(records.get(other.agent, Record()), own, other, matches)
                changed = True
        return changed

    def begin_anew(self, policy: str, version: int) -> None:
        """Forget what a policy's versions before ``version`` did."""
        if version > self._begun.get(policy, 0):
            self._begun[policy] = version
            self._records.drop(policy)

    def table(self) -> dict[str, dict[str, Record]]:
        """``table[policy][agent]``; never changes."""
        return self._records.table()

    @classmethod
    def restored(cls, table: dict[str, dict[str, Record]], begun: dict[str, int]) -> "HeadToHead":
        """The records that ``table`` gave, of policies that began anew at these versions."""
        records = cls()
        records._records, records._begun = _Rows(dict(table)), dict(begun)
        return records


class Pairs:
    """Results of evaluation matches by agent and other agent.

    Every seat of one is compared with every seat of the other, by score; both are immutable, so unlike a policy's
    records these do not mix strengths. Pairs with a score that is not a finite number are left out.
    """

    def __init__(self, table: dict[str, dict[str, Record]] | None = None) -> None:
        """Begin with nothing, or with what ``table`` gave."""
        self._records = _Rows(dict(table or {}))

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or with -1 take one back; True if any record changed."""
        changed = False
        if match.purpose == "evaluation":
            for own, other in permutations(match.seats, 2):
                if own.agent != other.agent and math.isfinite(own.score - other.score):
                    records = self._records.row(own.agent)
                    records[other.agent] = _counted(records.get(other.agent, Record()), own, other, matches)
                    changed = True
        return changed

    def table(self) -> dict[str, dict[str, Record]]:
        """``table[agent][other]``; never changes."""
        return self._records.table()


def _counted(record: Record, own: SeatResult, other: SeatResult, matches: int) -> Record:
    if own.score > other.score:
        return Record(record.wins + matches, record.draws, record.losses)
    if own.score < other.score:
        return Record(record.wins, record.draws, record.losses + matches)
    return Record(record.wins, record.draws + matches, record.losses)
