"""Every active member of the league alike, and the mirror as one of them."""

from collections.abc import Sequence
from random import Random

import msgspec

from league.samplers.base import SAMPLERS, Bucket, OpponentSampler, SeatDraw, draw, live_hero
from schemas.events import Pick
from schemas.standings import Standings


@SAMPLERS.register("uniform")
class UniformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``uniform``: there are none."""

    def build(self) -> "Uniform":
        """What these settings configure."""
        return Uniform()


class Uniform(OpponentSampler):
    """Draws each seat's opponent uniformly; the buckets are ``mirror`` and ``members``."""

    name = "uniform"

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """See ``OpponentSampler.draws``: one number a seat, over all buckets."""
        buckets = self.distribution(standings, hero_policy)
        bucket_of = {agent: name for name, bucket in buckets.items() for agent in bucket.weights}
        drawn = [(seat, draw(dict.fromkeys(bucket_of, 1.0), rng)) for seat in seats]
        return [SeatDraw(Pick(seat, agent.key, bucket_of[agent.key]), (agent,)) for seat, agent in drawn]

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        members = _members(standings, hero)
        everybody = len(members) + 1
        return {
            "mirror": Bucket(1 / everybody, {hero: 1.0}),
            "members": Bucket(len(members) / everybody, dict.fromkeys(members, 1.0)),
        }


def _members(standings: Standings, hero: str) -> list[str]:
    return [agent.name for agent in standings.agents.values() if agent.active and agent.name != hero]
