"""A running league for pages: tables and state that follow the history, and streams of updates for viewers."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec

from league.integrity.snapshots import load_state_at
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.projections.decision_files import attach_decisions
from league.projections.export import copy_projection
from league.projections.projection import Projection, open_disposable
from league.projections.tables import LOADER_SETTINGS, RECORDED_EVENTS
from league.queries.tables import load_projection, row_dicts
from league.run import Run
from league.state import LeagueState
from schemas import events as e
from schemas.errors import BusyError, LeagueError
from schemas.loggers import get_logger

_MAX_CHARS = 160


class EventSummary(msgspec.Struct, frozen=True):
    """An event as one line of the live list."""

    sequence: int
    time: str
    """ISO 8601, UTC."""
    type: str
    text: str
    match_id: str = ""
    agent: str = ""


def summarise_event(recorded: RecordedEvent) -> EventSummary:
    """An event in one line. The text is untrusted: callers must not render it as markup."""
    event = recorded.event
    time = datetime.fromtimestamp(recorded.time_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")
    name = type(event).__name__ if event is not None else "unreadable"
    text = _summary_text(event) if event is not None else str(recorded.error)
    short = text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
    match_id, agent = (getattr(event, field, "") for field in ("match_id", "agent"))
    return EventSummary(recorded.sequence, time, name, short, match_id, agent)


def _summary_text(event: e.Event) -> str:
    match event:
        case e.MatchFinished():
            winner = next((seat for seat in event.seats if seat.seat == event.winner), None)
            first = winner and (winner.team or winner.agent)
            seats = ", ".join(dict.fromkeys(seat.agent for seat in event.seats))
            return f"{event.purpose}: {f'won by {first}' if first else 'no winner'} ({seats})"
        case e.GradientStepTaken():
            loss = event.metrics.get("loss")
            suffix = f", loss {loss:.4g}" if loss is not None else ""
            return f"{event.policy} step {event.step}: {event.accepted} trajectories{suffix}"
        case e.RatingUpdated():
            return f"{event.system}: " + ", ".join(f"{c.agent} {c.after - c.before:+.1f}" for c in event.changes)
        case e.OpponentsSampled():
            return f"{event.hero} meets " + ", ".join(dict.fromkeys(pick.agent for pick in event.picks))
        case e.MatchFailed():
            return f"{event.purpose}: failed at {event.worker}: {event.error}"
        case e.PolicyPublished():
            return f"{event.policy} version {event.version} plays from now on"
        case e.EvaluationFinished():
            return f"{event.suite} of {event.agent}: {event.games} games, {event.wins} won, {event.failed} failed"
        case e.HistoryArchived():
            return f"events {event.first:,} to {event.last:,} are archived"
        case _:
            texts = []
            for key, value in msgspec.to_builtins(event).items():
                name = key.replace("_", " ")
                if value is True:
                    texts.append(name)
                elif isinstance(value, str | int) and value is not False and value != "" and key != "type":
                    texts.append(f"{name} {value}")
            return ", ".join(texts[:5])


log = get_logger()

_APPLY_INTERVAL_S = 0.2
"""Pause between two loads of new events into the tables: the most by which it delays an event."""
_MAX_BATCH = 20_000
_READER_THREADS = 2
_REOPEN_PAUSE_S = 5.0
_MAX_EVENTS_PER_MESSAGE = 30
"""Newest events of a batch that are sent to viewers; the rest is read from the tables."""
_MAX_PENDING_MESSAGES = 32
"""Messages queued for a slow viewer; the oldest are dropped, since each message replaces those before."""

T = TypeVar("T")


class Viewer:
    """A page's bounded stream of messages."""

    def __init__(self) -> None:
        self._pending: deque[bytes] = deque(maxlen=_MAX_PENDING_MESSAGES)
        self._has_pending = asyncio.Event()

    def push(self, message: bytes) -> None:
        """Add a message; drops the oldest one when the queue is full."""
        self._pending.append(message)
        self._has_pending.set()

    async def next_messages(self, timeout_s: float) -> bytes:
        """All queued messages, concatenated; empty when none arrived in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_pending.wait()
        self._has_pending.clear()
        messages = b"".join(self._pending)
        self._pending.clear()
        return messages


class LiveLeague:
    """A league that is only read; ``follow`` and ``apply_events`` keep its tables and its state up to date."""

    def __init__(self, run: Run, history: JetStreamLog, state: LeagueState, projection: Projection) -> None:
        self.run = run
        self.log = history
        self.state = state
        self._projection = projection
        self._viewers: set[Viewer] = set()
        self._open_readers()
        self._reopening: asyncio.Task[None] | None = None
        self._advanced = asyncio.Condition()
        self._write_lock = asyncio.Lock()
        self._incoming: asyncio.Queue[RecordedEvent] = asyncio.Queue(2 * _MAX_BATCH)

    @property
    def position(self) -> int:
        """Sequence of the newest event in the tables."""
        return self._projection.position

    async def read(self, work: Callable[[Any], T]) -> T:
        """Run ``work`` on a DuckDB connection to the tables, in a thread; it must only read.

        Raises:
            BusyError: the question needs more memory than the tables may use, or they have to be opened again.
        """
        tables, local, connections = self._projection, self._thread_local, self._connections

        def run() -> T:
            # A connection for each thread: opening one costs more than most queries.
            if not hasattr(local, "connection"):
                local.connection = tables.open_reader()
                connections.append(local.connection)
            return work(local.connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, run)
        except duckdb.OutOfMemoryException:
            raise BusyError(f"more memory needed than the tables may use ({LOADER_SETTINGS['memory_limit']})") from None
        except (duckdb.FatalException, duckdb.ConnectionException) as error:
            # After such an error DuckDB answers nothing any more.
            if self._reopening is None or self._reopening.done():
                self._reopening = asyncio.create_task(self._reopen(tables, error))
            raise BusyError("the tables failed and are opened again; try again in a moment") from None

    async def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of a query as dicts by column; values from requests must be ``parameters``, for the ``?`` in it."""
        return await self.read(lambda connection: row_dicts(connection.execute(sql, list(parameters))))

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query as tuples (a ``QueryFunction``)."""
        return await self.read(lambda connection: connection.execute(sql).fetchall())

    async def decisions(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of a query over ``decisions``, whose new segments are fetched first; as ``rows``."""
        await self.attach_decisions()
        return await self.rows(sql, *parameters)

    async def attach_decisions(self) -> bool:
        """Fetch new segments of decisions, so that the view of this name has all rows; returns whether there were."""
        async with self._write_lock:
            return await attach_decisions(self._projection, self.run.open_blob_store(self.log.client))

    async def recorded_events(self, condition: str, *parameters: Any) -> list[RecordedEvent]:
        """Events of the tables, by the end of the query from ``WHERE`` on."""
        return [RecordedEvent(**row) for row in await self.rows(f"{RECORDED_EVENTS} {condition}", *parameters)]

    def close(self) -> None:
        """Interrupt running queries and close the tables; events must not be applied any more."""
        for connection in self._connections:
            connection.interrupt()
        # The tables cannot be closed while queries run.
        self._executor.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()
        self._projection.close()

    def _open_readers(self) -> None:
        self._executor = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="tables")
        self._thread_local = threading.local()
        self._connections: list[Any] = []

    async def _reopen(self, failed: Projection, error: Exception) -> None:
        """Replace tables that failed, from their file or, if that fails too, by new ones; until it succeeds."""
        async with self._write_lock:
            pause_s = 0.0
            while self._projection is failed:
                log.error("the tables failed and are opened again", error=str(error).partition("\n")[0])
                await asyncio.sleep(pause_s)
                await asyncio.to_thread(self.close)
                self._open_readers()
                try:
                    if pause_s and failed.path is not None and isinstance(error, duckdb.Error):
                        failed.path.unlink(missing_ok=True)
                    projection = await _load_web_tables(self.run, self.log)
                except (duckdb.Error, LeagueError) as again:
                    error, pause_s = again, _REOPEN_PAUSE_S
                    continue
                self._projection = projection

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[Viewer]:
        """Open a viewer's stream for the length of a block."""
        viewer = Viewer()
        self._viewers.add(viewer)
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)

    async def follow(self) -> None:
        """Follow the history until cancelled, no faster than events are stored."""
        async for recorded in self.log.follow(self.state.sequence + 1):
            self.state.apply(recorded.sequence, recorded.event)
            await self._incoming.put(recorded)

    async def apply_events(self) -> None:
        """Store followed events in the tables and notify the viewers, until cancelled."""
        while True:
            batch = [await self._incoming.get()]
            while not self._incoming.empty() and len(batch) < _MAX_BATCH:
                batch.append(self._incoming.get_nowait())
            tables = self._projection
            try:
                async with self._write_lock:
                    await _run_shielded(self._projection.apply, batch)
            except duckdb.Error as error:
                await self._reopen(tables, error)
            newest = [summarise_event(recorded) for recorded in batch[-_MAX_EVENTS_PER_MESSAGE:]]
            message = self.initial_message() + _sse_message("events", newest)
            for viewer in self._viewers:
                viewer.push(message)
            async with self._advanced:
                self._advanced.notify_all()
            await asyncio.sleep(_APPLY_INTERVAL_S)

    async def wait_for_sequence(self, sequence: int) -> None:
        """Wait until the tables hold the event at a sequence."""
        async with self._advanced:
            await self._advanced.wait_for(lambda: self.position >= sequence)

    async def copy(self, path: Path) -> int:
        """Write the tables to a file at one position; returns its sequence, and raises as ``copy_projection`` does."""
        async with self._write_lock:
            await _run_shielded(copy_projection, self._projection, path)
            return self.position

    def initial_message(self) -> bytes:
        """The first message of a new stream."""
        return _sse_message("moved", self.summary())

    def summary(self) -> dict[str, Any]:
        """The league's position and counters, which every page shows."""
        state = self.state
        policy = state.config.trainer.policy if state.config is not None else "main"
        step = state.last_step(policy)
        return {
            "league": self.log.league,
            "sequence": self.position,
            "time_ms": time.time_ns() // 1_000_000,
            "training_matches": state.finished_matches("training"),
            "evaluation_matches": state.finished_matches("evaluation"),
            "failed": state.failed,
            "policy": policy,
            "step": step.step if step is not None else 0,
            "paused": state.pauses.active_pause(policy) is not None,
            "finished": state.training_finished(policy) is not None,
        }


