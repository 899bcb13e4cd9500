"""Events as lines of JSON, the interface of a destination, and the destinations standard output and file."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from league.log.base import RecordedEvent
from schemas.codec import DECODE_ERRORS
from schemas.errors import BusyError, LeagueError, UsageError
from schemas.events import EVENT_TYPES, RatingUpdated
from schemas.files import try_lock
from workers.runtime import run_in_daemon_thread

UNREADABLE_NAME = "league.unreadable"
"""The name of messages that this version cannot decode."""

_MAX_PAYLOAD_CHARS = 4_000
"""Characters quoted of such a message; its sequence locates the whole."""
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")
_NS = 1_000_000_000

_encoder = msgspec.json.Encoder()


class LogLine(msgspec.Struct, frozen=True):
    """An event as a line of JSON."""

    sequence: int
    name: str
    time: str
    """When the event happened: ISO 8601, UTC, microseconds."""
    data: bytes
    """The line without its line break: one JSON object, of printable characters only."""
    history: str
    """The history's name, as in the line's ``id``."""


_PRESCRIBED_NAMES = {"OpponentsSampled": "league.opponent_sampled"}
"""Names in the project's seed document (its "Axiom events"), which keep their spelling there."""
_ELO_NAME = "league.elo_updated"
"""The name of Elo ratings; those of other systems are ``league.rating_updated``."""

EXTERNAL_NAMES = {
    kind: f"league.{_WORD_START.sub('_', kind).lower().removeprefix('league_')}" for kind in EVENT_TYPES
} | _PRESCRIBED_NAMES
"""The external name of an event type, such as ``league.checkpoint_added``; ``LeagueOpened`` is ``league.opened``."""


class LogLineWriter:
    """Writes events of one history as lines.

    ``identity`` distinguishes histories of that name (``workers.tracker.history_identity``).
    """

    def __init__(self, league: str, identity: str) -> None:
        self.league = league
        self.history = f"{league}-{identity[:8]}"
        """The history's name; a line's ``id`` is this and its sequence."""

    def make_line(self, recorded: RecordedEvent) -> LogLine:
        """The event as a line in the current schema; an undecodable message as text, with the reason."""
        event = recorded.event
        time = _format_time(recorded.time_ns)
        if event is None:
            kind = ""
            name = UNREADABLE_NAME
            text = recorded.payload[: 4 * _MAX_PAYLOAD_CHARS].decode(errors="replace")[:_MAX_PAYLOAD_CHARS]
            data = {"error": str(recorded.error), "bytes": len(recorded.payload), "payload": text}
        else:
            kind = type(event).__name__
            is_elo = isinstance(event, RatingUpdated) and event.system == "elo"
            name = _ELO_NAME if is_elo else EXTERNAL_NAMES[kind]
            # Re-encoded: the original bytes may hold line breaks between fields.
            data = msgspec.to_builtins(event)
            data.pop("type", None)
        fields = {
            "_time": time,
            "event": name,
            "type": kind,
            "league": self.league,
            "sequence": recorded.sequence,
            "id": f"{self.history}-{recorded.sequence}",
            "producer": recorded.producer,
            "data": data,
        }
        return LogLine(recorded.sequence, name, time, _escape_unprintable(_encoder.encode(fields)), self.history)


def _format_time(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, _NS)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    except (OverflowError, ValueError, OSError):
        # The time comes from an unchecked header.
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _escape_unprintable(data: bytes) -> bytes:
    """The same JSON with control and invisible characters escaped."""
    text = data.decode()
    if text.isprintable():
        return data
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text).encode()


