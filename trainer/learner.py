"""Gradient steps on one adapter: trajectories, rewards, advantages, minibatches, loss, AdamW.

The random order of a step's minibatches derives from the seed and the step's number, so a learner that resumes from
``save_state`` continues bit for bit on a CPU with one thread.

Shape suffixes: S sequence of a minibatch, W choice.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from models.canary import CanaryRecord, canary_questions, read_record, write_record
from schemas.config import TrainerConfig, convert
from schemas.ids import derive_seed
from schemas.trajectories import ModelCall, Trajectory
from trainer.advantages.base import UsesCritic
from trainer.backends import TrainableAdapter
from trainer.batch import Batch, Floats, Ints, flatten, minibatches, rank_microbatches, resolve_layout
from trainer.credit import AdvantagePipeline, AdvantageState, CreditedBatch
from trainer.critic import TENSORS, Critic
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import choice_logprobs
from trainer.losses import LOSSES, LossInputs, LossValue
from trainer.optimizer import LearnerState, OptimizerState, load_state, save_state
from trainer.ranks import SINGLE_RANK, RankComm
from trainer.report import StepReport, StepStatistics, describe_replies

_UNBOUNDED = 1 << 40
"""Tokens of a row that no minibatch reaches."""

TOO_LONG = "every choice lies behind max_train_len tokens"
ALL_TRUNCATED = "every reply was cut off, and mask_truncated leaves those out"


class Learner:
    """Trains one adapter on a frozen base."""

    def __init__(
        self, adapter: TrainableAdapter, config: TrainerConfig, seed: int, ranks: RankComm = SINGLE_RANK
    ) -> None:
        """Make a learner at step 0, which changes the adapter in place; the seed decides the order of minibatches."""
        self.adapter = adapter
        self.seed = seed
        self.ranks = ranks
        self.steps = 0
        self.memory = AdvantageState()
        self.config = convert(config.learner, LearnerConfig, "trainer.learner")
        if adapter.is_remote:
            self.config = msgspec.structs.replace(self.config, layout="packed", rectangle_tokens=_UNBOUNDED)
        self._layout = self.config
        """The settings of the current step's forward passes."""
        self._credit = AdvantagePipeline(config, adapter.shape, self.config.filter_zero_advantage)
        self.critic = self._make_critic()
        self._objective = LOSSES.build(config.loss)
        self._loss: Callable[[LossInputs], LossValue] = self._objective
        self._optimizer = adapter.make_optimizer(self.config)
        self._canary: CanaryRecord | None = None
        """Answers by the current weights; None where they are not known."""

    def step(self, trajectories: Sequence[Trajectory], progress: float = 0.0) -> StepReport:
        """Train on a batch of trajectories, all epochs of it.

        Invalid trajectories are rejected one by one. If a loss or gradient is not finite, weights, optimiser, critic
        and estimator state are restored to what they were before the step, and the report says so. ``progress`` is the
        used share of the training budget, 0 to 1.
        """
        began = time.perf_counter()
        self.steps += 1
        credited = self.assign_credit(trajectories)
        report = StepReport(
            self.steps,
            refused=credited.refused,
            refused_at=credited.refused_at,
            filtered=credited.filtered,
            credits=credited.credits,
            trajectories=len(credited.trajectories),
            replies=describe_replies(credited.trajectories),
            epochs=self.config.epochs,
            reward_mean=credited.reward_mean,
            zero_advantage_share=credited.zero_advantage_share,
            advantage_std=credited.advantage_std,
        )
        if not credited.trajectories:
            reason = "every advantage is 0" if credited.filtered else "no usable trajectory"
            return msgspec.structs.replace(report, skipped=reason)
        masks, longest = self.config.mask_truncated, self.config.max_train_len
        batch = flatten(credited.trajectories, credited.advantages, longest, credited.parts, masks)
        calls = [step for trajectory in credited.trajectories for step in trajectory.steps if step.branches]
        masked = [len(step.branches) for step in calls if masks and step.truncated]
        cut = sum(len(step.branches) for step in calls) - sum(masked) - len(batch.position_W)
        report = msgspec.structs.replace(report, cut=cut, masked=len(masked))
        if not len(batch):
            reason = TOO_LONG if cut else ALL_TRUNCATED if masked else "no step with a choice"
            return msgspec.structs.replace(report, skipped=reason)
        rate = self.config.learning_rate_at(progress)
        self._layout = self._choose_layout(batch)
        tally, skipped, value_loss = self._update(batch, credited, rate)
        tally.all_reduce(self.ranks)
        if not skipped:
            self._canary = self._record_canary()
        critic = [] if self.critic is None else [self.critic.flat_C]
        self.ranks.check_equal_weights(self.steps, *self._optimizer.weights, *critic)
        return msgspec.structs.replace(
            report,
            skipped=skipped,
            sequences=len(batch),
            branches=len(batch.position_W),
            tokens=batch.tokens,
            learning_rate=rate,
            value_loss=value_loss,
            seconds=time.perf_counter() - began,
            **tally.summary(self.config.ratio_bound_for(self.adapter.dtype)),
        )

    def assign_credit(self, trajectories: Sequence[Trajectory]) -> CreditedBatch:
        """The credit that a step on these trajectories would assign; nothing is changed."""
        return self._credit(trajectories, self.memory, None if self.critic is None else self.critic.predict_values)

    def save_adapter(self, folder: Path, base_model: str = "") -> Path:
        """Save the adapter in PEFT's format, with the canary's record if there is one, and return the folder."""
        self.adapter.save(folder, base_model)
        if self._canary is not None:
            write_record(self._canary, folder)
        return folder

    def save_state(self, folder: Path) -> None:
        """Write everything that a killed trainer resumes from; the bytes depend on the state alone."""
        layout, optimizer = self.adapter.layout, self._optimizer.state()
        saved = LearnerState(
            steps=self.steps,
            updates=optimizer.updates,
            seed=self.seed,
            rank=layout.rank,
            alpha=layout.alpha,
            sizes=dict(layout.sizes),
            baselines=dict(self.memory.baselines),
            transforms=dict(self.memory.transforms),
            critic_updates=0 if self.critic is None else self.critic.updates,
            path=optimizer.path,
            canary=self._canary,
        )
        critic = {} if self.critic is None else self.critic.snapshot()[0]
        save_state(folder, saved, {**optimizer.tensors, **critic})

    def load_state(self, folder: Path) -> None:
        """Continue where ``save_state`` left off.

        Raises:
            ModelError: no saved state, a damaged one, or one of an adapter of another shape.
        """
        parameters = sum(tensor.numel() for tensor in self._optimizer.weights)
        saved, tensors = load_state(folder, *self.adapter.layout, parameters)
        self._optimizer.load(OptimizerState(saved.updates, tensors, saved.path))
        self._canary = saved.canary
        # A state saved before there was a critic continues with the new one.
        if self.critic is not None and set(TENSORS) <= set(tensors):
            self.critic.restore(tensors, saved.critic_updates)
        self.steps = saved.steps
        self.seed = saved.seed
        self.memory = AdvantageState(saved.baselines, saved.transforms)

    def load_adapter(self, folder: Path, steps: int) -> None:
        """Continue from an adapter alone, made by so many ``steps``, with fresh optimiser moments and estimator state.

        Raises:
            ModelError: no adapter, or one of another shape than this learner's.
        """
        self.adapter.load(folder)
        self._canary = read_record(folder)
        self._optimizer.reset()
        self.steps = steps
        self.memory = AdvantageState()
        self.critic = self._make_critic()

    def _update(self, batch: Batch, credited: CreditedBatch, rate: float) -> tuple[StepStatistics, str, float]:
        """Train critic and policy, or neither; return the reason for neither, and the critic's mean squared error."""
        value_loss, before = 0.0, None
        if self.critic is not None and credited.returns is not None:
            before, rng = self.critic.snapshot(), np.random.default_rng([self.seed, self.steps, 1])
            value_loss = self.critic.fit(credited.usable, credited.returns, rng, self.config.minibatch_sequences)
        if not math.isfinite(value_loss):
            tally = StepStatistics(self.adapter.device, self.steps - 1)
            return tally, "the critic's gradient is not a finite number", 0.0
        tally, skipped = self._train(batch, rate)
        if not skipped:
            self.memory = credited.memory
        elif self.critic is not None and before is not None:
            self.critic.restore(*before)
        return tally, skipped, value_loss

    def _choose_layout(self, batch: Batch) -> LearnerConfig:
        """The settings of a step's forward passes, with a definite layout."""
        layout = resolve_layout(batch, self.config, self.adapter.device)
        if layout != self.config.layout and not self.adapter.supports_layout(layout):
            layout = "rectangles"
        return msgspec.structs.replace(self.config, layout=layout)

    def _train(self, batch: Batch, rate: float) -> tuple[StepStatistics, str]:
        """Train all epochs; if a number is not finite, restore everything and return the reason."""
        before = self._optimizer.state().copy()
        tally = StepStatistics(self.adapter.device, version=self.steps - 1)
        rng = np.random.default_rng([self.seed, self.steps])
        batch = self._with_comparison_logprobs(batch)
        for _ in range(self.config.epochs):
            for sequences_S in minibatches(batch, rng, self.config.minibatch_sequences, self.config.minibatch_tokens):
                self._optimizer.zero_grad()
                self._accumulate(batch, sequences_S, tally)
                rated = rate * self.config.warmup_factor(self._optimizer.updates)
                is_clipped = tally.exceeds_clip_limit(self._objective.max_clipped, self.ranks)
                norm = self._optimizer.step(rated, self.ranks, update=not is_clipped)
                tally.grad_norms.append(norm)
                if not math.isfinite(norm):
                    self._optimizer.load(before)
                    return tally, f"gradient norm is {norm}"
        return tally, ""

    def _with_comparison_logprobs(self, batch: Batch) -> Batch:
        """The batch with the log-probabilities under other weights that the loss needs, one forward pass each."""
        proximal_W = self._choice_logprobs(batch, enabled=True) if self._objective.needs_proximal else None
        reference_W = self._choice_logprobs(batch, enabled=False) if self._objective.kl.weight else None
        return dataclasses.replace(batch, proximal_W=proximal_W, reference_W=reference_W)

    def _choice_logprobs(self, batch: Batch, enabled: bool) -> Floats:
        adapter = self.adapter
        with torch.no_grad():
            evaluate = adapter.begin(self._layout, enabled).loss_inputs
        return choice_logprobs(evaluate, batch, adapter.device, self._layout, self.ranks, adapter.is_sharded)

    def _record_canary(self) -> CanaryRecord | None:
        """Ask the base model and the adapter the canary's questions; None where rounding would decide the answers."""
        if self.adapter.is_remote or self.adapter.dtype != torch.float32:
            return None
        questions = canary_questions(self.adapter.shape.vocab_size)
        calls = [
            ModelCall(asked.prompt_ids, asked.allowed[:1], [0], [0.0], [asked.allowed], self.steps, 0, 0.0)
            for asked in questions
        ]
        batch = flatten([Trajectory("canary", "", "", 0, "", "", calls, 0, 0.0, 0.0, 1)], [np.zeros(len(calls))])
        base, adapter = (np.exp(self._choice_logprobs(batch, enabled)).tolist() for enabled in (False, True))
        return CanaryRecord(questions, base, adapter) if np.isfinite([base, adapter]).all() else None

    def _accumulate(self, batch: Batch, sequences_S: Ints, tally: StepStatistics) -> None:
        """Accumulate this rank's share of a minibatch's gradient."""
        counts_S = batch.branches_S[sequences_S]
        sizes = (
            int(counts_S.sum()),
            len(sequences_S),
            float((counts_S / batch.trajectory_branches_S[sequences_S]).sum()),
        )
        adapter, config = self.adapter, self._layout
        forward = adapter.begin(config, dropout_seed=derive_seed(self.seed, self.steps, self._optimizer.updates))
        for chunk, counts in rank_microbatches(
            batch, sequences_S, config, adapter.device, self.ranks, adapter.is_sharded
        ):
            terms = forward.loss_inputs(chunk)
            if not counts:
                torch.autograd.backward(0.0 * terms.logprob_W.sum())
                continue
            terms = terms._replace(warmed_up=self._objective.kl.warmup_factor(self.steps))
            value = self._loss(terms)
            tally.add(terms, value, chunk.version_W)
            torch.autograd.backward(self._objective.total(value.loss_W, terms, *sizes))
        forward.backward()

    def _make_critic(self) -> Critic | None:
        if not isinstance(self._credit.advantage, UsesCritic):
            return None
        seed = derive_seed(self.seed, "critic")
        return self.adapter.make_critic(self._credit.advantage.critic, seed, self.config.rectangle_tokens, self.ranks)
