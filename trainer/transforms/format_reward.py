"""A step earns more for having the form that was asked for.

Shape suffix: S step of a rollout.
"""

import msgspec

from schemas.trajectories import Rollout
from trainer.transforms.base import STEP, Array


@STEP.register("format_reward")
class FormatReward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adds ``reward`` to a step whose reply had the form asked for, ``penalty`` to any other."""

    reward: float = 0.0
    """Of a well-formed reply."""
    penalty: float = 0.0
    """Of any other; usually negative."""

    def build(self) -> "FormatReward":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollout: Rollout, rewards_S: Array) -> Array:
        """New rewards [S]."""
        earned_S: Array = rewards_S + [self.reward if step.formatted else self.penalty for step in rollout.steps]
        return earned_S
