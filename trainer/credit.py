"""Credit: from trajectories to advantages, by validation, rewards, transforms and estimator.

A trajectory that was a tree of episodes is credited member by member. A member becomes a trajectory of its own (its
episode type as game, its role, its group, its reward as score), so that every plugin treats it like a seat of a match;
the results are merged back to where its steps were.

Where one action has many parts (Diplomacy: an order for each unit) and all share one advantage, each part's own effect
drowns in that of the others. A game that can tell them apart says what each is credited with (``ModelCall.credits``);
that credit, against what the other trajectories' parts got at the same role and clock, is mixed into the advantage of
the choices that make the part. The credit is the game's judgement, so the mixture is biased where the game errs, unlike
the step's own advantage (compare difference rewards, Wolpert & Tumer 2001).

State between batches is plain named numbers, passed in and returned (``AdvantageState``).

Shape suffixes: S step of a trajectory, B choice of a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.model_config import ModelShape
from schemas.config import TrainerConfig
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.admission import rejection_reason
from trainer.advantages.base import ADVANTAGES, State, UsesCritic, key_indices
from trainer.buffer import without_choices
from trainer.rewards import REWARDS
from trainer.transforms import FINAL_TRANSFORMS, SAMPLING_TRANSFORMS, STEP_TRANSFORMS, own_seat_index, seat_scores

Array = NDArray[np.float64]
ValueFunction = Callable[[Sequence[Trajectory]], list[Array]]
"""A critic's values before each step, [S] per trajectory."""

ZERO_TOLERANCE = 1e-6
"""Largest advantage that counts as none: rounding leaves as much where all rewards are equal."""


class AdvantageState(msgspec.Struct, frozen=True):
    """State between batches, by name."""

    baselines: State = {}
    """State of the advantage estimator."""
    transforms: State = {}
    """State of final transforms; the prefix of a name says which: ``0.role_advantage/Austria``."""


class TrajectoryCredit(NamedTuple):
    """Rewards before transforms and advantages of a trajectory's steps, arrays [S]."""

    at: int
    """Index of the trajectory in the given batch."""
    rewards: Array
    advantages: Array
    """Means over the choices of each step, per-action credit included."""


@dataclass(frozen=True)
class CreditedBatch:
    """A batch with the credit of its steps. Lists are as long as ``trajectories``, arrays [S]."""

    trajectories: list[Trajectory]
    """Trajectories that are usable and have a non-zero advantage, where those without are left out."""
    advantages: list[Array]
    parts: list[list[Array]] | None
    """Added to the advantage of each choice of each step, arrays [B]; None without per-action credit."""
    refused: list[tuple[str, str]]
    """Match id and reason of every trajectory that cannot be used."""
    filtered: list[int]
    """Indices in the given batch of trajectories whose advantages are all 0, where these are left out."""
    memory: AdvantageState
    """State after the batch was trained on."""
    usable: list[Trajectory] = field(default_factory=list)
    """``trajectories`` and the filtered ones, each member by itself."""
    returns: list[Array] | None = None
    """Targets of the critic for ``usable``, [S] each."""
    reward_mean: float = 0.0
    """Mean total reward of ``usable``, before any transform."""
    advantage_std: float = 0.0
    """Standard deviation over the steps of the usable ones."""
    refused_at: list[int] = field(default_factory=list)
    """Indices of the rejected in the given batch."""
    credits: list[TrajectoryCredit] = field(default_factory=list)
    """Credit of every usable trajectory, filtered ones included."""
    zero_advantage_share: float = 0.0
    """Share of the usable trajectories whose advantages are all 0."""


