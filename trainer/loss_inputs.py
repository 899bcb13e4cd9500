"""Inputs of a loss, computed by the model: log-probability and entropy of every choice of a rectangle.

Shape suffixes: B sequence of a rectangle, Q choice of a sequence, D model width, V vocabulary, W choice, N allowed
token, K choice with a list of them, U choice over the whole vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.adapters import Lora
from models.decoder import PIECE_ELEMENTS, Decoder, allowed_distribution, allowed_logits, full_distribution
from models.forward import Weights, forward_rectangle, recompute_in_backward
from models.model_config import ModelShape
from schemas.errors import ModelError
from schemas.trajectories import ModelCall, Trajectory
from trainer.admission import rejection_reason
from trainer.batch import Batch, Floats, Microbatch, flatten, microbatches, rank_microbatches
from trainer.learner_config import LearnerConfig
from trainer.losses import LossInputs
from trainer.ranks import SINGLE_RANK, RankComm


def compute_loss_inputs(
    weights: Weights, chunk: Microbatch, recompute: bool = False, elements: int = PIECE_ELEMENTS
) -> LossInputs:
    """Run the model on a rectangle and evaluate its choices."""
    hidden_BQD = forward_rectangle(weights, chunk.ids_BL, chunk.wanted_BQ, chunk.packed, recompute)
    hidden_WD = hidden_BQD.flatten(0, 1).index_select(0, chunk.cell_W)
    return evaluate_choices(weights.head_VD, hidden_WD, chunk, elements)


def evaluate_choices(head_VD: Tensor, hidden_WD: Tensor, chunk: Microbatch, elements: int) -> LossInputs:
    """Evaluate the choices of a rectangle, over its list or the whole vocabulary each, from their hidden states.

    ``elements`` logits are held at once; more of them are recomputed in the backward pass.
    """
    logits_N = allowed_logits(head_VD, hidden_WD, chunk.row_N, chunk.token_N, elements)
    chosen_W, temperature_W, listed_K, whole_U = chunk.chosen_W, chunk.temperature_W, chunk.listed_K, chunk.whole_U
    if not len(whole_U):
        return with_distribution(chunk, *allowed_distribution(logits_N, chunk.row_N, chosen_W, temperature_W))
    logprob_K, entropy_W = allowed_distribution(logits_N, chunk.row_N, chosen_W[listed_K], temperature_W)
    logprob_U, entropy_U = full_vocabulary_logprobs(
        head_VD, hidden_WD[whole_U], chosen_W[whole_U], temperature_W[whole_U], elements
    )
    logprob_W = logprob_U.new_empty(len(chosen_W)).index_copy(0, listed_K, logprob_K).index_copy(0, whole_U, logprob_U)
    return with_distribution(chunk, logprob_W, entropy_W.index_copy(0, whole_U, entropy_U))


def with_distribution(chunk: Microbatch, logprob_W: Tensor, entropy_W: Tensor) -> LossInputs:
    """Inputs of the loss: what was recorded of the choices, and their log-probability and entropy [W] now."""
    return LossInputs(
        logprob_W,
        chunk.old_logprob_W,
        entropy_W,
        chunk.advantage_W,
        chunk.sequence_W,
        chunk.branches_W,
        chunk.proximal_W,
        chunk.reference_W,
        trajectory_branches_W=chunk.trajectory_branches_W,
    )


def full_vocabulary_logprobs(
    head_VD: Tensor, hidden_UD: Tensor, chosen_U: Tensor, temperature_U: Tensor, elements: int = PIECE_ELEMENTS
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [U] of choices over the whole vocabulary; ``elements`` logits are held at once."""
    size = max(elements // len(head_VD), 1)
    if len(hidden_UD) <= size:
        logprob_U, entropy_U = _logprobs_and_entropies(head_VD, hidden_UD, chosen_U, temperature_U)
        return logprob_U, entropy_U
    pieces = zip(*(torch.split(x, size) for x in (hidden_UD, chosen_U, temperature_U)), strict=True)
    logprob_U, entropy_U = torch.cat(
        [recompute_in_backward(_logprobs_and_entropies, head_VD, *piece) for piece in pieces], dim=1
    )
    return logprob_U, entropy_U


def _logprobs_and_entropies(head_VD: Tensor, hidden_UD: Tensor, chosen_U: Tensor, temperature_U: Tensor) -> Tensor:
    """Log-probabilities and entropies [2, U]."""
    logits_UV = F.linear(hidden_UD, head_VD)
    logits_UV = logits_UV.to(torch.promote_types(logits_UV.dtype, torch.float32))
    return torch.stack(full_distribution(logits_UV, chosen_U, temperature_U))


@torch.no_grad()
def choice_logprobs(
    evaluate: Callable[[Microbatch], LossInputs],
    batch: Batch,
    device: torch.device,
    config: LearnerConfig,
    ranks: RankComm = SINGLE_RANK,
    even: bool = False,
) -> Floats:
    """Log-probabilities [W] of a batch's choices, under fixed weights.

    The sequences are sharded among ``ranks``; for ``even`` see ``rank_microbatches``.
    """
    logprob_W = np.zeros(len(batch.position_W), np.float32)
    for chunk, counts in rank_microbatches(batch, np.arange(len(batch)), config, device, ranks, even):
        found_W = evaluate(chunk).logprob_W
        if counts:
            logprob_W[chunk.branch_W] = found_W.float().cpu().numpy()
    ranks.all_reduce_sum(torch.from_numpy(logprob_W))
    return logprob_W


def recompute_logprobs(decoder: Decoder, lora: Lora | None, steps: Sequence[ModelCall]) -> tuple[Floats, Floats]:
    """``recompute_choices`` of the native decoder, with an adapter or without."""
    with torch.no_grad():
        evaluate = partial(compute_loss_inputs, decoder.weights(lora))
    return recompute_choices(evaluate, decoder.shape, decoder.device, steps)


@torch.no_grad()
def recompute_choices(
    evaluate: Callable[[Microbatch], LossInputs], shape: ModelShape, device: torch.device, steps: Sequence[ModelCall]
) -> tuple[Floats, Floats]:
    """Log-probabilities of every choice: the learner's [W], as ``evaluate`` gives them, and the recorded ones [W].

    The order depends on the steps' tokens and choices alone, so that results for the same steps under other masks are
    comparable element by element. Raises ``ModelError`` for steps that the learner would reject.
    """
    trajectory = Trajectory("parity", "", "", 0, "", "", list(steps), steps[-1].clock, 0.0, 0.0, 1)
    if (reason := rejection_reason(trajectory, shape.vocab_size, shape.max_positions)) is not None:
        raise ModelError(f"parity: the learner would reject what the backend sampled: {reason}")
    batch = flatten([trajectory], [np.zeros(len(steps))])
    if not len(batch):
        return np.empty(0, np.float32), np.empty(0, np.float32)
    cells = LearnerConfig().rectangle_tokens
    parts = [evaluate(chunk) for chunk in microbatches(batch, np.arange(len(batch)), cells, device)]
    learner_W, recorded_W = (
        torch.cat([getattr(part, name) for part in parts]).float().cpu().numpy()
        for name in ("logprob_W", "old_logprob_W")
    )
    return learner_W, recorded_W
