"""The statistics of a gradient step, the credit it gave, and its batch as a Parquet file for inspection.

DuckDB reads the files: ``SELECT * FROM 'batches/*.parquet'``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from schemas.config import TrainerConfig
from schemas.decisions import WHOLE_TRAJECTORY, CreditRow, is_kept
from schemas.errors import translate_missing_package
from schemas.events import DroppedTrajectories
from schemas.metrics import ONE_PROMPT, REPLY_FAULTS, REPLY_METRICS, REPLY_OPENING, STILL_ENTROPY, STILL_KL
from schemas.trajectories import ModelCall, Trajectory
from trainer.batch import truncate_choices
from trainer.buffer import UNCOUNTED_REASONS, BatchItem
from trainer.credit import TrajectoryCredit, credit_units, merge_units
from trainer.learner_config import LearnerConfig
from trainer.losses import LossInputs, LossValue
from trainer.ranks import RankComm
from trainer.rewards import REWARDS

if TYPE_CHECKING:  # the learner makes the reports
    from trainer.learner import Learner


class StepReport(msgspec.Struct, frozen=True):
    """Result of ``Learner.step``. Means are over the choices of all epochs."""

    step: int
    """Number of the step, from 1."""
    skipped: str = ""
    """Why the weights were not updated; empty when they were."""
    refused: list[tuple[str, str]] = []
    """Match id and reason of every trajectory that could not be used."""
    refused_at: list[int] = []
    """Batch indices of the rejected trajectories."""
    filtered: list[int] = []
    """Indices in the batch of trajectories left out because all their advantages are 0."""
    credits: list[TrajectoryCredit] = []
    """Credit of every usable trajectory, filtered ones included."""
    alarm: str = ""
    """Why the samples appear not to match their recorded temperature, mask or weights; empty without an alarm."""
    trajectories: int = 0
    """Trajectories that were used."""
    sequences: int = 0
    branches: int = 0
    cut: int = 0
    """Choices beyond ``max_train_len`` tokens, which are left out."""
    masked: int = 0
    """Replies cut off at their limit of tokens, which ``mask_truncated`` leaves out."""
    tokens: int = 0
    """Tokens of the sequences' prompts and completions, counted once."""
    epochs: int = 0
    seconds: float = 0.0
    learning_rate: float = 0.0
    reward_mean: float = 0.0
    """Mean total reward of the trajectories, before any transform."""
    zero_advantage_share: float = 0.0
    """Share of the usable trajectories whose advantages are all 0."""
    advantage_std: float = 0.0
    """Standard deviation over steps."""
    loss: float = 0.0
    entropy: float = 0.0
    """Nats per choice, under the weights during the step."""
    ratio_mean: float = 1.0
    """Raw importance ratios, before any clipping or truncation."""
    ratio_max: float = 1.0
    ratio_min: float = 1.0
    clipped: float = 0.0
    """Share of choices whose ratio was clipped or truncated."""
    kl: float = 0.0
    """Schulman's estimate ``ratio - 1 - log(ratio)`` of KL(sampling policy || current), nats per choice."""
    sampler_gap: float = 0.0
    """Largest log-probability difference to the sampler in the first minibatch: about 1e-6 on policy."""
    on_policy_gap: float = 0.0
    """The mean difference there, in nats, over choices sampled by the version that the step started from."""
    passed_over: int = 0
    """Minibatches without an update, because too many of their choices were clipped."""
    value_loss: float = 0.0
    """Mean squared error of the critic, where there is one."""
    grad_norm: float = 0.0
    """Mean over minibatches, before clipping."""
    replies: dict[str, float] = {}
    """``describe_replies`` of the trajectories that were used."""

    def metrics(self) -> dict[str, float]:
        """The finite numbers, by name, and the rate of tokens trained on."""
        counts = {"filtered": len(self.filtered), "alarms": int(bool(self.alarm))}
        numbers = counts | {k: v for k, v in msgspec.structs.asdict(self).items() if isinstance(v, int | float)}
        rate = self.tokens * self.epochs / self.seconds if self.seconds > 0 else 0.0
        finite = {name: float(v) for name, v in numbers.items() if math.isfinite(v)}
        return finite | self.replies | {"tokens_per_s": rate}


