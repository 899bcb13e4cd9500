"""SQL over a run's DuckDB file, brought up to the newest event first; events named by sequence or time (``--at``)."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from league.history.lineage import QueryFunction
from league.log.base import EventLog
from league.projections.query import QueryLimits, QueryProcess, QueryResult, names_decisions
from league.projections.tables import (
    LOADER_SETTINGS,
    DamagedFileError,
    connect_duckdb,
    is_damage,
    read_projection_position,
    remove_projection,
)
from league.run import Run
from schemas.errors import BusyError, LeagueError, UsageError

if TYPE_CHECKING:
    from league.log.jetstream import JetStreamLog
    from league.projections.projection import Projection

T = TypeVar("T")

TABLE_COMMENTS = """
    SELECT table_name AS name, table_comment AS comment FROM information_schema.tables
    WHERE table_schema = 'main' AND table_catalog = current_database()
"""
"""SQL for the tables and views that people query, with their comments."""

_TIMEOUT_S = 60.0
_NOTICE_AFTER_S = 2.0

_ARCHIVE_THRESHOLD = 50_000
"""Missing events from which on looking them up in the archive pays off."""


async def query_run(run: Run, statement: str, limits: QueryLimits | None = None) -> QueryResult:
    """Run SQL over a run's whole history; raises as ``query_history`` does, and ``NoLeagueError`` without a league."""
    # Its process starts while the broker does.
    exists, decisions = run.projection.exists(), names_decisions(statement)
    query = QueryProcess(run.projection, limits, decisions=decisions) if exists else None
    try:
        async with run.open_log() as history:
            return await query_history(run, history, statement, limits, query)
    finally:
        if query is not None:
            query.close()


async def query_history(
    run: Run,
    history: "JetStreamLog",
    statement: str,
    limits: QueryLimits | None = None,
    query: QueryProcess | None = None,
) -> QueryResult:
    """Run SQL over the whole history as it is now; waits for other commands on the same file.

    ``query`` is a process started in advance for this statement.

    Raises:
        UsageError: the statement is invalid, writes, or reads anything but the tables.
        BusyError: another process has held the file for a minute; the message names it.
        LeagueError: a limit was reached.
    """
    decisions = names_decisions(statement)
    started = [query] if query is not None else []

    async def attempt() -> QueryResult:
        newest = await history.last_sequence()
        process = started.pop() if started else QueryProcess(run.projection, limits, decisions=decisions)
        with contextlib.closing(process) as query:
            try:
                if await asyncio.to_thread(query.position) == newest:
                    return await asyncio.to_thread(query.run, statement)
            except DamagedFileError as error:
                print(f"rebuilding the tables: {' '.join(str(error).split())[:200]}", file=sys.stderr)
                remove_projection(run.projection)
        return await answer_updated()

    async def answer_updated() -> QueryResult:
        await update_projection(run, history, decisions=decisions)
        with contextlib.closing(QueryProcess(run.projection, limits)) as query:
            await asyncio.to_thread(query.position)
            return await asyncio.to_thread(query.run, statement)

    return await _wait_for_file(attempt)


