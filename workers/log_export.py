"""Exports events as lines of JSON, in order and at least once: to standard output, a file or a log platform.

Each export reads the history at its own pace, so that a slow or failed destination delays nothing else. A line's ``id``
identifies copies. Platforms take JSON lines over HTTP, as Axiom does:
https://axiom.co/docs/restapi/endpoints/ingestIntoDataset
"""

import asyncio
import json
import mmap
import os
import re
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

import msgspec

from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from players.remote.http_client import HttpClient, InvalidAddressError, RequestFailedError, parse_retry_after
from schemas.codec import DECODE_ERRORS
from schemas.config import parse_http_url
from schemas.config.base import is_loopback
from schemas.errors import BusyError, ConfigError, DiskError, RemoteError, UsageError, escape_unprintable
from schemas.events import EVENT_TYPES, RatingUpdated
from schemas.files import try_lock
from schemas.ids import digest
from schemas.loggers import get_logger
from schemas.retry import Backoff
from workers.runtime import SequenceProgress, run_in_daemon_thread

log = get_logger()

TOKEN_VARIABLE = "LEAGUE_FORWARD_TOKEN"
"""The environment variable with a platform's token where no other is named."""
_MAX_BATCH_EVENTS, _MAX_BATCH_BYTES = 500, 1_000_000
_MAX_PAUSE_S, _MAX_RETRY_AFTER_S = 60.0, 600.0
_TIMEOUT_S, _BODY_TIMEOUT_S, _MAX_BODY_BYTES = 30.0, 5.0, 65_536
_RETRYABLE_STATUSES = (408, 425, 429)
_EVENT_STATUSES = (400, 409, 413, 422)
"""Statuses that blame an event of the batch; other 4xx blame the address or the token."""
_MAX_REJECTED_IN_A_ROW = 20
"""Consecutive rejections that show another cause than the events."""
_MAX_QUOTED_CHARS, _MAX_PAYLOAD_CHARS = 300, 4_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EXTERNAL_NAMES = {
    kind: "league." + re.sub("(?<!^)(?=[A-Z])", "_", kind).lower().removeprefix("league_") for kind in EVENT_TYPES
} | {"OpponentsSampled": "league.opponent_sampled"}
"""The external name of an event type, such as ``league.checkpoint_added``. Elo ratings are ``league.elo_updated``."""


class Line(NamedTuple):
    """An event as a line of JSON: printable ASCII, without its line break."""

    sequence: int
    data: bytes


