"""Settings of the learner: the ``trainer.learner`` table."""

import math
from typing import Any, Literal

import msgspec
import torch

from models.decoder import PIECE_ELEMENTS
from schemas.config import LeagueConfig, TrainerConfig, convert
from schemas.config.base import Table
from schemas.numbers import Count, NonNegativeFloat, PositiveFloat, PositiveInt

WIDE_BOUND, NARROW_BOUND = 1e-3, 5e-2
"""``LearnerConfig.ratio_bound`` of a base of 32 bits, and of fewer.

Sampler and learner were measured to differ by 1e-6 at most in float32, and by 7e-3 on average in bfloat16.
"""


PRETRAINED_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "epochs": 1,
    "minibatch_sequences": 1_000_000,
    "minibatch_tokens": 1_000_000_000,
    "rectangle_tokens": 1_024,
}
"""Settings of a pretrained model: a small rate, and one update per step, so that it keeps what it knows; and half as
many tokens at once, whose activations take 1 to 2 MB each in a model of 135 million parameters."""


class LearnerConfig(Table, frozen=True):
    """Optimiser and minibatches. Defaults are for a model that the league makes; others are named."""

    epochs: PositiveInt = 2
    """Passes over a step's trajectories; 1 by default for a pretrained model."""
    learning_rate: PositiveFloat = 3e-3
    """Peak learning rate; 1e-4 by default for a pretrained model."""
    schedule: Literal["constant", "cosine", "linear"] = "linear"
    """How the rate decays to 0 at the end of the training budget; without a budget it stays constant."""
    warmup_updates: Count = 0
    """Optimiser updates over which the rate rises from 0, counted from when the optimiser's moments were reset."""
    weight_decay: NonNegativeFloat = 0.01
    grad_clip: PositiveFloat = 1.0
    """Largest L2 norm of a minibatch's gradient."""
    minibatch_sequences: PositiveInt = 200
    """About so many sequences per optimiser update; by default one update per step for a pretrained model."""
    minibatch_tokens: PositiveInt = 65_536
    """About so many tokens per optimiser update at most; unlimited by default for a pretrained model."""
    rectangle_tokens: PositiveInt = 2_048
    """Tokens computed at once, padding included; more suits a GPU, but not a CPU's cache. 1,024 by default for a
    pretrained model."""
    layout: Literal["auto", "packed", "prefix_tree", "rectangles"] = "auto"
    """``rectangles``: sequences of similar length side by side, padded. ``packed``: one after the other in a row.
    ``prefix_tree``: in a row in which common beginnings (equal prompts, rules, earlier turns) are computed once.
    ``auto``: the tree, on a CPU, for a batch whose sequences share a fifth of their tokens, else rectangles."""
    recompute_layers: bool = False
    """Keep no activations within layers: the backward pass computes them again, for a third more time."""
    logit_elements: PositiveInt = PIECE_ELEMENTS
    """Logits of the whole vocabulary that are held at once; where there are more they are computed in pieces, and again
    in the backward pass."""
    max_train_len: PositiveInt | None = None
    """Longest sequence that is trained on, in tokens; choices of longer steps behind it are left out, and counted."""
    mask_truncated: bool = False
    """Leave out replies that were cut off at their limit of tokens: what they earned says nothing of the part that was
    written (Yu et al. 2025, section 3.4). They still count in baselines."""
    filter_zero_advantage: bool = False
    """Leave out trajectories whose advantages are all 0: only the entropy bonus would learn from them."""
    refills: Count = 4
    """How often further trajectories are waited for in place of those left out, as far as play may be ahead
    (``rollout.ahead_steps``, which has to be above 1 for it) and at ``trainer.buffer.level`` ``episode``."""
    ratio_bound: PositiveFloat | None = None
    """Alarm where the log-probabilities of what the current version sampled differ from the sampler's by more than
    this on average, in nats. None takes 0.001 for a float32 base and 0.05 for a narrower one."""

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate, without warm-up, after this share of the training budget, 0 to 1.

        ``cosine`` is Loshchilov & Hutter 2017, eq. 5, without restarts.
        """
        left = 1.0 - min(max(progress, 0.0), 1.0)
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (left if self.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left)))

    def warmup_factor(self, updates: int) -> float:
        """Share of the rate that applies after a number of updates."""
        return min((updates + 1) / self.warmup_updates, 1.0) if self.warmup_updates else 1.0

    def ratio_bound_for(self, dtype: torch.dtype) -> float:
        """``ratio_bound`` for a base of this type."""
        if self.ratio_bound is not None:
            return self.ratio_bound
        return NARROW_BOUND if dtype.itemsize < 4 else WIDE_BOUND


def resolve_trainer(config: LeagueConfig) -> TrainerConfig:
    """The trainer's settings; the learner's are completed by the defaults for the kind of base model."""
    trainer = config.trainer
    if config.model.base == "made":
        return trainer
    return msgspec.structs.replace(trainer, learner=PRETRAINED_DEFAULTS | trainer.learner)


def resolve_learner(config: LeagueConfig) -> LearnerConfig:
    """The learner's settings by the kind of base model.

    Raises:
        ConfigError: an unknown setting or an invalid value.
    """
    return convert(resolve_trainer(config).learner, LearnerConfig, "trainer.learner")
