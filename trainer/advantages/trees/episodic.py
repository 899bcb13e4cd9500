"""REINFORCE without a baseline: every call gets what its role earned in the episode."""

from collections.abc import Sequence

import msgspec

from schemas.credit import Credit, CreditState, credited, spread
from schemas.episodes import GenerateResult
from trainer.advantages.trees.base import register


@register("episodic")
class EpisodicCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A = R of the step's role in its episode (Williams 1992)."""

    def build(self) -> "EpisodicCredit":
        """Settings and implementation are one."""
        return self

    def compute(self, results: Sequence[GenerateResult], state: CreditState) -> Credit:
        """All steps of a role in an episode get its reward."""
        values = {(rollout.id, role): rollout.rewards[role] for rollout, role in credited(results)}
        return Credit(spread(values, results), dict(state))
