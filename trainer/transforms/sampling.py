"""Transforms of a whole batch's rewards: bounds, and centring."""

from collections.abc import Sequence

import numpy as np

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.transforms import SAMPLING_TRANSFORMS, Array, standardise


@SAMPLING_TRANSFORMS.register("clamp")
class Clamp(PluginStruct, frozen=True):
    """The reward of every model call, clamped between two bounds."""

    min: float = -1.0
    max: float = 1.0

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise ConfigError(f"min: {self.min} with max {self.max}; expected min <= max")

    def __call__(self, rollouts: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """See ``SamplingTransform.__call__``."""
        return [np.clip(rewards_S, self.min, self.max) for rewards_S in rewards]


@SAMPLING_TRANSFORMS.register("normalise")
class Normalise(PluginStruct, frozen=True):
    """The reward of every model call, less the mean over the batch."""

    z_score: bool = False
    """Whether to divide by the standard deviation of these rewards too; equal rewards stay 0."""

    def __call__(self, rollouts: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """See ``SamplingTransform.__call__``."""
        return standardise(rewards, self.z_score)


@SAMPLING_TRANSFORMS.register("normalise_by_env")
class NormaliseByEnv(Normalise, frozen=True):
    """The reward of every model call, less the mean over the batch's model calls of the same game."""

    def __call__(self, rollouts: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """See ``SamplingTransform.__call__``."""
        changed = list(rewards)
        for game in sorted({rollout.game for rollout in rollouts}):
            places = [place for place, rollout in enumerate(rollouts) if rollout.game == game]
            for place, rewards_S in zip(places, standardise([rewards[p] for p in places], self.z_score), strict=True):
                changed[place] = rewards_S
        return changed
