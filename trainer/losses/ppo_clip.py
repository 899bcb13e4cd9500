"""Proximal policy optimisation with asymmetric clipping.

Shape suffix: W branch.
"""

import msgspec
import torch

from schemas.errors import ConfigError
from trainer.losses.base import LossValue, Terms, register


@register("ppo_clip")
class PpoClip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``-min(ratio * A, clip(ratio, low, high) * A) - entropy * H`` (Schulman et al. 2017, eq. 7 and 9)."""

    low: float = 0.8
    high: float = 1.25
    entropy: float = 0.01
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise ConfigError(f"low: {self.low} with high {self.high}; expected 0 <= low <= 1 <= high")

    def build(self) -> "PpoClip":
        """Settings and implementation are one."""
        return self

    def __call__(self, terms: Terms) -> LossValue:
        """Loss of each branch; a branch counts as clipped where the bound took its gradient away."""
        ratio_W = terms.ratio_W()
        raw_W = ratio_W * terms.advantage_W
        bounded_W = ratio_W.clamp(self.low, self.high) * terms.advantage_W
        loss_W = -torch.minimum(raw_W, bounded_W) - self.entropy * terms.entropy_W
        return LossValue(loss_W, bounded_W < raw_W)
