"""Losses of the policy-gradient step: the protocol, the registry, and the inputs and settings of all losses.

Only choices, the positions where more than one token was allowed, enter a loss: forced tokens carry no information.
Log-probabilities are renormalised over the allowed tokens at the temperature the token was sampled at, exactly as the
sampler drew it; over the whole vocabulary the importance ratios would be wrong.

Shape suffixes: W choice, N allowed token of a choice (all choices' lists one after the other); U choice over the whole
vocabulary, V vocabulary.
"""

from typing import ClassVar, Literal, NamedTuple, Protocol

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


class Loss(Protocol):
    """A policy-gradient objective, to be minimised."""

    kl: KlPenalty
    max_clipped: float
    needs_proximal: ClassVar[bool]

    def __call__(self, terms: LossInputs) -> LossValue:
        """Loss of each choice."""

    def total(self, loss_W: Tensor, terms: LossInputs, branches: int, sequences: int) -> Tensor:
        """Contribution of some sequences to the loss of a minibatch with these numbers of choices and sequences."""


class Objective(PluginStruct, frozen=True, kw_only=True):
    """Settings of every loss; a loss adds its own and implements ``policy``."""

    entropy: float = 0.0
    """Weight of the entropy bonus."""
    normalize: Literal["token", "sample", "length"] = "token"
    """``token``: the mean over a minibatch's choices. ``sample``: the mean over its sequences of each one's mean.
    ``length``: the sum, over sequences times ``max_generation_len``."""
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

    def total(self, loss_W: Tensor, terms: LossInputs, branches: int, sequences: int) -> Tensor:
        """See ``Loss.total``."""
        if self.normalize == "token":
            return loss_W.sum() / branches
        if self.normalize == "sample":
            return (loss_W / terms.branches_W).sum() / sequences
        return loss_W.sum() / (sequences * self.max_generation_len)


class Clipping(Objective, frozen=True, kw_only=True):
    """A loss with bounds on the importance ratio, that of each token by default."""

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise ConfigError(f"low: {self.low} with high {self.high}; expected 0 <= low <= 1 <= high")

    def policy(self, terms: LossInputs) -> LossValue:
        """See ``Objective.policy``."""
        return self.clip(terms.ratio_W(), terms.advantage_W)

    def clip(self, ratio_W: Tensor, advantage_W: Tensor) -> LossValue:
        """Loss of the smaller objective, raw or bounded; clipped where the bound removed the gradient."""
        raw_W = ratio_W * advantage_W
        bounded_W = ratio_W.clamp(self.low, self.high) * advantage_W
        return LossValue(-torch.minimum(raw_W, bounded_W), bounded_W < raw_W)


LOSSES: Registry[Loss] = Registry("trainer.loss", "trainer.losses")
register = LOSSES.register