def make_line(recorded: RecordedEvent, league: str, history: str) -> Line:
    """Write an event in the current schema, or an undecodable message as text with the reason.

    ``history`` names the history in the line's ``id``.
    """
    event = recorded.event
    if event is None:
        kind, name = "", "league.unreadable"
        text = recorded.payload[: 4 * _MAX_PAYLOAD_CHARS].decode(errors="replace")[:_MAX_PAYLOAD_CHARS]
        data = {"error": str(recorded.error), "bytes": len(recorded.payload), "payload": text}
    else:
        kind = type(event).__name__
        is_elo = isinstance(event, RatingUpdated) and event.system == "elo"
        name = "league.elo_updated" if is_elo else EXTERNAL_NAMES[kind]
        data = msgspec.to_builtins(event)
        data.pop("type", None)
    time = (_EPOCH + timedelta(microseconds=recorded.time_ns // 1000)).isoformat(timespec="microseconds")
    fields = {
        "_time": time.replace("+00:00", "Z"),
        "event": name,
        "type": kind,
        "league": league,
        "sequence": recorded.sequence,
        "id": f"{history}-{recorded.sequence}",
        "producer": recorded.producer,
        "data": data,
    }
    # Everything but printable ASCII is escaped, so that no name steers a terminal.
    return Line(recorded.sequence, json.dumps(fields, separators=(",", ":")).encode())


@dataclass
class LogExport:
    """The export of a history to one destination."""

    to: str
    """``-`` for standard output, a file, or the address of a platform."""
    folder: Path
    """Folder of the positions of platforms."""
    token_variable: str = ""
    """Environment variable with the platform's token; empty for ``LEAGUE_FORWARD_TOKEN``, if it is set."""
    kinds: Collection[str] = ()
    """Event types to send; empty for all. Undecodable messages have the type ``""``."""
    first: int = 1
    """Sequence of the first event to send."""
    where: str = "--to"
    """Name of the destination's setting in messages."""
    persists: bool = False
    """Whether every failure is retried, not only one that is likely to pass."""
    first_pause_s: float = 1.0
    """Pause after the first failure, ± half of it; doubled for each further one until an event is accepted."""
    progress: SequenceProgress = field(default_factory=SequenceProgress)

    async def run(self, history: JetStreamLog, identity: str, last: int | None = None) -> None:
        """Send all events up to ``last``; with None, new ones until cancelled.

        ``identity`` distinguishes histories of one league name (``workers.tracker.history_identity``).

        Raises:
            UsageError: the destination is invalid, or holds something else.
            ConfigError: the variable holds no token.
            BusyError: another process sends to this destination.
            RemoteError: the platform rejects the address, the token or every event.
            DiskError: the disk is full.
        """
        backoff = Backoff(self.first_pause_s, _MAX_PAUSE_S, jitter=(0.5, 1.5))
        while True:
            before = self.progress.sequence
            try:
                return await self._export(history, f"{history.league}-{identity[:8]}", last)
            except Exception as error:  # a destination's failure concerns only itself
                if not (self.persists or isinstance(error, RequestFailedError)):
                    raise
                if self.progress.sequence > before:
                    backoff.reset()
                pause_s = backoff.next_s(at_least_s=getattr(error, "wait_s", 0.0))
                host = urlsplit(self.to).hostname or self.to
                log.warning("events not forwarded, trying again", to=host, error=str(error), retry_s=round(pause_s, 2))
                await asyncio.sleep(pause_s)

    async def _export(self, history: JetStreamLog, name: str, last: int | None) -> None:
        async with self._open(name) as destination:
            first = max(self.first, destination.sent + 1)
            await self.progress.advance(first - 1)
            if last is not None and first > last:
                return
            lines: list[Line] = []
            size = 0
            async for recorded in history.follow(first) if last is None else history.read(first, last):
                kind = "" if recorded.event is None else type(recorded.event).__name__
                if not self.kinds or kind in self.kinds:
                    lines.append(make_line(recorded, history.league, name))
                    size += len(lines[-1].data)
                # Whatever arrives while a batch is sent makes the next one.
                is_newest = recorded.sequence == last or (last is None and history.follow_lag == 0)
                if is_newest or len(lines) >= _MAX_BATCH_EVENTS or size >= _MAX_BATCH_BYTES:
                    await destination.send(lines, recorded.sequence)
                    await self.progress.advance(recorded.sequence)
                    lines, size = [], 0

    @asynccontextmanager
    async def _open(self, history: str) -> AsyncIterator["StandardOutput | LineFile | Platform"]:
        if "://" in self.to:
            token = self._read_token()
            path = self.folder / f"{history}-{digest(self.to.encode())[:12]}.position"
            client = HttpClient(_TIMEOUT_S, token, _MAX_BODY_BYTES, _BODY_TIMEOUT_S)
            try:
                with _hold_file(path) as position:
                    yield Platform(self.to, client, position)
            finally:
                await client.close()
        elif self.token_variable:
            raise UsageError(f"{self.where} {self.to}: accepts no token; expected an address (https://…) with it")
        elif self.to == "-":
            yield StandardOutput()
        else:
            with _hold_file(Path(self.to)) as file:
                yield LineFile(file, history)

    def _read_token(self) -> str:
        variable = self.token_variable or TOKEN_VARIABLE
        parts = parse_http_url(self.to)
        if parts is None or "@" in parts.netloc:
            # Not quoted in the message: it may hold a secret.
            raise UsageError(f"{self.where}: expected an address like 'https://host/path', without user and password")
        token = os.environ.get(variable, "")
        if self.token_variable and not token:
            raise ConfigError(f"{variable}: not set; expected the platform's token")
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(f"{variable}: holds no token; expected visible ASCII without spaces")
        if token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise UsageError(f"{self.where}: a token would be sent unencrypted to {parts.hostname}; expected https://…")
        return token


@contextmanager
def _hold_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file, made if there is none, that no other process writes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); expected a writable file") from None
    with file:
        if not try_lock(file):
            raise BusyError(f"{path}: another process forwards to this destination; expected one")
        yield file


def _write_all(file: int, data: bytes, name: str) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError as error:
        raise (DiskError.of(error, name) or error) from None


def _join(lines: Sequence[Line]) -> bytes:
    return b"".join(line.data + b"\n" for line in lines)


class StandardOutput:
    """Prints lines; keeps no position."""

    sent = 0

    async def send(self, lines: Sequence[Line], upto: int) -> None:
        """Print lines; a reader that does not read delays only this process, and its end not at all."""
        # Past Python's buffer, whose lock a write that hangs would hold at exit.
        await run_in_daemon_thread(lambda: _write_all(1, _join(lines), "standard output"))


class _LastLine(msgspec.Struct):
    sequence: int
    id: str


class LineFile:
    """Appends to a file, whose last whole line is the position; what a killed process left after it is cut off."""

    def __init__(self, file: BinaryIO, history: str) -> None:
        """``UsageError`` if the file holds anything but lines of this history."""
        self.sent = end = 0
        if file.seek(0, os.SEEK_END):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
                last = content[content.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end]
            try:
                line = msgspec.json.decode(last, type=_LastLine)
            except DECODE_ERRORS:
                line = _LastLine(0, "")
            if line.id != f"{history}-{line.sequence}":
                raise UsageError(f"{file.name}: holds something else; expected a new file, or events of {history}")
            self.sent = line.sequence
            file.truncate(end)
        file.seek(end)
        self._file = file

    async def send(self, lines: Sequence[Line], upto: int) -> None:
        """Append lines; the operating system has them on return."""
        _write_all(self._file.fileno(), _join(lines), self._file.name)


class _IngestStatus(msgspec.Struct):
    """Axiom's response to accepted events."""

    failed: int = 0


class Platform:
    """Posts batches to an address. ``position`` is the open file with the sequence of the last event accepted."""

    def __init__(self, url: str, client: HttpClient, position: BinaryIO) -> None:
        text = position.read()
        try:
            self.sent = int(text or b"0")
        except ValueError:
            raise UsageError(
                f"{position.name}: {text[:40]!r}; expected the sequence of the last event sent (remove it to send all "
                "again)"
            ) from None
        self._url = url
        self._host = urlsplit(url).hostname
        self._client = client
        self._position = position
        self._rejected_in_a_row = 0

    async def send(self, lines: Sequence[Line], upto: int) -> None:
        """Post lines, which may be none; events up to ``upto`` that are not among them are filtered out.

        A rejected batch is bisected down to the rejected lines, which are logged and skipped.

        Raises:
            RequestFailedError: another try is likely to succeed.
            RemoteError: the platform rejects the address, the token or every event.
        """
        error = await self._post(lines) if lines else ""
        if error and len(lines) > 1:
            middle = len(lines) // 2
            await self.send(lines[:middle], lines[middle - 1].sequence)
            await self.send(lines[middle:], upto)
        elif error:
            self._skip(lines[0], error)
        elif lines or not self._rejected_in_a_row:
            # Rejected events are known to be at fault only once another one was accepted.
            self._rejected_in_a_row = 0
            self._position.seek(0)
            # Of fixed width: overwritten in place, no kill leaves half of it.
            _write_all(self._position.fileno(), b"%020d\n" % upto, self._position.name)

    async def _post(self, lines: Sequence[Line]) -> str:
        """Post a batch; return the response by which it was rejected, or ""."""
        try:
            headers = {"Content-Type": "application/x-ndjson"}
            response = await self._client.send("POST", self._url, _join(lines), headers)
        except InvalidAddressError as error:
            raise RemoteError(f"{self._host} takes no events: {error}") from None
        text = f"{response.status} {escape_unprintable(self._client.quote(response.body))[:_MAX_QUOTED_CHARS]}".strip()
        if response.is_success:
            with suppress(*DECODE_ERRORS):
                if msgspec.json.decode(response.body, type=_IngestStatus).failed:
                    span = f"{lines[0].sequence} to {lines[-1].sequence}"
                    log.warning("a platform skipped events of a batch", host=self._host, events=span, response=text)
            return ""
        if response.status in _RETRYABLE_STATUSES or response.status >= 500:
            wait_s = parse_retry_after(response.headers.get("retry-after", "")) or 0.0
            raise RequestFailedError(f"status {response.status}", wait_s=min(wait_s, _MAX_RETRY_AFTER_S))
        if response.status not in _EVENT_STATUSES:
            raise RemoteError(
                f"{self._host} takes no events: {text}; expected the address of a dataset that takes events, and a "
                f"token for it (next: event {lines[0].sequence})"
            )
        return text

    def _skip(self, line: Line, error: str) -> None:
        log.warning(
            "a platform rejected an event; skipping it", host=self._host, sequence=line.sequence, response=error
        )
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= _MAX_REJECTED_IN_A_ROW:
            raise RemoteError(
                f"{self._host} rejects every event, {self._rejected_in_a_row} in a row up to event {line.sequence}: "
                f"{error}; expected most to be accepted (`--from {line.sequence + 1}` skips these)"
            )
