"""Sampler: draws one token per row from logits restricted to the allowed tokens, with optional nucleus sampling.

Everything runs on the device of the logits; only a token and a log-probability per row leave it. Each row's result
depends on its own logits, temperature and uniform number alone: sums run along the row in a fixed order, so padding
to the longest row changes nothing.

Shape suffixes: R row, A allowed token of a row (padded), N the same of all rows without padding, D model width,
V vocabulary.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.decoder import DENSE_LIMIT, allowed_logits

AllowedTokens = Sequence[int] | None
"""Tokens to draw from, ascending; None is the whole vocabulary."""


class RowSampling(NamedTuple):
    """Sampling parameters of one row."""

    choices: AllowedTokens
    temperature: float
    """Temperature, greater than zero."""
    uniform: float
    """Uniform random number in [0, 1)."""
    top_p: float
    """Minimum total probability of the nucleus, in (0, 1]; 1 keeps all tokens."""


class SampledTokens(NamedTuple):
    """One sampled token per row."""

    tokens: list[int]
    logprobs: list[float]
    """Log-probabilities in nats, renormalised over the tokens that could be drawn."""
    nuclei: dict[int, list[int]]
    """The nucleus of each row that uses one: token ids, ascending."""


def sample_tokens(head_VD: Tensor, hidden_RD: Tensor, requests: Sequence[RowSampling]) -> SampledTokens:
    """Draw a token for every row."""
    draws = SampledTokens([0] * len(requests), [0.0] * len(requests), {})
    free = [index for index, request in enumerate(requests) if request.choices is None]
    bound = [index for index, request in enumerate(requests) if request.choices is not None]
    for rows in filter(None, (free, bound)):
        selected = [requests[row] for row in rows]
        some_RD = hidden_RD
        if len(rows) < len(requests):
            some_RD = hidden_RD.index_select(0, torch.tensor(rows, device=hidden_RD.device))
        if rows is free:
            # A token of the whole vocabulary is its own index.
            _draw(F.linear(some_RD, head_VD), None, selected, rows, draws)
        else:
            logits_RA, tokens_RA = _allowed_logits(head_VD, some_RD, [request.choices or () for request in selected])
            _draw(logits_RA, tokens_RA, selected, rows, draws)
    return draws


def _allowed_logits(head_VD: Tensor, hidden_RD: Tensor, choices: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Logits [R, A] of each row's allowed tokens, minus infinity for padding, and the tokens [R, A]."""
    device = hidden_RD.device
    counts_R = np.fromiter(map(len, choices), np.int64, len(choices))
    real_RA = np.arange(counts_R.max()) < counts_R[:, None]
    padded_RA = np.zeros(real_RA.shape, np.int64)
    padded_RA[real_RA] = np.fromiter(chain.from_iterable(choices), np.int64, int(counts_R.sum()))
    tokens_RA, mask_RA = (torch.from_numpy(array).to(device) for array in (padded_RA, ~real_RA))
    if head_VD.shape[0] <= DENSE_LIMIT:
        return F.linear(hidden_RD, head_VD).gather(1, tokens_RA).masked_fill_(mask_RA, -torch.inf), tokens_RA
    row_N = torch.from_numpy(np.repeat(np.arange(len(choices)), counts_R)).to(device)
    logits_N = allowed_logits(head_VD, hidden_RD, row_N, tokens_RA[~mask_RA])
    logits_RA = logits_N.new_full(mask_RA.shape, -torch.inf)
    return logits_RA.masked_scatter_(~mask_RA, logits_N), tokens_RA


def _draw(
    logits_RA: Tensor,
    tokens_RA: Tensor | None,
    requests: Sequence[RowSampling],
    rows: Sequence[int],
    draws: SampledTokens,
) -> None:
    """Draw from ``softmax(logits / temperature)`` by inverse CDF and write to ``rows`` of ``draws``."""

    def there(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits_RA.device)

    scores_RA = logits_RA.double() / there([request.temperature for request in requests]).unsqueeze(1)
    scores_RA -= scores_RA.amax(1, keepdim=True)
    if cut := [index for index, request in enumerate(requests) if request.top_p < 1]:
        cut_C = torch.tensor(cut, device=logits_RA.device)
        kept_CA = nucleus_mask(scores_RA[cut_C], there([requests[index].top_p for index in cut]))
        scores_RA[cut_C] = scores_RA[cut_C].masked_fill(~kept_CA, -torch.inf)
        for index, kept_A in zip(cut, kept_CA, strict=True):
            kept = kept_A.nonzero().squeeze(1) if tokens_RA is None else tokens_RA[index, kept_A]
            draws.nuclei[rows[index]] = kept.tolist()
    cumulative_RA = scores_RA.exp().cumsum(1)
    total_R = cumulative_RA[:, -1]
    # Kept below the total even if the product rounds up to it, so that the token found has a positive probability.
    drawn_R = torch.minimum(
        there([request.uniform for request in requests]) * total_R, total_R.nextafter(total_R.new_zeros(()))
    )
    index_R1 = torch.searchsorted(cumulative_RA, drawn_R.unsqueeze(1), right=True).clamp_(max=scores_RA.shape[1] - 1)
    logprobs_R = scores_RA.gather(1, index_R1).squeeze(1) - total_R.log()
    tokens_R1 = index_R1 if tokens_RA is None else tokens_RA.gather(1, index_R1)
    for row, token, logprob in zip(rows, tokens_R1.flatten().tolist(), logprobs_R.tolist(), strict=True):
        draws.tokens[row], draws.logprobs[row] = token, logprob


def nucleus_mask(scores_RA: Tensor, top_ps_R: Tensor) -> Tensor:
    """The smallest set of most likely tokens whose total probability is at least ``top_p``, as a mask [R, A].

    Top-p sampling: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", equation 2. Of equally likely
    tokens, those with the smaller index come first. Scores are logarithms of the probabilities, up to a constant, 0 at
    most; minus infinity for tokens that cannot be drawn.
    """
    order_RA = scores_RA.argsort(dim=1, descending=True, stable=True)
    cumulative_RA = scores_RA.gather(1, order_RA).exp().cumsum(1)
    short_RA = cumulative_RA < (top_ps_R * cumulative_RA[:, -1]).unsqueeze(1)
    # A token is kept while the total before it is below ``top_p``.
    kept_RA = torch.cat([torch.ones_like(short_RA[:, :1]), short_RA[:, :-1]], dim=1)
    return torch.zeros_like(kept_RA).scatter_(1, order_RA, kept_RA)
