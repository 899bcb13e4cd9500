"""Arranging sequences of many lengths as right-padded rectangles with little padding, or in rows without any.

Shape suffixes: S sequence of the batch, B sequence of a rectangle, L position in it, T token of the packed batch.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rectangle(NamedTuple):
    """Some sequences of a packed batch, side by side."""

    sequences_B: NDArray[np.int64]
    """Indices of the sequences in the batch's lengths."""
    index_BL: NDArray[np.int64]
    """Index of each cell's token in the packed batch; padding repeats the sequence's last token."""
    real_BL: NDArray[np.bool_]
    """True for tokens, False for padding."""


def padded_rectangles(lengths: Sequence[int] | NDArray[np.int64], token_budget: int) -> Iterator[Rectangle]:
    """Bucket sequences by length into rectangles of at most ``token_budget`` cells, or of one sequence.

    Deterministic: equal lengths keep their order.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64)
    starts_S = np.cumsum(lengths_S) - lengths_S
    order_S = np.argsort(lengths_S, kind="stable")[::-1]
    begin = 0
    while begin < len(order_S):
        width = max(int(lengths_S[order_S[begin]]), 1)
        sequences_B = order_S[begin : begin + max(token_budget // width, 1)]
        lengths_B1 = lengths_S[sequences_B, None]
        column_L = np.arange(width)
        index_BL = starts_S[sequences_B, None] + np.minimum(column_L, lengths_B1 - 1)
        yield Rectangle(sequences_B, index_BL, column_L < lengths_B1)
        begin += len(sequences_B)


class PackedRow(NamedTuple):
    """Some sequences of a packed batch, one after the other."""

    sequences_B: NDArray[np.int64]
    """Indices of the sequences in the batch's lengths."""


def packed_rows(lengths: Sequence[int] | NDArray[np.int64], token_budget: int) -> Iterator[PackedRow]:
    """Fill rows of at most ``token_budget`` tokens, or of one sequence: the longest first, each where it fits.

    First-fit decreasing, at most 22 % more rows than needed (Johnson 1973). Deterministic: equal lengths keep their
    order.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64)
    filled: list[list[int]] = []
    free: list[int] = []
    for sequence in np.argsort(-lengths_S, kind="stable").tolist():
        length = int(lengths_S[sequence])
        at = next((at for at, left in enumerate(free) if length <= left), len(free))
        if at == len(free):
            filled.append([])
            free.append(token_budget)
        filled[at].append(sequence)
        free[at] -= length
    for sequences in filled:
        yield PackedRow(np.asarray(sequences, dtype=np.int64))
