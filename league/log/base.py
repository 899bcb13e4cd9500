"""The contract of an event log: append once, read from a sequence, follow.

A sequence is an event's place in the history, from 1 upward and without order other than that of appending. A repeated
append of the same bytes by the same producer is dropped within the log's duplicate window. What is recorded twice all
the same has one key, and folds take the first: a late repetition, or another account of the same fact.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol, TypeVar

from schemas.codec import SCHEMA_VERSION, NewerSchemaError, OlderSchemaError, decode_event
from schemas.errors import DecodeError, UsageError
from schemas.events import Event
from schemas.subjects import is_allowed_on

E = TypeVar("E", bound=Event)

MAX_BATCH = 1_000
"""Largest number of events that are recorded as one fact: the broker's limit of an atomic batch."""
_SPLIT_BATCH = 500
"""Events per batch where batches may be split: smaller ones spread the broker's memory."""


class RecordedEvent:
    """An event and its place in the history, decoded on first access."""

    __slots__ = ("_decoded", "_error", "_event", "payload", "producer", "schema", "sequence", "subject", "time_ns")

    def __init__(
        self, sequence: int, time_ns: int, subject: str, producer: str, payload: bytes, schema: int = SCHEMA_VERSION
    ) -> None:
        self.sequence = sequence
        self.time_ns = time_ns
        """When the fact happened, in nanoseconds since 1970 (UTC): the origin time if it was imported or copied, else
        the time of recording."""
        self.subject = subject
        self.producer = producer
        """Worker that appended it."""
        self.payload = payload
        """The event as it was written: JSON."""
        self.schema = schema
        self._decoded = False
        self._event: Event | None = None
        self._error: DecodeError | None = None

    @property
    def event(self) -> Event | None:
        """The decoded event; None when this version does not know its type or cannot decode it (see ``error``)."""
        if not self._decoded:
            self._decode()
        return self._event

    @property
    def error(self) -> DecodeError | None:
        """Reason for which ``event`` is None."""
        if not self._decoded:
            self._decode()
        return self._error

    @property
    def is_event(self) -> bool:
        """Whether it is an event that belongs on its subject, or one of a newer or an older schema."""
        return self.event is not None or isinstance(self.error, NewerSchemaError | OlderSchemaError)

    def decode(self) -> Event:
        """Decode the event without keeping it, for one pass over many; raises the DecodeError that ``error`` holds."""
        event = decode_event(self.payload, self.schema)
        # The broker enforces who may publish on a subject; the reader checks that the event belongs on it.
        if self.subject.startswith("league.") and not is_allowed_on(event, self.subject):
            raise DecodeError(f"{type(event).__name__} on {self.subject}; expected the subject of its type and worker")
        return event

    def _decode(self) -> None:
        try:
            self._event = self.decode()
        except DecodeError as error:
            self._error = error
        self._decoded = True

    def __repr__(self) -> str:
        return f"Recorded({self.sequence}, {self.subject!r}, {self.payload[:60]!r})"


class EventReader(Protocol):
    """A history that can be read in batches."""

    league: str

    def batches(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        """Read events in batches, as many at a time as have arrived: the fast way to read many.

        ``last`` is by default the newest when the call was made. With ``only``, events that are not on the subject of
        this type (``subjects.event_type_filter``) are not transferred.
        """

    async def read(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[RecordedEvent]:
        """Events from sequence ``first`` to ``last`` (by default the newest when the call was made), then end."""
        async for batch in self.batches(first, last, only=only):
            for recorded in batch:
                yield recorded

    async def read_events(self, kind: type[E], first: int = 1, last: int | None = None) -> AsyncIterator[tuple[int, E]]:
        """Events of one type with their sequences, in order; messages on its subject that are none are passed over."""
        async for recorded in self.read(first, last, only=kind):
            if isinstance(recorded.event, kind):
                yield recorded.sequence, recorded.event


class EventLog(EventReader, Protocol):
    """A league's history."""

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """Append one event, once, and return its sequence; when this returns, it is on disk.

        ``expected`` is the sequence of the newest event on the same subject that the writer has seen (0: none): the
        event is recorded only if that still holds.

        Raises:
            ConflictError: ``expected`` does not hold.
            MessageIdError: another message is stored under this event's message id.
            StoreFullError: no space; nothing was recorded.
            LogUnavailableError: the broker cannot be reached.
        """

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """Append several events in order as one fact: all of them or none, in one round trip; else like ``append``.

        ``expected`` is the condition of the first event; the others follow it. The same batch again returns the
        sequences of the first time. More than ``MAX_BATCH`` are a UsageError; for facts of their own there is
        ``append_in_batches``.
        """

    async def copy(self, events: Sequence[RecordedEvent]) -> None:
        """Append events of another history as they are; LogError if one would get another sequence than it has."""

    def follow(self, first: int = 1) -> AsyncIterator[RecordedEvent]:
        """Events from sequence ``first`` on, without end: old ones, then new ones as they are recorded."""

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event, on one subject or on all; 0 when there is none."""

    async def newest(self, kind: type[Event]) -> RecordedEvent | None:
        """The newest event on the subject of a type, messages that are none passed over; None when there is none."""

    async def stored_count(self) -> int:
        """Number of events that the store reports; more than can be read when some are damaged."""


def publication_digest(messages: Iterable[tuple[str, bytes]], scope: str = "", key: bytes = b"") -> str:
    """Digest, 32 hexadecimal digits, of subjects and payloads that are published together.

    ``scope`` tells this publication from another one of equal messages; ``key`` is a secret of at most 64 bytes.
    """
    digest = hashlib.blake2b(f"{len(scope)} {scope}".encode(), digest_size=16, key=key)
    for subject, payload in messages:
        name = subject.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (len(name), len(payload)) + name)
        digest.update(payload)
    return digest.hexdigest()


def check_batch_size(events: Sequence[Event]) -> None:
    """Raise UsageError for more than ``MAX_BATCH`` events, which cannot be recorded as one fact."""
    if len(events) > MAX_BATCH:
        raise UsageError(
            f"recording {events[0].key} with its batch: {len(events):,} events; expected at most "
            f"{MAX_BATCH:,}, since a batch is recorded as a whole"
        )


async def append_in_batches(log: EventLog, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
    """Append any number of events in order, each a fact of its own: an interruption leaves the first ones recorded.

    With ``expected`` all are on one subject, and each batch is recorded on the condition that nothing was appended to
    it after the batch before; else ConflictError, and the rest is not recorded.
    """
    sequences: list[int] = []
    for start in range(0, len(events), _SPLIT_BATCH):
        sequences += await log.append_batch(events[start : start + _SPLIT_BATCH], expected=expected)
        expected = None if expected is None else sequences[-1]
    return sequences
