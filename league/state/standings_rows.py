"""Rows of the standings, updated only where an event changed them: agents, wins and losses, mean rewards."""

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import permutations
from math import isfinite

import msgspec

from league.fold_primitives import PersistentMap
from league.ratings.base import RatingTable
from schemas.events import MatchFinished, SeatResult
from schemas.ids import agent_name, split_agent
from schemas.jobs import BENCHMARK_PURPOSE, SESSION_PURPOSE
from schemas.standings import Agent, WinLoss

REWARD_WINDOW = 64
"""Newest training matches of a policy whose rewards count."""
FEWEST_REWARDS = 16
"""Matches from which a mean reward is known."""


class AgentRows:
    """Every agent with its rating: a table that is brought up to date on request.

    An agent without a rating of its own follows another one's: a version follows the nearest rated version before it,
    all others the base agent. Only the few unrated agents are searched for such followers.
    """

    def __init__(self) -> None:
        self._table: PersistentMap[Agent] | None = None
        self._stale: dict[str, None] = {}
        self._versions: dict[str, list[int]] = {}
        """Unrated versions in the league by policy, ascending."""
        self._others: dict[str, None] = {}
        """The other unrated agents."""

    def mark_stale(self, names: Iterable[str]) -> None:
        """Mark agents that joined, changed, or were rated."""
        if self._table is not None:
            self._stale.update(dict.fromkeys(names))

    def invalidate(self) -> None:
        """Mark all rows stale: other ratings count, or the ratings that unrated agents follow changed."""
        self._table = None

    def table(self, agents: Mapping[str, Agent], ratings: RatingTable, base: str | None) -> PersistentMap[Agent]:
        """Returns all rows, up to date; ``agents`` in the order of joining, ``ratings`` the official ones."""
        if self._table is None:
            self._versions, self._others, self._stale = {}, {}, dict.fromkeys(agents)
            self._index_unrated(agents, ratings)
            self._table = PersistentMap({name: _make_row(agent, ratings) for name, agent in agents.items()})
        elif self._stale:
            stale = self._stale | dict.fromkeys(self._dependents(ratings, base))
            self._table = self._table.with_changes(
                {name: _make_row(agents[name], ratings) for name in stale if name in agents}
            )
            self._index_unrated(agents, ratings)
        self._stale.clear()
        return self._table

    def _index_unrated(self, agents: Mapping[str, Agent], ratings: RatingTable) -> None:
        """Update the index of unrated agents for the stale ones."""
        for name in self._stale:
            unrated, named = name in agents and name not in ratings.states, split_agent(name)
            if named is None:
                self._others[name] = None
                if not unrated:
                    del self._others[name]
                continue
            versions = self._versions.setdefault(named[0], [])
            place = bisect_right(versions, named[1])
            known = place > 0 and versions[place - 1] == named[1]
            if unrated and not known:
                insort(versions, named[1])
            elif known and not unrated:
                del versions[place - 1]

    def _dependents(self, ratings: RatingTable, base: str | None) -> Iterator[str]:
        """Agents whose ratings may follow a stale agent's."""
        for name in self._stale:
            if name == base:
                yield from self._others
                for policy, versions in self._versions.items():
                    # Also versions behind a rated one: a reset policy follows the base agent again.
                    yield from (agent_name(policy, version) for version in versions)
            elif (named := split_agent(name)) is not None:
                # Unrated versions after this one and before the next rated one.
                versions, until = self._versions.get(named[0], []), ratings.next_version(*named)
                end = len(versions) if until is None else bisect_right(versions, until)
                yield from (agent_name(named[0], other) for other in versions[bisect_right(versions, named[1]) : end])


def _make_row(agent: Agent, ratings: RatingTable) -> Agent:
    state = ratings.state(agent.name)
    return msgspec.structs.replace(
        agent, rating=state[0], games=ratings.games.get(agent.name, 0), deviation=state[1] if len(state) > 1 else 0.0
    )


class _RecordTable:
    """Base of tables of win-loss records, whose rows are handed out without a copy."""

    def __init__(self, rows: Mapping[str, dict[str, WinLoss]] | None = None) -> None:
        self._rows = {name: PersistentMap(dict(row)) for name, row in (rows or {}).items()}
        self._table: Mapping[str, Mapping[str, WinLoss]] | None = None

    def _add(self, results: Iterable[tuple[str, SeatResult, SeatResult]], matches: int) -> bool:
        """Add results of one seat against another to the named rows; returns whether there were any."""
        changes: dict[str, dict[str, WinLoss]] = {}
        for name, own, other in results:
            changed, row = changes.setdefault(name, {}), self._rows.get(name)
            record = changed.get(other.agent) or (row.get(other.agent) if row is not None else None) or WinLoss()
            won, lost = matches * (own.score > other.score), matches * (own.score < other.score)
            drawn = matches - won - lost
            changed[other.agent] = WinLoss(record.wins + won, record.draws + drawn, record.losses + lost)
        for name, changed in changes.items():
            self._rows[name] = self._rows.get(name, PersistentMap[WinLoss]()).with_changes(changed)
            self._table = None
        return bool(changes)

    def table(self) -> Mapping[str, Mapping[str, WinLoss]]:
        """``table[name][opponent]``; never changes, and is the same object until a row does."""
        if self._table is None:
            self._table = dict(self._rows)
        return self._table

    def to_snapshot(self) -> dict[str, dict[str, WinLoss]]:
        """Returns ``table`` for a snapshot."""
        return {name: row.to_dict() for name, row in self._rows.items()}


