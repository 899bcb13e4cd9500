"""The contract of an opponent sampler, and the samplers by name."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

import msgspec

from schemas.config import Plugin
from schemas.errors import UsageError, one_of
from schemas.events import Pick
from schemas.ids import agent_name
from schemas.plugins import Registry
from schemas.standings import Live, Standings


class Bucket(msgspec.Struct, frozen=True):
    """One part of a mix: how likely it is for a seat, and who is in it."""

    share: float
    """Probability of the bucket for one seat, as the standings allow it."""
    weights: dict[str, float]
    """Of every agent that can be drawn from it, in proportion to its probability."""

    def probabilities(self) -> dict[str, float]:
        """Probability of each agent once the bucket is drawn; empty when nobody can be."""
        total = sum(self.weights.values())
        return {agent: weight / total for agent, weight in self.weights.items()} if total else {}


class Drawn(msgspec.Struct, frozen=True):
    """One number that was drawn, and what it meant."""

    number: float
    """In [0, 1)."""
    key: str
    """The bucket or agent whose interval it fell in."""
    low: float
    high: float
    """The interval, up to rounding in the last place; ``low`` is in it, ``high`` is not."""


class SeatDraw(msgspec.Struct, frozen=True):
    """How one seat's opponent came about."""

    pick: Pick
    steps: tuple[Drawn, ...]
    """The numbers drawn for it, in order; clones of one opponent share theirs."""


class OpponentSampler(Protocol):
    """Draws opponents: a pure function of standings, hero and rng, so that every draw can be computed again.

    A sampler subclasses this and brings ``distribution`` and ``draws``; the rest follows from them.
    """

    name: str
    uses_novelty: bool = False
    """Whether it asks for ``Standings.novelty``: rollout workers sketch their matches for those that do, and only
    then, since events stay for ever."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """What ``draws`` draws from: every bucket of the mix, those that nobody is in with share 0.

        Raises:
            UsageError: no version of the hero's policy has been published.
        """
        ...

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """One draw per seat of ``seats``, in their order.

        Raises:
            UsageError: no version of the hero's policy has been published.
        """
        ...

    def sample(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[Pick]:
        """The picks of ``draws``."""
        return [drawn.pick for drawn in self.draws(standings, hero_policy, seats, rng)]

    def target_shares(self, standings: Standings, hero_policy: str) -> Mapping[str, float]:
        """Probability of each bucket for one seat, as these standings allow it; sums to 1.

        Audits compare realised shares with this, not with the configured mix: a bucket may be empty.
        """
        return {name: bucket.share for name, bucket in self.distribution(standings, hero_policy).items()}


SAMPLERS: Registry[OpponentSampler] = Registry("matchmaking.sampler", "league.samplers")


def make_sampler(plugin: Plugin) -> OpponentSampler:
    """The opponent sampler that the configuration names.

    Raises:
        ConfigError: unknown name or bad setting.
    """
    return SAMPLERS.build(plugin)


def live_hero(standings: Standings, policy: str) -> tuple[str, Live]:
    """The live version of a policy: its agent's name and its entry.

    Raises:
        UsageError: none has been published.
    """
    live = standings.live.get(policy)
    if live is None:
        raise UsageError(f"policy {policy!r} has no published version; published are {one_of(standings.live)}")
    return agent_name(policy, live.version), live


class Urn:
    """Keys with weights, made ready once so that every draw from it is quick, however many keys there are.

    Raises:
        ValueError: no weight is above 0.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = sorted(name for name, weight in weights.items() if weight > 0)
        if not self._names:
            raise ValueError(f"nothing to draw from: no weight above 0 in {dict(weights)}")
        self._weights = [weights[name] for name in self._names]
        # Added one by one, since what sum() does with rounding differs between versions of Python.
        self._ends = list(accumulate(self._weights))
        # _walk rounds n times, each time by at most 2 ** -53 of the total, and so does accumulate; twice that is safe.
        self._margin = len(self._ends) * self._ends[-1] * 2.0**-51

    def draw(self, rng: Random) -> Drawn:
        """One key, with probability in proportion to its weight.

        Keys are taken in their sorted order and one ``rng.random()`` is spent, whose sequence Python guarantees: the
        same rng gives the same key in any process and on any version.
        """
        number, total = rng.random(), self._ends[-1]
        place = number * total
        at = bisect_right(self._ends, place - self._margin)
        if at != bisect_right(self._ends, place + self._margin):
            at = self._walk(place)
        return Drawn(number, self._names[at], self._ends[at - 1] / total if at else 0.0, self._ends[at] / total)

    def _walk(self, place: float) -> int:
        """What a draw is by definition: the weights are taken off until nothing is left.

        Looking the place up among the ends gives the same, save where rounding decides.
        """
        for at, weight in enumerate(self._weights):
            place -= weight
            if place < 0:
                return at
        return len(self._weights) - 1