class ExportTarget(Protocol):
    """A destination that takes lines in order. After a failure it is closed and opened again."""

    name: str
    """Name in log messages: a file's path or a host, without secrets."""

    async def open(self, history: str) -> int:
        """Prepare for the lines of a history; return the sequence of the last one that it has, 0 for none.

        ``LeagueError`` if the destination does not accept this history; the message says what it would accept.
        """

    async def send(self, lines: Sequence[LogLine], upto: int) -> None:
        """Send lines; on return they are accepted or set aside.

        They are in order, and may be none. The history has been read up to ``upto``; events not in ``lines`` were
        filtered out.

        Raises:
            LeagueError: not all lines were accepted; only those up to the last accepted one count as sent.
        """

    async def close(self) -> None:
        """Close files and connections; may be called after a failure, and more than once."""


_BLOCK_BYTES = 65_536
_LINE_PREFIX = b'{"_time":"'
"""How every line begins; recognises a file that holds only a torn line."""


class StdoutTarget:
    """Prints lines; keeps no position."""

    name = "standard output"

    async def open(self, history: str) -> int:
        """See ``ExportTarget.open``; always 0."""
        return 0

    async def send(self, lines: Sequence[LogLine], upto: int) -> None:
        """Print lines; a slow reader delays only this process."""
        data = b"".join(line.data + b"\n" for line in lines)

        def print_all() -> None:
            try:
                place = sys.stdout.fileno()
            except OSError:
                sys.stdout.buffer.write(data)
                return
            # Bypasses Python's buffer: a hanging write would hold its lock at exit.
            _write_all(place, data)

        await run_in_daemon_thread(print_all)

    async def close(self) -> None:
        """See ``ExportTarget.close``; nothing to release."""


def _write_all(place: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(place, rest) :]


class _LastLine(msgspec.Struct):
    sequence: int
    id: str


class FileTarget:
    """Appends to a file, whose last line is the position."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._file: BinaryIO | None = None

    async def open(self, history: str) -> int:
        """Find the last whole line of the history; a torn line after it is cut off."""
        return await asyncio.to_thread(self._open, history)

    def _open(self, history: str) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_file():
                raise UsageError(f"{self._path}: not a file; expected a file or an unused name")
            self._file = self._path.open("a+b", buffering=0)
            is_locked = try_lock(self._file)
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be written ({error.strerror}); expected a writable file") from None
        if not is_locked:
            self._close()
            raise BusyError(f"{self._path}: another process forwards to it")
        data, end = _last_line(self._file)
        try:
            last = msgspec.json.decode(data, type=_LastLine) if data else _LastLine(0, f"{history}-0")
        except DECODE_ERRORS:
            last = _LastLine(0, "")
        if last.id != f"{history}-{last.sequence}":
            self._close()
            raise UsageError(f"{self._path}: holds something else; expected a new file, or events of {history}")
        self._file.truncate(end)
        return last.sequence

    async def send(self, lines: Sequence[LogLine], upto: int) -> None:
        """Append lines; on return they are on disk. Where they cannot be written, partial output is cut off."""
        if lines:
            await asyncio.to_thread(self._append, b"".join(line.data + b"\n" for line in lines))

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        place = self._file.fileno()
        before = os.fstat(place).st_size
        try:
            _write_all(place, data)
            os.fsync(place)
        except OSError as error:
            self._file.truncate(before)
            raise LeagueError(
                f"{self._path}: {len(data)} bytes cannot be written ({error.strerror}); expected free space"
            ) from None

    async def close(self) -> None:
        """Close the file and release its lock."""
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last whole line and its end offset; read backward, since files grow long."""
    size = place = file.seek(0, os.SEEK_END)
    tail = b""
    while place > 0 and tail.count(b"\n") < 2:
        start = max(place - _BLOCK_BYTES, 0)
        file.seek(start)
        tail = file.read(place - start) + tail
        place = start
    whole = tail[: tail.rfind(b"\n") + 1]
    if not whole and not tail.startswith(_LINE_PREFIX[: len(tail)]):
        # Only our own torn lines are cut off.
        return tail, size
    return whole[whole.rfind(b"\n", 0, -1) + 1 : -1], size - len(tail) + len(whole)
