"""Novelty: how much of a match against an opponent is still new to a policy.

A fold of the sketches that matches carry (``schemas.sketches``). A policy remembers the n-grams of its last ``WINDOW``
training matches. An agent's novelty is the share of the n-grams of its own last matches that occur in no other
remembered match, recomputed with each match against the agent. This is Good's estimate of the new share of the next
match (Good 1953, "The population frequencies of species and the estimation of population parameters", equation 9), and
so does not lag behind while novelty runs out.

The n-grams of a voided match stay: the policy has met them. The hero's own seats, the mirror included, are remembered
and not measured.
"""

from collections import Counter, deque

import msgspec

from schemas.errors import DecodeError
from schemas.events import MatchFinished
from schemas.ids import policy_of
from schemas.sketches import HASH_BITS, MAX_HASHES, Sketch, decode_sketch, hash_limit

WINDOW = 500
"""Remembered matches per policy; at most 48 hashes each, so below 200 kB in a snapshot."""
RECENT = 96
"""Newest n-grams from which an agent's novelty is estimated, half a kilobyte."""
PRIOR = 4.0
"""New n-grams added to every agent's count, so that a rarely met agent counts as new."""


class AgentNoveltySnapshot(msgspec.Struct, frozen=True):
    """One opponent in a snapshot."""

    recent: bytes
    """Hashes, big-endian, newest last."""
    novelty: float


class PolicyMemorySnapshot(msgspec.Struct, frozen=True):
    """One policy's memory in a snapshot."""

    levels: list[int]
    """Levels of the matches, oldest first."""
    matches: list[bytes]
    """Hashes of the matches, big-endian."""
    agents: dict[str, AgentNoveltySnapshot]


class _PolicyMemory:
    """The last matches of one policy, and the novelty of its opponents."""

    def __init__(self) -> None:
        self.matches: deque[tuple[int, tuple[int, ...]]] = deque()
        """Level and hashes of each match, oldest first."""
        self.recent: dict[str, tuple[int, ...]] = {}
        """Hashes by opponent from which its novelty is estimated, newest last."""
        self.novelty: dict[str, float] = {}
        """Novelty by opponent; handed out, and so replaced rather than changed."""
        self._times: Counter[int] = Counter()
        """Number of matches that hold each hash."""

    def add_match(self, opponents: dict[str, list[int]], sketch: Sketch) -> None:
        self.remember(sketch.level, tuple(sorted({number for own in sketch.seats for number in own})))
        for agent, seats in opponents.items():
            # Downwards, so that a partly forgotten match keeps its lowest hashes: those that can be compared.
            played = sorted({number for seat in seats for number in sketch.seats[seat]}, reverse=True)
            self.recent[agent] = (*self.recent.get(agent, ()), *played)[-RECENT:]
        limit = hash_limit(max(level for level, _ in self.matches))
        estimates = {agent: self._estimate_novelty(self.recent[agent], limit) for agent in opponents}
        self.novelty = self.novelty | estimates

    def _estimate_novelty(self, recent: tuple[int, ...], limit: int) -> float:
        """Share of the hashes that no other match has, among those below ``limit``, which all were sampled for."""
        times = [self._times[number] for number in recent if number < limit]
        return (sum(held <= 1 for held in times) + PRIOR) / (len(times) + PRIOR)

    def remember(self, level: int, hashes: tuple[int, ...]) -> None:
        """Add a match and forget the oldest one."""
        self.matches.append((level, hashes))
        self._times.update(hashes)
        if len(self.matches) > WINDOW:
            _, forgotten = self.matches.popleft()
            for number in forgotten:
                self._times[number] -= 1
                if not self._times[number]:
                    del self._times[number]


class NoveltyTracker:
    """Memories by policy. Pure and total: an unreadable or oversized sketch is ignored."""

    def __init__(self) -> None:
        self._memories: dict[str, _PolicyMemory] = {}

    def count(self, match: MatchFinished) -> bool:
        """Fold a match; returns whether any agent's novelty may have changed."""
        heroes = {seat.agent: policy for seat in match.seats if seat.trainable and (policy := policy_of(seat.agent))}
        if not match.ngrams or not heroes:
            return False
        try:
            sketch = decode_sketch(match.ngrams)
        except DecodeError:
            return False
        if sum(map(len, sketch.seats)) > MAX_HASHES:
            return False
        for hero, policy in sorted(heroes.items()):
            seats: dict[str, list[int]] = {}
            for seat in match.seats:
                if seat.agent != hero and 0 <= seat.seat < len(sketch.seats):
                    seats.setdefault(seat.agent, []).append(seat.seat)
            self._memories.setdefault(policy, _PolicyMemory()).add_match(seats, sketch)
        return True

    def reset_policy(self, policy: str) -> None:
        """Forget everything that a reset policy has met."""
        self._memories.pop(policy, None)

    def table(self) -> dict[str, dict[str, float]]:
        """``table[policy][agent]``: novelty of the agents met; a copy, whose rows never change."""
        return {policy: memory.novelty for policy, memory in self._memories.items()}

    def to_snapshot(self) -> dict[str, PolicyMemorySnapshot]:
        """Returns the memories for a snapshot."""
        return {
            policy: PolicyMemorySnapshot(
                levels=[level for level, _ in memory.matches],
                matches=[_encode_hashes(hashes) for _, hashes in memory.matches],
                agents={
                    agent: AgentNoveltySnapshot(_encode_hashes(hashes), memory.novelty[agent])
                    for agent, hashes in memory.recent.items()
                },
            )
            for policy, memory in self._memories.items()
        }

    @classmethod
    def from_snapshot(cls, saved: dict[str, PolicyMemorySnapshot]) -> "NoveltyTracker":
        """Restores the memories from a snapshot."""
        coverage = cls()
        for policy, kept in saved.items():
            memory = coverage._memories[policy] = _PolicyMemory()
            memory.recent = {agent: _decode_hashes(one.recent) for agent, one in kept.agents.items()}
            memory.novelty = {agent: one.novelty for agent, one in kept.agents.items()}
            for level, data in zip(kept.levels, kept.matches, strict=True):
                memory.remember(level, _decode_hashes(data))
        return coverage


def _encode_hashes(hashes: tuple[int, ...]) -> bytes:
    return b"".join(number.to_bytes(HASH_BITS // 8, "big") for number in hashes)


def _decode_hashes(data: bytes) -> tuple[int, ...]:
    size = HASH_BITS // 8
    return tuple(int.from_bytes(data[place : place + size], "big") for place in range(0, len(data), size))