class PolicyRecords(_RecordTable):
    """Win-loss records by policy and opponent.

    Every seat of a policy's version is compared by score with every seat of another agent. Versions of one policy are
    pooled on their own side only: ``main@50`` in another seat keeps its name. Results of versions before a policy's
    reset do not count: it is a new player under an old name.
    """

    def __init__(
        self, rows: Mapping[str, dict[str, WinLoss]] | None = None, first_versions: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(rows)
        self._first_version = dict(first_versions or {})
        """The first version of each policy whose results count; 0 where absent."""

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or take one back with -1; returns whether any record changed."""
        if match.purpose == BENCHMARK_PURPOSE:
            # Requested at will, perhaps under other settings: samplers would draw other opponents because of it.
            return False
        policies = {
            seat.agent: named[0]
            for seat in match.seats
            if (named := split_agent(seat.agent)) is not None and named[1] >= self._first_version.get(named[0], 0)
        }
        results = ((policies[own.agent], own, other) for own, other in _seat_pairs(match) if own.agent in policies)
        return self._add(results, matches)

    def reset_policy(self, policy: str, version: int) -> None:
        """Drop the results of a policy's versions before ``version``."""
        if version > self._first_version.get(policy, 0):
            self._first_version[policy] = version
            self._table = None
            self._rows.pop(policy, None)


class AgentPairRecords(_RecordTable):
    """Win-loss records of evaluation matches and sessions by agent and opponent, seat by seat.

    Both are immutable, so unlike a policy's records these do not mix strengths.
    """

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or take one back with -1; returns whether any record changed."""
        if match.purpose not in ("evaluation", SESSION_PURPOSE):
            return False
        return self._add(((own.agent, own, other) for own, other in _seat_pairs(match)), matches)


def _seat_pairs(match: MatchFinished) -> Iterator[tuple[SeatResult, SeatResult]]:
    """All ordered pairs of seats with different agents, so not the mirror, and comparable scores."""
    for own, other in permutations(match.seats, 2):
        if own.agent != other.agent and isfinite(own.score - other.score):
            yield own, other


class Reward(msgspec.Struct, frozen=True, array_like=True):
    """A policy's reward in a match."""

    match_id: str
    reward: float


class RecentRewards(msgspec.Struct):
    """The rewards of each policy's newest training matches since its last reset, where populations choose by reward.

    A match counts for the policies whose trajectories of it are trained on: a student that is asked nothing, since its
    teacher's question was unusable, has earned nothing and is left out.
    """

    newest: dict[str, list[Reward]] = {}
    """Oldest first, by policy."""

    def count(self, match: MatchFinished, starts: Mapping[str, int], policies: Collection[str]) -> bool:
        """Add a match, once; returns whether it counted for any of these policies.

        ``starts`` has the first version of each policy's present training; 0 for a policy that is missing.
        """
        counted = False
        for seat in match.seats:
            policy, version = split_agent(seat.agent) or ("", 0)
            if not (seat.trainable and policy in policies and isfinite(seat.score)):
                continue
            if version >= starts.get(policy, 0):
                newest = [*self.newest.get(policy, []), Reward(match.match_id, seat.score)]
                self.newest[policy] = newest[-REWARD_WINDOW:]
                counted = True
        return counted

    def void(self, match: MatchFinished) -> bool:
        """Leave out a match that was taken back; returns whether it had counted."""
        kept = {
            policy: [reward for reward in newest if reward.match_id != match.match_id]
            for policy, newest in self.newest.items()
        }
        changed, self.newest = kept != self.newest, kept
        return changed

    def reset_policy(self, policy: str) -> None:
        """Begin anew with a policy that was reset."""
        self.newest.pop(policy, None)

    def means(self) -> dict[str, float]:
        """The mean of each policy that has enough matches."""
        return {
            policy: sum(one.reward for one in newest) / len(newest)
            for policy, newest in sorted(self.newest.items())
            if len(newest) >= FEWEST_REWARDS
        }
