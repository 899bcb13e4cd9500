"""Credit: what the rewards of episodes make of each of their model calls. Implementations are in ``trainer``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from schemas.episodes import GenerateResult, Rollout

StepKey = tuple[str, int]
"""A rollout's id, and the number of a step in it."""

CreditState = Mapping[str, float]
"""What an assigner remembers between batches, by name: plain numbers that can be recorded."""


class Credit(msgspec.Struct, frozen=True):
    """What an assigner makes of a batch."""

    weights: dict[StepKey, float]
    """Advantages. A step without one is not trained on."""
    state: dict[str, float]
    """What to remember once the batch is trained on."""


class CreditAssigner(Protocol):
    """Turns rewards into advantages; pure in its arguments."""

    def compute(self, results: Sequence[GenerateResult], state: CreditState) -> Credit:
        """Give every step that can be trained on its advantage.

        Args:
            results: Whole trees; failed and untrainable episodes in them count for nothing (``credited``).
            state: What the last call returned; empty at first.
        """


def credited(results: Sequence[GenerateResult]) -> Iterator[tuple[Rollout, str]]:
    """Every rollout that counts with each role that was scored in it, in the order of the trees, roles sorted."""
    for result in results:
        for rollout in result.all_rollouts():
            if rollout.is_trainable and not rollout.failure:
                for role in sorted(rollout.rewards):
                    yield rollout, role


def spread(values: Mapping[tuple[str, str], float], results: Sequence[GenerateResult]) -> dict[StepKey, float]:
    """Give every step the value of its rollout and role, where there is one."""
    return {
        (rollout.id, at): values[rollout.id, step.role_id]
        for result in results
        for rollout in result.all_rollouts()
        for at, step in enumerate(rollout.steps)
        if (rollout.id, step.role_id) in values
    }


def apply_credit(results: Sequence[GenerateResult], weights: Mapping[StepKey, float]) -> list[GenerateResult]:
    """The same trees with ``Step.advantage`` as it was computed; 0 where it was not."""
    return [_applied(result, weights) for result in results]


def _applied(result: GenerateResult, weights: Mapping[StepKey, float]) -> GenerateResult:
    rollout = result.rollout
    steps = [
        msgspec.structs.replace(step, advantage=weights.get((rollout.id, at), 0.0))
        for at, step in enumerate(rollout.steps)
    ]
    return GenerateResult(msgspec.structs.replace(rollout, steps=steps), apply_credit(result.children, weights))
