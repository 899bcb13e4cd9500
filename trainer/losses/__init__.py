"""Losses of the policy-gradient step, PPO's and its successors': base, registry, inputs and losses.

Only choices, the positions where more than one token was allowed, enter a loss: forced tokens carry no information.
Log-probabilities are renormalised over the allowed tokens at the temperature the token was sampled at, exactly as the
sampler drew it; over the whole vocabulary the importance ratios would be wrong.

Shape suffixes: W choice, N allowed token of a choice (all choices' lists one after the other); U choice over the whole
vocabulary, V vocabulary.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from schemas.errors import ConfigError
from schemas.numbers import Count, NonNegativeFloat, PositiveInt, Share
from schemas.plugins import PluginStruct, Registry


class LossInputs(NamedTuple):
    """Inputs of a loss, per choice: whole sequences only, with the choices of a sequence side by side.

    A sequence is one model call of a trajectory.
    """

    logprob_W: Tensor
    """Log-probability (nats) of the sampled token under the current weights."""
    old_logprob_W: Tensor
    """Log-probability under the weights and distribution it was sampled from."""
    entropy_W: Tensor
    """Entropy (nats) of the current distribution over the allowed tokens."""
    advantage_W: Tensor
    sequence_W: Tensor
    """Index of each choice's sequence: 0, 0, 1, …"""
    branches_W: Tensor
    """Number of choices in that sequence."""
    proximal_W: Tensor | None = None
    """Log-probability under the weights at the start of the step; None where the loss does not need it."""
    reference_W: Tensor | None = None
    """Log-probability under the base model; None without a KL penalty."""
    warmed_up: float = 1.0
    """Share of the KL's weight that applies in this step."""
    trajectory_branches_W: Tensor | None = None
    """Number of choices in the sequence's trajectory; None where the sequence is all of it."""

    def ratio_W(self) -> Tensor:
        """Raw importance ratio, current over old probability."""
        return (self.logprob_W - self.old_logprob_W).exp()

    def sequence_mean(self, values_W: Tensor) -> Tensor:
        """The mean of [W] values over each sequence, repeated for its choices: [W]."""
        # As many sums as choices, most of them unused: counting the sequences would wait for the device.
        sums = torch.zeros_like(values_W).index_add(0, self.sequence_W, values_W)
        return sums[self.sequence_W] / self.branches_W


class LossValue(NamedTuple):
    """A loss per choice, before reduction over a minibatch."""

    loss_W: Tensor
    clipped_W: Tensor
    """True where a bound on the ratio changed the gradient."""


Normalization = Literal["token", "sample", "trajectory", "length"]


class KlPenalty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A KL penalty towards the reference: the base model with the adapter off, under the same mask and temperature."""

    weight: NonNegativeFloat = 0.0
    """Weight of the penalty; 0 skips the forward pass of the reference."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman 2020, "Approximating KL divergence", of KL(current || reference). As a loss, ``k1`` has a gradient that
    is 0 on average; ``k2`` has the KL's own, and ``k3`` is GRPO's (Shao et al. 2024, eq. 4)."""
    into: Literal["loss", "advantage"] = "loss"
    """``advantage`` subtracts the estimate, held constant, from each choice's advantage instead."""
    warmup_steps: Count = 0
    """Gradient steps over which the weight rises from 0."""

    def warmup_factor(self, step: int) -> float:
        """Share of the weight that applies in a step, counted from 1."""
        return min(step / self.warmup_steps, 1.0) if self.warmup_steps else 1.0

    def estimate(self, terms: LossInputs) -> Tensor:
        """Weighted KL [W], in nats per choice; differentiable."""
        assert terms.reference_W is not None
        apart_W = terms.logprob_W - terms.reference_W
        weight = self.weight * terms.warmed_up
        if self.estimator == "k1":
            return weight * apart_W
        return weight * (0.5 * apart_W.square() if self.estimator == "k2" else (-apart_W).exp() - 1 + apart_W)


