"""Closed history in Parquet files: written once from the stream, attached to projections instead of being loaded."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from league.log.base import Recorded
from league.projections.marks import Marks


class SegmentFiles(msgspec.Struct, frozen=True):
    """A closed range of the history as Parquet files on this machine."""

    first: int
    """Sequence that the range begins at; the end of the range before, plus one."""
    last: int
    """Sequence that the range ends at, inclusive."""
    files: dict[str, Path]
    """By part: ``matches``, ``match_seats``, ``match_failures``, ``ratings``, ``opponents_sampled`` (rows of those
    tables), ``events_bulky`` and ``events_rest`` (the events as they were written)."""


def write_segment(
    first: int, last: int, batches: Iterable[Sequence[Recorded]], marks: Marks, folder: Path
) -> SegmentFiles:
    """Write the events from ``first`` to ``last`` as Parquet files into ``folder``.

    Args:
        first: Where the range begins.
        last: Where it ends, inclusive.
        batches: Its events, in order.
        marks: What was seen before ``first``; moved on to ``last``.
        folder: Made if missing.
    """
    raise NotImplementedError


def read_segment(files: SegmentFiles) -> Iterator[list[Recorded]]:
    """The events of a segment again, exactly and in order, some thousand at a time."""
    raise NotImplementedError
