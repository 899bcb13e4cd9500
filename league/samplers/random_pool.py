"""Everybody alike, fixed opponents and checkpoints, but never the hero itself."""

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, by_kind, by_weight, others
from schemas.standings import Standings


@SAMPLERS.register("random")
class RandomSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``random``: only those that every mix has."""

    def build(self) -> "RandomPool":
        """What these settings configure."""
        return RandomPool(self)


class RandomPool(MixSampler):
    """Uniform over all active members; the buckets are ``fixed`` and ``checkpoints``, and ``mirror`` without members.

    Source: Unstable Baselines' sampling mode ``random``: fixed agents and active checkpoints alike. The difference from
    ``uniform`` is that the mirror is none of them.
    """

    name = "random"

    def __init__(self, settings: RandomSettings) -> None:
        super().__init__(settings.max_distinct)

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        weights = {agent.name: 1.0 for agent in others(standings, hero_policy)}
        return by_weight(by_kind(weights, standings.agents), hero)
