"""Even matches: opponents by the chance of a draw that the ratings give."""

from math import cosh, isfinite, log

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, by_kind, by_weight, check_scale, others, softmax
from schemas.standings import Standings

# cosh overflows near 710; at this argument the quality is already below 1e-150.
_MAX_ARGUMENT = 350.0


@SAMPLERS.register("match_quality")
class MatchQualitySettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``match_quality``."""

    temperature: float = 0.1
    """Of the softmax over qualities, which lie in (0, 1]. At 1 the most even match is at most e times as likely as
    the least even one, so that hardly anything is preferred."""
    scale: float = 400.0
    """Rating points for ten to one odds; 400 in Elo."""

    def __post_init__(self) -> None:
        """Check what types alone cannot say."""
        super().__post_init__()
        check_scale("temperature", self.temperature)
        check_scale("scale", self.scale)

    def build(self) -> "MatchQuality":
        """What these settings configure."""
        return MatchQuality(self)


class MatchQuality(MixSampler):
    """Softmax over the quality of the match; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    Quality is the chance of a draw relative to that of equals, as the margin that counts as a draw goes to 0. That is
    TrueSkill's definition, there for normal performances: ``exp(-d² / 4β²)`` for known skills. Here performances are
    logistic, as Elo's expected scores E have them, and the ratio of densities at 0 is ``4 E (1 - E)``, which is
    ``1 / cosh²(d ln 10 / (2 scale))`` for a rating difference d. Agents without a finite rating are not drawn.

    Source: Unstable Baselines' sampling mode ``match-quality``, a softmax of TrueSkill's match quality; Herbrich, Minka
    and Graepel 2007, "TrueSkill: A Bayesian skill rating system", on matchmaking. Uncertainty of ratings, which
    TrueSkill's quality takes into account, is not in the standings.
    """

    name = "match_quality"

    def __init__(self, settings: MatchQualitySettings) -> None:
        super().__init__(settings.max_distinct)
        self._settings = settings

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, live = live_hero(standings, hero_policy)
        gaps = {agent.name: agent.rating - live.rating for agent in others(standings, hero_policy)}
        qualities = {name: quality(gap, self._settings.scale) for name, gap in gaps.items() if isfinite(gap)}
        weights = softmax(qualities, self._settings.temperature)
        return by_weight(by_kind(weights, standings.agents), hero)


def quality(gap: float, scale: float) -> float:
    """Chance of a draw relative to that of equals: 1 for equals, 0.33 for ``scale`` points apart.

    Args:
        gap: Rating difference, of either sign.
        scale: Rating points for ten to one odds.
    """
    reached = cosh(min(abs(gap) / scale * log(10.0) / 2.0, _MAX_ARGUMENT))
    return 1.0 / (reached * reached)
