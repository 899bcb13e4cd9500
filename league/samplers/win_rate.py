"""AlphaStar's prioritised fictitious self-play: opponents by how often the policy beats them."""

from collections.abc import Callable, Mapping
from typing import Literal

from league.samplers.base import SAMPLERS, WeightedChoice
from league.samplers.bucketed import BucketedSampler, HeroContext
from league.samplers.mix import MixSettings, normalise_mix
from schemas.numbers import PositiveFloat, Share
from schemas.standings import Agent, WinLoss

Weighting = Literal["variance", "linear", "linear_capped", "squared"]

# Weights by the loss rate, 1 - win rate, which keeps its precision where the win rate is near 1.
_WEIGHTS: dict[str, Callable[[float], float]] = {
    "variance": lambda lost: lost * (1.0 - lost),
    "linear": lambda lost: lost,
    "linear_capped": lambda lost: min(0.5, lost),
    "squared": lambda lost: lost * lost,
}


@SAMPLERS.register("win_rate")
class WinRateSettings(MixSettings, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``win_rate``."""

    weighting: Weighting = "squared"
    """Weight of an opponent that the policy beats with probability x: ``variance`` x(1-x), opponents of the same
    strength; ``linear`` 1-x; ``linear_capped`` min(0.5, 1-x); ``squared`` (1-x)², the hardest."""
    mirror: Share = 0.35
    """Share of the hero's own live version; AlphaStar's main agents play themselves in 35 % of matches."""
    prior_wins: PositiveFloat = 1.0
    """Wins added to every record: a Beta prior, with ``prior_losses``; 1 and 1 are the uniform prior."""
    prior_losses: PositiveFloat = 1.0

    def build(self) -> "WinRate":
        """Builds the sampler with these settings."""
        return WinRate(self)


class WinRate(BucketedSampler):
    """A share for the ``mirror``, the rest for the ``members`` by a weighting of the win rate.

    Without members the mirror is played.

    The win rate is the mean of the Beta posterior of the policy's results against the agent over its versions, seat by
    seat, a draw being half a win and half a loss: ``(wins + draws / 2 + prior_wins) / (games + prior_wins +
    prior_losses)``. So every agent can be drawn, also one never met or one that never won.

    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Methods,
    "Prioritized fictitious self-play", and its pseudocode, where records also fade with time; here they do not.
    """

    name = "win_rate"
    buckets = ("members",)

    def __init__(self, settings: WinRateSettings) -> None:
        super().__init__(settings.max_distinct)
        self._settings = settings

    def place(self, agent: Agent, record: WinLoss, hero: HeroContext) -> Mapping[str, float]:
        """See ``BucketedSampler.place``."""
        return {"members": _WEIGHTS[self._settings.weighting](self._loss_rate(record))}

    def shares(self, urns: Mapping[str, WeightedChoice], hero: HeroContext) -> dict[str, float]:
        """See ``BucketedSampler.shares``."""
        mix = {"mirror": self._settings.mirror, "members": 1.0 - self._settings.mirror}
        return normalise_mix(mix, {"mirror": True, "members": not urns["members"].is_empty})

    def _loss_rate(self, record: WinLoss) -> float:
        won = record.wins + record.draws / 2 + self._settings.prior_wins
        lost = record.losses + record.draws / 2 + self._settings.prior_losses
        return lost / (won + lost)