class Objective(PluginStruct, frozen=True, kw_only=True):
    """A policy-gradient objective, to be minimised; a loss adds its own settings and implements ``policy``."""

    entropy: float = 0.0
    """Weight of the entropy bonus."""
    normalize: Normalization = "token"
    """``token``: the mean over a minibatch's choices. ``sample``: the mean over its sequences (model calls) of each
    one's mean. ``trajectory``: the mean over its trajectories of each one's mean, however many calls a game took; of a
    trajectory with calls in several minibatches, each has its part. ``length``: the sum, over sequences times
    ``max_generation_len``."""
    max_generation_len: PositiveInt = 4096
    """The longest completion, in choices; a constant, so that no length is favoured."""
    kl: KlPenalty = KlPenalty()
    max_clipped: Share = 1.0
    """A minibatch with a larger share of clipped choices is skipped."""

    needs_proximal: ClassVar[bool] = False
    """Whether the loss needs the log-probabilities under the weights at the start of the step."""

    def policy(self, terms: LossInputs) -> LossValue:
        """The loss itself, without entropy bonus and KL penalty."""
        raise NotImplementedError

    def __call__(self, terms: LossInputs) -> LossValue:
        """Loss of each choice, entropy bonus and KL included."""
        penalty_W = self.kl.estimate(terms) if self.kl.weight else None
        if penalty_W is not None and self.kl.into == "advantage":
            terms, penalty_W = terms._replace(advantage_W=terms.advantage_W - penalty_W.detach()), None
        value = self.policy(terms)
        loss_W = value.loss_W - self.entropy * terms.entropy_W
        return value._replace(loss_W=loss_W if penalty_W is None else loss_W + penalty_W)

    def total(
        self, loss_W: Tensor, terms: LossInputs, branches: int, sequences: int, trajectories: float | None = None
    ) -> Tensor:
        """Contribution of some sequences to the loss of a minibatch with these numbers of choices and sequences.

        ``trajectories`` counts a trajectory by the share of its choices that the minibatch has; None for one a
        sequence.
        """
        if self.normalize == "token":
            return loss_W.sum() / branches
        if self.normalize == "sample":
            return (loss_W / terms.branches_W).sum() / sequences
        if self.normalize == "trajectory":
            counts_W = terms.branches_W if terms.trajectory_branches_W is None else terms.trajectory_branches_W
            return (loss_W / counts_W).sum() / (sequences if trajectories is None else trajectories)
        return loss_W.sum() / (sequences * self.max_generation_len)


class Clipping(Objective, frozen=True, kw_only=True):
    """A loss with bounds on the importance ratio, by default per token."""

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise ConfigError(f"low: {self.low} with high {self.high}; expected 0 <= low <= 1 <= high")

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice, its ratio bounded."""
        return self.clip(terms.ratio_W(), terms.advantage_W)

    def clip(self, ratio_W: Tensor, advantage_W: Tensor) -> LossValue:
        """Loss of the smaller objective, raw or bounded; clipped where the bound removed the gradient."""
        raw_W = ratio_W * advantage_W
        bounded_W = ratio_W.clamp(self.low, self.high) * advantage_W
        return LossValue(-torch.minimum(raw_W, bounded_W), bounded_W < raw_W)


LOSSES: Registry[Objective] = Registry("trainer.loss", "trainer.losses")
register = LOSSES.register


Cap = Annotated[float, msgspec.Meta(ge=1)]


@register("reinforce")
class Reinforce(Objective, frozen=True, kw_only=True):
    """``-min(ratio, cap) * A * logprob - entropy * H``, the weight held constant (Ionides 2008; Williams 1992)."""

    cap: Cap = 2.0
    """Largest importance weight."""
    entropy: float = 0.01

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice; a choice counts as clipped where its weight was truncated."""
        ratio_W = terms.ratio_W().detach()
        loss_W = -ratio_W.clamp(max=self.cap) * terms.advantage_W * terms.logprob_W
        return LossValue(loss_W, ratio_W > self.cap)


