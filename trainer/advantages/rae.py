"""Role-conditioned advantage estimation: a running baseline per role, because roles differ in what they can win.

Shape suffix: G rollout of the batch.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.trajectories import Rollout
from trainer.advantages.base import Estimate, State, register, spread, totals


@register("rae")
class Rae(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_i = R_i - baseline[role], then baseline <- decay * baseline + (1 - decay) * batch mean.

    Liu et al. 2025 (SPIRAL), role-conditioned advantage estimation. The baseline is updated after it was used,
    so that it does not depend on the rollouts it judges.
    """

    decay: float = 0.95

    def build(self) -> "Rae":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[NDArray[np.float64]], state: State) -> Estimate:
        """Every step gets its rollout's advantage; the state holds one baseline per ``game/role``, 0 at first."""
        keys = [f"{rollout.game}/{rollout.role}" for rollout in rollouts]
        returns_G = totals(rewards)
        advantages_G = returns_G - np.array([state.get(key, 0.0) for key in keys])
        updated = dict(state)
        for key in sorted(set(keys)):
            mean = float(returns_G[[other == key for other in keys]].mean())
            updated[key] = self.decay * state.get(key, 0.0) + (1 - self.decay) * mean
        return Estimate(spread(advantages_G, rollouts), updated)
