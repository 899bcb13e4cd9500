"""Strategies that draw a batch from what waits: oldest first, uniform, or prioritised."""

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from statistics import fmean

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from trainer.buffer.base import Unit, register


@register("oldest")
class Oldest(PluginStruct, frozen=True):
    """By the order of the stream."""

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """As they are."""
        return list(units)


@register("uniform")
class Uniform(PluginStruct, frozen=True):
    """A random order: everything that waits with the same probability, without replacement.

    It breaks up matches that were played side by side, which share a version and often opponents; that needs more to
    wait than a batch takes (``trainer.buffer.batch_delay`` above 1).
    """

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """Shuffled."""
        return rng.sample(units, len(units))


@register("prioritised")
class Prioritised(PluginStruct, frozen=True):
    """A random order in which what promises to teach more is likelier to come first.

    Each unit's turn is ``u ** (1 / weight)`` with a uniform ``u``, the highest first: weighted sampling without
    replacement (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A). Weights are
    ``p ** alpha`` as in prioritised experience replay (Schaul et al. 2016, equation 1). Here nothing is replayed: all
    that waits is trained on sooner or later unless it grows too old, so priorities change when, not how often, and
    there are no importance weights to undo them.
    """

    by: str = "surprise"
    """``surprise``: how far the score is from the mean of what waits of the same game and role, a stand-in for the size
    of the advantage, which is known only in a batch. ``freshness``: the fewer versions old the likelier."""
    alpha: float = 0.6
    """0 is uniform."""
    epsilon: float = 0.05
    """Added to a surprise relative to the largest one, so that nothing is passed over for ever."""

    def __post_init__(self) -> None:
        if self.by not in ("freshness", "surprise"):
            raise ConfigError(f"by: {self.by!r}; expected 'freshness' or 'surprise'")
        if self.alpha < 0 or self.epsilon <= 0:
            raise ConfigError(f"alpha, epsilon: {self.alpha}, {self.epsilon}; expected 0 or more, and more than 0")

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """By weight and chance."""
        weights = _surprises(units, self.epsilon) if self.by == "surprise" else [1 / (1 + max(u.lag, 0)) for u in units]
        turns = [(rng.random() ** (weight**-self.alpha), unit) for weight, unit in zip(weights, units, strict=True)]
        return [unit for _, unit in sorted(turns, key=lambda turn: (-turn[0], turn[1]))]


def _surprises(units: Sequence[Unit], epsilon: float) -> list[float]:
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for unit in units:
        scores[unit.game, unit.role].append(unit.score)
    means = {key: fmean(of) for key, of in scores.items()}
    gaps = [abs(unit.score - means[unit.game, unit.role]) for unit in units]
    largest = max(gaps, default=0.0)
    return [(gap / largest if largest > 0 else 0.0) + epsilon for gap in gaps]