@register("cross_entropy")
class CrossEntropy(Objective, frozen=True, kw_only=True):
    """Imitation of any policy: ``-A * logprob - entropy * H``, so without an importance ratio (Pomerleau 1991).

    With the advantage ``constant`` all choices count the same.
    """

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice; none is clipped."""
        return LossValue(-terms.advantage_W * terms.logprob_W, torch.zeros_like(terms.logprob_W, dtype=torch.bool))


@register("ppo_clip")
class PpoClip(Clipping, frozen=True, kw_only=True):
    """``-min(ratio * A, clip(ratio, low, high) * A) - entropy * H`` (Schulman et al. 2017, eq. 7 and 9)."""

    high: float = 1.25
    entropy: float = 0.01


@register("grpo")
class Grpo(Clipping, frozen=True, kw_only=True):
    """Symmetric clipping, the mean over sequences of their means, and K3 to the reference.

    Shao et al. 2024 (DeepSeekMath), eq. 3 and 4. With the ``group_relative`` advantages, normalised, it is the paper's
    algorithm.
    """

    normalize: Normalization = "sample"
    kl: KlPenalty = KlPenalty(weight=0.04)


@register("dr_grpo")
class DrGrpo(Clipping, frozen=True, kw_only=True):
    """GRPO without its preference for long wrong answers: divided by ``max_generation_len``, not by lengths; no KL.

    Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.2. Its advantages are ``group_relative`` without
    ``normalize``.
    """

    normalize: Normalization = "length"


@register("dapo")
class Dapo(Clipping, frozen=True, kw_only=True):
    """Token-level loss with the upper bound above the lower one's mirror image; no KL (Yu et al. 2025, eq. 8 and 10).

    Every token counts the same, and unlikely tokens may grow further than likely ones may shrink. The paper's dynamic
    sampling is ``trainer.learner.filter_zero_advantage``.
    """

    high: float = 1.28


@register("gspo")
class Gspo(Clipping, frozen=True, kw_only=True):
    """The clipped loss of ``s = exp(mean of the sequence's log-ratios)`` (Zheng et al. 2025, eq. 5 and 7).

    The bounds are the paper's, for long replies and full fine-tuning at a learning rate of 1e-6, where a mean over many
    tokens hardly moves. Short replies and LoRA's learning rates need wider ones, as ``ppo_clip`` has: with these, most
    choices were clipped from the second minibatch on and nothing was learned (see ``StepReport.clipped``).
    """

    low: float = 1 - 3e-4
    high: float = 1 + 4e-4
    normalize: Normalization = "sample"

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice: its sequence's loss, which the mean over the sequence thus preserves."""
        ratio_W = terms.sequence_mean(terms.logprob_W - terms.old_logprob_W).exp()
        return self.clip(ratio_W, terms.advantage_W)


@register("cispo")
class Cispo(Clipping, frozen=True, kw_only=True):
    """``-clip(ratio, low, high) * A * logprob``, the weight held constant (MiniMax 2025, M1, eq. 4 and 5).

    The importance weight is clipped, not the update, so that every token keeps its gradient.
    """

    low: float = 0.0
    """The paper bounds the weight from above only."""
    high: float = 5.0
    """The paper gives no value; Khatri et al. 2025 found no difference from 4 to 8."""

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice; a choice counts as clipped where its weight was."""
        ratio_W = terms.ratio_W().detach()
        weight_W = ratio_W.clamp(self.low, self.high)
        return LossValue(-weight_W * terms.advantage_W * terms.logprob_W, weight_W != ratio_W)


@register("tis")
class Tis(Clipping, frozen=True, kw_only=True):
    """``-w * min(r * A, clip(r, low, high) * A)`` with two ratios in place of one.

    The sampler's deviation is weighted, the step's own change is clipped. ``w = min(p_begun / p_sampled, cap)`` is held
    constant: it corrects for the sampler's numerics and for lag (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"; Ionides 2008). ``r = p_now / p_begun`` is bounded around the weights that the
    step began with, as in decoupled PPO (Hilton et al. 2022).
    """

    cap: Cap = 2.0
    """Largest importance weight."""

    needs_proximal: ClassVar[bool] = True

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice; a choice counts as clipped where either bound applied."""
        assert terms.proximal_W is not None
        weight_W = (terms.proximal_W - terms.old_logprob_W).exp().detach()
        value = self.clip((terms.logprob_W - terms.proximal_W).exp(), terms.advantage_W)
        return LossValue(weight_W.clamp(max=self.cap) * value.loss_W, value.clipped_W | (weight_W > self.cap))
