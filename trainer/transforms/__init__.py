"""Transforms of rewards before the advantage estimator: a protocol and a registry per stage.

A batch goes through the stages in this order: ``final`` transforms change the seats' final scores, the reward computes
the rewards of model calls from the result, ``step`` transforms change those of each trajectory, ``sampling`` transforms
those of the whole batch.

Shape suffixes: S model call of a trajectory, M seat of a match.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.plugins import Registry
from schemas.trajectories import Trajectory
from trainer.advantages.base import State, subtract_running_mean

Array = NDArray[np.float64]


class FinalRewards(NamedTuple):
    """Final rewards of a batch, and the state for the next call."""

    values: list[Array]
    """[M] per trajectory: every seat's, or the trajectory's own alone where no other is known."""
    state: State


class FinalTransform(Protocol):
    """A transform of the seats' final scores."""

    def __call__(self, rollouts: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """Transform the final rewards of a batch; pure in its arguments.

        Args:
            rollouts: trajectories of the batch.
            values: final rewards after the previous transform; ``own_seat_index`` gives the trajectory's own.
            state: state that the last call returned; empty at first.
        """


class StepTransform(Protocol):
    """A transform of the rewards of a trajectory's model calls."""

    def __call__(self, rollout: Trajectory, rewards_S: Array) -> Array:
        """New rewards [S]; pure in its arguments."""


class SamplingTransform(Protocol):
    """A transform of the rewards of a whole batch."""

    def __call__(self, rollouts: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """New rewards, [S] per trajectory; pure in its arguments."""


FINAL_TRANSFORMS: Registry[FinalTransform] = Registry("trainer.transforms.final", "trainer.transforms")
STEP_TRANSFORMS: Registry[StepTransform] = Registry("trainer.transforms.step", "trainer.transforms")
SAMPLING_TRANSFORMS: Registry[SamplingTransform] = Registry("trainer.transforms.sampling", "trainer.transforms")


def seat_scores(rollout: Trajectory) -> Array:
    """Every seat's final score [M], or the trajectory's own [1] where it is the only one kept."""
    return np.array(rollout.scores or [rollout.score], dtype=np.float64)


def own_seat_index(rollout: Trajectory) -> int:
    """Index of the trajectory's seat among its ``scores``."""
    return rollout.seat if rollout.scores else 0


def subtract_baseline(
    keys: Sequence[str], rollouts: Sequence[Trajectory], finals: FinalRewards, decay: float
) -> FinalRewards:
    """Subtract a running mean from each trajectory's own final reward, by key; then update the means with the batch's.

    A mean is used before it is updated, so that it does not depend on the trajectories it is subtracted from.
    """
    places = [own_seat_index(rollout) for rollout in rollouts]
    mine_G = np.array([float(value_M[place]) for value_M, place in zip(finals.values, places, strict=True)])
    less_G, after = subtract_running_mean(keys, mine_G, finals.state, decay)
    values = [value_M.copy() for value_M in finals.values]
    for value_M, place, less in zip(values, places, less_G, strict=True):
        value_M[place] = less
    return FinalRewards(values, after)


def standardise(rewards: Sequence[Array], z_score: bool) -> list[Array]:
    """Subtract the mean of all rewards and, with ``z_score``, divide by their (population) standard deviation."""
    whole = np.concatenate(rewards)
    scale = whole.std() + 1e-8 if z_score else 1.0
    return [(rewards_S - whole.mean()) / scale for rewards_S in rewards]
