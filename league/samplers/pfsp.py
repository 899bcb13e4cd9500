"""The league specification's samplers: prioritised fictitious self-play, and the simpler tiers by rating distance.

Source of ``pfsp``: the specification's matchmaking section: 30 % the mirror, 40 % peers (ratings within 100), 20 % the
exploitable, 10 % baselines; only baselines until two checkpoints exist; and cluster sampling (few distinct opponents,
cloned over the seats) where memory for adapters is short.
"""

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from typing import ClassVar

import msgspec

from league.samplers import SAMPLERS, WeightedChoice
from league.samplers.bucketed import BucketedDraws, HeroContext
from league.samplers.mix import MixSettings, normalise_mix, shares_by_weight
from schemas.errors import ConfigError
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.standings import Agent, WinLoss

BUCKETS = ("mirror", "peers", "exploitable", "baselines")


@SAMPLERS.register("pfsp")
class Pfsp(BucketedDraws, MixSettings, frozen=True):
    """The mix of four buckets. A bucket without candidates leaves its share to the others in proportion.

    An agent can be in several. Baselines are never peers, since they have a bucket of their own, but can be
    exploitable. While fewer than two checkpoints have joined, the other buckets are empty; without any baseline the
    mirror is played.
    """

    name: ClassVar[str] = "pfsp"
    buckets = ("peers", "exploitable", "baselines")

    mirror: NonNegativeFloat = 0.3
    """The hero's own live version."""
    peers: NonNegativeFloat = 0.4
    """Members of the league with a rating near the hero's."""
    exploitable: NonNegativeFloat = 0.2
    """Members with more wins than losses against the policy's versions, and rated below the hero now."""
    baselines: NonNegativeFloat = 0.1
    """Baseline agents, and guests."""
    peer_range: NonNegativeFloat = 100.0
    """Rating points on either side of the hero's."""
    baseline_weights: dict[str, NonNegativeFloat] = msgspec.field(default_factory=dict)
    """Relative weight of single baselines; 1 for those not named. A name that is not a baseline has no effect."""
    guest_weights: dict[str, NonNegativeFloat] = msgspec.field(default_factory=dict)
    """Relative weight of guests: reference bots drawn with the baselines, which no agent is measured against."""

    def __post_init__(self) -> None:
        total = sum(getattr(self, key) for key in BUCKETS)
        if not isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
            raise ConfigError(f"mirror + peers + exploitable + baselines: sum is {total}; expected 1")

    @property
    def bounds(self) -> tuple[float, ...]:  # type: ignore[override]
        """See ``BucketedDraws.bounds``."""
        return -self.peer_range, 0.0, self.peer_range

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedDraws.place``."""
        weight = self._weight(agent)
        place = {} if weight is None else {"baselines": weight}
        if hero.is_cold:
            return place
        if weight is None and abs(agent.rating - hero.rating) <= self.peer_range:
            place["peers"] = 1.0
        if record.losses > record.wins and agent.rating < hero.rating:
            place["exploitable"] = 1.0
        return place

    def _weight(self, agent: Agent) -> float | None:
        """Weight in the baselines' bucket; None for agents outside it."""
        if agent.baseline:
            return self.baseline_weights.get(agent.name, 1.0)
        return self.guest_weights.get(agent.name)

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedDraws.shares``."""
        is_filled = {"mirror": not hero.is_cold} | {bucket: not urn.is_empty for bucket, urn in urns.items()}
        return normalise_mix({bucket: getattr(self, bucket) for bucket in BUCKETS}, is_filled)

    def starts_cold(self, members: Sequence[Agent]) -> bool:
        """See ``BucketedDraws.starts_cold``: when any agent can be drawn as a baseline."""
        return any(self._weight(agent) for agent in members)


@SAMPLERS.register("tiered")
class Tiered(BucketedDraws, MixSettings, frozen=True):
    """Draws every agent by its weight; the buckets are ``peers``, ``near`` and ``far``, else ``mirror``.

    Until two checkpoints have joined only baselines are drawn, as in ``pfsp``, by these weights. An agent without a
    finite rating is far.

    Source: the league specification's ``LeagueManager.get_opponents`` ("simple tiered probability"): 5 within 100
    rating points, 2 within 300, else 0.5, doubled for baselines.
    """

    name: ClassVar[str] = "tiered"
    buckets = ("peers", "near", "far")

    peer_weight: NonNegativeFloat = 5.0
    """Weight of an agent nearer than ``peer_range`` to the hero's rating."""
    near_weight: NonNegativeFloat = 2.0
    """Weight of one that is not a peer and nearer than ``near_range``."""
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

    @property
    def bounds(self) -> tuple[float, ...]:  # type: ignore[override]
        """See ``BucketedDraws.bounds``."""
        return -self.near_range, -self.peer_range, self.peer_range, self.near_range

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedDraws.place``."""
        if hero.is_cold and not agent.baseline:
            return {}
        distance = abs(agent.rating - hero.rating)
        factor = self.baseline_factor if agent.baseline else 1.0
        if isfinite(distance) and distance < self.peer_range:
            return {"peers": self.peer_weight * factor}
        if isfinite(distance) and distance < self.near_range:
            return {"near": self.near_weight * factor}
        return {"far": self.far_weight * factor}

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedDraws.shares``."""
        return shares_by_weight({bucket: urn.total for bucket, urn in urns.items()})

    def starts_cold(self, members: Sequence[Agent]) -> bool:
        """See ``BucketedDraws.starts_cold``: with any baseline."""
        return any(agent.baseline for agent in members)
