"""The decoder's hidden states of whole sequences: what learner and sampler compute in parts has to agree with them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.adapters import Lora
from models.decoder import Decoder
from models.forward import forward_rectangle, padded_rectangles


def forward_packed(
    decoder: Decoder, ids_T: Tensor, lengths: Sequence[int], lora: Lora | None = None, token_budget: int = 4096
) -> Tensor:
    """Final hidden states [T, D] of concatenated sequences, in their order; ``lengths`` are the tokens of each."""
    weights = decoder.weights(lora)
    lengths_S = np.asarray(lengths)
    starts_S = np.cumsum(lengths_S) - lengths_S
    index_parts, hidden_parts = [], []
    for sequences_B in padded_rectangles(lengths, token_budget):
        lengths_B1 = lengths_S[sequences_B, None]
        column_L = np.arange(lengths_B1.max())
        index_BL = torch.from_numpy(starts_S[sequences_B, None] + np.minimum(column_L, lengths_B1 - 1)).to(ids_T.device)
        real_BL = torch.from_numpy(column_L < lengths_B1).to(ids_T.device)
        hidden_parts.append(forward_rectangle(weights, ids_T[index_BL])[real_BL])
        index_parts.append(index_BL[real_BL])
    hidden_TD = torch.cat(hidden_parts)
    return hidden_TD[torch.cat(index_parts).argsort()]
