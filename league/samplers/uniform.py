"""Uniform sampling: from the whole league, the mirror included, or from versions of named policies."""

from typing import ClassVar

from league.samplers import SAMPLERS, Bucket, Distribution, OpponentSampler, live_hero, mix_buckets, others
from schemas.ids import agent_name
from schemas.numbers import Share
from schemas.standings import Standings


@SAMPLERS.register("uniform")
class Uniform(OpponentSampler, frozen=True):
    """Every member of the league alike: the reference for others. The buckets are ``mirror`` and ``members``."""

    name: ClassVar[str] = "uniform"

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """The same probability for the hero's own version and each member."""
        hero, _ = live_hero(standings, hero_policy)
        members = [agent.name for agent in others(standings, hero_policy)]
        count = len(members) + 1
        return {
            "mirror": Bucket(1 / count, {hero: 1.0}),
            "members": Bucket(len(members) / count, dict.fromkeys(members, 1.0)),
        }


@SAMPLERS.register("policies")
class Policies(OpponentSampler, frozen=True):
    """Versions of named policies, for a population that meets another one, such as teachers and students.

    The bucket ``live`` holds the policies' newest versions, ``past`` their active checkpoints, all alike. An empty
    bucket leaves its share to the other one; without both the ``mirror`` is played. ``live`` names the versions that
    are newest when the match is made, and those play it to its end.
    """

    name: ClassVar[str] = "policies"

    policies: tuple[str, ...] = ()
    """Policies that are met; empty for all but the hero's own."""
    live: Share = 0.5
    """Share of their newest versions; the rest is for their active checkpoints."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Buckets ``live`` and ``past`` of the named policies, of all others by default; else ``mirror``."""
        hero, _ = live_hero(standings, hero_policy)
        met = set(self.policies or standings.live.keys()) - {hero_policy}
        live = {agent_name(name, standings.live[name].version): 1.0 for name in sorted(met & standings.live.keys())}
        active = others(standings, hero_policy)
        past = {agent.name: 1.0 for agent in active if agent.policy in met and agent.name not in live}
        mix = {"live": self.live, "past": 1.0 - self.live, "mirror": 0.0}
        return mix_buckets(mix, {"live": live, "past": past, "mirror": {} if live or past else {hero: 1.0}})