class AdvantagePipeline:
    """The configured reward, transforms and estimator."""

    def __init__(self, config: TrainerConfig, shape: ModelShape, filter_zero: bool) -> None:
        """Build the plugins; ``filter_zero`` leaves out trajectories whose advantages are all 0."""
        check_transforms(config)
        self._shape = shape
        self._filter_zero = filter_zero
        self._part_credit = config.part_credit
        self.reward = REWARDS.build(config.reward)
        self.advantage = ADVANTAGES.build(config.advantage)
        final, step, sampling = config.transforms.final, config.transforms.step, config.transforms.sampling
        self._final = [(f"{at}.{plugin.name}", FINAL_TRANSFORMS.build(plugin)) for at, plugin in enumerate(final)]
        self._step = [STEP_TRANSFORMS.build(plugin) for plugin in step]
        self._sampling = [SAMPLING_TRANSFORMS.build(plugin) for plugin in sampling]

    def __call__(
        self, trajectories: Sequence[Trajectory], memory: AdvantageState, values: ValueFunction | None = None
    ) -> CreditedBatch:
        """Compute the advantage of every step; pure in its arguments.

        Invalid trajectories are rejected one by one. ``memory`` is the state after the last batch that was trained on,
        ``values`` those of a critic, for estimators that use one.
        """
        reasons = [self._refusal_reason(trajectory) for trajectory in trajectories]
        refused = [(r.match_id, reason) for r, reason in zip(trajectories, reasons, strict=True) if reason is not None]
        refused_at = [index for index, reason in enumerate(reasons) if reason is not None]
        kept_at = [index for index, reason in enumerate(reasons) if reason is None]
        kept = [trajectories[index] for index in kept_at]
        if not kept:
            return CreditedBatch([], [], None, refused, [], memory, refused_at=refused_at)
        units = credit_units(kept)
        compared = [unit.trajectory for unit in units]
        raw = [self.reward(trajectory) for trajectory in compared]
        rewards, transforms = self._compute_rewards(compared, raw, memory.transforms)
        baselines = memory.baselines
        returns: list[Array] | None = None
        if values is not None and isinstance(self.advantage, UsesCritic):
            estimated, returns = self.advantage.estimate(rewards, values(compared))
        else:
            estimated, baselines = estimate_once(self.advantage, compared, rewards, memory.baselines)
        advantages, parts = merge_units(units, estimated, kept), None
        credit = means = advantages
        if share := self._part_credit:
            parts = [[share * part_B for part_B in of_steps] for of_steps in per_action_advantages(kept)]
            advantages = [(1 - share) * advantage_S for advantage_S in advantages]
            credit = [np.concatenate([a_S, *parts_S]) for a_S, parts_S in zip(advantages, parts, strict=True)]
            means = [a_S + _means(parts_S) for a_S, parts_S in zip(advantages, parts, strict=True)]
        has_credit = [bool((np.abs(values) > ZERO_TOLERANCE).any()) for values in credit]
        taught = [not self._filter_zero or has for has in has_credit]
        return CreditedBatch(
            trajectories=list(compress(kept, taught)),
            advantages=list(compress(advantages, taught)),
            parts=None if parts is None else list(compress(parts, taught)),
            refused=refused,
            refused_at=refused_at,
            filtered=[index for index, use in zip(kept_at, taught, strict=True) if not use],
            memory=AdvantageState(baselines, transforms),
            usable=compared,
            returns=returns,
            credits=list(map(TrajectoryCredit, kept_at, merge_units(units, raw, kept), means)),
            reward_mean=float(np.mean([rewards_S.sum() for rewards_S in raw])),
            zero_advantage_share=1.0 - sum(has_credit) / len(has_credit),
            advantage_std=float(np.concatenate(means).std()),
        )

    def _refusal_reason(self, trajectory: Trajectory) -> str | None:
        """Reason for which a trajectory cannot be credited; checked alone, to keep the rest of the batch."""
        reason = rejection_reason(trajectory, self._shape.vocab_size, self._shape.max_positions)
        if reason is not None:
            return reason
        if trajectory.scores and not (
            0 <= trajectory.seat < len(trajectory.scores) and np.isfinite(trajectory.scores).all()
        ):
            return f"scores {trajectory.scores} are not finite numbers with one of seat {trajectory.seat}"
        finite = all(np.isfinite(self.reward(unit.trajectory)).all() for unit in credit_units([trajectory]))
        return None if finite else "a reward is not a finite number"

    def _compute_rewards(
        self, trajectories: Sequence[Trajectory], raw: Sequence[Array], state: State
    ) -> tuple[Sequence[Array], State]:
        """Rewards after all three stages, and the state of the final one."""
        rewards, remembered = raw, dict(state)
        values = [seat_scores(trajectory) for trajectory in trajectories] if self._final else []
        for name, transform in self._final:
            # Each transform has the names under its own as its state.
            prefix = f"{name}/"
            own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            values, after = estimate_once(transform, trajectories, values, own)
            remembered |= {prefix + key: value for key, value in after.items()}
        if self._final:
            finals = [float(value_M[own_seat_index(r)]) for r, value_M in zip(trajectories, values, strict=True)]
            scored = [msgspec.structs.replace(r, score=final) for r, final in zip(trajectories, finals, strict=True)]
            rewards = [self.reward(trajectory) for trajectory in scored]
        for step in self._step:
            rewards = [step(trajectory, rewards_S) for trajectory, rewards_S in zip(trajectories, rewards, strict=True)]
        for sampling in self._sampling:
            rewards = sampling(trajectories, rewards)
        return rewards, remembered


def estimate_once(
    estimator: Callable[[Sequence[Trajectory], Sequence[Array], State], tuple[list[Array], State]],
    trajectories: Sequence[Trajectory],
    values: Sequence[Array],
    state: State,
) -> tuple[list[Array], State]:
    """Apply an estimator; its state takes in a trajectory once, however many batches train on parts of it."""
    estimated, after = estimator(trajectories, values, state)
    first = [not trajectory.counted for trajectory in trajectories]
    if not all(first):
        after = (
            estimator(list(compress(trajectories, first)), list(compress(values, first)), state)[1]
            if any(first)
            else state
        )
    return estimated, after


