"""Opponents that never change: bots, base and remote models, or those that the configuration names."""

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, by_weight, others
from schemas.errors import ConfigError, one_of
from schemas.standings import Agent, Standings


@SAMPLERS.register("fixed")
class FixedSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``fixed``."""

    agents: tuple[str, ...] = ()
    """Who is played, checkpoints too; empty for every agent that is not a checkpoint."""

    def __post_init__(self) -> None:
        """Check what types alone cannot say."""
        super().__post_init__()
        if twice := sorted({agent for agent in self.agents if self.agents.count(agent) > 1}):
            raise ConfigError(f"agents: {', '.join(map(repr, twice))} named twice; expected every agent once")

    def build(self) -> "Fixed":
        """What these settings configure."""
        return Fixed(self)


class Fixed(MixSampler):
    """Uniform over the bucket ``fixed``; ``mirror`` is played when nobody in it is active.

    Source: Unstable Baselines' sampling mode ``fixed``, "uniform random among fixed baselines only".
    """

    name = "fixed"

    def __init__(self, settings: FixedSettings) -> None:
        super().__init__(settings.max_distinct)
        self._agents = settings.agents

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``.

        Raises:
            ConfigError: the settings name an agent that has not joined the league.
            UsageError: no version of the hero's policy has been published.
        """
        hero, _ = live_hero(standings, hero_policy)
        if unknown := [name for name in self._agents if name not in standings.agents]:
            raise ConfigError(
                f"matchmaking.sampler.settings.agents: {unknown[0]!r} is not in the league; expected "
                f"{one_of(agent.name for agent in standings.agents.values() if _is_fixed(agent))} or a checkpoint"
            )
        members = others(standings, hero_policy)
        fixed = [a for a in members if (a.name in self._agents if self._agents else _is_fixed(a))]
        return by_weight({"fixed": {agent.name: 1.0 for agent in fixed}}, hero)


def _is_fixed(agent: Agent) -> bool:
    return agent.kind != "checkpoint"
