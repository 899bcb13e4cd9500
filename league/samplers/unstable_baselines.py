"""Unstable Baselines' sampling modes, by their names there."""

from collections.abc import Mapping
from math import cosh, exp, hypot, isfinite, log, pi, sqrt
from typing import ClassVar, Literal

from league.samplers import (
    SAMPLERS,
    Bucket,
    Distribution,
    OpponentSampler,
    add_up,
    live_hero,
    others,
    pool_buckets,
    split_by_kind,
)
from schemas.errors import ConfigError, format_choices
from schemas.numbers import PositiveFloat, Share
from schemas.standings import Standings

Performance = Literal["logistic", "normal"]

# cosh overflows near 710; at this argument the quality is already below 1e-150.
_MAX_ARGUMENT = 350.0


@SAMPLERS.register("mirror")
class Mirror(OpponentSampler, frozen=True):
    """The hero's own live version in every seat: one bucket, ``mirror``."""

    name: ClassVar[str] = "mirror"

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """The live version with probability 1."""
        hero, _ = live_hero(standings, hero_policy)
        return {"mirror": Bucket(1.0, {hero: 1.0})}


@SAMPLERS.register("fixed")
class Fixed(OpponentSampler, frozen=True):
    """Uniform over the bucket ``fixed``, agents that never change; ``mirror`` when none of them is active."""

    name: ClassVar[str] = "fixed"

    agents: tuple[str, ...] = ()
    """Names of the agents to play; empty for all."""

    def __post_init__(self) -> None:
        if twice := sorted({agent for agent in self.agents if self.agents.count(agent) > 1}):
            raise ConfigError(f"agents: {', '.join(map(repr, twice))} named twice; expected distinct agents")

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Bucket ``fixed``; ConfigError where the settings name no fixed agent of the league."""
        hero, _ = live_hero(standings, hero_policy)
        fixed = [agent.name for agent in standings.agents.values() if agent.kind != "checkpoint"]
        if unknown := sorted(set(self.agents) - set(fixed)):
            raise ConfigError(
                f"matchmaking.sampler.settings.agents: {unknown[0]!r} is not a fixed agent of this league; "
                f"expected {format_choices(fixed)}"
            )
        names = set(self.agents or fixed)
        drawn = {agent.name: 1.0 for agent in others(standings, hero_policy) if agent.name in names}
        return pool_buckets({"fixed": drawn}, hero)


@SAMPLERS.register("random")
class RandomPool(OpponentSampler, frozen=True):
    """Uniform over all active members; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``."""

    name: ClassVar[str] = "random"

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Equal weights for all other active agents."""
        hero, _ = live_hero(standings, hero_policy)
        weights = {agent.name: 1.0 for agent in others(standings, hero_policy)}
        return pool_buckets(split_by_kind(weights, standings.agents), hero)


@SAMPLERS.register("lagged")
class Lagged(OpponentSampler, frozen=True):
    """Uniform over the policy's active checkpoints inside the range, the bucket ``lagged``.

    When there are none (the history is too short, or those in the range have retired), the bucket ``nearest`` holds the
    active checkpoint with the lag nearest to the range, the later one of two equally near. Without any active past
    checkpoint the ``mirror`` is played.
    """

    name: ClassVar[str] = "lagged"

    lag_range: tuple[int, int] = (1, 100)
    """Smallest and largest lag, inclusive, from 1: lag 0 is the mirror."""
    unit: Literal["versions", "checkpoints"] = "versions"
    """``versions``: gradient steps behind the live version. ``checkpoints``: 1 is the newest one before it, retired
    ones counted, so that a retirement changes no lag."""

    def __post_init__(self) -> None:
        low, high = self.lag_range
        if not 1 <= low <= high:
            raise ConfigError(f"lag_range: [{low}, {high}]; expected two numbers with 1 <= low <= high")

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Bucket ``lagged``; the nearest checkpoint alone, as ``nearest``, where the range has none."""
        hero, _ = live_hero(standings, hero_policy)
        lags = self._lags(standings, hero_policy)
        lagged = {name: 1.0 for name, lag in lags.items() if self._outside(lag) == 0}
        nearest = [] if lagged else sorted(lags, key=lambda name: (self._outside(lags[name]), lags[name]))[:1]
        return pool_buckets({"lagged": lagged, "nearest": dict.fromkeys(nearest, 1.0)}, hero)

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
            agent.name: number if self.unit == "checkpoints" else live - agent.version
            for number, agent in enumerate(past, start=1)
            if agent.active
        }

    def _outside(self, lag: int) -> int:
        """Distance of a lag from the range; 0 inside."""
        low, high = self.lag_range
        return max(low - lag, lag - high, 0)


@SAMPLERS.register("match_quality")
class MatchQuality(OpponentSampler, frozen=True):
    """Softmax over ``match_quality``; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    Agents without a finite rating and deviation are not drawn.
    """

    name: ClassVar[str] = "match_quality"

    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over qualities, which lie in (0, 1]. At 1 the most even match is at most e times as
    likely as the least even one, which is hardly a preference."""
    performance: Performance = "logistic"
    """Distribution of performances around skills: ``logistic`` as in Elo and Glicko, ``normal`` as in TrueSkill."""
    scale: PositiveFloat = 400.0
    """The spread. ``logistic``: rating points for ten to one odds, 400 in Elo. ``normal``: TrueSkill's β, the
    standard deviation of one performance, 25/6 by its defaults."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Softmax over the qualities; agents without a finite rating are left out."""
        hero, live = live_hero(standings, hero_policy)
        qualities = {}
        for agent in others(standings, hero_policy):
            gap, deviation = agent.rating - live.rating, hypot(agent.deviation, live.deviation)
            if isfinite(gap) and isfinite(deviation):
                qualities[agent.name] = match_quality(gap, self.scale, deviation, self.performance)
        weights = softmax(qualities, self.temperature)
        return pool_buckets(split_by_kind(weights, standings.agents), hero)


