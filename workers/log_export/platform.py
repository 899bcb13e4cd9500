"""A log platform that accepts events over HTTP: as arrays, like Axiom, or as JSON lines.

Source: https://axiom.co/docs/restapi/endpoints/ingestIntoDataset
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import msgspec

from players.remote.http_client import (
    HttpClient,
    HttpResponse,
    InvalidAddressError,
    RequestFailedError,
    parse_retry_after,
)
from schemas.codec import DECODE_ERRORS
from schemas.errors import BusyError, LeagueError, RemoteError, UsageError, escape_unprintable
from schemas.files import try_lock
from schemas.loggers import get_logger
from schemas.retry import Backoff
from workers.log_export.lines import LogLine

log = get_logger()

_MAX_QUOTED_CHARS = 300
_RETRYABLE_STATUSES = (408, 425, 429)
_EVENT_STATUSES = (400, 409, 413, 422)
"""Statuses that tell of an event in the batch; other 4xx tell of the address or the token."""
_MAX_RETRY_AFTER_S = 600.0
_MAX_PAUSE_S = 60.0
_MAX_BODY_BYTES = 65_536
_BODY_TIMEOUT_S = 5.0
_MAX_REJECTED_IN_A_ROW = 20
"""After so many consecutive rejections the cause is not the events."""


class _SavedPosition(msgspec.Struct):
    sequence: int


class ExportPosition:
    """The stored position of one destination in one history, locked by one process at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.json"
        self._lock: BinaryIO | None = None

    def open(self) -> int:
        """Lock and read the position; return its sequence, 0 if there is none yet.

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
            raise BusyError(f"{self.path}: another process forwards to this destination")
        try:
            return max(msgspec.json.decode(self.path.read_bytes(), type=_SavedPosition).sequence, 0)
        except FileNotFoundError:
            return 0
        except DECODE_ERRORS as error:
            raise UsageError(
                f"{self.path}: {error}; expected the sequence of the last event sent (remove it to send all again)"
            ) from None

    def save(self, sequence: int) -> None:
        """Store a position; ``LeagueError`` if the file cannot be written."""
        fresh = self.path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(_SavedPosition(sequence)))
            fresh.replace(self.path)
        except OSError as error:
            raise LeagueError(f"{self.path}: cannot be written ({error.strerror}); expected room for it") from None

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class HttpTarget:
    """Posts batches to one address, with a bearer ``token`` unless it is empty; it appears in no log line or error.

    ``timeout_s`` limits one request. The pause before the second attempt is ``first_pause_s``, ± half of it, doubled
    for each further one. With ``as_lines`` the body is a JSON object a line instead of an array.
    """

    def __init__(
        self,
        url: str,
        token: str,
        position: ExportPosition,
        timeout_s: float = 30.0,
        first_pause_s: float = 1.0,
        *,
        as_lines: bool = False,
    ) -> None:
        self.name = urlsplit(url).hostname or ""
        self._url = url
        self._token = token
        self._position = position
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._as_lines = as_lines
        self._rejected_in_a_row = 0
        self._client: HttpClient | None = None

    async def open(self, history: str) -> int:
        """Lock and read the position."""
        self._rejected_in_a_row = 0
        sequence = self._position.open()
        self._client = HttpClient(self._timeout_s, self._token, _MAX_BODY_BYTES, _BODY_TIMEOUT_S)
        return sequence

    async def send(self, lines: Sequence[LogLine], upto: int) -> None:
        """Post lines until they are accepted, however long that takes; rejected lines are logged and skipped.

        ``RemoteError`` for a wrong address or token, or if every event is rejected.
        """
        if lines:
            await self._deliver(lines)
        # Rejected events are known to be at fault only once another event was accepted.
        if not self._rejected_in_a_row:
            await asyncio.to_thread(self._position.save, upto)

    async def _deliver(self, lines: Sequence[LogLine]) -> None:
        """Send lines; a rejected batch is bisected down to the rejected lines, in order."""
        response = await self._post(lines)
        assert self._client is not None
        text = f"{response.status} {escape_unprintable(self._client.quote(response.body))[:_MAX_QUOTED_CHARS]}".strip()
        if response.is_success:
            self._rejected_in_a_row = 0
            if _failed_events(response.body):
                span = f"{lines[0].sequence} to {lines[-1].sequence}"
                log.warning("a platform skipped events of a batch", host=self.name, events=span, said=text)
            await asyncio.to_thread(self._position.save, lines[-1].sequence)
        elif response.status not in _EVENT_STATUSES:
            raise RemoteError(
                f"{self.name} takes no events: {text}; expected the address of a dataset that takes events, and a "
                f"token for it (next: event {lines[0].sequence})"
            )
        elif len(lines) > 1:
            middle = len(lines) // 2
            await self._deliver(lines[:middle])
            await self._deliver(lines[middle:])
        else:
            self._skip(lines[0], text)

    def _skip(self, line: LogLine, text: str) -> None:
        log.warning(
            "a platform rejected an event; skipping it",
            host=self.name,
            sequence=line.sequence,
            name=line.name,
            bytes=len(line.data),
            said=text,
        )
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= _MAX_REJECTED_IN_A_ROW:
            raise RemoteError(
                f"{self.name} rejects every event, {self._rejected_in_a_row} in a row up to event {line.sequence} "
                f"({line.name}): {text}; expected most to be accepted (`--from {line.sequence + 1}` skips these)"
            )

    async def _post(self, lines: Sequence[LogLine]) -> HttpResponse:
        """Post, with backoff, until the platform has an answer that a retry would not change."""
        assert self._client is not None
        data = [line.data for line in lines]
        body = b"".join(line + b"\n" for line in data) if self._as_lines else b"[" + b",".join(data) + b"]"
        headers = {
            "Content-Type": "application/x-ndjson" if self._as_lines else "application/json",
            # The same key each time these events are sent.
            "Idempotency-Key": f"{lines[0].history}-{lines[0].sequence}-{lines[-1].sequence}",
        }
        backoff = Backoff(self._first_pause_s, _MAX_PAUSE_S, jitter=(0.5, 1.5))
        while True:
            wait_s = 0.0
            try:
                response = await self._client.send("POST", self._url, body, headers)
                if response.status not in _RETRYABLE_STATUSES and response.status < 500:
                    return response
                reason = f"status {response.status}"
                wait_s = min(parse_retry_after(response.headers.get("retry-after", "")) or 0.0, _MAX_RETRY_AFTER_S)
            except InvalidAddressError as error:
                raise RemoteError(f"{self.name} takes no events: {error}") from None
            except RequestFailedError as error:
                reason = str(error)
            pause_s = backoff.next_s(at_least_s=wait_s)
            log.warning("a platform takes nothing now", host=self.name, said=reason, retry_s=round(pause_s, 2))
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close connections and unlock the position."""
        client, self._client = self._client, None
        self._position.close()
        if client is not None:
            await client.close()


def _failed_events(body: bytes) -> int:
    """Number of failed events in Axiom's status of an ingest: ``{"ingested": 1, "failed": 1, …}``."""
    try:
        status = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return 0
    failed = status.get("failed") if isinstance(status, dict) else 0
    return failed if isinstance(failed, int) else 0
