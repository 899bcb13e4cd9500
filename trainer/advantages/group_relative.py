"""Group-relative advantages: GRPO, as in the self-play engine's credit assignment."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.trajectories import Rollout
from trainer.advantages.base import Estimate, State, check_keys, groups, register, spread, totals
from trainer.advantages.formulas import group_relative


@register("group_relative")
class GroupRelative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_i = R_i - mean(R of i's group) (Shao et al. 2024, section 4.1.2); a group of one learns nothing."""

    by: tuple[str, ...] = ("group",)
    """What rollouts of a group agree in: some of game, group (the same line-up, role and start), policy, role and
    seat."""
    normalize: bool = False
    """Divide by the group's (population) standard deviation; groups without spread stay at zero."""
    positive_only: bool = False
    """Clamp negative advantages to 0."""

    def __post_init__(self) -> None:
        check_keys(self.by)

    def build(self) -> "GroupRelative":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[NDArray[np.float64]], state: State) -> Estimate:
        """Every step of a rollout gets the advantage of the rollout's total reward within its group."""
        group_G = groups(rollouts, self.by)
        advantages_G = group_relative(totals(rewards), group_G, self.normalize, self.positive_only)
        return Estimate(spread(advantages_G, rollouts), state)
