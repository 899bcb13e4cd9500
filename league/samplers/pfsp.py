"""League Training's samplers: prioritised fictitious self-play, and the simpler tiers by rating distance.

Source of ``pfsp``: the specification's matchmaking section: 30 % the mirror, 40 % peers (ratings within 100), 20 % the
exploitable, 10 % baselines; only baselines until two checkpoints exist; and cluster sampling (few distinct opponents,
cloned over the seats) where memory for adapters is short.
"""

from math import isclose, isfinite
from typing import ClassVar

import msgspec

from league.samplers import (
    SAMPLERS,
    Distribution,
    OpponentSampler,
    is_cold_start,
    live_hero,
    mix_buckets,
    others,
    pool_buckets,
)
from schemas.errors import ConfigError
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.standings import Agent, Standings

BUCKETS = ("mirror", "peers", "exploitable", "baselines")


@SAMPLERS.register("pfsp")
class Pfsp(OpponentSampler, frozen=True):
    """The mix of four buckets. A bucket without candidates leaves its share to the others in proportion.

    An agent can be in several. Baselines are never peers, since they have a bucket of their own, but can be
    exploitable. While fewer than two checkpoints have joined, the other buckets are empty; without any baseline the
    mirror is played.
    """

    name: ClassVar[str] = "pfsp"

    mirror: NonNegativeFloat = 0.3
    """Share of the hero's own live version."""
    peers: NonNegativeFloat = 0.4
    """Share of members of the league with a rating near the hero's."""
    exploitable: NonNegativeFloat = 0.2
    """Share of members with more wins than losses against the policy's versions that are rated below the hero now."""
    baselines: NonNegativeFloat = 0.1
    """Share of baseline agents and guests."""
    peer_range: NonNegativeFloat = 100.0
    """Rating points on either side of the hero's."""
    baseline_weights: dict[str, NonNegativeFloat] = msgspec.field(default_factory=dict)
    """Relative weight of single baselines; 1 for those not named. A name that is not a baseline has no effect."""
    guest_weights: dict[str, NonNegativeFloat] = msgspec.field(default_factory=dict)
    """Relative weight of guests: reference bots drawn with the baselines, which no agent is measured against."""

    def __post_init__(self) -> None:
        total = sum(getattr(self, bucket) for bucket in BUCKETS)
        if not isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
            raise ConfigError(f"mirror + peers + exploitable + baselines: sum is {total}; expected 1")

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """The configured mix of the buckets that have candidates."""
        hero, live = live_hero(standings, hero_policy)
        records = standings.records.get(hero_policy, {})
        weights: dict[str, dict[str, float]] = {bucket: {} for bucket in BUCKETS}
        for agent in others(standings, hero_policy):
            weight = self._baseline_weight(agent)
            if weight is not None:
                weights["baselines"][agent.name] = weight
            elif abs(agent.rating - live.rating) <= self.peer_range:
                weights["peers"][agent.name] = 1.0
            record = records.get(agent.name)
            if record is not None and record.losses > record.wins and agent.rating < live.rating:
                weights["exploitable"][agent.name] = 1.0
        if is_cold_start(standings) and any(weights["baselines"].values()):
            weights["peers"], weights["exploitable"] = {}, {}
        else:
            weights["mirror"] = {hero: 1.0}
        return mix_buckets({bucket: getattr(self, bucket) for bucket in BUCKETS}, weights)

    def _baseline_weight(self, agent: Agent) -> float | None:
        """Weight among the baselines; None for other agents."""
        if agent.baseline:
            return self.baseline_weights.get(agent.name, 1.0)
        return self.guest_weights.get(agent.name)


@SAMPLERS.register("tiered")
class Tiered(OpponentSampler, frozen=True):
    """Draws every agent by its weight; the buckets are ``peers``, ``near`` and ``far``, else ``mirror``.

    Until two checkpoints have joined only baselines are drawn, as in ``pfsp``, by these weights. An agent without a
    finite rating is far.

    Source: League Training's ``get_opponents``: 5 within 100
    rating points, 2 within 300, else 0.5, doubled for baselines.
    """

    name: ClassVar[str] = "tiered"

    peer_weight: NonNegativeFloat = 5.0
    """Weight of an agent nearer than ``peer_range`` to the hero's rating."""
    near_weight: NonNegativeFloat = 2.0
    """Weight of an agent that is nearer than ``near_range`` and not a peer."""
    far_weight: NonNegativeFloat = 0.5
    """Weight of all others."""
    baseline_factor: PositiveFloat = 2.0
    """Factor on the tier's weight for baselines."""
    peer_range: PositiveFloat = 100.0
    """Rating points."""
    near_range: PositiveFloat = 300.0
    """Rating points."""

    def __post_init__(self) -> None:
        if not (self.peer_weight or self.near_weight or self.far_weight):
            raise ConfigError("peer_weight, near_weight and far_weight: all are 0; expected one above 0")
        if self.near_range < self.peer_range:
            raise ConfigError(f"near_range: {self.near_range}; expected peer_range, {self.peer_range}, or more")

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Buckets by distance in rating; before the first ratings, baselines alone where there are any."""
        hero, live = live_hero(standings, hero_policy)
        agents = others(standings, hero_policy)
        if is_cold_start(standings):
            agents = [agent for agent in agents if agent.baseline] or agents
        weights: dict[str, dict[str, float]] = {"peers": {}, "near": {}, "far": {}}
        tier_weights = {"peers": self.peer_weight, "near": self.near_weight, "far": self.far_weight}
        for agent in agents:
            tier = self._tier(abs(agent.rating - live.rating))
            weights[tier][agent.name] = tier_weights[tier] * (self.baseline_factor if agent.baseline else 1.0)
        return pool_buckets(weights, hero)

    def _tier(self, distance: float) -> str:
        if not isfinite(distance) or distance >= self.near_range:
            return "far"
        return "peers" if distance < self.peer_range else "near"
