"""Opponent samplers: they choose the agents for the other seats of a training match.

Here are the protocol of a sampler, the registry, and weighted draws.

- ``mix``              shared parts: drawing by bucket, and redistribution of the shares of empty buckets
- ``bucketed``         base of samplers that place every agent independently, and after a result re-place its players
- ``pfsp``             the league specification's mix: mirror, peers, exploitable, baselines; and ``tiered``, its
                       simpler one: weights 5, 2 and 0.5 by rating distance, baselines doubled
- ``alphastar``        ``win_rate``: by measured win rates; variance, linear, linear_capped or squared; and
                       ``main_exploiter``: one policy's live version, or its past while that is too strong
- ``softmax``          ``match_quality``: even matches, by the chance of a draw; ``ts_dist``: near ratings; and
                       ``exploration``: agents whose play is new to the policy
- ``rectified_nash``   PSRO's: agents in the league's equilibrium that the policy beats
- ``uniform``          all agents of a pool alike: every member of the league, the mirror included (the reference for
                       the others), Unstable Baselines' modes ``mirror``, ``fixed``, ``random`` and ``lagged``, and
                       ``policies``: versions of named policies, teachers for students, and students for teachers

Samplers draw active agents only; ``main_exploiter`` and ``policies`` also draw live versions of other policies. The
hero's live version is drawn as ``mirror`` and from no other bucket: rollout workers load it themselves. An empty bucket
leaves its share to the others in proportion; without any opponent the hero plays itself. Computed values are reused
while the parts of the standings that they depend on are the same objects. When adapter slots are short, the matchmaker
clones opponents (``league.matchmaking.pool``).

A new sampler is one file here: a struct of its settings with ``@SAMPLERS.register("name")``, its ``distribution``, and
the parts that it ``reads`` (or, where every agent is placed independently, ``place`` and ``shares``; and ``draws``,
when it does not draw a bucket and then an agent).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import ClassVar, cast

import msgspec

from schemas.config import Plugin
from schemas.errors import UsageError, format_choices
from schemas.events import OpponentPick
from schemas.ids import agent_name
from schemas.plugins import Registry
from schemas.sketches import NGRAM_SIZE
from schemas.standings import LivePolicy, Standings

# From this many keys on, importing NumPy and using an array is faster than a list.
_MANY = 200


class WeightedDraw(msgspec.Struct, frozen=True):
    """One random number and the interval it fell in."""

    number: float
    """In [0, 1)."""
    key: str
    """The bucket or agent of the interval."""
    low: float
    high: float
    """End of the interval, up to rounding in the last place; ``low`` is inside, ``high`` is not."""


class WeightedChoice:
    """Weighted keys with fast draws and fast updates for any number of keys."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = sorted(name for name, weight in weights.items() if weight > 0)
        self._weights = array("d", [weights[name] for name in self._names])
        self._ends: Sequence[float] | None = None

    @property
    def total(self) -> float:
        """Sum of the weights, added one by one in the order of the keys; 0 without keys."""
        return self._cumulative_weights()[-1] if self._names else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no weight is above 0."""
        return not self._names

    def set_weight(self, name: str, weight: float) -> None:
        """Set the weight of a key; 0 removes it."""
        at = bisect_left(self._names, name)
        is_there = at < len(self._names) and self._names[at] == name
        if (is_there and self._weights[at] == weight) or (not is_there and not weight > 0):
            return
        self._ends = None
        if not is_there:
            self._names.insert(at, name)
            self._weights.insert(at, weight)
        elif weight > 0:
            self._weights[at] = weight
        else:
            del self._names[at], self._weights[at]

    def draw(self, rng: Random) -> WeightedDraw:
        """Draw a key with probability in proportion to its weight.

        Keys are taken in sorted order, and exactly one ``rng.random()`` is used, whose sequence Python guarantees: the
        same rng gives the same key in any process and any version.
        """
        if not self._names:
            raise ValueError("nothing to draw from: no weight above 0")
        ends = self._cumulative_weights()
        number, total = rng.random(), ends[-1]
        place = number * total
        # _scan rounds n times, each time by at most 2 ** -53 of the total, and so do the sums; twice that is safe.
        margin = len(ends) * total * 2.0**-51
        at = bisect_right(ends, place - margin)
        if at != bisect_right(ends, place + margin):
            at = self._scan(place)
        return WeightedDraw(number, self._names[at], ends[at - 1] / total if at else 0.0, ends[at] / total)

    def _cumulative_weights(self) -> Sequence[float]:
        """End of each key's interval: added one by one, as sum() does not on every version of Python."""
        if self._ends is None:
            if len(self._weights) < _MANY:
                self._ends = list(accumulate(self._weights))
            else:
                import numpy as np

                # cumsum adds in order as well, so that the bits equal those of the list.
                self._ends = cast(Sequence[float], np.cumsum(np.frombuffer(self._weights)).data)
        return self._ends

    def _scan(self, place: float) -> int:
        """The definition of a draw: subtract the weights in turn until the place is used up.

        A search among the cumulative weights gives the same, except where rounding decides.
        """
        for at, weight in enumerate(self._weights):
            place -= weight
            if place < 0:
                return at
        return len(self._weights) - 1


