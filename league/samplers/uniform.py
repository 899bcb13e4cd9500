"""Uniform sampling from a pool.

The pools: every active member, with the mirror (``uniform``) or without it (``random``); the mirror alone; opponents
that never change, all or some (``fixed``); the policy's checkpoints some way behind its live version (``lagged``); and
versions of other policies (``policies``), for a population that meets another one, such as teachers and students.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random
from typing import ClassVar, Literal

from league.samplers import SAMPLERS, Bucket, OpponentSampler, SeatDraw, WeightedChoice, live_hero
from league.samplers.bucketed import BucketedDraws, HeroContext
from league.samplers.mix import (
    MixDraws,
    MixSettings,
    StandingsCache,
    by_weight,
    check_seats,
    normalise_mix,
    others,
    shares_by_weight,
)
from schemas.errors import ConfigError, format_choices
from schemas.events import OpponentPick
from schemas.ids import agent_name
from schemas.numbers import Share
from schemas.plugins import PluginStruct
from schemas.standings import Agent, Standings, WinLoss


@SAMPLERS.register("uniform")
class Uniform(OpponentSampler, PluginStruct, frozen=True, dict=True):
    """Draws each seat's opponent uniformly; the buckets are ``mirror`` and ``members``. There are no settings."""

    name: ClassVar[str] = "uniform"

    @cached_property
    def _choice_cache(self) -> StandingsCache[tuple[WeightedChoice, dict[str, str]]]:
        return StandingsCache(self._make_choice, reads=("agents", "live"))

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
class Mirror(MixDraws, PluginStruct, frozen=True, dict=True):
    """One bucket, ``mirror``, with one agent in it. There are no settings.

    Source: Unstable Baselines' sampling mode ``mirror``.
    """

    name: ClassVar[str] = "mirror"
    reads = ("live",)
    max_distinct = None

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        return {"mirror": Bucket(1.0, {hero: 1.0})}


@SAMPLERS.register("fixed")
class Fixed(MixDraws, MixSettings, frozen=True):
    """Uniform over the bucket ``fixed``; ``mirror`` when none of its agents is active.

    Source: Unstable Baselines' sampling mode ``fixed``.
    """

    name: ClassVar[str] = "fixed"
    reads = ("agents", "live")

    agents: tuple[str, ...] = ()
    """Names of the agents to play; empty for all."""

    def __post_init__(self) -> None:
        if twice := sorted({agent for agent in self.agents if self.agents.count(agent) > 1}):
            raise ConfigError(f"agents: {', '.join(map(repr, twice))} named twice; expected every agent once")

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``; ConfigError where the settings name no fixed agent of the league."""
        hero, _ = live_hero(standings, hero_policy)
        known = [agent.name for agent in standings.agents.values() if agent.kind != "checkpoint"]
        if unknown := sorted(set(self.agents) - set(known)):
            raise ConfigError(
                f"matchmaking.sampler.settings.agents: {unknown[0]!r} is no fixed agent of this league; "
                f"expected {format_choices(known)}"
            )
        names = set(self.agents or known)
        fixed = {agent.name: 1.0 for agent in others(standings, hero_policy) if agent.name in names}
        return by_weight({"fixed": fixed}, hero)


@SAMPLERS.register("random")
class RandomPool(BucketedDraws, MixSettings, frozen=True):
    """Uniform over all active members; the buckets are ``fixed`` and ``checkpoints``, and ``mirror`` without members.

    Source: Unstable Baselines' sampling mode ``random``: fixed agents and active checkpoints alike. The difference from
    ``uniform`` is that the mirror is none of them.
    """

    name: ClassVar[str] = "random"
    reads = ("agents", "live")
    buckets = ("fixed", "checkpoints")

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedDraws.place``."""
        return {"checkpoints" if agent.kind == "checkpoint" else "fixed": 1.0}

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedDraws.shares``."""
        return shares_by_weight({bucket: urn.total for bucket, urn in urns.items()})


@SAMPLERS.register("lagged")
class Lagged(MixDraws, MixSettings, frozen=True):
    """Uniform over the policy's active checkpoints inside the range, the bucket ``lagged``.

    When there are none (the history is too short, or those in the range have retired), the bucket ``nearest`` holds the
    active checkpoint with the lag nearest to the range, the later one of two equally near. Without any active past
    checkpoint the ``mirror`` is played.

    Source: Unstable Baselines' sampling mode ``lagged``.
    """

    name: ClassVar[str] = "lagged"
    reads = ("agents", "live")

    lag_range: tuple[int, int] = (1, 100)
    """Smallest and largest lag, inclusive, from 1: lag 0 is the mirror."""
    unit: Literal["versions", "checkpoints"] = "versions"
    """``versions``: gradient steps behind the live version. ``checkpoints``: 1 is the newest one before it, retired
    ones counted, so that a retirement changes no lag."""

    def __post_init__(self) -> None:
        low, high = self.lag_range
        if not 1 <= low <= high:
            raise ConfigError(f"lag_range: [{low}, {high}]; expected two numbers with 1 <= low <= high")

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        lags = self._lags(standings, hero_policy)
        lagged = {name: 1.0 for name, lag in lags.items() if self._outside(lag) == 0}
        nearest = [] if lagged else sorted(lags, key=lambda name: (self._outside(lags[name]), lags[name]))[:1]
        return by_weight({"lagged": lagged, "nearest": dict.fromkeys(nearest, 1.0)}, hero)

    def _lags(self, standings: Standings, hero_policy: str) -> dict[str, int]:
        """Lag of every active past checkpoint of the policy."""
        live = standings.live[hero_policy].version
        past = [
            agent
            for agent in standings.agents.values()
            if agent.kind == "checkpoint" and agent.policy == hero_policy and agent.version < live
        ]
        past.sort(key=lambda agent: (-agent.version, agent.name))
        return {
            agent.name: place if self.unit == "checkpoints" else live - agent.version
            for place, agent in enumerate(past, start=1)
            if agent.active
        }

    def _outside(self, lag: int) -> int:
        """Distance of a lag from the range; 0 inside."""
        low, high = self.lag_range
        return max(low - lag, lag - high, 0)


@SAMPLERS.register("policies")
class Policies(MixDraws, MixSettings, frozen=True):
    """The bucket ``live`` holds the policies' newest versions, ``past`` their active checkpoints, all alike.

    An empty bucket leaves its share to the other one; without both the ``mirror`` is played. ``live`` names the
    versions that are newest when the match is made, and those play it to its end.
    """

    name: ClassVar[str] = "policies"
    reads = ("agents", "live")

    policies: tuple[str, ...] = ()
    """The policies that are met; empty for all but the hero's own."""
    live: Share = 0.5
    """Share of their newest versions; the rest is for their active checkpoints."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        met = set(self.policies or standings.live.keys()) - {hero_policy}
        live = {agent_name(name, standings.live[name].version): 1.0 for name in sorted(met & standings.live.keys())}
        active = others(standings, hero_policy)
        past = {agent.name: 1.0 for agent in active if agent.policy in met and agent.name not in live}
        buckets = {"live": live, "past": past, "mirror": {} if live or past else {hero: 1.0}}
        mix = {"live": self.live, "past": 1.0 - self.live, "mirror": 0.0}
        shares = normalise_mix(mix, {name: bool(weights) for name, weights in buckets.items()})
        return {name: Bucket(shares[name], weights if shares[name] > 0 else {}) for name, weights in buckets.items()}
