"""The final score, and nothing before the end.

Shape suffix: S step of a rollout.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.trajectories import Rollout
from trainer.rewards.base import register


@register("outcome")
class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last step earns the seat's final score."""

    def build(self) -> "Outcome":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollout: Rollout) -> NDArray[np.float64]:
        """Rewards [S], in the units of the score."""
        rewards_S = np.zeros(len(rollout.steps))
        rewards_S[-1] = rollout.score
        return rewards_S
