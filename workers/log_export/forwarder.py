"""Exports a history to one destination: in order, in batches, continuing from its position."""

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from league.log.base import EventLog, RecordedEvent
from schemas.errors import BusyError, LeagueError, UsageError
from schemas.files import try_lock
from workers.log_export.lines import ExportTarget, LogLine, LogLineWriter
from workers.runtime import SequenceProgress

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 1_000_000
"""Maximum size of a batch's lines; a longer line is sent alone."""
BATCH_LINGER_S = 0.5
"""Time for a batch to fill, after its first event."""

_MAX_READ_EVENTS = 5_000
"""Maximum events read for a batch, where most are filtered out."""
_MAX_READ_AHEAD = 1_000
"""Maximum events read while a batch is sent."""


class LogExporter:
    """Exports a history to one destination.

    The target must be open. Without ``kinds`` all types of events are sent; undecodable messages have the type ``""``.
    It begins at the sequence ``first``, and keeps ``progress`` up to date.
    """

    def __init__(
        self,
        target: ExportTarget,
        writer: LogLineWriter,
        kinds: Collection[str],
        first: int,
        progress: SequenceProgress | None = None,
    ) -> None:
        self._target = target
        self._writer = writer
        self._kinds = frozenset(kinds)
        self._first = max(first, 1)
        self._progress = progress or SequenceProgress()
        self._waiting: asyncio.Queue[RecordedEvent | None] = asyncio.Queue(_MAX_READ_AHEAD)
        """Events read and not yet sent; None marks the end."""
        self._next: RecordedEvent | None = None
        self._stopped = self._ended = False

    async def run(self, history: EventLog, last: int | None = None) -> None:
        """Send all events up to ``last``; with None, continue with new events until ``stop``.

        ``LeagueError`` if the destination does not accept events, or the history cannot be read.
        """
        reading = asyncio.create_task(self._read(history, last))
        try:
            await self._progress.advance(self._first - 1)
            while (batch := await self._next_batch()) is not None:
                await self._target.send(batch.lines, batch.upto)
                await self._progress.advance(batch.upto)
            if not self._stopped:
                await reading
                await self._progress.advance(last or 0)
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def stop(self) -> None:
        """Make ``run`` return after the current batch."""
        self._stopped = self._ended = True
        with contextlib.suppress(asyncio.QueueFull):
            # Wakes a waiting ``_peek``; where the queue is full, none waits.
            self._waiting.put_nowait(None)

    async def _read(self, history: EventLog, last: int | None) -> None:
        try:
            if last is None or self._first <= last:
                events = history.follow(self._first) if last is None else history.read(self._first, last)
                async for recorded in events:
                    await self._waiting.put(recorded)
        except Exception:
            # Ends ``_next_batch``; ``run`` then awaits this task, which raises.
            await self._waiting.put(None)
            raise
        await self._waiting.put(None)

    async def _next_batch(self) -> "_Batch | None":
        """The next batch, once it is full or ``BATCH_LINGER_S`` is over; None at the end."""
        recorded = await self._peek()
        if recorded is None:
            return None
        batch = _Batch()
        until = asyncio.get_running_loop().time() + BATCH_LINGER_S
        while recorded is not None:
            kind = "" if recorded.event is None else type(recorded.event).__name__
            line = self._writer.make_line(recorded) if not self._kinds or kind in self._kinds else None
            if not batch.add(recorded.sequence, line):
                break
            self._next = None
            recorded = await self._peek(until)
        return batch

    async def _peek(self, until: float | None = None) -> RecordedEvent | None:
        """The next event; None at the end, or if none arrives until a time of the event loop."""
        if self._next is None and not self._ended:
            try:
                async with asyncio.timeout_at(until):
                    self._next = await self._waiting.get()
            except TimeoutError:
                return None
            self._ended = self._ended or self._next is None
        return None if self._ended else self._next


class _Batch:
    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.upto = 0
        self._bytes = self._read = 0

    def add(self, sequence: int, line: LogLine | None) -> bool:
        """Add an event; False if there is no room for it."""
        size = len(line.data) if line is not None else 0
        if (
            len(self.lines) >= MAX_BATCH_EVENTS
            or self._read >= _MAX_READ_EVENTS
            or (self.lines and self._bytes + size > MAX_BATCH_BYTES)
        ):
            return False
        if line is not None:
            self.lines.append(line)
        self.upto = sequence
        self._bytes += size
        self._read += 1
        return True


class _SavedPosition(msgspec.Struct):
    sequence: int
    to: str
    """The host, for readers of the file."""


class ExportPosition:
    """The stored position of one destination in one history, locked by one process at a time.

    ``name`` is the stem of its files in the run's ``folder``; ``to`` is the destination's host, for messages and
    readers of the file.
    """

    def __init__(self, folder: Path, name: str, to: str) -> None:
        self.path = folder / f"{name}.json"
        self.rejected_path = folder / f"{name}-refused.jsonl"
        """Lines that the destination rejected."""
        self._to = to
        self._lock: BinaryIO | None = None

    def open(self) -> int:
        """Lock and read the position; returns its sequence, 0 if there is none yet.

        Raises:
            BusyError: another process holds the lock.
            UsageError: the folder is not writable, or the file holds no position.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self.path.with_suffix(".lock").open("ab")
            is_locked = try_lock(self._lock)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror}); expected a folder that can") from None
        if not is_locked:
            self.close()
            raise BusyError(f"{self.path}: another process forwards to {self._to} from here")
        try:
            return max(msgspec.json.decode(self.path.read_bytes(), type=_SavedPosition).sequence, 0)
        except FileNotFoundError:
            return 0
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{self.path}: {error}; expected how far {self._to} has come (remove it to send everything again)"
            ) from None

    def save(self, sequence: int) -> None:
        """Store a position; on return it is on disk; ``LeagueError`` if the file cannot be written."""
        fresh = self.path.with_suffix(".new")
        with _room_expected(self.path):
            _write(fresh, "wb", msgspec.json.encode(_SavedPosition(sequence, self._to)))
            fresh.replace(self.path)

    def save_rejected(self, line: LogLine, why: str) -> None:
        """Store a rejected line; on return it is on disk; ``LeagueError`` if the file cannot be written."""
        rejected = msgspec.json.encode({"why": why, "line": msgspec.Raw(line.data)})
        with _room_expected(self.rejected_path):
            _write(self.rejected_path, "ab", rejected + b"\n")

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextlib.contextmanager
def _room_expected(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LeagueError(f"{path}: cannot be written ({error.strerror}); expected room for it") from None


def _write(path: Path, mode: Literal["wb", "ab"], data: bytes) -> None:
    with path.open(mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
