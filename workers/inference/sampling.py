"""Drawing one token a row from logits restricted to what is allowed, and from the nucleus of it where one is asked for.

Each row's result depends on its own logits, temperature and uniform number alone: sums run along the row in a fixed
order, so padding to the longest row changes nothing.

Shape suffixes: R row, A allowed token of a row (padded), N allowed token of all rows.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Draws(NamedTuple):
    """One token a row."""

    drawn_R: NDArray[np.int64]
    """Its index among the row's allowed ones."""
    logprobs_R: Floats
    """In nats, renormalised over what could be drawn."""
    nuclei: dict[int, NDArray[np.int64]]
    """For rows with a nucleus: the indices among the allowed ones that could be drawn, ascending."""


def draw(
    logits_N: NDArray[np.float32],
    counts_R: NDArray[np.int64],
    temperatures_R: Floats,
    uniforms_R: Floats,
    top_ps_R: Floats,
) -> Draws:
    """Inverse-CDF draws from ``softmax(logits / temperature)``.

    Args:
        logits_N: Logits of the allowed tokens, one row after the other.
        counts_R: Allowed tokens of each row, at least one.
        temperatures_R: Greater than zero.
        uniforms_R: In [0, 1).
        top_ps_R: Probability that the most likely tokens must have together, in (0, 1]; 1 keeps all.
    """
    rows = np.arange(len(counts_R))
    real_RA = np.arange(counts_R.max()) < counts_R[:, None]
    scaled_RA = np.full(real_RA.shape, -np.inf)
    scaled_RA[real_RA] = logits_N
    scaled_RA /= temperatures_R[:, None]
    scaled_RA -= scaled_RA.max(axis=1, keepdims=True)
    last_R, nuclei = counts_R - 1, {}
    if cut := np.flatnonzero(top_ps_R < 1).tolist():
        last_R = last_R.copy()
        for row in cut:
            kept_A = nucleus(scaled_RA[row], top_ps_R[row])
            nuclei[row], last_R[row] = kept_A, kept_A[-1]
            kept_scores_A = scaled_RA[row, kept_A]
            scaled_RA[row] = -np.inf
            scaled_RA[row, kept_A] = kept_scores_A
    cumulative_RA = np.exp(scaled_RA).cumsum(axis=1)
    total_R = cumulative_RA[:, -1]
    drawn_R = (cumulative_RA <= (uniforms_R * total_R)[:, None]).sum(axis=1)
    drawn_R = np.minimum(drawn_R, last_R)
    return Draws(drawn_R, scaled_RA[rows, drawn_R] - np.log(total_R), nuclei)


def nucleus(scores_A: Floats, top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the fewest most likely tokens with at least the probability ``top_p`` together.

    Top-p sampling: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", equation 2. Of equally likely
    tokens, those with the smaller index come first.

    Args:
        scores_A: Logarithms of the probabilities, up to a constant; minus infinity for what cannot be drawn.
        top_p: In (0, 1).
    """
    order_A = np.argsort(-scores_A, kind="stable")
    cumulative_A = np.exp(scores_A[order_A]).cumsum()
    enough = int(np.searchsorted(cumulative_A, top_p * cumulative_A[-1]))
    return np.sort(order_A[: enough + 1])


def flatten(choices: Sequence[Sequence[int] | None], vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Allowed tokens of all rows one after the other, and how many each row has; None is the whole vocabulary."""
    counts_R = np.fromiter(
        (vocabulary if tokens is None else len(tokens) for tokens in choices), np.int64, len(choices)
    )
    if any(tokens is None for tokens in choices):
        whole = np.arange(vocabulary)
        return np.concatenate([whole if tokens is None else np.asarray(tokens) for tokens in choices]), counts_R
    constrained = chain.from_iterable(tokens for tokens in choices if tokens is not None)
    return np.fromiter(constrained, np.int64, int(counts_R.sum())), counts_R
