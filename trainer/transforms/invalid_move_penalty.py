"""A step is punished for a move that the game did not take.

Shape suffix: S step of a rollout.
"""

import msgspec

from schemas.trajectories import Rollout
from trainer.transforms.base import STEP, Array


@STEP.register("invalid_move_penalty")
class InvalidMovePenalty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adds ``penalty`` to a step whose move was invalid, ``reward`` to any other."""

    reward: float = 0.0
    """Of a valid move."""
    penalty: float = 0.0
    """Of an invalid one; usually negative."""

    def build(self) -> "InvalidMovePenalty":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollout: Rollout, rewards_S: Array) -> Array:
        """New rewards [S]."""
        earned_S: Array = rewards_S + [self.reward if not step.invalid else self.penalty for step in rollout.steps]
        return earned_S