def match_quality(gap: float, scale: float, deviation: float = 0.0, performance: Performance = "logistic") -> float:
    """Chance of a draw relative to equals with known skills, as the draw margin goes to 0.

    For normal performances this is TrueSkill's formula (Herbrich, Minka and Graepel 2007, "TrueSkill: A Bayesian skill
    rating system", on matchmaking): ``sqrt(v / (v + σ²)) exp(-d² / (2 (v + σ²)))`` with v = 2β², the variance of the
    difference of two performances, and σ² that of the difference of two skills. ``gap`` is the rating difference d of
    either sign; ``deviation`` σ is the root of the sum of the two ratings' squared deviations.

    For logistic ones with known skills, as in Elo's expected scores E, it is the ratio of densities at 0, ``4 E (1 - E)
    = 1 / cosh²(d ln 10 / (2 scale))``. Uncertain skills widen that curve by the root of ``1 + σ²/v``, as in the normal
    case, with v = 8 (scale / ln 10)² / π, at which both have the same maximum: MacKay 1992, "The evidence framework
    applied to classification networks". That is within 0.024 of the mean over the possible skills; with the logistic's
    own variance for v, as in Glicko's g, the error would be 0.063.
    """
    variance = 2.0 if performance == "normal" else 8.0 / (pi * log(10.0) * log(10.0))
    unsure = deviation / scale
    widening = sqrt(1.0 + unsure * unsure / variance)
    distance = abs(gap) / (scale * widening)
    if performance == "normal":
        return exp(-0.5 * distance * distance / variance) / widening
    reached = cosh(min(distance * log(10.0) / 2.0, _MAX_ARGUMENT))
    return 1.0 / (reached * reached * widening)


@SAMPLERS.register("ts_dist")
class TsDist(OpponentSampler, frozen=True):
    """Weight ``exp(-|difference| / temperature)``; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    Agents without a finite rating are not drawn.
    """

    name: ClassVar[str] = "ts_dist"

    temperature: PositiveFloat = 100.0
    """Rating points: an opponent farther away by this much is e times less likely. It must fit the scale of the
    ratings; 100 is for Elo, TrueSkill's would be about 4."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Softmax over minus the differences in rating; agents without a finite rating are left out."""
        hero, live = live_hero(standings, hero_policy)
        gaps = {agent.name: abs(agent.rating - live.rating) for agent in others(standings, hero_policy)}
        weights = softmax({name: -gap for name, gap in gaps.items() if isfinite(gap)}, self.temperature)
        return pool_buckets(split_by_kind(weights, standings.agents), hero)


_NEVER_MET = 1.0


@SAMPLERS.register("exploration")
class Exploration(OpponentSampler, frozen=True):
    """Softmax over novelty mixed with a uniform draw; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    An opponent's novelty is the share of its n-grams of actions that were new when it played them
    (``league.state.novelty``); an opponent never met counts as entirely new. Free text has no n-grams, so that all
    opponents are equally likely there. Noise counts as new: a bot that plays at random stays among the most novel while
    there is anything to do at random.
    """

    name: ClassVar[str] = "exploration"

    temperature: PositiveFloat = 0.2
    """Temperature of the softmax over novelty, which lies in [0, 1]: an opponent less novel by this is e times less
    likely. At 0.2, one with nothing new left is 150 times less likely than one never met."""
    uniform: Share = 0.1
    """Share of seats drawn uniformly, so that every opponent is measured again now and then."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Softmax over novelty, mixed with the uniform draw; an agent that was never met has novelty 1."""
        hero, _ = live_hero(standings, hero_policy)
        novelty = {a.name: standings.novelty.get(a.name, _NEVER_MET) for a in others(standings, hero_policy)}
        preferred = softmax(novelty, self.temperature)
        total = add_up(preferred[name] for name in sorted(preferred))
        mixed = {
            name: (1 - self.uniform) * weight / total + self.uniform / len(preferred)
            for name, weight in preferred.items()
        }
        return pool_buckets(split_by_kind(mixed, standings.agents), hero)


def softmax(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Weights in proportion to ``exp(score / temperature)``; the best has weight 1, and ones far below it 0."""
    best = max(scores.values(), default=0.0)
    return {name: exp((score - best) / temperature) for name, score in scores.items()}
