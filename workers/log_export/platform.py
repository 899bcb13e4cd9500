"""A log platform that accepts arrays of events over HTTP, as Axiom's interface does.

Source: https://axiom.co/docs/restapi/endpoints/ingestIntoDataset
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

import msgspec

from players.remote.http_client import (
    JSON_HEADERS,
    HttpClient,
    InvalidAddressError,
    RequestFailedError,
    parse_retry_after,
    quote_body,
)
from schemas.codec import DECODE_ERRORS
from schemas.errors import BusyError, LeagueError, RemoteError, UsageError, escape_unprintable
from schemas.files import try_lock
from schemas.loggers import get_logger
from schemas.retry import Backoff
from workers.log_export.lines import LogLine

log = get_logger()

_MAX_EXCERPT_CHARS = 300
_RETRYABLE_STATUSES = (408, 425, 429)
_PERMANENT_STATUSES = (401, 403, 404, 405, 407, 410)
MAX_WAIT_S = 600.0
"""Upper bound on the pause that a platform requests."""
_MAX_PAUSE_S = 60.0
_MAX_BODY_BYTES = 65_536
_BODY_TIMEOUT_S = 5.0
_MAX_REJECTED_IN_A_ROW = 20
"""After so many consecutive rejections the cause is not the events."""


class DeliveryStatus(Enum):
    """The outcome of sending a batch."""

    accepted = "taken"
    retry = "later"
    """Nothing was accepted, but a later attempt may succeed."""
    rejected = "refused"
    """Nothing was accepted, because of an event in the batch."""
    undeliverable = "nowhere"
    """Nothing will be accepted at this address or with this token."""


class IngestResult(msgspec.Struct, frozen=True):
    """A classified response."""

    verdict: DeliveryStatus
    why: str = ""
    """Status and text, without the token; empty if all events were accepted."""
    wait_s: float | None = None
    """The pause that the platform requests."""
    failed: int = 0
    """Events of an accepted batch that were rejected."""
    times: tuple[datetime, ...] = ()
    """The times of these events, where the platform reports them."""


def classify_response(status: int, headers: Mapping[str, str], body: bytes, count: int, token: str) -> IngestResult:
    """Classify a response.

    ``body`` is its beginning, ``count`` the events in the batch; the token is removed from quoted text.
    """
    why = f"{status} {escape_unprintable(quote_body(body, token))[:_MAX_EXCERPT_CHARS]}".strip()
    if status in _RETRYABLE_STATUSES or status >= 500:
        wait_s = parse_retry_after(headers.get("retry-after", ""))
        return IngestResult(DeliveryStatus.retry, why, None if wait_s is None else min(wait_s, MAX_WAIT_S))
    if status in _PERMANENT_STATUSES or not 200 <= status < 500 or 300 <= status < 400:
        return IngestResult(DeliveryStatus.undeliverable, why)
    if status >= 400:
        return IngestResult(DeliveryStatus.rejected, why)
    failed, times = _parse_failures(body)
    if failed >= count > 0:
        return IngestResult(DeliveryStatus.rejected, why)
    return IngestResult(DeliveryStatus.accepted, why if failed else "", failed=failed, times=times)


def _parse_failures(body: bytes) -> tuple[int, tuple[datetime, ...]]:
    """Axiom's status of an ingest: ``{"ingested": 1, "failed": 1, "failures": [{"timestamp": …, "error": …}]}``."""
    try:
        response = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return 0, ()
    if not isinstance(response, dict) or not isinstance(failed := response.get("failed"), int) or failed <= 0:
        return 0, ()
    times = []
    failures = response.get("failures")
    for failure in failures if isinstance(failures, list) else ():
        # A failure without a readable time is passed over.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            moment = datetime.fromisoformat(failure["timestamp"])
            times.append(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    return failed, tuple(times)


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
        except DECODE_ERRORS as error:
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


class HttpTarget:
    """Posts batches to one address, with a bearer ``token`` unless it is empty; it appears in no log line or error.

    ``timeout_s`` limits one batch, from connecting to the end of the response. The pause before the second attempt is
    ``first_pause_s``, ± half of it, doubled for each further one.
    """

    def __init__(
        self, url: str, token: str, position: ExportPosition, timeout_s: float = 30.0, first_pause_s: float = 1.0
    ) -> None:
        self.name = urlsplit(url).hostname or ""
        self._url = url
        self._token = token
        self._position = position
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._rejected_in_a_row = 0
        self._client: HttpClient | None = None

    async def open(self, history: str) -> int:
        """Lock and read the position."""
        self._rejected_in_a_row = 0
        sequence = self._position.open()
        self._client = HttpClient(self._timeout_s, self._token, _MAX_BODY_BYTES, _BODY_TIMEOUT_S)
        return sequence

    async def send(self, lines: Sequence[LogLine], upto: int) -> None:
        """Post lines until they are accepted, however long that takes; rejected lines are set aside in a file.

        ``RemoteError`` for a wrong address or token, or if every event is rejected.
        """
        if lines:
            await self._deliver(lines)
        # Rejected events are known to be at fault only once another event was accepted.
        if not self._rejected_in_a_row:
            await asyncio.to_thread(self._position.save, upto)

    async def _deliver(self, lines: Sequence[LogLine]) -> None:
        """Send lines; a rejected batch is bisected down to the rejected lines, in order."""
        answer = await self._post_until_settled(lines)
        if answer.verdict is DeliveryStatus.undeliverable:
            raise RemoteError(
                f"{self.name} takes no events: {answer.why}; expected the address of a dataset that takes arrays of "
                f"events, and a token for it (nothing after what was taken is lost; next: event {lines[0].sequence})"
            )
        if answer.verdict is DeliveryStatus.accepted:
            await self._handle_accepted(lines, answer)
        elif len(lines) == 1:
            await self._handle_rejected(lines[0], answer.why)
        else:
            middle = len(lines) // 2
            await self._deliver(lines[:middle])
            await self._deliver(lines[middle:])

    async def _handle_accepted(self, lines: Sequence[LogLine], answer: IngestResult) -> None:
        self._rejected_in_a_row = 0
        if answer.failed:
            aside = [line for line in lines if datetime.fromisoformat(line.time) in answer.times]
            if len(aside) < answer.failed:
                # Not all were found by their times: those rejected are among all of the batch.
                aside = list(lines)
            log.warning(
                "a platform took a batch but for some events",
                host=self.name,
                failed=answer.failed,
                events=f"{aside[0].sequence} to {aside[-1].sequence}",
                said=answer.why,
                kept=str(self._position.rejected_path),
            )
            for line in aside:
                await asyncio.to_thread(self._position.save_rejected, line, answer.why)
        await asyncio.to_thread(self._position.save, lines[-1].sequence)

    async def _handle_rejected(self, line: LogLine, why: str) -> None:
        log.warning(
            "a platform refused an event",
            host=self.name,
            kind=line.name,
            sequence=line.sequence,
            bytes=len(line.data),
            said=why,
            kept=str(self._position.rejected_path),
        )
        await asyncio.to_thread(self._position.save_rejected, line, why)
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= _MAX_REJECTED_IN_A_ROW:
            raise RemoteError(
                f"{self.name} refuses every event, {self._rejected_in_a_row} in a row up to event {line.sequence} "
                f"({line.name}): {why}; expected that it takes most (`--from {line.sequence + 1}` passes over these)"
            )

    async def _post_until_settled(self, lines: Sequence[LogLine]) -> IngestResult:
        """Post, with backoff while the platform asks for a retry, until the result is final."""
        backoff = Backoff(self._first_pause_s, _MAX_PAUSE_S, jitter=(0.5, 1.5))
        reason = ""
        while (answer := await self._post(lines)).verdict is DeliveryStatus.retry:
            wait_s = backoff.next_s(at_least_s=answer.wait_s or 0.0)
            if answer.why != reason:
                reason = answer.why
                log.warning("a platform takes nothing now", host=self.name, said=reason, retry_s=round(wait_s, 2))
            await asyncio.sleep(wait_s)
        return answer

    async def _post(self, lines: Sequence[LogLine]) -> IngestResult:
        assert self._client is not None
        body = b"[" + b",".join(line.data for line in lines) + b"]"
        # The same key each time these events are sent.
        key = f"{lines[0].history}-{lines[0].sequence}-{lines[-1].sequence}"
        try:
            answer = await self._client.send("POST", self._url, body, {**JSON_HEADERS, "Idempotency-Key": key})
        except InvalidAddressError as error:
            return IngestResult(DeliveryStatus.undeliverable, str(error))
        except RequestFailedError as error:
            return IngestResult(DeliveryStatus.retry, str(error))
        return classify_response(answer.status, answer.headers, answer.body, len(lines), self._token)

    async def close(self) -> None:
        """Close connections and unlock the position."""
        client, self._client = self._client, None
        self._position.close()
        if client is not None:
            await client.close()
