"""The same credit for every call of an episode that came to a result."""

from collections.abc import Sequence

import msgspec

from schemas.credit import Credit, CreditState, credited, spread
from schemas.episodes import GenerateResult
from trainer.advantages.trees.base import register


@register("constant")
class ConstantCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A = value, whatever was earned."""

    value: float = 1.0

    def build(self) -> "ConstantCredit":
        """Settings and implementation are one."""
        return self

    def compute(self, results: Sequence[GenerateResult], state: CreditState) -> Credit:
        """The same for all steps of scored roles."""
        values = {(rollout.id, role): self.value for rollout, role in credited(results)}
        return Credit(spread(values, results), dict(state))
