"""Samplers that place each agent independently, by that agent and the hero only.

Results arrive while matches are made, so the standings have nearly always changed since the last draw. Among ten
thousand agents a match changes a few records and ratings: only those agents are placed again.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import ClassVar

import msgspec

from league.fold_primitives import PersistentMap
from league.samplers import Bucket, WeightedChoice, live_hero
from league.samplers.mix import MixDraws, MixSampler, WeightedMix, is_cold_start, others
from schemas.standings import Agent, Standings, WinLoss

_NOTHING = WinLoss()
# Tolerance for rounding at a bound, relative to the numbers involved.
_SLACK = 1e-9


class HeroContext(msgspec.Struct, frozen=True):
    """Everything that a place depends on apart from the agent."""

    name: str
    policy: str
    rating: float
    is_cold: bool
    """Whether the league has hardly any checkpoints, and agents are placed accordingly."""


class BucketedDraws(MixDraws):
    """A mix whose ``distribution`` follows from the place of each agent.

    A subclass defines ``name``, ``buckets``, ``place`` and ``shares``, and ``bounds`` when places depend on the hero's
    rating.
    """

    reads: ClassVar[tuple[str, ...]] = ("agents", "live", "records")
    buckets: ClassVar[tuple[str, ...]]
    """Buckets for agents, in order, without the mirror."""
    bounds: tuple[float, ...] = ()
    """Differences between an agent's rating and the hero's at which its place may change; only there."""

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """Returns the agent's weight in each bucket that it belongs to.

        The agent is active and not the hero; ``record`` is that of the hero's policy against it.
        """
        raise NotImplementedError

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """Returns the shares of all buckets, ``mirror`` included, in order, from the contents of ``buckets``."""
        raise NotImplementedError

    def starts_cold(self, members: Sequence[Agent]) -> bool:
        """Whether a league with hardly any checkpoints and these members uses cold-start placement."""
        return False

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero = self.make_hero(standings, hero_policy)
        weights = self.weights(standings, hero)
        shares = self.shares({bucket: WeightedChoice(agents) for bucket, agents in weights.items()}, hero)
        weights["mirror"] = {hero.name: 1.0}
        return {bucket: Bucket(share, weights[bucket] if share else {}) for bucket, share in shares.items()}

    @cached_property
    def weighted_mix(self) -> Callable[[Standings, str], WeightedMix]:
        """See ``MixDraws.weighted_mix``."""
        return _BucketIndex(self).mix

    def make_hero(self, standings: Standings, hero_policy: str) -> HeroContext:
        """Builds the hero's context."""
        name, live = live_hero(standings, hero_policy)
        starts = is_cold_start(standings) and self.starts_cold(others(standings, hero_policy))
        return HeroContext(name, hero_policy, live.rating, starts)

    def weights(self, standings: Standings, hero: HeroContext) -> dict[str, dict[str, float]]:
        """Weights of all agents in all ``buckets``."""
        records = standings.records.get(hero.policy, {})
        weights: dict[str, dict[str, float]] = {bucket: {} for bucket in self.buckets}
        for agent in others(standings, hero.policy):
            for bucket, weight in self.place(agent, records.get(agent.name) or _NOTHING, hero).items():
                weights[bucket][agent.name] = weight
        return weights


class BucketedSampler(BucketedDraws, MixSampler):
    """``BucketedDraws`` for samplers whose settings are a struct of their own."""


