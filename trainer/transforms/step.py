"""Transforms of a trajectory's rewards: discount, the form of a reply, the validity of a move.

Shape suffix: S model call of a trajectory.
"""

import numpy as np

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.transforms import STEP_TRANSFORMS, Array


@STEP_TRANSFORMS.register("discount")
class Discount(PluginStruct, frozen=True):
    """``gamma ** t`` times the reward of model call t, counted from 0."""

    gamma: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma: {self.gamma}; expected more than 0 and at most 1")

    def __call__(self, rollout: Trajectory, rewards_S: Array) -> Array:
        """See ``StepTransform.__call__``."""
        return rewards_S * self.gamma ** np.arange(len(rewards_S))


@STEP_TRANSFORMS.register("format_reward")
class FormatReward(PluginStruct, frozen=True):
    """Adds ``reward`` to a model call whose reply has the requested form, ``penalty`` to any other."""

    reward: float = 0.0
    """Reward of a well-formed reply."""
    penalty: float = 0.0
    """Reward of any other reply; usually negative."""

    def __call__(self, rollout: Trajectory, rewards_S: Array) -> Array:
        """See ``StepTransform.__call__``."""
        earned_S: Array = rewards_S + [self.reward if step.formatted else self.penalty for step in rollout.steps]
        return earned_S


@STEP_TRANSFORMS.register("invalid_move_penalty")
class InvalidMovePenalty(PluginStruct, frozen=True):
    """Adds ``penalty`` to a model call whose move was invalid, ``reward`` to any other."""

    reward: float = 0.0
    """Reward of a valid move."""
    penalty: float = 0.0
    """Reward of an invalid move; usually negative."""

    def __call__(self, rollout: Trajectory, rewards_S: Array) -> Array:
        """See ``StepTransform.__call__``."""
        earned_S: Array = rewards_S + [self.reward if not step.invalid else self.penalty for step in rollout.steps]
        return earned_S
