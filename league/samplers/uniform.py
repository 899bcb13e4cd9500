"""Uniform sampling over every active member of the league, the mirror included, or over the mirror alone."""

from collections.abc import Sequence
from random import Random

import msgspec

from league.samplers.base import SAMPLERS, Bucket, OpponentSampler, SeatDraw, WeightedChoice, live_hero
from league.samplers.mix import MixSampler, StandingsCache, check_seats, others
from schemas.events import OpponentPick
from schemas.standings import Standings


@SAMPLERS.register("uniform")
class UniformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``uniform``: there are none."""

    def build(self) -> "Uniform":
        """Builds the sampler with these settings."""
        return Uniform()


class Uniform(OpponentSampler):
    """Draws each seat's opponent uniformly; the buckets are ``mirror`` and ``members``."""

    name = "uniform"

    def __init__(self) -> None:
        self._choice_cache = StandingsCache(self._make_choice, reads=("agents", "live"))

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """See ``OpponentSampler.draws``: one number per seat, over all buckets."""
        check_seats(seats)
        urn, bucket_of = self._choice_cache(standings, hero_policy)
        drawn = [(seat, urn.draw(rng)) for seat in seats]
        return [SeatDraw(OpponentPick(seat, agent.key, bucket_of[agent.key]), (agent,)) for seat, agent in drawn]

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        members = [agent.name for agent in others(standings, hero_policy)]
        count = len(members) + 1
        return {
            "mirror": Bucket(1 / count, {hero: 1.0}),
            "members": Bucket(len(members) / count, dict.fromkeys(members, 1.0)),
        }

    def _make_choice(self, standings: Standings, hero_policy: str) -> tuple[WeightedChoice, dict[str, str]]:
        """Choice over all agents, and the bucket of each."""
        buckets = self.distribution(standings, hero_policy)
        bucket_of = {agent: name for name, bucket in buckets.items() for agent in bucket.weights}
        return WeightedChoice(dict.fromkeys(bucket_of, 1.0)), bucket_of


@SAMPLERS.register("mirror")
class MirrorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``mirror``: there are none."""

    def build(self) -> "Mirror":
        """Builds the sampler with these settings."""
        return Mirror()


class Mirror(MixSampler):
    """One bucket, ``mirror``, with one agent in it.

    Source: Unstable Baselines' sampling mode ``mirror``.
    """

    name = "mirror"
    reads = ("live",)

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        return {"mirror": Bucket(1.0, {hero: 1.0})}