async def _wait_for_file(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry while another process has the tables' file open, and say so; raises ``BusyError`` after a minute."""
    began = time.monotonic()
    has_warned = False
    while True:
        try:
            return await attempt()
        except BusyError as error:
            waited_s = time.monotonic() - began
            if waited_s > _TIMEOUT_S:
                raise
            if not has_warned and waited_s > _NOTICE_AFTER_S:
                print(f"waiting: {error}", file=sys.stderr)
                has_warned = True
            await asyncio.sleep(0.2)


def recorded_position(run: Run) -> int:
    """The last event that the run's tables hold; 0 without tables that can be read now."""
    try:
        if not run.projection.exists():
            return 0
        with connect_duckdb(run.projection, LOADER_SETTINGS, read_only=True) as connection:
            return read_projection_position(connection, run.folder) or 0
    except LeagueError:
        return 0


async def update_projection(run: Run, history: "JetStreamLog", *, decisions: bool = False) -> None:
    """Bring a run's file up to the newest event; raises ``BusyError`` while another process has it open.

    With ``decisions``, their segments are fetched, so that the view of this name has all rows.
    """
    # Imported here: a file that is up to date does not need it, and loading it takes longer than most queries.
    from league.projections.projection import open_disposable

    # The league of another machine: its tables are the first files here.
    run.make_folder()
    try:
        with open_disposable(run.projection) as projection:
            await _load_all(projection, run, history, decisions)
    except duckdb.Error as error:
        if not is_damage(error):
            raise
        print(f"rebuilding: {run.projection} is damaged: {' '.join(str(error).split())[:200]}", file=sys.stderr)
        remove_projection(run.projection)
        with open_disposable(run.projection) as projection:
            await _load_all(projection, run, history, decisions)


async def _load_all(projection: "Projection", run: Run, history: "JetStreamLog", decisions: bool) -> None:
    await load_projection(projection, run, history)
    if decisions:
        from league.projections.decision_files import attach_decisions

        await attach_decisions(projection, run.open_blob_store(history.client))


async def load_projection(projection: "Projection", run: Run, history: "JetStreamLog") -> None:
    """Bring a projection up to the newest event, attaching archived segments where many events are missing."""
    from league.integrity.archive import fetch_attachable, next_segment_start
    from league.projections.projection import catch_up

    if projection.rebuild_reason:
        print(f"rebuilding: {projection.rebuild_reason}", file=sys.stderr)
    newest = await history.last_sequence()
    blobs = run.open_blob_store(history.client)
    report = progress_lines(newest)
    while newest - projection.position > _ARCHIVE_THRESHOLD:
        closed = await fetch_attachable(history, blobs, projection.position)
        if closed is not None:
            projection.attach(closed.segments, closed.marks)
        following = await next_segment_start(history, blobs, projection.position)
        if following is None:
            break
        await catch_up(projection, history, following - 1, report)
        if projection.position != following - 1:
            # The last event of the range is lost in the stream, so no segment can follow.
            break
    await catch_up(projection, history, progress=report)


def progress_lines(newest: int, after_s: float = 1.0, interval_s: float = 10.0) -> Callable[[int], None]:
    """Print on standard error how far the tables are: the first line after a second, then every ten seconds."""
    due = time.monotonic() + after_s

    def report(position: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + interval_s
            print(f"bringing the tables up to date: event {position:,} of {newest:,}", file=sys.stderr, flush=True)

    return report


def unreadable_warning(result: QueryResult) -> str:
    """A warning about events that this version cannot read; empty when there are none."""
    if not result.unreadable:
        return ""
    named = ", ".join(f"{count:,} {name}" for name, count in result.unreadable)
    count = sum(count for _, count in result.unreadable)
    return f"warning: {count:,} events in this history are skipped, since this version cannot read them: {named}"


def row_dicts(columns: Any) -> list[dict[str, Any]]:
    """The rows of a DuckDB result as dicts by column."""
    names = [column[0] for column in columns.description]
    return [dict(zip(names, row, strict=True)) for row in columns.fetchall()]


class TableReader:
    """A read-only connection to the tables of a run, as they are at one moment."""

    def __init__(self, run: Run) -> None:
        self.connection = connect_duckdb(run.projection, LOADER_SETTINGS, read_only=True)

    async def query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """Rows of a statement (a ``QueryFunction``)."""
        rows: list[tuple[Any, ...]] = self.connection.execute(statement).fetchall()
        return rows


@contextlib.asynccontextmanager
async def open_tables(
    run: Run, history: "JetStreamLog | None" = None, *, decisions: bool = False
) -> AsyncIterator[TableReader]:
    """A run's tables, brought up to the newest event; waits for other processes on the same file.

    With ``decisions``, the view of this name has all rows.

    Without a ``history``, the run's broker is connected until the tables are up to date.

    Raises:
        BusyError: another process has held the file for a minute.
    """
    async with run.open_log() if history is None else contextlib.nullcontext(history) as log:
        tables = await _wait_for_file(lambda: _update_and_open(run, log, decisions))
    with contextlib.closing(tables.connection):
        yield tables


async def _update_and_open(run: Run, history: "JetStreamLog", decisions: bool) -> TableReader:
    await update_projection(run, history, decisions=decisions)
    return TableReader(run)


async def resolve_sequence(run: Run, history: "JetStreamLog", text: str, option: str) -> int:
    """Parse a sequence, or a time as the newest event recorded at or before it.

    Times are in ISO 8601, UTC unless they have an offset; messages name the command line's ``option``.

    Raises:
        UsageError: it is neither, or outside the history; the message names what the history has.
    """
    if is_sequence(text):
        return await parse_sequence(history, text, option)
    moment = parse_time(text, option)
    async with open_tables(run, history) as tables:
        return await sequence_at_time(tables.query, moment, option)


def is_sequence(text: str) -> bool:
    """Whether a text is a sequence, which needs no table to look up."""
    return text.isascii() and text.isdigit() and len(text) < 20


async def parse_sequence(history: EventLog, text: str, option: str) -> int:
    """Parse a sequence of the history; raises as ``resolve_sequence`` does."""
    last = await history.last_sequence()
    if not 1 <= int(text) <= last:
        raise UsageError(f"{option} {text}: no such event; the history of {history.league!r} holds 1 to {last}")
    return int(text)


async def sequence_at_time(query: QueryFunction, moment: datetime, option: str) -> int:
    """Sequence of the newest event recorded at or before a time; raises as ``resolve_sequence`` does."""
    utc = moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    [(sequence, began, ended)] = await query(f"SELECT sequence_at(TIMESTAMP '{utc}'), min(time), max(time) FROM events")
    if not sequence:
        raise UsageError(
            f"{option} {utc} UTC: before the first event; the history spans {began:%Y-%m-%d %H:%M:%S} to "
            f"{ended:%Y-%m-%d %H:%M:%S} UTC"
        )
    return int(sequence)


def parse_time(text: str, option: str) -> datetime:
    """Parse a time in ISO 8601, UTC unless it has an offset; raises as ``resolve_sequence`` does."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text}: neither a sequence nor a time; expected a number, or ISO 8601 like 2026-01-31T12:00:00"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
