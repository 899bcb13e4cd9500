"""Shared parts of samplers: drawing a bucket and then an opponent, and redistributing the shares of empty buckets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import cycle
from math import exp
from operator import add
from random import Random
from typing import ClassVar, Generic, TypeVar

from league.samplers import Bucket, OpponentSampler, SeatDraw, WeightedChoice, WeightedDraw, live_hero
from schemas.errors import UsageError
from schemas.events import OpponentPick
from schemas.numbers import PositiveInt
from schemas.plugins import PluginStruct
from schemas.standings import Agent, Standings

T = TypeVar("T")
STANDINGS_PARTS = ("agents", "live", "records", "pairs", "novelty")
_CHECKPOINTS_FOR_A_LEAGUE = 2


class MixSettings(PluginStruct, frozen=True, dict=True):
    """Common settings of samplers with a mix of buckets; a sampler is one struct of these and ``MixDraws``."""

    max_distinct: PositiveInt | None = None
    """Cluster sampling: draw this many opponents and clone them over the seats. None draws for every seat."""

    def __post_init__(self) -> None:
        """Does nothing, since types hold the bounds; settings of plugins from before that call it still."""


class StandingsCache(Generic[T]):
    """Caches the last value computed from standings, by the identity of the parts that it reads, and the policy.

    Standings never change: a state makes new ones when anything in them does, and keeps unchanged parts as the same
    objects. So identical parts mean a valid value; holding a reference to them keeps their identity from being reused.
    ``make`` computes the value from ``reads``, parts of the standings.
    """

    def __init__(self, make: Callable[[Standings, str], T], reads: Iterable[str] = STANDINGS_PARTS) -> None:
        self._make = make
        self._reads = tuple(reads)
        self._last: tuple[Standings, str, T] | None = None

    def __call__(self, standings: Standings, hero_policy: str) -> T:
        """Returns the value for these standings."""
        last = self._last
        if last is None or last[1] != hero_policy or changed_parts(last[0], standings, hero_policy, self._reads):
            last = self._last = standings, hero_policy, self._make(standings, hero_policy)
        return last[2]


def changed_parts(before: Standings, after: Standings, policy: str, parts: Iterable[str]) -> list[str]:
    """Returns those of ``parts`` that may differ for a policy."""
    if before is after:
        return []
    changed = []
    for part in parts:
        old, new = getattr(before, part), getattr(after, part)
        if part == "live":
            is_same = old == new
        else:
            is_same = old is new or (part in ("records", "novelty") and old.get(policy) is new.get(policy))
        if not is_same:
            changed.append(part)
    return changed


class WeightedMix:
    """A distribution prepared for drawing. ``agents`` has the agents of every bucket with a share above 0."""

    def __init__(self, shares: Mapping[str, float], agents: Mapping[str, WeightedChoice]) -> None:
        self.buckets = WeightedChoice(shares)
        self.agents = agents


class MixDraws(OpponentSampler):
    """Draws for every seat a bucket by its share, then an agent of the bucket by its weight.

    A subclass defines ``name`` and ``distribution``, whose buckets with a share above 0 are not empty.
    """

    reads: ClassVar[tuple[str, ...]] = STANDINGS_PARTS
    """Parts of the standings that ``distribution`` reads: it is recomputed only when one of them changes."""
    max_distinct: PositiveInt | None
    """As in ``MixSettings``, bounds included: a struct takes the first declaration."""

    @cached_property
    def weighted_mix(self) -> Callable[[Standings, str], WeightedMix]:
        """``distribution`` prepared for drawing, by standings and policy; valid until the next call."""
        return StandingsCache(self._make_mix, self.reads)

    def _make_mix(self, standings: Standings, hero_policy: str) -> WeightedMix:
        buckets = self.distribution(standings, hero_policy)
        shares = {name: bucket.share for name, bucket in buckets.items()}
        return WeightedMix(shares, {name: WeightedChoice(buckets[name].weights) for name in shares if shares[name] > 0})

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """See ``OpponentSampler.draws``.

        With ``max_distinct`` the clones are dealt in turn. Every seat still follows the target shares, though not
        independently of the others.
        """
        check_seats(seats)
        urns = self.weighted_mix(standings, hero_policy)
        pairs: list[tuple[WeightedDraw, WeightedDraw]] = []
        for _ in range(min(len(seats), self.max_distinct or len(seats))):
            bucket = urns.buckets.draw(rng)
            pairs.append((bucket, urns.agents[bucket.key].draw(rng)))
        return [
            SeatDraw(OpponentPick(seat, agent.key, bucket.key), (bucket, agent))
            for seat, (bucket, agent) in zip(seats, cycle(pairs), strict=False)
        ]


class MixSampler(MixDraws):
    """``MixDraws`` for samplers whose settings are a struct of their own."""

    def __init__(self, max_distinct: int | None = None) -> None:
        self.max_distinct = max_distinct


def check_seats(seats: Sequence[int]) -> None:
    """Reject repeated seats; UsageError if there are any."""
    if len(set(seats)) < len(seats):
        twice = next(seat for place, seat in enumerate(seats) if seat in seats[:place])
        raise UsageError(f"seat {twice} is listed twice; expected every seat once")


def normalise_mix(mix: Mapping[str, float], is_filled: Mapping[str, bool]) -> dict[str, float]:
    """Shares of a configured mix; an empty bucket leaves its share to the others in proportion.

    When all filled buckets have share 0, the first of them is played; at least one is filled.
    """
    weights = {name: mix[name] if filled else 0.0 for name, filled in is_filled.items()}
    if not any(weights.values()):
        weights[next(name for name, filled in is_filled.items() if filled)] = 1.0
    total = total_weight(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def by_weight(candidates: Mapping[str, Mapping[str, float]], hero: str) -> dict[str, Bucket]:
    """Buckets of one pool: every agent is drawn by its weight, and a bucket's share is that of its agents.

    So an empty bucket leaves its share to the others in proportion here too. The mirror is played when there is no
    other agent, and otherwise has share 0.
    """
    weights = {name: total_weight(agents[agent] for agent in sorted(agents)) for name, agents in candidates.items()}
    shares = shares_by_weight(weights)
    buckets = {name: Bucket(shares[name], dict(agents) if weights[name] else {}) for name, agents in candidates.items()}
    return {**buckets, "mirror": Bucket(shares["mirror"], {hero: 1.0} if shares["mirror"] else {})}


def shares_by_weight(weights: Mapping[str, float]) -> dict[str, float]:
    """The shares in ``by_weight``, from the weights of all buckets but the mirror."""
    total = total_weight(weights.values())
    shares = {name: weight / total if total else 0.0 for name, weight in weights.items()}
    return {**shares, "mirror": 0.0 if total else 1.0}


def others(standings: Standings, hero_policy: str) -> list[Agent]:
    """Possible opponents: all active agents but the live version of the hero's policy; raises as ``live_hero``."""
    hero, _ = live_hero(standings, hero_policy)
    return [agent for agent in standings.agents.values() if agent.active and agent.name != hero]


def split_by_kind(weights: Mapping[str, float], agents: Mapping[str, Agent]) -> dict[str, dict[str, float]]:
    """Weights as two buckets: ``fixed`` (bots, base and remote models, which never change) and ``checkpoints``."""
    split: dict[str, dict[str, float]] = {"fixed": {}, "checkpoints": {}}
    for name, weight in weights.items():
        split["checkpoints" if agents[name].kind == "checkpoint" else "fixed"][name] = weight
    return split


def softmax(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Weights in proportion to ``exp(score / temperature)``; the best has weight 1, and ones far below it 0."""
    best = max(scores.values(), default=0.0)
    return {name: exp((score - best) / temperature) for name, score in scores.items()}


def is_cold_start(standings: Standings) -> bool:
    """Whether fewer than two checkpoints have joined, retired ones included: then only baselines are played.

    Source: the league specification's "Cold Start".
    """
    return sum(agent.kind == "checkpoint" for agent in standings.agents.values()) < _CHECKPOINTS_FOR_A_LEAGUE


def total_weight(weights: Iterable[float]) -> float:
    """Sum of the weights, one by one: the rounding of sum() differs between versions of Python."""
    return reduce(add, weights, 0.0)
