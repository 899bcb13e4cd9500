"""Transforms of rewards before the advantage estimator: a protocol, a registry and the transforms of each stage.

A batch goes through the stages in this order: ``final`` transforms change the seats' final scores, the reward computes
the rewards of model calls from the result, ``step`` transforms change those of each trajectory, ``sampling`` transforms
those of the whole batch.

Shape suffixes: S model call of a trajectory, M seat of a match.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Annotated, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct, Registry
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

    def __call__(self, trajectories: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """Transform the final rewards of a batch; pure in its arguments.

        ``values`` are those after the previous transform (``own_seat_index`` gives the trajectory's own), ``state`` is
        what the last call returned, empty at first.
        """


class StepTransform(Protocol):
    """A transform of the rewards of a trajectory's model calls."""

    def __call__(self, trajectory: Trajectory, rewards_S: Array) -> Array:
        """New rewards [S]; pure in its arguments."""


class SamplingTransform(Protocol):
    """A transform of the rewards of a whole batch."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """New rewards, [S] per trajectory; pure in its arguments."""


FINAL_TRANSFORMS: Registry[FinalTransform] = Registry("trainer.transforms.final", "trainer.transforms")
STEP_TRANSFORMS: Registry[StepTransform] = Registry("trainer.transforms.step", "trainer.transforms")
SAMPLING_TRANSFORMS: Registry[SamplingTransform] = Registry("trainer.transforms.sampling", "trainer.transforms")


def seat_scores(trajectory: Trajectory) -> Array:
    """Every seat's final score [M], or the trajectory's own [1] where it is the only one kept."""
    return np.array(trajectory.scores or [trajectory.score], dtype=np.float64)


def own_seat_index(trajectory: Trajectory) -> int:
    """Index of the trajectory's seat among its ``scores``."""
    return trajectory.seat if trajectory.scores else 0


def subtract_baseline(
    keys: Sequence[str], trajectories: Sequence[Trajectory], finals: FinalRewards, decay: float
) -> FinalRewards:
    """Subtract a running mean from each trajectory's own final reward, by key; then update the means with the batch's.

    A mean is used before it is updated, so that it does not depend on the trajectories it is subtracted from.
    """
    indices = [own_seat_index(trajectory) for trajectory in trajectories]
    mine_G = np.array([float(value_M[index]) for value_M, index in zip(finals.values, indices, strict=True)])
    less_G, after = subtract_running_mean(keys, mine_G, finals.state, decay)
    values = [value_M.copy() for value_M in finals.values]
    for value_M, index, less in zip(values, indices, less_G, strict=True):
        value_M[index] = less
    return FinalRewards(values, after)


def standardise(rewards: Sequence[Array], z_score: bool) -> list[Array]:
    """Subtract the mean of all rewards and, with ``z_score``, divide by their (population) standard deviation."""
    whole = np.concatenate(rewards)
    scale = whole.std() + 1e-8 if z_score else 1.0
    return [(rewards_S - whole.mean()) / scale for rewards_S in rewards]


@FINAL_TRANSFORMS.register("win_draw_loss")
class WinDrawLoss(PluginStruct, frozen=True):
    """1 for a single best seat or team, 0 for each of several, -1 for the others, whatever the margin.

    In trajectories without the other seats' scores the rank decides, and a shared first place counts as a win.
    """

    def __call__(self, trajectories: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """1, 0 or -1 for every seat; by rank where only the trajectory's own score is known."""
        finals = []
        for trajectory, value_M in zip(trajectories, values, strict=True):
            if len(value_M) < 2:
                finals.append(np.array([1.0 if trajectory.rank == 1 else -1.0]))
            else:
                best_M = value_M == value_M.max()
                sides = set(compress(trajectory.teams or range(len(value_M)), best_M))
                finals.append(np.where(best_M, 1.0 if len(sides) == 1 else 0.0, -1.0))
        return FinalRewards(finals, state)


@FINAL_TRANSFORMS.register("role_advantage")
class RoleAdvantage(PluginStruct, frozen=True):
    """The trajectory's own final reward, less the exponential moving average of its role's rewards, 0 at first.

    Some roles win more often, whatever the player.
    """

    decay: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.95
    """Decay of the average, per batch."""

    def __call__(self, trajectories: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """New final rewards; other seats' are unchanged, since their roles are not known."""
        keys = [self._key(trajectory) for trajectory in trajectories]
        return subtract_baseline(keys, trajectories, FinalRewards(list(values), state), self.decay)

    def _key(self, trajectory: Trajectory) -> str:
        return trajectory.role


@FINAL_TRANSFORMS.register("role_advantage_by_env")
class RoleAdvantageByEnv(RoleAdvantage, frozen=True):
    """The trajectory's own final reward, less the moving average of a role's rewards in a game, 0 at first."""

    def _key(self, trajectory: Trajectory) -> str:
        return f"{trajectory.game}/{trajectory.role}"


@STEP_TRANSFORMS.register("discount")
class Discount(PluginStruct, frozen=True):
    """``gamma ** t`` times the reward of model call t, counted from 0."""

    gamma: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.99

    def __call__(self, trajectory: Trajectory, rewards_S: Array) -> Array:
        """Rewards [S], discounted."""
        return rewards_S * self.gamma ** np.arange(len(rewards_S))


@STEP_TRANSFORMS.register("format_reward")
class FormatReward(PluginStruct, frozen=True):
    """Adds ``reward`` to a model call whose reply has the requested form, ``penalty`` to any other."""

    reward: float = 0.0
    """Reward of a well-formed reply."""
    penalty: float = 0.0
    """Reward of any other reply; usually negative."""

    def __call__(self, trajectory: Trajectory, rewards_S: Array) -> Array:
        """Rewards [S] with the one for the form added."""
        earned_S: Array = rewards_S + [self.reward if step.formatted else self.penalty for step in trajectory.steps]
        return earned_S


@STEP_TRANSFORMS.register("invalid_move_penalty")
class InvalidMovePenalty(PluginStruct, frozen=True):
    """Adds ``penalty`` to a model call whose move was invalid, ``reward`` to any other."""

    reward: float = 0.0
    """Reward of a valid move."""
    penalty: float = 0.0
    """Reward of an invalid move; usually negative."""

    def __call__(self, trajectory: Trajectory, rewards_S: Array) -> Array:
        """Rewards [S] with the one for the move added."""
        earned_S: Array = rewards_S + [self.penalty if step.invalid else self.reward for step in trajectory.steps]
        return earned_S


@SAMPLING_TRANSFORMS.register("clamp")
class Clamp(PluginStruct, frozen=True):
    """The reward of every model call, clamped between two bounds."""

    min: float = -1.0
    max: float = 1.0

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise ConfigError(f"min: {self.min} with max {self.max}; expected min <= max")

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """Rewards [S] per trajectory, clamped."""
        return [np.clip(rewards_S, self.min, self.max) for rewards_S in rewards]


@SAMPLING_TRANSFORMS.register("normalise")
class Normalise(PluginStruct, frozen=True):
    """The reward of every model call, less the mean over the batch."""

    z_score: bool = False
    """Whether to divide by the standard deviation of these rewards too; equal rewards stay 0."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """Rewards [S] per trajectory, normalised over the batch."""
        return standardise(rewards, self.z_score)


@SAMPLING_TRANSFORMS.register("normalise_by_env")
class NormaliseByEnv(Normalise, frozen=True):
    """The reward of every model call, less the mean over the batch's model calls of the same game."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array]) -> list[Array]:
        """Rewards [S] per trajectory, normalised over each game."""
        changed = list(rewards)
        for game in sorted({trajectory.game for trajectory in trajectories}):
            indices = [index for index, trajectory in enumerate(trajectories) if trajectory.game == game]
            for index, rewards_S in zip(indices, standardise([rewards[p] for p in indices], self.z_score), strict=True):
                changed[index] = rewards_S
        return changed
