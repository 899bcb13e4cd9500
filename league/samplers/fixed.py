"""Opponents that never change (bots, base and remote models, or some by name), alone or with all checkpoints."""

from collections.abc import Mapping

from league.samplers.base import SAMPLERS, Bucket, WeightedChoice, live_hero
from league.samplers.bucketed import BucketedSampler, HeroContext
from league.samplers.mix import MixSampler, MixSettings, by_weight, others, shares_by_weight
from schemas.errors import ConfigError, format_choices
from schemas.standings import Agent, Standings, WinLoss


@SAMPLERS.register("fixed")
class FixedSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``fixed``."""

    agents: tuple[str, ...] = ()
    """Names of the agents to play; empty for all."""

    def __post_init__(self) -> None:
        if twice := sorted({agent for agent in self.agents if self.agents.count(agent) > 1}):
            raise ConfigError(f"agents: {', '.join(map(repr, twice))} named twice; expected every agent once")

    def build(self) -> "Fixed":
        """Builds the sampler with these settings."""
        return Fixed(self)


class Fixed(MixSampler):
    """Uniform over the bucket ``fixed``; ``mirror`` when none of its agents is active.

    Source: Unstable Baselines' sampling mode ``fixed``.
    """

    name = "fixed"
    reads = ("agents", "live")

    def __init__(self, settings: FixedSettings) -> None:
        super().__init__(settings.max_distinct)
        self._agents = settings.agents

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``.

        Raises:
            ConfigError: the settings name an agent that is not a fixed agent of the league.
            UsageError: no version of the hero's policy has been published.
        """
        hero, _ = live_hero(standings, hero_policy)
        known = [agent.name for agent in standings.agents.values() if agent.kind != "checkpoint"]
        if unknown := sorted(set(self._agents) - set(known)):
            raise ConfigError(
                f"matchmaking.sampler.settings.agents: {unknown[0]!r} is no fixed agent of this league; "
                f"expected {format_choices(known)}"
            )
        names = set(self._agents or known)
        fixed = {agent.name: 1.0 for agent in others(standings, hero_policy) if agent.name in names}
        return by_weight({"fixed": fixed}, hero)


@SAMPLERS.register("random")
class RandomSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``random``: only those of every mix."""

    def build(self) -> "RandomPool":
        """Builds the sampler with these settings."""
        return RandomPool(self)


class RandomPool(BucketedSampler):
    """Uniform over all active members; the buckets are ``fixed`` and ``checkpoints``, and ``mirror`` without members.

    Source: Unstable Baselines' sampling mode ``random``: fixed agents and active checkpoints alike. The difference from
    ``uniform`` is that the mirror is none of them.
    """

    name = "random"
    reads = ("agents", "live")
    buckets = ("fixed", "checkpoints")

    def __init__(self, settings: RandomSettings) -> None:
        super().__init__(settings.max_distinct)

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedSampler.place``."""
        return {"checkpoints" if agent.kind == "checkpoint" else "fixed": 1.0}

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedSampler.shares``."""
        return shares_by_weight({bucket: urn.total for bucket, urn in urns.items()})
