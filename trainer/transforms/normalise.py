"""A batch's rewards are centred."""

from collections.abc import Sequence

import msgspec

from schemas.trajectories import Rollout
from trainer.transforms.base import SAMPLING, Array, standardised


@SAMPLING.register("normalise")
class Normalise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every step's reward, less the mean over the steps of the batch."""

    z_score: bool = False
    """Divide by the standard deviation too; equal rewards stay 0."""

    def build(self) -> "Normalise":
        """Settings and implementation are one."""
        return self

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[Array]) -> list[Array]:
        """New rewards, [S] per rollout."""
        return standardised(rewards, self.z_score)
