"""Training batches of an arena: model calls with their credit, and counts of those left out."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from schemas import trajectories
from schemas.episodes import GenerateResult, Rollout


class TrainingRecord(msgspec.Struct, frozen=True):
    """One model call for the trainer, independent of episodes."""

    role_id: str
    rollout_id: str
    step_index: int
    """Index of the call in its rollout."""
    episode_type: str
    group: str
    """Group in which its reward was compared."""
    step: trajectories.ModelCall
    """Token ids, log-probabilities, allowed sets and version."""
    reward: float
    advantage: float
    meta: dict[str, Any] = {}
    """``Rollout.meta`` with the call's user data (``ModelCall.info``) over it."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return self.step.prompt_ids

    @property
    def completion_token_ids(self) -> list[int]:
        """Token ids of the completion."""
        return self.step.completion_ids

    @property
    def input_ids(self) -> list[int]:
        """Prompt and completion."""
        return [*self.step.prompt_ids, *self.step.completion_ids]

    @property
    def logprobs(self) -> list[float]:
        """One for each 1 of ``action_mask``."""
        return self.step.logprobs

    @property
    def action_mask(self) -> list[int]:
        """1 for every sampled token of ``input_ids``; 0 for the prompt's and for forced ones."""
        mask = [0] * (len(self.step.prompt_ids) + len(self.step.completion_ids))
        for at in self.step.branches:
            mask[len(self.step.prompt_ids) + at] = 1
        return mask


class BatchCounts(msgspec.Struct, frozen=True):
    """Accounting of every model call of a batch."""

    episodes: int = 0
    """Episodes in all trees."""
    failed: int = 0
    """Episodes without a result."""
    untrainable: int = 0
    """Episodes that only inform others."""
    records: int = 0
    """Steps that are trained on."""
    of_failed: int = 0
    """Steps of failed episodes."""
    of_untrainable: int = 0
    unscored: int = 0
    """Steps of roles without a reward."""
    without_tokens: int = 0
    uncredited: int = 0
    """Steps left out by the credit assigner."""


class TrainingBatch(msgspec.Struct, frozen=True):
    """The training batch of one step of an arena."""

    records: list[TrainingRecord]
    step: int = 0
    """Number of the arena's step."""
    policy_version: int = 0
    counts: BatchCounts = BatchCounts()
    rewards: dict[str, float] = {}
    """Mean by ``episode type/role``, over the trainable episodes."""
    failures: dict[str, str] = {}
    """Reason by rollout id."""
    credit_state: dict[str, float] = {}
    """State of the credit assigner after this batch."""

    @property
    def meta(self) -> dict[str, Any]:
        """All that is known about the batch as a whole, by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "records"}

    def to_trajectories(self, policy: str, credited: bool = True) -> list[trajectories.Trajectory]:
        """Convert to trajectories for ``trainer.learner``: one for each role of each rollout.

        ``credited`` scores are advantages, to be used as they are (reward ``outcome``, advantage ``episodic``); a role
        with several advantages then has several trajectories. Other scores are rewards, which the trainer's estimator
        compares by ``group``.
        """
        parts: dict[tuple[str, str, float], list[TrainingRecord]] = {}
        for record in self.records:
            score = record.advantage if credited else record.reward
            parts.setdefault((record.rollout_id, record.role_id, score), []).append(record)
        return [
            trajectories.Trajectory(
                match_id=f"{records[0].rollout_id}/{records[0].role_id}/{records[0].step_index}",
                game=records[0].episode_type,
                policy=policy,
                seat=0,
                role=records[0].role_id,
                group=records[0].group,
                steps=[record.step for record in records],
                final_clock=records[-1].step.clock,
                final_progress=records[-1].step.progress,
                score=score,
                rank=1,
            )
            for (_, _, score), records in parts.items()
        ]


def mean_rewards(results: Sequence[GenerateResult]) -> dict[str, float]:
    """Mean reward by ``episode type/role`` over the trainable episodes, sorted by name."""
    rewards: dict[str, list[float]] = {}
    for rollout in (rollout for result in results for rollout in result.all_rollouts() if rollout.is_trainable):
        for role, reward in rollout.rewards.items():
            rewards.setdefault(f"{rollout.episode_type}/{role}", []).append(reward)
    return {name: sum(values) / len(values) for name, values in sorted(rewards.items())}


StepKey = tuple[str, int]
"""A rollout's id, and the number of a step in it."""

CreditState = Mapping[str, float]
"""State of an assigner between batches, by name: plain numbers that can be recorded."""
NO_STATE: CreditState = MappingProxyType({})
"""State before the first batch."""


class Credit(msgspec.Struct, frozen=True):
    """Credit of a batch."""

    weights: dict[StepKey, float]
    """Advantages. A step without one is not trained on."""
    state: dict[str, float]
    """State after the batch was trained on."""


class CreditAssigner(Protocol):
    """Turns rewards into advantages; pure in its arguments."""

    def compute(self, results: Sequence[GenerateResult], state: CreditState = NO_STATE) -> Credit:
        """Compute the advantage of every step that can be trained on.

        ``state`` is what the last call returned, empty at first. Failed and untrainable episodes of the trees are
        ignored (``scored_rollouts``).
        """


def scored_rollouts(results: Sequence[GenerateResult]) -> Iterator[tuple[Rollout, str]]:
    """Pairs of trainable, successful rollouts and their scored roles, in the order of the trees, roles sorted."""
    for result in results:
        for rollout in result.all_rollouts():
            if rollout.is_trainable and not rollout.failure:
                for role in sorted(rollout.rewards):
                    yield rollout, role


def spread_to_steps(values: Mapping[tuple[str, str], float], results: Sequence[GenerateResult]) -> dict[StepKey, float]:
    """Assign to every step the value of its rollout and role, where there is one."""
    return {
        (rollout.id, at): values[rollout.id, step.role_id]
        for result in results
        for rollout in result.all_rollouts()
        for at, step in enumerate(rollout.steps)
        if (rollout.id, step.role_id) in values
    }


def apply_credit(results: Sequence[GenerateResult], weights: Mapping[StepKey, float]) -> list[GenerateResult]:
    """Copies of the trees with ``Step.advantage`` set; 0 for steps without one."""
    credited = []
    for result in results:
        rollout = result.rollout
        steps = [
            msgspec.structs.replace(step, advantage=weights.get((rollout.id, at), 0.0))
            for at, step in enumerate(rollout.steps)
        ]
        copy = msgspec.structs.replace(rollout, steps=steps)
        credited.append(GenerateResult(copy, apply_credit(result.children, weights)))
    return credited
