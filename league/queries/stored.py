"""A live league for folds in other threads than the server's, and copies of its tables."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil

from league.log.base import EventReader, RecordedEvent
from league.queries.live_league import LiveLeague
from schemas.errors import LogUnavailableError
from schemas.events import Event

T = TypeVar("T")

_BATCH_SIZE = 1_000
_TIMEOUT_S = 60.0


class LeagueReader(EventReader):
    """A live league's events up to ``through``, from its tables, and its blobs, for one fold at a time in ``threads``.

    Reading waits for the server's event loop, which has the connection to the broker.
    """

    def __init__(self, league: LiveLeague, through: int, threads: ThreadPoolExecutor) -> None:
        self.league = league.log.league
        self._tables = league
        self._through = through
        self._threads = threads
        self._blobs = league.run.open_blob_store(league.log.client)
        self._loop = asyncio.get_running_loop()

    async def fold(self, work: Callable[["LeagueReader"], Coroutine[Any, Any, T]]) -> T:
        """Run a fold that reads from this in a thread beside the server's."""
        return await self._loop.run_in_executor(self._threads, lambda: asyncio.run(work(self)))

    async def last_sequence(self) -> int:
        """Sequence of the newest event to include."""
        return self._through

    async def batches(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        """Read events from the tables in batches of fixed size, up to the reader's end."""
        last = self._through if last is None else min(last, self._through)
        while first <= last:
            kind = None if only is None else only.__name__
            batch = self._wait_for(
                self._tables.recorded_events(
                    "WHERE sequence BETWEEN ? AND ? AND (? IS NULL OR type = ?) ORDER BY sequence LIMIT ?",
                    *(first, last, kind, kind, _BATCH_SIZE),
                )
            )
            if not batch:
                return
            yield batch
            first = batch[-1].sequence + 1

    async def get(self, name: str) -> bytes:
        """The bytes of a blob; raises ``ArtifactError`` where it is missing or damaged."""
        return self._wait_for(self._blobs.get(name))

    def _wait_for(self, reading: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(reading, self._loop)
        try:
            return future.result(_TIMEOUT_S)
        except TimeoutError:
            future.cancel()
            raise LogUnavailableError(f"the history was not read within {_TIMEOUT_S:g} s; try again later") from None


_REUSE_FACTOR = 9
"""A slow result is reused for so many times as long as it took: at most a tenth of the time goes into making it."""
_COPY_TIMEOUT_S = 2.0


def reuse_until_s(began_s: float) -> float:
    """Until when a result that took from ``began_s`` to now is reused (both by ``time.monotonic``)."""
    now_s = time.monotonic()
    return now_s + _REUSE_FACTOR * (now_s - began_s)


class ProjectionCopy:
    """The newest copy of a league's tables, written on demand."""

    def __init__(self, league: LiveLeague) -> None:
        self._league = league
        self._lock = asyncio.Lock()
        self._path = league.run.folder / f"asked.{os.getpid()}.duckdb"
        self._valid_until: tuple[int, float] | None = None
        """Sequence of the copy, and until when it is reused."""

    async def latest(self, decisions: bool = False) -> Path:
        """A file with the tables up to the newest event; for a long history it may be some seconds old.

        It may be replaced once it is open. With ``decisions``, the view of this name has all rows.

        Raises:
            LeagueError: it cannot be written, or (``LogError``) the broker cannot be reached.
        """
        newest = await self._league.log.last_sequence()
        # The copy holds every event recorded before this call, unless the tables are far behind.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COPY_TIMEOUT_S):
                await self._league.wait_for_sequence(newest)
        async with self._lock:
            if decisions and await self._league.attach_decisions():
                self._path.unlink(missing_ok=True)
            if self._valid_until is None:
                await asyncio.to_thread(_remove_stale_copies, self._path.parent)
            sequence, until_s = self._valid_until or (-1, 0.0)
            is_fresh = sequence == self._league.position or time.monotonic() < until_s
            if not (is_fresh and self._path.exists()):
                began = time.monotonic()
                sequence = await self._league.copy(self._path)
                self._valid_until = sequence, reuse_until_s(began)
        return self._path

    def close(self) -> None:
        """Remove the copy."""
        self._path.unlink(missing_ok=True)


def _remove_stale_copies(folder: Path) -> None:
    """Remove copies of processes that were killed."""
    for path in folder.glob("asked.*.duckdb*"):
        pid = path.name.split(".")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)