def describe_replies(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of the replies of a batch, by which their collapse (one text, or none) is noticed.

    ``reply_opening`` is the share of the commonest beginning (of ``REPLY_OPENING`` sampled tokens), ``reply_tokens``
    their mean number; where replies are free text, ``reply_free_tokens`` is the mean length of those, and there is a
    share for each of ``REPLY_FAULTS``. ``reply_turn_opening`` is ``_turn_opening``, if most calls have one.
    """
    calls = [call for trajectory in trajectories for call in trajectory.steps if call.branches]
    if not calls:
        return {}
    openings = _count_commonest(map(_opening, calls))
    figures = {"opening": openings / len(calls), "tokens": fmean(len(c.branches) for c in calls)}
    if free := [call for call in calls if not all(call.allowed)]:
        faults = Counter(call.fault for call in free)
        figures |= {fault: faults[fault] / len(free) for fault in REPLY_FAULTS}
        figures["free_tokens"] = fmean(len(call.completion_ids) for call in free)
    if (share := _turn_opening(trajectories, len(calls))) is not None:
        figures["turn_opening"] = share
    return {REPLY_METRICS + name: figure for name, figure in figures.items()}


def _turn_opening(trajectories: Sequence[Trajectory], total: int) -> float | None:
    """The share of replies with the commonest beginning of their turn, over turns with different prompts.

    A turn is a game, a role, a clock and, of constrained replies, what may begin one. Where one prompt makes more than
    ``ONE_PROMPT`` of a turn, equal replies may be right. None if less than half of the ``total`` calls are left.
    """
    turns: dict[tuple[str, str, int, tuple[int, ...]], list[ModelCall]] = defaultdict(list)
    for trajectory in trajectories:
        for call in trajectory.steps:
            if call.branches:
                turns[trajectory.game, trajectory.role, call.clock, tuple(call.allowed[0])].append(call)
    varied = [
        calls
        for calls in turns.values()
        if _count_commonest(tuple(call.prompt_ids) for call in calls) <= ONE_PROMPT * len(calls)
    ]
    count = sum(map(len, varied))
    if 2 * count < total:
        return None
    return sum(_count_commonest(map(_opening, calls)) for calls in varied) / count


def _opening(call: ModelCall) -> tuple[int, ...]:
    return tuple(call.completion_ids[at] for at in call.branches[:REPLY_OPENING])


def _count_commonest(values: Iterable[tuple[int, ...]]) -> int:
    return max(Counter(values).values())


class StepStatistics:
    """Running sums of a step, kept on the device to avoid a GPU synchronisation in every rectangle.

    Samples of the policy's ``version`` are on policy.
    """

    def __init__(self, device: torch.device, version: int) -> None:
        self.version = version
        self.passed_over = 0
        self.grad_norms: list[float] = []
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)
        self._extremes = torch.full((2,), -math.inf, device=device)
        self._gap = torch.zeros((), device=device)
        self._fresh = torch.zeros(2, dtype=torch.float64, device=device)
        """Summed differences to the sampler over on-policy choices of the first minibatch, and their count."""
        self._clipped = torch.zeros(2, dtype=torch.float64, device=device)
        """Clipped choices and all choices of the current minibatch."""

    @torch.no_grad()
    def add(self, terms: LossInputs, value: LossValue, version_W: Tensor) -> None:
        """Count a rectangle's choices."""
        log_ratio = (terms.logprob_W - terms.old_logprob_W).detach()
        ratio = log_ratio.exp()
        parts = [value.loss_W, terms.entropy_W, ratio, ratio - 1 - log_ratio, value.clipped_W, torch.ones_like(ratio)]
        sums = torch.stack([part.sum(dtype=torch.float64) for part in parts])
        self._sums += sums
        self._clipped += sums[-2:]
        self._extremes = torch.maximum(self._extremes, torch.stack([ratio.max(), -ratio.min()]))
        if not self.grad_norms:
            self._gap = torch.maximum(self._gap, log_ratio.abs().max())
            fresh = version_W == self.version
            self._fresh += torch.stack([(log_ratio.abs() * fresh).sum(dtype=torch.float64), fresh.sum()])

    def exceeds_clip_limit(self, max_clipped: float, ranks: RankComm) -> bool:
        """Whether the current minibatch has too large a share of clipped choices; resets its counts."""
        # Only where there is a bound: reading the counts synchronises with the device.
        if max_clipped < 1:
            ranks.all_reduce_sum(self._clipped)
        exceeds = max_clipped < 1 and bool(self._clipped[0] > max_clipped * self._clipped[1])
        self.passed_over += exceeds
        self._clipped.zero_()
        return exceeds

    def all_reduce(self, ranks: RankComm) -> None:
        """Combine the counts of all ranks."""
        ranks.all_reduce_sum(self._sums, self._fresh)
        ranks.all_reduce_max(self._extremes, self._gap)

    def summary(self, ratio_bound: float) -> dict[str, Any]:
        """The fields of ``StepReport`` that are means and extremes, and the alarm."""
        *sums, count = self._sums.tolist()
        names = ("loss", "entropy", "ratio_mean", "kl", "clipped")
        means = {name: total / max(count, 1.0) for name, total in zip(names, sums, strict=True)}
        top, bottom = self._extremes.tolist()
        difference, fresh = self._fresh.tolist()
        gap = difference / max(fresh, 1.0)
        alarm = (
            f"what the current version sampled has log-probabilities {gap:.3g} nats from the learner's on average, "
            f"expected at most {ratio_bound:g}: another temperature, mask or weights than recorded"
        )
        return means | {
            "ratio_max": top,
            "ratio_min": -bottom,
            "sampler_gap": float(self._gap),
            "grad_norm": sum(self.grad_norms) / max(len(self.grad_norms), 1),
            "on_policy_gap": gap,
            # Not the other way round: a gap that is not a number is an alarm too.
            "alarm": "" if gap <= ratio_bound else alarm,
            "passed_over": self.passed_over,
        }


def count_still_steps(before: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Count the steps in a row whose KL is nearly 0 while the entropy stays what it was at the first of them.

    ``before`` are the metrics of the step before. ``still_entropy`` is the entropy that later ones are compared with.
    """
    entropy = metrics.get("entropy", 0.0)
    first = before.get("still_entropy", entropy)
    is_still = abs(metrics.get("kl", 0.0)) < STILL_KL and abs(entropy - first) <= STILL_ENTROPY * first
    count = before.get("still_steps", 0.0) + 1.0 if is_still else 0.0
    return {"still_steps": count, "still_entropy": first if is_still else entropy}


def make_credit_rows(
    policy: str,
    batch: Sequence[BatchItem],
    report: StepReport,
    dropped: Sequence[DroppedTrajectories],
    share: float,
    config: LearnerConfig,
) -> list[CreditRow]:
    """The credit of every decision of a batch, and what became of all other trajectories.

    ``share`` is the share of matches whose decisions are kept.
    """
    rows, credited = [], set[tuple[str, int]]()
    for at, rewards_S, advantages_S in report.credits:
        item, trajectory = batch[at], batch[at].trajectory
        outcome = "filtered" if at in report.filtered else "skipped" if report.skipped else "trained"
        match_id, seat, steps, taken = trajectory.match_id, trajectory.seat, trajectory.steps, set(item.steps)
        if not item.left:
            credited.add((match_id, seat))
            # Forced replies too, from which nothing is learned.
            taken |= {call for call, step in enumerate(steps) if not step.branches}
        if not is_kept(match_id, share):
            continue
        for call in sorted(taken):
            learned = truncate_choices(steps[call], config.max_train_len, config.mask_truncated)
            is_masked = bool(steps[call].branches) and not learned.branches
            credit = (float(rewards_S[call]), float(advantages_S[call]))
            rows.append(
                CreditRow(match_id, seat, call, policy, report.step, "masked" if is_masked else outcome, *credit)
            )
        if not item.left and len(taken) < len(steps):
            # Those that no batch trained on, since they became too old; the rows of earlier batches come first.
            rows.append(CreditRow(match_id, seat, WHOLE_TRAJECTORY, policy, report.step, "stale"))
    for each in dropped:
        for match_id, seat in zip(each.matches, each.seats, strict=True):
            if each.reason not in UNCOUNTED_REASONS and (match_id, seat) not in credited and is_kept(match_id, share):
                rows.append(CreditRow(match_id, seat, WHOLE_TRAJECTORY, policy, report.step, each.reason))
    return rows


def write_batch(
    folder: Path, policy: str, learner: "Learner", batch: Sequence[BatchItem], config: TrainerConfig
) -> Path:
    """Write the batch that a learner is about to train on, a row per step; delete the oldest files; return the new.

    ``reward`` is the reward before transforms; ``advantage`` is what the learner will use, as in
    ``TrajectoryCredit``, empty where it uses none.
    Steps of an episode's member have its episode type, role, group and reward.

    Raises:
        OSError: it cannot be written.
        MissingPackageError: pyarrow is not installed.
    """
    # Imported here: only dumps need Arrow.
    with translate_missing_package():
        import pyarrow as pa
        import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{policy}-{learner.steps + 1:08d}.parquet"
    draft = path.with_suffix(".part")
    try:
        pq.write_table(pa.Table.from_pylist(list(_batch_rows(learner, batch, config))), draft, compression="zstd")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for old in sorted(folder.glob(f"{policy}-????????.parquet"))[: -config.dump_files]:
        old.unlink(missing_ok=True)
    return path


def _batch_rows(learner: "Learner", batch: Sequence[BatchItem], config: TrainerConfig) -> Iterator[dict[str, Any]]:
    credited = learner.assign_credit([item.trainable_trajectory for item in batch])
    advantages = {credit.at: credit.advantages for credit in credited.credits if credit.at not in credited.filtered}
    reward = REWARDS.build(config.reward)
    for number, item in enumerate(batch):
        trajectory, advantage_S = item.trajectory, advantages.get(number)
        parts = credit_units([trajectory])
        (rewards_S,) = merge_units(parts, [reward(part.trajectory) for part in parts], [trajectory])
        whose = {at: part.trajectory for part in parts for at in part.steps}
        for at in item.steps:
            step, by = trajectory.steps[at], whose.get(at, trajectory)
            yield {
                "step": learner.steps + 1,
                "sequence": item.sequence,
                "match_id": trajectory.match_id,
                "game": by.game,
                "role": by.role,
                "group": by.group,
                "score": by.score,
                "index": at,
                "version": step.version,
                "clock": step.clock,
                "reward": float(rewards_S[at]),
                "advantage": None if advantage_S is None else float(advantage_S[at]),
                "prompt_ids": step.prompt_ids,
                "completion_ids": step.completion_ids,
                "branches": step.branches,
                "logprobs": step.logprobs,
                "temperature": step.temperature,
            }
