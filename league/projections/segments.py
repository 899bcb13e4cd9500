"""Segments: closed history in Parquet files, written once from the stream and attached to projections.

A segment holds the deduplicated rows of the bulky tables, and every event exactly as it was recorded: those that
projections load in one file, those that the bulky tables were made of in another.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path

import duckdb
import msgspec

from league.log.base import RecordedEvent
from league.projections.dedup_index import DedupIndex
from league.projections.load import Loader
from league.projections.tables import (
    BULK_EVENTS,
    BULK_TABLES,
    LOADER_SETTINGS,
    connect_duckdb,
    create_statements,
    sql_literal,
    union_view_statements,
)
from schemas.errors import DecodeError, UsageError

BATCH, BATCH_BYTES = 20_000, 16 * 2**20
"""Events loaded at a time, and the bytes of their payloads: fewer are slower, more take more memory."""

_VECTOR = 2048
"""Rows that DuckDB reads at a time."""

PARTS = (*BULK_TABLES, "events_bulky", "events_rest")


class SegmentFiles(msgspec.Struct, frozen=True):
    """A closed range of the history as local Parquet files."""

    first: int
    """Sequence that the range begins at; the end of the range before, plus one."""
    last: int
    """Sequence that the range ends at, inclusive."""
    files: dict[str, Path]
    """Files by part (``PARTS``): rows of the bulky tables, and the events as written. The position of a projection
    alone tells up to where the files of a range count."""


def write_segment(
    first: int, last: int, batches: Iterable[Sequence[RecordedEvent]], dedup: DedupIndex, folder: Path
) -> SegmentFiles:
    """Write the events from ``first`` to ``last`` as Parquet files into ``folder``.

    Equal events and equal indexes give files of equal content. ``batches`` hold the events in order. ``dedup`` is the
    index before ``first``, which is advanced to ``last`` and unusable after an error. The files are named by
    part. UsageError if an event lies outside of the range or out of order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {part: folder / f"{part}.parquet" for part in PARTS}
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        connect_duckdb(Path(scratch) / "rows.duckdb", LOADER_SETTINGS) as connection,
    ):
        for statement in [*create_statements(), *union_view_statements({})]:
            connection.execute(statement)
        loader = Loader(connection, cut=False)
        for batch in split_batches(_check_range(batches, first, last)):
            connection.begin()
            loader.load(batch, dedup, small=False)
            connection.commit()
        # A type of NULL is in no list.
        is_bulky = f"coalesce(type IN ({', '.join(map(sql_literal, BULK_EVENTS))}), false)"
        for part, path in files.items():
            if part.startswith("events"):
                source = f"kept.events WHERE {is_bulky if part == 'events_bulky' else f'NOT {is_bulky}'}"
            else:
                source = f"kept.{part}"
            connection.execute(f"COPY (FROM {source}) TO {sql_literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
    return SegmentFiles(first, last, files)


def _check_range(batches: Iterable[Sequence[RecordedEvent]], first: int, last: int) -> Iterator[RecordedEvent]:
    place = first - 1
    for recorded in (recorded for batch in batches for recorded in batch):
        if not place < recorded.sequence <= last:
            raise UsageError(f"segment {first}-{last}: event {recorded.sequence} after {place}; expected the next one")
        place = recorded.sequence
        yield recorded


def read_segment(files: SegmentFiles) -> Iterator[list[RecordedEvent]]:
    """The events of a segment as they were recorded, in order and in batches; raises as ``read_event_batches`` does."""
    parts = [chain.from_iterable(read_event_batches(files.files[part])) for part in ("events_bulky", "events_rest")]
    return split_batches(merge(*parts, key=attrgetter("sequence")))


_STORED_EVENTS = """
    SELECT sequence::BIGINT, time_ns::BIGINT, subject::VARCHAR, producer::VARCHAR,
           if(payload IS NULL, NULL, coalesce(raw::BLOB, encode(payload::VARCHAR))), schema::BIGINT
    FROM read_parquet(?)
"""
"""Events with the fields of ``RecordedEvent``, in order; none may be missing."""


def read_event_batches(path: Path) -> Iterator[list[RecordedEvent]]:
    """The events in a file, in batches.

    Raises:
        DecodeError: the file is damaged.
    """
    try:
        # A connection of its own: some errors of reading end it.
        with connect_duckdb(None, LOADER_SETTINGS) as connection:
            rows = connection.execute(_STORED_EVENTS, [str(path)])
            while batch := rows.fetchmany(_VECTOR):
                if any(None in row for row in batch):
                    raise DecodeError(f"{path}: not the events of a segment: expected each to have all columns but raw")
                yield [RecordedEvent(*row) for row in batch]
    # The second: DuckDB's message holds damaged text.
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise DecodeError(f"{path}: not the events of a segment: {error}") from error


def split_batches(events: Iterable[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
    """Events in lists of at most ``BATCH``, and of at most ``BATCH_BYTES`` unless one event alone is larger."""
    batch: list[RecordedEvent] = []
    size = 0
    for recorded in events:
        size += len(recorded.payload)
        if batch and (len(batch) == BATCH or size > BATCH_BYTES):
            yield batch
            batch, size = [], len(recorded.payload)
        batch.append(recorded)
    if batch:
        yield batch
