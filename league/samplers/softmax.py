"""Softmax over a score of every opponent: chance of a draw, nearness of its rating, novelty of its play."""

from math import cosh, exp, hypot, isfinite, log, pi, sqrt
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from league.samplers import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixDraws, MixSettings, by_weight, others, softmax, split_by_kind, total_weight
from schemas.numbers import PositiveFloat, Share
from schemas.sketches import NGRAM_SIZE
from schemas.standings import Standings

Performance = Literal["logistic", "normal"]

# cosh overflows near 710; at this argument the quality is already below 1e-150.
_MAX_ARGUMENT = 350.0


@SAMPLERS.register("match_quality")
class MatchQuality(MixDraws, MixSettings, frozen=True):
    """Softmax over ``match_quality``; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    Agents without a finite rating and deviation are not drawn.

    Source: Unstable Baselines' sampling mode ``match-quality``, a softmax of TrueSkill's match quality.
    """

    name: ClassVar[str] = "match_quality"
    reads = ("agents", "live")

    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over qualities, which lie in (0, 1]. At 1 the most even match is at most e times as
    likely as the least even one, which is hardly a preference."""
    performance: Performance = "logistic"
    """Distribution of performances around skills: ``logistic`` as in Elo and Glicko, ``normal`` as in TrueSkill."""
    scale: PositiveFloat = 400.0
    """The spread. ``logistic``: rating points for ten to one odds, 400 in Elo. ``normal``: TrueSkill's β, the
    standard deviation of one performance, 25/6 by its defaults."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, live = live_hero(standings, hero_policy)
        qualities = {}
        for agent in others(standings, hero_policy):
            gap, deviation = agent.rating - live.rating, hypot(agent.deviation, live.deviation)
            if isfinite(gap) and isfinite(deviation):
                qualities[agent.name] = match_quality(gap, self.scale, deviation, self.performance)
        weights = softmax(qualities, self.temperature)
        return by_weight(split_by_kind(weights, standings.agents), hero)


def match_quality(gap: float, scale: float, deviation: float = 0.0, performance: Performance = "logistic") -> float:
    """Chance of a draw relative to that of equals with known skills, as the draw margin goes to 0.

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
class TsDist(MixDraws, MixSettings, frozen=True):
    """Weight ``exp(-|difference| / temperature)``; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    Agents without a finite rating are not drawn.

    Source: Unstable Baselines' sampling mode ``ts-dist``: the nearer the mean skills, the likelier.
    """

    name: ClassVar[str] = "ts_dist"
    reads = ("agents", "live")

    temperature: PositiveFloat = 100.0
    """Rating points: an opponent farther away by this much is e times less likely. It must fit the scale of the
    ratings; 100 is for Elo, TrueSkill's would be about 4."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, live = live_hero(standings, hero_policy)
        gaps = {agent.name: abs(agent.rating - live.rating) for agent in others(standings, hero_policy)}
        weights = softmax({name: -gap for name, gap in gaps.items() if isfinite(gap)}, self.temperature)
        return by_weight(split_by_kind(weights, standings.agents), hero)


_NEVER_MET = 1.0


@SAMPLERS.register("exploration")
class Exploration(MixDraws, MixSettings, frozen=True):
    """Softmax over novelty mixed with a uniform draw; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    An opponent's novelty is the share of the n-grams of actions in its matches that the policy's last matches did not
    contain (``league.state.novelty``). An opponent never met counts as entirely new.

    Rollout workers sketch their matches for this sampler; without sketches all opponents are equally likely. Noise
    counts as new: a bot that plays at random stays among the most novel while there is anything to do at random.

    Source: Unstable Baselines' sampling mode ``exploration``, there a placeholder for ranking opponents by expected
    state diversity, and its ``ExplorationTracker``, which measures n-gram coverage over a rolling window.
    """

    name: ClassVar[str] = "exploration"
    reads = ("agents", "live", "novelty")
    uses_novelty = True

    temperature: PositiveFloat = 0.2
    """Temperature of the softmax over novelty, which lies in [0, 1]: an opponent less novel by this is e times less
    likely. At 0.2, one with nothing new left is 150 times less likely than one never met."""
    uniform: Share = 0.1
    """Share of seats drawn uniformly, so that every opponent is measured again now and then: an old opponent can be
    new again after the policy forgets or changes."""
    n: Annotated[int, Meta(ge=1, le=10)] = NGRAM_SIZE
    """Consecutive action parts per n-gram. In large action spaces a smaller n discriminates better: after 160 matches
    of four Diplomacy bots, 80 to 93 % of order 3-grams were still new, by bot, 41 to 75 % of 2-grams, and 4 to 12 % of
    single orders."""

    @property
    def ngram(self) -> int:  # type: ignore[override]
        """See ``OpponentSampler.ngram``."""
        return self.n

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        known = standings.novelty.get(hero_policy, {})
        novelty = {agent.name: known.get(agent.name, _NEVER_MET) for agent in others(standings, hero_policy)}
        preferred = softmax(novelty, self.temperature)
        total = total_weight(preferred[name] for name in sorted(preferred))
        uniform = self.uniform
        mixed = {name: (1 - uniform) * one / total + uniform / len(preferred) for name, one in preferred.items()}
        return by_weight(split_by_kind(mixed, standings.agents), hero)
