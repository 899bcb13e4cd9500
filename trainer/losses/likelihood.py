"""Losses that weight the log-probability itself: REINFORCE and imitation.

Shape suffix: W choice.
"""

import torch

from schemas.errors import ConfigError
from trainer.losses import LossInputs, LossValue, Objective, register


@register("reinforce")
class Reinforce(Objective, frozen=True, kw_only=True):
    """``-min(ratio, cap) * A * logprob - entropy * H``, the weight held constant (Ionides 2008; Williams 1992)."""

    cap: float = 2.0
    """Largest importance weight."""
    entropy: float = 0.01

    def __post_init__(self) -> None:
        Objective.__post_init__(self)
        if self.cap < 1:
            raise ConfigError(f"cap: {self.cap}; expected at least 1")

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
