"""A projection of the history in a DuckDB file, or in memory, with its position; and catching up with the log."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from league.log.base import EventLog, RecordedEvent
from league.projections.dedup_index import DedupIndex
from league.projections.load import Loader
from league.projections.segments import BATCH_BYTES, SegmentFiles, read_event_batches, split_batches
from league.projections.tables import (
    LOADER_SETTINGS,
    VERSION,
    DamagedFileError,
    connect_duckdb,
    create_statements,
    decision_view_statements,
    is_damage,
    missing_segment_file,
    remove_projection,
    union_view_statements,
    view_statements,
)
from schemas.errors import UsageError
from schemas.loggers import get_logger

log = get_logger()

_DATA_ERRORS = (duckdb.OutOfMemoryException, duckdb.DataError, duckdb.InvalidInputException)
"""Errors that lie in the events of a batch; others are of the disk, of DuckDB or of our statements."""
_SKIPPED_BYTES = 200
"""Beginning of a skipped event that is kept."""


class ForeignTablesError(UsageError):
    """A DuckDB file with tables of something else."""


class Projection:
    """Tables of the history up to ``position``.

    Every batch is one transaction that also moves the position, so a killed process resumes where it was. Delete the
    file to rebuild; a file of another version, or with missing attached segments, is emptied on opening. Without a
    ``path``, the tables are kept in memory; ``folder`` is that of segments then.

    Raises:
        ForeignTablesError: the file is not a projection.
        BusyError: another process has it open.
    """

    def __init__(self, path: Path | None = None, *, threads: int = 1, folder: Path | None = None) -> None:
        self.path = path
        self._folder = path.parent if path is not None else folder
        self.rebuild_reason = ""
        """Why the tables were emptied on opening; empty when they were not."""
        settings = {**(LOADER_SETTINGS if path else {"file_search_path": str(folder or "")}), "threads": threads}
        self.connection = connect_duckdb(path, settings)
        self._loader = Loader(self.connection)
        self._dedup: DedupIndex | None = None
        self._is_open = False
        self._reached = (0, 0)
        try:
            self.position = self._committed = self._prepare()
        except BaseException:  # raised again; an open connection locks the file
            self.connection.close()
            raise

    def __enter__(self) -> "Projection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; uncommitted rows are rolled back."""
        self.connection.close()

    def apply(self, batch: Sequence[RecordedEvent], *, commit: bool = True) -> int:
        """Add events, in one transaction with the position; returns how many of them were new.

        The batch is in order of sequence; 20,000 events are a good size, as large ones are much faster. Events at or
        below the position are ignored, and duplicates (of a match, agent, step …) add rows to ``events`` only. Without
        ``commit`` the transaction stays open for more batches, until ``commit``: DuckDB writes rows in groups of
        122,880, and in smaller transactions everything twice.
        """
        new, last = list[RecordedEvent](), self.position
        for recorded in batch:
            if recorded.sequence > last:
                new.append(recorded)
                last = recorded.sequence
        loses_others = self._is_open
        try:
            for part in split_batches(new):
                self._load(part)
            if commit:
                self.commit()
        except _DATA_ERRORS as error:
            if loses_others:
                raise
            self._apply_by_halves(new, error)
        return len(new)

    def _apply_by_halves(self, events: Sequence[RecordedEvent], error: duckdb.Error) -> None:
        """Add events that could not be added together, in ever smaller transactions; one that fails alone is skipped.

        A skipped event is kept as unreadable.
        """
        middle = len(events) // 2
        parts = [events[:middle], events[middle:]]
        if middle == 0:
            (skipped,) = events
            reason = str(error).partition("\n")[0]
            log.warning("event skipped", sequence=skipped.sequence, subject=skipped.subject, because=reason)
            fields = (skipped.sequence, skipped.time_ns, skipped.subject, skipped.producer)
            parts = [[RecordedEvent(*fields, b"not loaded: " + skipped.payload[:_SKIPPED_BYTES])]]
        for part in filter(None, parts):
            try:
                self._load(part)
                self.commit()
            except _DATA_ERRORS as error_of_part:
                if middle == 0:
                    raise
                self._apply_by_halves(part, error_of_part)

    def _load(self, events: Sequence[RecordedEvent]) -> None:
        with self._transaction():
            if self._dedup is None:
                saved = self.query("FROM kept.dedup")
                self._dedup = DedupIndex.from_bytes(saved[0][0]) if saved else DedupIndex()
            self._loader.load(events, self._dedup)
            self.position = events[-1].sequence
            self._reached = self.position, events[-1].time_ns // 1000

    def commit(self) -> None:
        """Commit the open transaction, if any."""
        if not self._is_open:
            return
        with self._transaction():
            self.connection.execute("UPDATE kept.position SET sequence = ?, time = make_timestamp(?)", [*self._reached])
            if self._dedup is not None:
                self._save_dedup_index(self._dedup)
            self.connection.commit()
        self._is_open = False
        self._committed = self.position

    def attach(self, segments: Sequence[SegmentFiles], dedup: DedupIndex) -> None:
        """Attach closed history instead of loading it: bulky tables read the files in place.

        Segments are in order, the first right after the position; their files must not be moved. ``dedup`` is the
        index at the end of the last one, as ``write_segment`` left it. UsageError if the segments do not follow the
        position or each other.
        """
        place = self.position
        if not segments:
            return
        for segment in segments:
            if segment.first != place + 1:
                raise UsageError(f"segment {segment.first}-{segment.last}: expected one that begins at {place + 1}")
            place = segment.last
        with self._transaction():
            for segment in segments:
                for part, path in sorted(segment.files.items()):
                    self.connection.execute(
                        "INSERT INTO kept.attached VALUES (?, ?, ?, ?, ?)",
                        [segment.first, segment.last, part, self.file_name(path), path.stat().st_size],
                    )
            self._refresh_union_views()
            for segment in segments:
                for batch in read_event_batches(segment.files["events_rest"]):
                    self._loader.load(batch, None)
            self._save_dedup_index(dedup)
            self._dedup = None
            newest = self.query("SELECT time_ns FROM kept.all_events ORDER BY sequence DESC LIMIT 1")
            self.position, self._reached = place, (place, newest[0][0] // 1000 if newest else 0)
        self.commit()

    def file_name(self, path: Path) -> str:
        """The name of a segment's file in the tables: relative to their folder, where it is in there."""
        folder = self._folder
        if folder is None or "," in str(folder) or not path.is_relative_to(folder):
            return str(path.resolve())
        return str(path.relative_to(folder))

    def file_path(self, name: str) -> Path:
        """The file of a name in the tables."""
        return (self._folder or Path("/")) / name

    def open_reader(self) -> duckdb.DuckDBPyConnection:
        """A connection to the committed tables for another thread; the caller closes it."""
        return self.connection.cursor()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a trusted query; SQL by people goes through ``query.QueryProcess``."""
        rows: list[tuple[Any, ...]] = self.connection.execute(sql, list(parameters)).fetchall()
        return rows

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin a transaction unless one is open; roll it back on errors."""
        try:
            if not self._is_open:
                self.connection.begin()
                self._is_open = True
            yield
        except BaseException:
            # The index in memory is ahead of the file now; it is read again when needed.
            self._dedup = None
            self._is_open = False
            self.position = self._committed
            # A commit that failed has ended the transaction already.
            with contextlib.suppress(duckdb.TransactionException):
                self.connection.rollback()
            raise

    def _save_dedup_index(self, dedup: DedupIndex) -> None:
        self.connection.execute("DELETE FROM kept.dedup")
        self.connection.execute("INSERT INTO kept.dedup VALUES (?)", [dedup.to_bytes()])

    def _prepare(self) -> int:
        if tables := set(self.query("SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT temporary")):
            if ("kept", "position") not in tables:
                raise ForeignTablesError(
                    f"{self.path}: holds other tables; expected a projection of a league's history"
                )
            version, sequence = self.query("SELECT schema_version, sequence FROM kept.position")[0]
            if version != VERSION:
                reason = f"tables of version {version} were dropped; this version keeps {VERSION}"
            elif lost := missing_segment_file(self.connection, self.file_path("")):
                reason = f"the tables were dropped, since {lost}"
            else:
                return int(sequence)
            self.rebuild_reason = f"{self.path}: {reason}"
            self._drop()
        self.connection.begin()
        for statement in create_statements():
            self.connection.execute(statement)
        self._refresh_union_views()
        for statement in [*decision_view_statements({}), *view_statements()]:
            self.connection.execute(statement)
        self.connection.execute("INSERT INTO kept.position VALUES (?, 0, NULL)", [VERSION])
        self.connection.commit()
        return 0

    def _refresh_union_views(self) -> None:
        """Include the attached segments in the views of all rows."""
        part = "if(starts_with(part, 'events'), 'events', part)"
        files = self.query(f"SELECT {part}, list(path ORDER BY first, part) FROM kept.attached GROUP BY 1")
        for statement in union_view_statements(dict(files)):
            self.connection.execute(statement)

    def _drop(self) -> None:
        # By the catalogue rather than by current names: another version had its own.
        self.connection.begin()
        for select in (
            "SELECT 'VIEW', schema_name, view_name FROM duckdb_views() WHERE NOT internal",
            "SELECT 'TABLE', schema_name, table_name FROM duckdb_tables() WHERE NOT temporary",
            """SELECT DISTINCT if(function_type = 'macro', 'MACRO', 'MACRO TABLE'), schema_name, function_name
               FROM duckdb_functions() WHERE NOT internal AND function_type IN ('macro', 'table_macro')""",
        ):
            for kind, schema, name in self.query(select):
                self.connection.execute(f'DROP {kind} "{schema}"."{name}"')
        self.connection.execute("DROP SCHEMA IF EXISTS kept")
        self.connection.commit()


def open_disposable(path: Path, *, threads: int = 1) -> Projection:
    """A projection in a file that holds nothing else: one that is damaged is removed, and the tables are built anew."""
    try:
        return Projection(path, threads=threads)
    except (DamagedFileError, ForeignTablesError, duckdb.Error) as error:
        if isinstance(error, duckdb.Error) and not is_damage(error):
            raise
        remove_projection(path)
        projection = Projection(path, threads=threads)
        projection.rebuild_reason = f"{path} was removed: {' '.join(str(error).split())[:200]}"
        return projection


BATCH = 20_480
"""Events that are loaded at a time."""

_BATCHES_PER_COMMIT = 6
"""Batches between commits: one row group of DuckDB. A killed process loses no more."""

_SWITCH_S = 0.0002

_MAX_FILL = 2
"""Batches that may wait while another one is loaded; bounds the memory."""


async def catch_up(
    projection: Projection, history: EventLog, last: int | None = None, progress: Callable[[int], None] | None = None
) -> None:
    """Apply the events beyond the projection's position.

    DuckDB loads in a thread, without Python's lock, while this one reads on. It ends at the sequence ``last``, by
    default the newest when the call was made. Others must not use the projection until this returns; ``progress`` is
    called with the position after every batch.
    """
    interval = sys.getswitchinterval()
    # The loading thread waits this long for Python's lock after each of its statements; the default is 5 ms.
    sys.setswitchinterval(_SWITCH_S)
    try:
        try:
            await _catch_up(projection, history, last, progress, _BATCHES_PER_COMMIT)
        except _DATA_ERRORS:
            # Again from what was committed, so that a batch that fails can be divided.
            await _catch_up(projection, history, last, progress, 1)
    finally:
        sys.setswitchinterval(interval)


async def _catch_up(
    projection: Projection,
    history: EventLog,
    last: int | None,
    progress: Callable[[int], None] | None,
    batches_per_commit: int,
) -> None:
    waiting: list[RecordedEvent] = []
    loading: asyncio.Task[int] | None = None
    loaded = size = 0
    try:
        async for batch in history.batches(projection.position + 1, last):
            waiting += batch
            size += sum(len(recorded.payload) for recorded in batch)
            fill = max(len(waiting) / BATCH, size / BATCH_BYTES)
            if fill >= 1 and (loading is None or loading.done() or fill >= _MAX_FILL):
                await _await_load(loading, projection, progress)
                loaded += 1
                ends = loaded % batches_per_commit == 0
                loading = asyncio.create_task(asyncio.to_thread(projection.apply, waiting, commit=ends))
                waiting, size = [], 0
        await _await_load(loading, projection, progress)
        loading = None
        projection.apply(waiting)
    finally:
        # A thread cannot be interrupted, and the connection must not be closed under it.
        if loading is not None:
            await asyncio.wait([loading])


async def _await_load(
    loading: asyncio.Task[int] | None, projection: Projection, progress: Callable[[int], None] | None
) -> None:
    if loading is not None:
        # Not awaited itself: a cancellation would cancel it, and its thread would go on unawaited.
        await asyncio.wait([loading])
        loading.result()
        if progress is not None:
            progress(projection.position)
