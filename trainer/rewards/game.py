"""Rewards from a game itself: its outcome, and the change of its progress measure (in Diplomacy, of supply centres).

Shape suffix: S step of a trajectory.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.rewards import register


@register("outcome")
class OutcomeReward(PluginStruct, frozen=True):
    """The last step earns the seat's final score."""

    scale: float = 1.0
    """Multiplies the score."""
    every_step: bool = False
    """Every step earns the score, not only the last."""

    def __call__(self, rollout: Trajectory) -> NDArray[np.float64]:
        """Rewards [S]: zeros, then the scaled score; or the score everywhere."""
        rewards_S = np.zeros(len(rollout.steps))
        rewards_S[0 if self.every_step else -1 :] = self.scale * rollout.score
        return rewards_S


@register("progress")
class ProgressReward(PluginStruct, frozen=True):
    """Each step earns the change until the next step, the last one the change until the end.

    Rewards of one clock therefore add up to that clock's change: the yearly change of centres.
    """

    score_weight: float = 0.0
    """Weight of the final score, which the last step earns on top."""

    def __call__(self, rollout: Trajectory) -> NDArray[np.float64]:
        """Rewards [S], in the progress measure's units."""
        rewards_S = np.diff([*(step.progress for step in rollout.steps), rollout.final_progress])
        rewards_S[-1] += self.score_weight * rollout.score
        return rewards_S
