"""Sequences of many lengths as right-padded rectangles with little padding, or in rows without any.

Shape suffixes: S sequence of the batch, B sequence of a rectangle or row.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def padded_rectangles(lengths: Sequence[int] | Ints, token_budget: int) -> Iterator[Ints]:
    """Bucket sequences by length into rectangles of at most ``token_budget`` cells, or of one sequence.

    Yields the indices [B] of each rectangle's sequences. Deterministic: equal lengths keep their order.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64)
    order_S = np.argsort(lengths_S, kind="stable")[::-1]
    begin = 0
    while begin < len(order_S):
        width = max(int(lengths_S[order_S[begin]]), 1)
        sequences_B = order_S[begin : begin + max(token_budget // width, 1)]
        yield sequences_B
        begin += len(sequences_B)


def packed_rows(lengths: Sequence[int] | Ints, token_budget: int) -> Iterator[Ints]:
    """Fill rows of at most ``token_budget`` tokens, or of one sequence: the longest first, each where it fits.

    Yields the indices [B] of each row's sequences. First-fit decreasing, at most 22 % more rows than needed (Johnson
    1973). Deterministic: equal lengths keep their order.
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
    yield from (np.asarray(sequences, dtype=np.int64) for sequences in filled)
