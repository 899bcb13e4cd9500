"""Tiers by rating distance: peers often, near peers sometimes, all others rarely, baselines twice as often."""

from collections.abc import Mapping, Sequence
from math import isfinite

from league.samplers.base import SAMPLERS, WeightedChoice
from league.samplers.bucketed import BucketedSampler, HeroContext
from league.samplers.mix import MixSettings, shares_by_weight
from schemas.errors import ConfigError
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.standings import Agent, WinLoss


@SAMPLERS.register("tiered")
class TieredSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``tiered``; weights are relative and of single agents."""

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

    def build(self) -> "Tiered":
        """Builds the sampler with these settings."""
        return Tiered(self)


class Tiered(BucketedSampler):
    """Draws every agent by its weight; the buckets are ``peers``, ``near`` and ``far``, else ``mirror``.

    Until two checkpoints have joined only baselines are drawn, as in ``pfsp``, by these weights. An agent without a
    finite rating is far.

    Source: the league specification's ``LeagueManager.get_opponents`` ("simple tiered probability"): 5 within 100
    rating points, 2 within 300, else 0.5, doubled for baselines.
    """

    name = "tiered"
    buckets = ("peers", "near", "far")

    def __init__(self, settings: TieredSettings) -> None:
        super().__init__(settings.max_distinct)
        self._settings = settings
        self.bounds = (-settings.near_range, -settings.peer_range, settings.peer_range, settings.near_range)

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedSampler.place``."""
        if hero.is_cold and not agent.baseline:
            return {}
        settings, distance = self._settings, abs(agent.rating - hero.rating)
        factor = settings.baseline_factor if agent.baseline else 1.0
        if isfinite(distance) and distance < settings.peer_range:
            return {"peers": settings.peer_weight * factor}
        if isfinite(distance) and distance < settings.near_range:
            return {"near": settings.near_weight * factor}
        return {"far": settings.far_weight * factor}

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedSampler.shares``."""
        return shares_by_weight({bucket: urn.total for bucket, urn in urns.items()})

    def starts_cold(self, members: Sequence[Agent]) -> bool:
        """See ``BucketedSampler.starts_cold``: with any baseline."""
        return any(agent.baseline for agent in members)
