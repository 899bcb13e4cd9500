"""Role-conditioned credit over trees of episodes: a running baseline per role, as roles differ in what they win."""

from collections.abc import Sequence

import msgspec

from schemas.credit import Credit, CreditState, credited, spread
from schemas.episodes import GenerateResult
from schemas.errors import ConfigError
from trainer.advantages.trees.base import register


@register("rae")
class RaeCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_i = R_i - baseline[role], then baseline <- decay * baseline + (1 - decay) * batch mean.

    Liu et al. 2025 (SPIRAL), role-conditioned advantage estimation. The baseline is updated after it was used, so that
    it does not depend on the episodes it judges.
    """

    decay: float = 0.95
    """Weight of the old baseline."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay: {self.decay}; expected 0 to 1")

    def build(self) -> "RaeCredit":
        """Settings and implementation are one."""
        return self

    def compute(self, results: Sequence[GenerateResult], state: CreditState) -> Credit:
        """The state holds one baseline per ``episode type/role``, 0 at first; roles not in the batch keep theirs."""
        values: dict[tuple[str, str], float] = {}
        earned: dict[str, list[float]] = {}
        for rollout, role in credited(results):
            name = f"{rollout.episode_type}/{role}"
            values[rollout.id, role] = rollout.rewards[role] - state.get(name, 0.0)
            earned.setdefault(name, []).append(rollout.rewards[role])
        after = dict(state)
        for name, rewards in sorted(earned.items()):
            mean = sum(rewards) / len(rewards)
            after[name] = self.decay * state.get(name, 0.0) + (1 - self.decay) * mean
        return Credit(spread(values, results), after)