class _BucketIndex:
    """The places of all agents under the newest standings."""

    _standings: Standings | None = None
    _hero: HeroContext
    _may_warm_up: bool
    """Agents never leave the standings: once there are enough checkpoints, there always are."""
    _agents: dict[str, WeightedChoice]
    _by_rating: "_RatingIndex"
    _mix: WeightedMix

    def __init__(self, sampler: BucketedDraws) -> None:
        self._sampler = sampler

    def mix(self, standings: Standings, policy: str) -> WeightedMix:
        """The mix under these standings; agents are placed again where the last ones differ."""
        before = self._standings
        if before is None or self._hero.policy != policy:
            self._rebuild(standings, policy)
        elif standings is not before:
            changed = self._changed_agents(standings, before)
            if changed is None:
                self._rebuild(standings, policy)
            elif changed:
                self._reassign(changed, standings)
        self._standings = standings
        return self._mix

    def _rebuild(self, standings: Standings, policy: str) -> None:
        self._hero = self._sampler.make_hero(standings, policy)
        self._may_warm_up = is_cold_start(standings)
        weights = self._sampler.weights(standings, self._hero)
        self._agents = {bucket: WeightedChoice(agents) for bucket, agents in weights.items()}
        self._by_rating = _RatingIndex(standings.agents.values() if self._sampler.bounds else ())
        self._mix = self._build_mix()

    def _changed_agents(self, standings: Standings, before: Standings) -> list[str] | None:
        """Agents whose place may have changed, None when it may be nearly any; updates the hero."""
        hero, policy = self._hero, self._hero.policy
        live = standings.live.get(policy)
        if live is None or self._may_warm_up:
            return None
        agents = _changed_keys(standings.agents, before.agents)
        read = "records" in self._sampler.reads
        records = _changed_keys(standings.records.get(policy), before.records.get(policy)) if read else []
        if agents is None or records is None:
            return None
        self._by_rating.update((standings.agents[name] for name in agents) if self._sampler.bounds else ())
        name = live_hero(standings, policy)[0]
        changed = [*agents, *records, *([name, hero.name] if name != hero.name else [])]
        if live.rating != hero.rating and self._sampler.bounds:
            between = self._by_rating.between(hero.rating, live.rating, self._sampler.bounds)
            if between is None:
                return None
            changed += between
        self._hero = HeroContext(name, policy, live.rating, is_cold=False)
        return changed

    def _reassign(self, names: Iterable[str], standings: Standings) -> None:
        records = standings.records.get(self._hero.policy, {})
        for name in dict.fromkeys(names):
            agent = standings.agents.get(name)
            if agent is not None:
                is_drawn = agent.active and name != self._hero.name
                place = self._sampler.place(agent, records.get(name) or _NOTHING, self._hero) if is_drawn else {}
                for bucket, urn in self._agents.items():
                    urn.set_weight(name, place.get(bucket, 0.0))
        self._mix = self._build_mix()

    def _build_mix(self) -> WeightedMix:
        return WeightedMix(
            self._sampler.shares(self._agents, self._hero),
            {**self._agents, "mirror": WeightedChoice({self._hero.name: 1.0})},
        )


class _RatingIndex:
    """Agents ordered by rating, without those whose rating is not a number."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._ratings = {agent.name: agent.rating for agent in agents if isfinite(agent.rating)}
        self._order = sorted((rating, name) for name, rating in self._ratings.items())

    def update(self, agents: Iterable[Agent]) -> None:
        """Update these agents' ratings."""
        for agent in agents:
            old = self._ratings.pop(agent.name, None)
            if old is not None:
                del self._order[bisect_left(self._order, (old, agent.name))]
            if isfinite(agent.rating):
                self._ratings[agent.name] = agent.rating
                insort(self._order, (agent.rating, agent.name))

    def between(self, old: float, new: float, bounds: Sequence[float]) -> list[str] | None:
        """Agents that may have crossed a bound when the hero's rating moved; None when that is nearly all."""
        if not isfinite(old) or not isfinite(new):
            return None
        low, high = min(old, new), max(old, new)
        agents: list[str] = []
        for bound in bounds:
            slack = _SLACK * (1.0 + abs(low) + abs(high) + abs(bound))
            first = bisect_left(self._order, (low + bound - slack,))
            last = bisect_right(self._order, (high + bound + slack, "\U0010ffff"))
            agents += [name for _, name in self._order[first:last]]
        return agents if 4 * len(agents) <= len(self._order) + 64 else None


def _changed_keys(after: Mapping[str, object] | None, before: Mapping[str, object] | None) -> list[str] | None:
    if after is before:
        return []
    return after.keys_changed_since(before) if isinstance(after, PersistentMap) and before is not None else None