class Bucket(msgspec.Struct, frozen=True):
    """One part of a mix: its share and the weights of its agents."""

    share: float
    """Probability of the bucket for one seat under the given standings."""
    weights: dict[str, float]
    """Weights of the agents that can be drawn, in proportion to their probabilities."""

    def probabilities(self) -> dict[str, float]:
        """Probability of each agent once the bucket is drawn; empty for an empty bucket."""
        total = sum(self.weights.values())
        return {agent: weight / total for agent, weight in self.weights.items()} if total else {}


class SeatDraw(msgspec.Struct, frozen=True):
    """One seat's opponent and the draws that chose it."""

    pick: OpponentPick
    steps: tuple[WeightedDraw, ...]
    """The draws in order; clones of one opponent share theirs."""


class OpponentSampler:
    """Draws opponents: a pure function of standings, hero and rng, so that every draw can be recomputed.

    A sampler subclasses this and defines ``distribution`` and ``draws``; the rest follows from them.
    """

    name: ClassVar[str]
    uses_novelty: ClassVar[bool] = False
    """Whether it reads ``Standings.novelty``: only for such samplers do rollout workers sketch their matches, since
    events are kept permanently."""
    ngram: int = NGRAM_SIZE
    """Number of action parts in an n-gram of such a sketch."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """The distribution that ``draws`` draws from: every bucket of the mix, empty ones with share 0.

        Raises:
            UsageError: no version of the hero's policy has been published.
        """
        raise NotImplementedError

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """Returns one draw per seat of ``seats``, in their order.

        Raises:
            UsageError: no version of the hero's policy has been published, or a seat is listed twice.
        """
        raise NotImplementedError

    def sample(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[OpponentPick]:
        """The picks of ``draws``."""
        return [drawn.pick for drawn in self.draws(standings, hero_policy, seats, rng)]

    def target_shares(self, standings: Standings, hero_policy: str) -> Mapping[str, float]:
        """Probability of each bucket for one seat under these standings; sums to 1.

        Audits compare realised shares with this, not with the configured mix: a bucket may be empty.
        """
        return {name: bucket.share for name, bucket in self.distribution(standings, hero_policy).items()}


SAMPLERS: Registry[OpponentSampler] = Registry("matchmaking.sampler", "league.samplers")


def make_sampler(plugin: Plugin) -> OpponentSampler:
    """Builds the configured opponent sampler; ConfigError for an unknown name or a bad setting."""
    return SAMPLERS.build(plugin)


def live_hero(standings: Standings, policy: str) -> tuple[str, LivePolicy]:
    """Returns the agent name of a policy's live version, and its entry; UsageError if none has been published."""
    live = standings.live.get(policy)
    if live is None:
        raise UsageError(f"policy {policy!r} has no published version; published are {format_choices(standings.live)}")
    return agent_name(policy, live.version), live
