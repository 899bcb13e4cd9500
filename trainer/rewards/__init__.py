"""Rewards of the steps of a trajectory: the protocol and the registry.

Shape suffix: S step of a trajectory.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.plugins import Registry
from schemas.trajectories import Trajectory


class Reward(Protocol):
    """Raw signal: the reward of each step of a seat, before any baseline."""

    def __call__(self, rollout: Trajectory) -> NDArray[np.float64]:
        """Rewards [S] of a trajectory's steps; pure in the trajectory."""


REWARDS: Registry[Reward] = Registry("trainer.reward", "trainer.rewards")
register = REWARDS.register