async def _run_shielded(function: Callable[..., Any], *arguments: Any) -> None:
    """Call in a thread, and wait even when cancelled: it cannot be stopped, and the tables must stay open meanwhile."""
    work = asyncio.create_task(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


def _sse_message(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


async def _load_web_tables(run: Run, history: JetStreamLog) -> Projection:
    """The tables of a run's pages up to the newest event, in memory while another server has their file open."""
    run.make_folder()
    try:
        projection = open_disposable(run.folder / "web.duckdb", threads=2)
    except BusyError as error:
        log.warning("tables in memory", because=str(error))
        projection = Projection(threads=2, folder=run.folder)
    try:
        await load_projection(projection, run, history)
    except BaseException:  # raised again; an open file cannot be replaced
        projection.close()
        raise
    return projection


@contextlib.asynccontextmanager
async def open_live_league(run: Run, history: JetStreamLog) -> AsyncIterator[LiveLeague]:
    """A live league, brought up to its newest event; the caller runs ``follow`` and ``apply_events``."""
    with contextlib.ExitStack() as opened:
        # In this order: the tables ignore events that they hold already, the state would count them twice.
        state = await load_state_at(history, run.open_blob_store(history.client))
        projection = await _load_web_tables(run, history)
        opened.callback(projection.close)
        league = LiveLeague(run, history, state, projection)
        opened.callback(league.close)
        yield league
