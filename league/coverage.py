"""What a policy has met in its training matches, and how much of a match against somebody is still new to it.

A fold of the sketches that matches carry (``schemas.sketches``). A policy remembers the n-grams of its last
``WINDOW`` matches. When a match ends, each opponent's share of n-grams that were not among them is noted, before the
match itself is remembered; an agent's novelty is the mean of those shares, later ones counting more. So it is a
forecast that was right on average: which share of the n-grams that the agent plays next will be new.

What a voided match showed stays: the policy has met it, whatever became of the result. The hero's own seats, the
mirror among them, are remembered and not measured.
"""

from collections import deque

import msgspec

from schemas.errors import DecodeError
from schemas.events import MatchFinished
from schemas.ids import split_agent
from schemas.sketches import BITS, MOST, Sketch, limit, read_sketch

WINDOW = 500
"""Matches of a policy that are remembered; at most 48 hashes each, so below 200 kB in a snapshot."""
FADING = 0.95
"""What a match weighs in an agent's novelty, relative to the agent's next one: about 20 matches count."""
PRIOR = 4.0
"""New n-grams that everybody begins with, so that who was hardly met is taken for new."""


class Tally(msgspec.Struct, frozen=True):
    """N-grams that an agent played against a policy, faded."""

    new: float
    played: float

    @property
    def novelty(self) -> float:
        """Expected share of new ones, 1 for an agent never met."""
        return (self.new + PRIOR) / (self.played + PRIOR)


class SavedMemory(msgspec.Struct, frozen=True):
    """One policy's memory for a snapshot."""

    levels: list[int]
    """Of the matches, the oldest first."""
    matches: list[bytes]
    """Their hashes, high byte first."""
    tallies: dict[str, Tally]


class _Memory:
    """The last matches of one policy, and what came of its opponents."""

    def __init__(self) -> None:
        self.matches: deque[tuple[int, tuple[int, ...]]] = deque()
        """Level and hashes of each, the oldest first."""
        self.tallies: dict[str, Tally] = {}
        self.novelty: dict[str, float] = {}
        """Of those who were met; handed out, and so replaced rather than changed."""
        self._times: dict[int, int] = {}
        """How many of the matches hold a hash."""
        self._levels = [0] * (BITS + 1)
        """How many of the matches are of a level."""

    def meet(self, opponents: dict[str, list[int]], sketch: Sketch) -> None:
        """Measure a match's opponents, then remember it.

        Args:
            opponents: Their seats.
            sketch: Of the match.
        """
        level = max([sketch.level, *(level for level, held in enumerate(self._levels) if held)])
        for agent in sorted(opponents):
            hashes = {number for seat in opponents[agent] for number in sketch.seats[seat] if number < limit(level)}
            new = sum(number not in self._times for number in hashes)
            before = self.tallies.get(agent, Tally(0.0, 0.0))
            self.tallies[agent] = Tally(before.new * FADING + new, before.played * FADING + len(hashes))
        self.novelty = self.novelty | {agent: self.tallies[agent].novelty for agent in opponents}
        self.remember(sketch.level, tuple(sorted({number for own in sketch.seats for number in own})))

    def remember(self, level: int, hashes: tuple[int, ...]) -> None:
        """Add a match and forget the oldest one."""
        self.matches.append((level, hashes))
        self._levels[level] += 1
        for number in hashes:
            self._times[number] = self._times.get(number, 0) + 1
        if len(self.matches) > WINDOW:
            self._forget(*self.matches.popleft())

    def _forget(self, level: int, hashes: tuple[int, ...]) -> None:
        self._levels[level] -= 1
        for number in hashes:
            self._times[number] -= 1
            if not self._times[number]:
                del self._times[number]


class Coverage:
    """Memories by policy. Pure and total: a sketch that cannot be read, or is larger than any, counts for nothing."""

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}

    def count(self, match: MatchFinished) -> bool:
        """Fold a match; True if anybody's novelty may have changed."""
        heroes = {seat.agent: named[0] for seat in match.seats if seat.trainable and (named := split_agent(seat.agent))}
        if not match.ngrams or not heroes:
            return False
        try:
            sketch = read_sketch(match.ngrams)
        except DecodeError:
            return False
        if sum(map(len, sketch.seats)) > MOST:
            return False
        for hero, policy in sorted(heroes.items()):
            seats: dict[str, list[int]] = {}
            for seat in match.seats:
                if seat.agent != hero and 0 <= seat.seat < len(sketch.seats):
                    seats.setdefault(seat.agent, []).append(seat.seat)
            self._memories.setdefault(policy, _Memory()).meet(seats, sketch)
        return True

    def begin_anew(self, policy: str) -> None:
        """Forget what a policy met: it was reset, and has met nothing."""
        self._memories.pop(policy, None)

    def table(self) -> dict[str, dict[str, float]]:
        """``table[policy][agent]``, the novelty of who was met; a copy, whose rows never change."""
        return {policy: memory.novelty for policy, memory in self._memories.items()}

    def saved(self) -> dict[str, SavedMemory]:
        """The memories for a snapshot."""
        return {
            policy: SavedMemory(
                levels=[level for level, _ in memory.matches],
                matches=[b"".join(number.to_bytes(BITS // 8, "big") for number in own) for _, own in memory.matches],
                tallies=dict(memory.tallies),
            )
            for policy, memory in self._memories.items()
        }

    @classmethod
    def restored(cls, saved: dict[str, SavedMemory]) -> "Coverage":
        """The memories that were saved."""
        coverage = cls()
        for policy, kept in saved.items():
            memory = coverage._memories[policy] = _Memory()
            memory.tallies = dict(kept.tallies)
            memory.novelty = {agent: tally.novelty for agent, tally in kept.tallies.items()}
            for level, data in zip(kept.levels, kept.matches, strict=True):
                memory.remember(level, _hashes(data))
        return coverage


def _hashes(data: bytes) -> tuple[int, ...]:
    size = BITS // 8
    return tuple(int.from_bytes(data[place : place + size], "big") for place in range(0, len(data), size))
