"""Versions of named policies: for a population that meets another one, such as teachers and students."""

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, normalise_mix, others
from schemas.errors import ConfigError
from schemas.ids import agent_name
from schemas.standings import Standings


@SAMPLERS.register("policies")
class PoliciesSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``policies``; also ``[policies.NAME.sampler.settings]``."""

    policies: tuple[str, ...] = ()
    """The policies that are met; empty for all but the hero's own."""
    live: float = 0.5
    """Share of their newest versions; the rest is for their active checkpoints."""

    def __post_init__(self) -> None:
        if not 0 <= self.live <= 1:
            raise ConfigError(f"live: {self.live}; expected 0 to 1")

    def build(self) -> "Policies":
        """Builds the sampler with these settings."""
        return Policies(self)


class Policies(MixSampler):
    """The bucket ``live`` holds the policies' newest versions, ``past`` their active checkpoints, all alike.

    An empty bucket leaves its share to the other one; without both the ``mirror`` is played. ``live`` names the
    versions that are newest when the match is made, and those play it to its end.
    """

    name = "policies"
    reads = ("agents", "live")

    def __init__(self, settings: PoliciesSettings) -> None:
        super().__init__(settings.max_distinct)
        self._policies = settings.policies
        self._live_share = settings.live

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        met = set(self._policies or standings.live.keys()) - {hero_policy}
        live = {agent_name(name, standings.live[name].version): 1.0 for name in sorted(met & standings.live.keys())}
        members = (agent for agent in others(standings, hero_policy) if agent.policy in met)
        past = {agent.name: 1.0 for agent in members if agent.name not in live}
        buckets = {"live": live, "past": past, "mirror": {} if live or past else {hero: 1.0}}
        mix = {"live": self._live_share, "past": 1.0 - self._live_share, "mirror": 0.0}
        shares = normalise_mix(mix, {name: bool(weights) for name, weights in buckets.items()})
        return {name: Bucket(shares[name], weights if shares[name] > 0 else {}) for name, weights in buckets.items()}
