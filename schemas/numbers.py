"""Numbers: bounds that the decoders enforce, intervals of shares, and sets of sequences as ranges.

Events refer to messages by ranges ``[first, last]``, both inclusive. A sequence beyond 64 bits or a negative count or
price would be accepted by JSON and by Python, and break a table, an array or a budget later.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec

MAX_INT64 = 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
"""A count, or an index from 0: a sequence, a version, a step, a seat."""

Rank = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT64)]
"""Rank, 1 for the best."""

Int64 = Annotated[int, msgspec.Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
"""Any 64-bit integer: a seed, or an index where -1 stands for none."""

Amount = Annotated[float, msgspec.Meta(ge=0.0)]
"""Amount of time or money."""

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT64)]

Processes = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Number of processes of one kind on a machine."""

InParallel = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
"""Number of threads or matches of one process."""

FINITE = sys.float_info.max
"""Upper bound of numbers that may not be infinite."""

Finite = Annotated[float, msgspec.Meta(ge=-FINITE, le=FINITE)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=FINITE)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0, le=FINITE)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

Z_95 = 1.96
"""Quantile of the normal distribution for all 95 % intervals. Rounded, since some decide when training stops."""


def wilson_interval(wins: float, games: int) -> tuple[float, float]:
    """Ends of the 95 % score interval of a share; (0, 1) without games.

    Source: Wilson (JASA 22, 1927); Brown, Cai and DasGupta (2001), eq. 4. In SQL it is the macro ``wilson``.
    """
    if games == 0:
        return 0.0, 1.0
    share, spread = wins / games, Z_95 * Z_95 / games
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


Ranges = list[list[int]]
"""Sequence ranges, ascending and disjoint if made here; unchecked in an event."""


def to_ranges(numbers: Iterable[int]) -> Ranges:
    """The ranges that contain exactly these numbers."""
    return merge_ranges([[number, number] for number in numbers])


def merge_ranges(*sets: Sequence[Sequence[int]]) -> Ranges:
    """The union of sets of ranges; a malformed range (``[5]``, ``[9, 3]``) is empty."""
    merged: Ranges = []
    for first, last in sorted((r[0], r[1]) for ranges in sets for r in ranges if len(r) == 2 and r[0] <= r[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def ranges_above(ranges: Sequence[Sequence[int]], floor: int) -> Ranges:
    """The part of merged ranges above ``floor``."""
    return [[max(first, floor + 1), last] for first, last in ranges if last > floor]


def in_ranges(ranges: Sequence[Sequence[int]], number: int) -> bool:
    """Whether a number is in merged ranges."""
    index = bisect_right(ranges, number, key=lambda r: r[0])
    return index > 0 and number <= ranges[index - 1][1]


def range_size(ranges: Sequence[Sequence[int]]) -> int:
    """Count of the numbers in merged ranges."""
    return sum(last - first + 1 for first, last in ranges)


def expand_ranges(ranges: Sequence[Sequence[int]]) -> Iterator[int]:
    """The numbers of merged ranges, ascending."""
    for first, last in ranges:
        yield from range(first, last + 1)
