"""Policy-gradient losses: weighted log-probabilities, and bounds on the importance ratio, PPO's and its successors'.

Shape suffix: W choice.
"""

from typing import Annotated, ClassVar, Literal

import msgspec
import torch

from trainer.losses import Clipping, KlPenalty, LossInputs, LossValue, Objective, register

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

    With the advantage ``constant`` all choices count the same. Expert iteration adds it to any other loss.
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

    normalize: Literal["token", "sample", "length"] = "sample"
    kl: KlPenalty = KlPenalty(weight=0.04)


@register("dr_grpo")
class DrGrpo(Clipping, frozen=True, kw_only=True):
    """GRPO without its preference for long wrong answers: divided by ``max_generation_len``, not by lengths; no KL.

    Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.2. Its advantages are ``group_relative`` without
    ``normalize``.
    """

    normalize: Literal["token", "sample", "length"] = "length"


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
    normalize: Literal["token", "sample", "length"] = "sample"

    def policy(self, terms: LossInputs) -> LossValue:
        """Loss of each choice: that of its sequence, which the mean over the sequence thus preserves."""
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
