"""Drawing one token a row from logits restricted to what is allowed.

Each row's result depends on its own logits, temperature and uniform number alone: sums run along the row in a fixed
order, so padding to the longest row changes nothing.

Shape suffixes: R row, A allowed token of a row (padded), N allowed token of all rows.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def draw(
    logits_N: NDArray[np.float32], counts_R: NDArray[np.int64], temperatures_R: Floats, uniforms_R: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Inverse-CDF draws from ``softmax(logits / temperature)``.

    Args:
        logits_N: Logits of the allowed tokens, one row after the other.
        counts_R: Allowed tokens of each row, at least one.
        temperatures_R: Greater than zero.
        uniforms_R: In [0, 1).

    Returns:
        The drawn token's index among its row's allowed ones [R], and its log-probability in nats [R].
    """
    rows = np.arange(len(counts_R))
    real_RA = np.arange(counts_R.max()) < counts_R[:, None]
    scaled_RA = np.full(real_RA.shape, -np.inf)
    scaled_RA[real_RA] = logits_N
    scaled_RA /= temperatures_R[:, None]
    scaled_RA -= scaled_RA.max(axis=1, keepdims=True)
    cumulative_RA = np.exp(scaled_RA).cumsum(axis=1)
    total_R = cumulative_RA[:, -1]
    drawn_R = (cumulative_RA <= (uniforms_R * total_R)[:, None]).sum(axis=1)
    drawn_R = np.minimum(drawn_R, counts_R - 1)
    return drawn_R, scaled_RA[rows, drawn_R] - np.log(total_R)


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
