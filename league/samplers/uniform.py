"""Every active member of the league alike, and the mirror as one of them."""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from league.samplers.base import SAMPLERS, draw, live_hero
from schemas.events import Pick
from schemas.standings import Standings


@SAMPLERS.register("uniform")
class UniformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``uniform``: there are none."""

    def build(self) -> "Uniform":
        """What these settings configure."""
        return Uniform()


class Uniform:
    """Draws each seat's opponent uniformly; the buckets are ``mirror`` and ``members``."""

    name = "uniform"

    def sample(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[Pick]:
        """See ``OpponentSampler.sample``."""
        hero, _ = live_hero(standings, hero_policy)
        weights = dict.fromkeys([hero, *_members(standings, hero)], 1.0)
        drawn = [(seat, draw(weights, rng)) for seat in seats]
        return [Pick(seat, agent, "mirror" if agent == hero else "members") for seat, agent in drawn]

    def target_shares(self, standings: Standings, hero_policy: str) -> Mapping[str, float]:
        """See ``OpponentSampler.target_shares``."""
        hero, _ = live_hero(standings, hero_policy)
        members = len(_members(standings, hero))
        return {"mirror": 1 / (members + 1), "members": members / (members + 1)}


def _members(standings: Standings, hero: str) -> list[str]:
    return [agent.name for agent in standings.agents.values() if agent.active and agent.name != hero]
