"""Rows of the standings: agents with their ratings, wins and losses, mean rewards."""

from collections.abc import Collection, Iterator, Mapping
from itertools import permutations
from math import isfinite

import msgspec

from league.ratings.base import RatingTable
from schemas.events import MatchFinished, SeatResult
from schemas.ids import split_agent
from schemas.jobs import BENCHMARK_PURPOSE
from schemas.standings import Agent, WinLoss

REWARD_WINDOW = 64
"""Newest training matches of a policy whose rewards count."""
FEWEST_REWARDS = 16
"""Matches from which a mean reward is known."""


def rated_agents(agents: Mapping[str, Agent], ratings: RatingTable) -> dict[str, Agent]:
    """Every agent with its current rating, in the order of joining; ``ratings`` are the official ones."""
    return {name: _make_row(agent, ratings) for name, agent in agents.items()}


def _make_row(agent: Agent, ratings: RatingTable) -> Agent:
    state = ratings.state(agent.name)
    return msgspec.structs.replace(
        agent, rating=state[0], games=ratings.games.get(agent.name, 0), deviation=state[1] if len(state) > 1 else 0.0
    )


class PolicyRecords:
    """Win-loss records by policy and opponent.

    Every seat of a policy's version is compared by score with every seat of another agent. Versions of one policy are
    pooled on their own side only: ``main@50`` in another seat keeps its name. Results of versions before a policy's
    reset do not count: it is a new player under an old name.
    """

    def __init__(
        self, rows: Mapping[str, dict[str, WinLoss]] | None = None, first_versions: Mapping[str, int] | None = None
    ) -> None:
        self._rows = dict(rows or {})
        """Rows by policy; replaced rather than changed, since ``table`` hands them out."""
        self._first_version = dict(first_versions or {})
        """The first version of each policy whose results count; 0 where absent."""

    def count(self, match: MatchFinished, matches: int = 1) -> bool:
        """Add a match, or take one back with -1; returns whether any record changed."""
        if match.purpose == BENCHMARK_PURPOSE:
            # Requested at will, perhaps under other settings: samplers would draw other opponents because of it.
            return False
        changed: dict[str, dict[str, WinLoss]] = {}
        for own, other in _seat_pairs(match):
            policy, version = split_agent(own.agent) or ("", 0)
            if not policy or version < self._first_version.get(policy, 0):
                continue
            if policy not in changed:
                changed[policy] = dict(self._rows.get(policy, {}))
            record = changed[policy].get(other.agent, WinLoss())
            won, lost = matches * (own.score > other.score), matches * (own.score < other.score)
            drawn = matches - won - lost
            changed[policy][other.agent] = WinLoss(record.wins + won, record.draws + drawn, record.losses + lost)
        self._rows.update(changed)
        return bool(changed)

    def reset_policy(self, policy: str, version: int) -> None:
        """Drop the results of a policy's versions before ``version``."""
        if version > self._first_version.get(policy, 0):
            self._first_version[policy] = version
            self._rows.pop(policy, None)

    def table(self) -> dict[str, dict[str, WinLoss]]:
        """``table[policy][opponent]``; neither it nor its rows change later."""
        return dict(self._rows)


def _seat_pairs(match: MatchFinished) -> Iterator[tuple[SeatResult, SeatResult]]:
    """All ordered pairs of opponents, so not the mirror nor a team's members, with comparable scores."""
    for own, other in permutations(match.seats, 2):
        if own.is_opponent(other) and isfinite(own.score - other.score):
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
            policy: sum(match.reward for match in newest) / len(newest)
            for policy, newest in sorted(self.newest.items())
            if len(newest) >= FEWEST_REWARDS
        }
