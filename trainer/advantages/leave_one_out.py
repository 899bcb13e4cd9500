"""REINFORCE leave-one-out: the others of a group are the baseline.

Shape suffixes: G rollout of the batch, U group.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.trajectories import Rollout
from trainer.advantages.base import Estimate, State, check_keys, groups, register, spread, totals


@register("leave_one_out")
class LeaveOneOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_i = R_i - mean(R of the others in i's group) (Kool et al. 2019; RLOO, Ahmadian et al. 2024, section 2.3).

    Unlike the group's mean, this baseline does not depend on what it judges. A group of one learns nothing.
    """

    by: tuple[str, ...] = ("group",)
    """What rollouts of a group agree in: some of game, group (the same line-up, role and start), policy, role and
    seat."""

    def __post_init__(self) -> None:
        check_keys(self.by)

    def build(self) -> "LeaveOneOut":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[NDArray[np.float64]], state: State) -> Estimate:
        """Every step of a rollout gets the advantage of the rollout's total reward."""
        group_G, returns_G = groups(rollouts, self.by), totals(rewards)
        counts_G = np.bincount(group_G)[group_G]
        others_G = np.bincount(group_G, weights=returns_G)[group_G] - returns_G
        advantages_G = np.where(counts_G == 1, 0.0, returns_G - others_G / np.maximum(counts_G - 1, 1))
        return Estimate(spread(advantages_G, rollouts), state)
