"""Exploration: opponents by the share of their play that is new to the policy."""

from typing import Annotated

from msgspec import Meta

from league.samplers.base import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixSampler, MixSettings, by_weight, others, softmax, split_by_kind
from schemas.numbers import PositiveFloat, Share
from schemas.sketches import NGRAM_SIZE
from schemas.standings import Standings

_NEVER_MET = 1.0


@SAMPLERS.register("exploration")
class ExplorationSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``exploration``."""

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

    def build(self) -> "Exploration":
        """Builds the sampler with these settings."""
        return Exploration(self)


class Exploration(MixSampler):
    """Softmax over novelty mixed with a uniform draw; the buckets are ``fixed`` and ``checkpoints``, else ``mirror``.

    An opponent's novelty is the share of the n-grams of actions in its matches that the policy's last matches did not
    contain (``league.state.novelty``). An opponent never met counts as entirely new.

    Rollout workers sketch their matches for this sampler; without sketches all opponents are equally likely. Noise
    counts as new: a bot that plays at random stays among the most novel while there is anything to do at random.

    Source: Unstable Baselines' sampling mode ``exploration``, there a placeholder for ranking opponents by expected
    state diversity, and its ``ExplorationTracker``, which measures n-gram coverage over a rolling window.
    """

    name = "exploration"
    reads = ("agents", "live", "novelty")
    uses_novelty = True

    def __init__(self, settings: ExplorationSettings) -> None:
        super().__init__(settings.max_distinct)
        self._settings = settings
        self.ngram = settings.n

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, _ = live_hero(standings, hero_policy)
        known = standings.novelty.get(hero_policy, {})
        novelty = {agent.name: known.get(agent.name, _NEVER_MET) for agent in others(standings, hero_policy)}
        preferred = softmax(novelty, self._settings.temperature)
        mixed = _mix_with_uniform(preferred, self._settings.uniform)
        return by_weight(split_by_kind(mixed, standings.agents), hero)


def _mix_with_uniform(weights: dict[str, float], uniform: float) -> dict[str, float]:
    """Weights of which a share is spread uniformly."""
    total = 0.0
    for name in sorted(weights):
        total += weights[name]
    return {name: (1 - uniform) * weight / total + uniform / len(weights) for name, weight in weights.items()}
