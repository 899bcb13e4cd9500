"""What a loss looks at, computed by the model: the distribution at every branch of a rectangle.

Shape suffixes: B sequence of a rectangle, Q branch of a sequence, D model width, V vocabulary, W branch, N allowed
token, K branch with a list of them, U branch over the whole vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F

from trainer.adapters import Lora
from trainer.batching import Batch, Chunk, Floats, chunks
from trainer.decoder import Decoder, allowed_logits
from trainer.forward import Weights, forward_rectangle
from trainer.losses.base import Terms, allowed_distribution, whole_distribution
from trainer.ranks import ALONE, Ranks


def branch_terms(weights: Weights, chunk: Chunk) -> Terms:
    """Run the model on a rectangle and look at its branches."""
    hidden_BQD = forward_rectangle(weights, chunk.ids_BL, chunk.wanted_BQ)
    hidden_WD = hidden_BQD.flatten(0, 1).index_select(0, chunk.cell_W)
    logprob_W, entropy_W = _distribution(weights.head_VD, hidden_WD, chunk)
    return Terms(
        logprob_W,
        chunk.old_logprob_W,
        entropy_W,
        chunk.advantage_W,
        chunk.sequence_W,
        chunk.branches_W,
        chunk.proximal_W,
        chunk.reference_W,
    )


def _distribution(head_VD: torch.Tensor, hidden_WD: torch.Tensor, chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy [W] of each branch, over its list or over the whole vocabulary."""
    logits_N = allowed_logits(head_VD, hidden_WD, chunk.row_N, chunk.token_N)
    chosen_W, temperature_W, whole_U = chunk.chosen_W, chunk.temperature_W, chunk.whole_U
    if not len(whole_U):
        return allowed_distribution(logits_N, chunk.row_N, chosen_W, temperature_W)
    listed_K = chunk.listed_K
    logprob_K, entropy_W = allowed_distribution(logits_N, chunk.row_N, chosen_W[listed_K], temperature_W)
    logits_UV = F.linear(hidden_WD[whole_U], head_VD).to(logits_N.dtype)
    logprob_U, entropy_U = whole_distribution(logits_UV, chosen_W[whole_U], temperature_W[whole_U])
    logprob_W = logprob_U.new_empty(len(chosen_W)).index_copy(0, listed_K, logprob_K).index_copy(0, whole_U, logprob_U)
    return logprob_W, entropy_W.index_copy(0, whole_U, entropy_U)


@torch.no_grad()
def logprobs(decoder: Decoder, lora: Lora | None, batch: Batch, cells: int, ranks: Ranks = ALONE) -> Floats:
    """Log-probabilities [W] of a batch's branches, under the base with an adapter or without one.

    Args:
        decoder: the base.
        lora: the adapter, None for the base alone.
        batch: all its branches, in its order.
        cells: tokens, padding included, computed at once.
        ranks: among whom the sequences are shared out.
    """
    logprob_W, weights = np.zeros(len(batch.position_W), np.float32), decoder.weights(lora)
    own_S = ranks.share(np.arange(len(batch)), batch.length_S)
    for chunk in chunks(batch, own_S, cells, decoder.device):
        logprob_W[chunk.branch_W] = branch_terms(weights, chunk).logprob_W.float().cpu().numpy()
    ranks.add(torch.from_numpy(logprob_W))
    return logprob_W
