"""Rewards of the steps of a trajectory: its outcome, or the change of the game's progress measure.

Shape suffix: S step of a trajectory.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.plugins import PluginStruct, Registry
from schemas.trajectories import Trajectory


class Reward(Protocol):
    """Raw signal: the reward of each step of a seat, before any baseline."""

    def __call__(self, trajectory: Trajectory) -> NDArray[np.float64]:
        """Rewards [S] of a trajectory's steps; pure in the trajectory."""


REWARDS: Registry[Reward] = Registry("trainer.reward", "trainer.rewards")
register = REWARDS.register


@register("outcome")
class OutcomeReward(PluginStruct, frozen=True):
    """The last step earns the seat's final score."""

    scale: float = 1.0
    """Factor of the score."""
    every_step: bool = False
    """Every step earns the score, not only the last."""

    def __call__(self, trajectory: Trajectory) -> NDArray[np.float64]:
        """Rewards [S]: zeros, then the scaled score; or the score everywhere."""
        rewards_S = np.zeros(len(trajectory.steps))
        rewards_S[0 if self.every_step else -1 :] = self.scale * trajectory.score
        return rewards_S


@register("progress")
class ProgressReward(PluginStruct, frozen=True):
    """Each step earns the change until the next step, the last one the change until the end.

    The progress measure is the game's: in Diplomacy, supply centres. Rewards of one clock therefore add up to that
    clock's change: the yearly change of centres.
    """

    score_weight: float = 0.0
    """Weight of the final score, which the last step earns on top."""

    def __call__(self, trajectory: Trajectory) -> NDArray[np.float64]:
        """Rewards [S], in the progress measure's units."""
        rewards_S = np.diff([*(step.progress for step in trajectory.steps), trajectory.final_progress])
        rewards_S[-1] += self.score_weight * trajectory.score
        return rewards_S
