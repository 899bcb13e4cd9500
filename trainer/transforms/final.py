"""Transforms of final scores: by the outcome alone, or relative to the role's average.

Shape suffix: M seat of a match.
"""

from collections.abc import Sequence

import numpy as np

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.advantages.base import State
from trainer.transforms import FINAL_TRANSFORMS, Array, FinalRewards, subtract_baseline


@FINAL_TRANSFORMS.register("win_draw_loss")
class WinDrawLoss(PluginStruct, frozen=True):
    """1 for a single best seat, 0 for each of several, -1 for the others, whatever the margin.

    In trajectories without the other seats' scores the rank decides, and a shared first place counts as a win.
    """

    def __call__(self, rollouts: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """See ``FinalTransform.__call__``."""
        return FinalRewards([_win_draw_loss(r, value_M) for r, value_M in zip(rollouts, values, strict=True)], state)


def _win_draw_loss(rollout: Trajectory, value_M: Array) -> Array:
    if len(value_M) < 2:
        return np.array([1.0 if rollout.rank == 1 else -1.0])
    best_M = value_M == value_M.max()
    return np.where(best_M, 1.0 if best_M.sum() == 1 else 0.0, -1.0)


@FINAL_TRANSFORMS.register("role_advantage")
class RoleAdvantage(PluginStruct, frozen=True):
    """The trajectory's own final reward, less the exponential moving average of its role's rewards, 0 at first.

    Some roles win more often, whatever the player.
    """

    decay: float = 0.95
    """Decay of the average, per batch."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ConfigError(f"decay: {self.decay}; expected 0 or more, and less than 1")

    def __call__(self, rollouts: Sequence[Trajectory], values: Sequence[Array], state: State) -> FinalRewards:
        """New final rewards; other seats' are unchanged, since their roles are not known."""
        keys = [self._key(rollout) for rollout in rollouts]
        return subtract_baseline(keys, rollouts, FinalRewards(list(values), state), self.decay)

    def _key(self, rollout: Trajectory) -> str:
        return rollout.role


@FINAL_TRANSFORMS.register("role_advantage_by_env")
class RoleAdvantageByEnv(RoleAdvantage, frozen=True):
    """The trajectory's own final reward, less the moving average of a role's rewards in a game, 0 at first."""

    def _key(self, rollout: Trajectory) -> str:
        return f"{rollout.game}/{rollout.role}"
