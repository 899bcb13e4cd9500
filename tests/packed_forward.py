"""The decoder's hidden states of whole sequences: what learner and sampler compute in parts has to agree with them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.decoder import Decoder, LoraLike
from models.forward import forward_rectangle
from models.packing import padded_rectangles


def forward_packed(
    decoder: Decoder, ids_T: Tensor, lengths: Sequence[int], lora: LoraLike | None = None, token_budget: int = 4096
) -> Tensor:
    """Final hidden states [T, D] of concatenated sequences, in their order; ``lengths`` are the tokens of each."""
    weights = decoder.weights(lora)
    index_parts, hidden_parts = [], []
    for grid in padded_rectangles(lengths, token_budget):
        index_BL = torch.from_numpy(grid.index_BL).to(ids_T.device)
        real_BL = torch.from_numpy(grid.real_BL).to(ids_T.device)
        hidden_parts.append(forward_rectangle(weights, ids_T[index_BL])[real_BL])
        index_parts.append(index_BL[real_BL])
    hidden_TD = torch.cat(hidden_parts)
    return hidden_TD[torch.cat(index_parts).argsort()]
