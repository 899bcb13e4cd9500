"""Group-relative credit over trees of episodes.

Shape suffix: G rollout of a group.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.credit import Credit, CreditState, credited, spread
from schemas.episodes import GenerateResult
from trainer.advantages.trees.base import register


@register("grpo")
class GrpoCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_i = R_i - mean(R of i's group) (Shao et al. 2024, section 4.1.2).

    A group is what agrees in level of the tree, parent, episode type and role: all episodes without a parent are
    compared with each other, and each parent's children among themselves (unless a request names its group). Roles
    are never compared with other roles. A group of one learns nothing.
    """

    normalize: bool = False
    """Divide by the group's (population) standard deviation; groups without spread stay at zero."""
    positive_only: bool = False
    """Clamp negative advantages to 0."""

    def build(self) -> "GrpoCredit":
        """Settings and implementation are one."""
        return self

    def compute(self, results: Sequence[GenerateResult], state: CreditState) -> Credit:
        """All steps of a role in an episode get the advantage of its reward."""
        groups: dict[str, list[tuple[str, str]]] = {}
        rewards: dict[tuple[str, str], float] = {}
        for rollout, role in credited(results):
            groups.setdefault(rollout.group_of(role), []).append((rollout.id, role))
            rewards[rollout.id, role] = rollout.rewards[role]
        values: dict[tuple[str, str], float] = {}
        for keys in groups.values():
            relative_G = self._relative(np.array([rewards[key] for key in keys]))
            values.update(zip(keys, relative_G.tolist(), strict=True))
        return Credit(spread(values, results), dict(state))

    def _relative(self, rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        advantages_G: NDArray[np.float64] = rewards_G - rewards_G.mean()
        if self.normalize:
            deviation = advantages_G.std()
            advantages_G = advantages_G / deviation if deviation > 1e-9 else np.zeros_like(advantages_G)
        if self.positive_only:
            advantages_G = np.maximum(advantages_G, 0.0)
        return advantages_G