def check_transforms(config: TrainerConfig) -> None:
    """Build every transform once.

    Raises:
        ConfigError: an unknown name or setting, or final transforms of scores that the reward does not depend on.
    """
    stages = config.transforms
    for registry, plugins in (
        (FINAL_TRANSFORMS, stages.final),
        (STEP_TRANSFORMS, stages.step),
        (SAMPLING_TRANSFORMS, stages.sampling),
    ):
        for plugin in plugins:
            registry.build(plugin)
    if stages.final and not reward_uses_score(config):
        raise ConfigError(
            f"trainer.transforms.final: the reward {config.reward.name!r} does not look at the score as it is set, so "
            f"they would change nothing; expected 'outcome', for example, or a 'score_weight' of 'progress'"
        )


def reward_uses_score(config: TrainerConfig) -> bool:
    """Whether the reward depends on the score, which is all that is known of what a member of an episode earned."""
    reward = REWARDS.build(config.reward)
    step = ModelCall([0], [0], [], [], [], 0, 0, 0.0)
    lost, won = (Trajectory("", "", "", 0, "", "", [step], 0, 0.0, score, 1) for score in (0.0, 1.0))
    return not np.array_equal(reward(lost), reward(won))


def per_action_advantages(trajectories: Sequence[Trajectory]) -> list[list[Array]]:
    """Advantages [B] of every step of every trajectory, over one global scale; 0 where the game credits no parts."""
    whole = [[np.zeros(len(step.branches)) for step in trajectory.steps] for trajectory in trajectories]
    credited_at = [
        (at, number) for at, r in enumerate(trajectories) for number, step in enumerate(r.steps) if step.credits
    ]
    if not credited_at:
        return whole
    credited = [(at, trajectories[at].steps[number]) for at, number in credited_at]
    steps = [step for _, step in credited]
    cells_S = key_indices([(at, step.clock) for at, step in credited])
    units_S = key_indices([(trajectories[at].game, trajectories[at].role, step.clock) for at, step in credited])
    sums_S = np.array([sum(step.credits) for step in steps])
    counts_S = np.array([float(len(step.credits)) for step in steps])
    others_S = _others_total(sums_S, cells_S, units_S) / np.maximum(_others_total(counts_S, cells_S, units_S), 1)
    known_S = _others_total(counts_S, cells_S, units_S) > 0
    values = [
        np.asarray(step.credits) - other if is_compared else np.zeros(len(step.credits))
        for step, other, is_compared in zip(steps, others_S, known_S, strict=True)
    ]
    rms = float(np.sqrt(np.mean(np.concatenate(values) ** 2)))
    for (at, number), value_B in zip(credited_at, values, strict=True):
        whole[at][number] = value_B / rms if rms > 1e-9 else value_B
    return whole


def _means(parts: Sequence[Array]) -> Array:
    """The mean over each step's choices, [S]; 0 without any."""
    return np.array([part_B.sum() / max(len(part_B), 1) for part_B in parts])


def _others_total(values_S: Array, cells_S: NDArray[np.int64], units_S: NDArray[np.int64]) -> Array:
    """Each step's unit's total without what the step's own cell has in it."""
    unit_S: Array = np.bincount(units_S, weights=values_S)[units_S].astype(np.float64)
    cell_S: Array = np.bincount(cells_S, weights=values_S)[cells_S].astype(np.float64)
    return unit_S - cell_S


class CreditUnit(NamedTuple):
    """The unit of comparison: a whole trajectory, or one member of it."""

    at: int
    """Index of its trajectory in the batch."""
    trajectory: Trajectory
    """The trajectory that plugins get: the whole one, or the member by itself."""
    steps: Sequence[int]
    """Indices of its steps in its trajectory; fewer than ``trajectory.steps`` only where a member called no model."""


def credit_units(trajectories: Sequence[Trajectory]) -> list[CreditUnit]:
    """The members of every trajectory, in order; a trajectory without members as it is."""
    units = []
    for at, trajectory in enumerate(trajectories):
        if not trajectory.members:
            units.append(CreditUnit(at, trajectory, range(len(trajectory.steps))))
        for member in trajectory.members:
            # A role that was rewarded without a model call still counts in its group; nothing of it is trained on.
            steps = [trajectory.steps[index] for index in member.steps] or [
                msgspec.structs.replace(without_choices(trajectory.steps[0]), completion_ids=[])
            ]
            own = msgspec.structs.replace(
                trajectory,
                game=member.episode_type,
                role=member.role,
                group=member.group,
                score=member.reward,
                scores=[],
                members=[],
                steps=steps,
            )
            units.append(CreditUnit(at, own, member.steps))
    return units


def merge_units(of: Sequence[CreditUnit], values: Sequence[Array], trajectories: Sequence[Trajectory]) -> list[Array]:
    """Merge the values of ``credit_units`` to [S] per trajectory; 0 for a step that no member has."""
    whole = [np.zeros(len(trajectory.steps)) for trajectory in trajectories]
    for share, values_S in zip(of, values, strict=True):
        whole[share.at][list(share.steps)] = values_S[: len(share.steps)]
    return whole
