"""Seals: events with the digests of a closed range of the history, each chained to the one before.

Only the sealer depends on them. A range begins where the last one ended, so seals are sealed too, and the digest of
the newest seal, kept elsewhere, is enough to check everything before it (``league.integrity.verification``).
"""

import base64
import hashlib
from collections.abc import Callable, Sequence

from league.log.base import EventLog, RecordedEvent
from schemas.events import HistoryArchived, HistorySealed, SnapshotTaken
from schemas.subjects import event_type_filter

CHECK_BYTES = 2
"""Bytes of each event's digest in a seal: enough to locate a changed event, small enough for thousands."""
MAX_EVENTS = 250_000
"""Maximum events per seal, which keeps the seal itself below the broker's message limit."""


def event_digest(recorded: RecordedEvent) -> bytes:
    """SHA-256 of all that is recorded with an event, unambiguously: numbers and lengths in decimal come first."""
    subject = recorded.subject.encode("utf-8", "surrogatepass")
    producer = recorded.producer.encode("utf-8", "surrogatepass")
    numbers = f"{recorded.sequence} {recorded.time_ns} {recorded.schema}"
    head = f"{numbers} {len(subject)} {len(producer)} {len(recorded.payload)}\n"
    return hashlib.sha256(b"".join((head.encode(), subject, producer, recorded.payload))).digest()


def range_digest(previous: str, digests: Sequence[bytes]) -> str:
    """Hex SHA-256 of the previous seal's digest and the digests of a range's events."""
    sha = hashlib.sha256(previous.encode("utf-8", "surrogatepass"))
    sha.update(b"".join(digests))
    return sha.hexdigest()


def decode_checks(seal: HistorySealed) -> list[bytes]:
    """The first bytes of each event's digest; empty if unreadable."""
    try:
        data = base64.b64decode(seal.checks, validate=True)
    except ValueError:
        return []
    return [data[at : at + CHECK_BYTES] for at in range(0, len(data), CHECK_BYTES)]


class Sealer:
    """Unsealed part of a history: a fold of all its events, or of those after the newest seal.

    Any number of sealers may follow one history: a seal is appended on the condition that its sealer has seen the
    newest one, and ranges sealed by others are taken over.
    """

    def __init__(self, league: str) -> None:
        self.sequence = 0
        """Sequence of the last event applied."""
        self.first = 1
        """Start of the next range."""
        self.previous = ""
        """Digest of the newest seal that continues the chain."""
        self.newest_sequence = 0
        """Sequence of the newest seal event."""
        self.newest_producer = ""
        self._subject = event_type_filter(league, HistorySealed)
        self._own = {event_type_filter(league, kind) for kind in (HistorySealed, HistoryArchived, SnapshotTaken)}
        self._pending: list[tuple[int, bytes, bool]] = []
        """Sequence, digest, and whether the event is the sealer's own book-keeping."""

    @classmethod
    async def resume(cls, history: EventLog) -> "Sealer":
        """A sealer that needs only the events from ``first`` on."""
        sealer = cls(history.league)
        async for recorded in history.read(only=HistorySealed):
            sealer.observe_seal(recorded)
        sealer.sequence = sealer.first - 1
        return sealer

    @property
    def pending_count(self) -> int:
        """Number of unsealed events."""
        return len(self._pending)

    @property
    def has_events_to_seal(self) -> bool:
        """Whether anything but book-keeping is unsealed: otherwise every seal would call for another."""
        return not all(is_own for _, _, is_own in self._pending)

    def apply(self, recorded: RecordedEvent) -> None:
        """Apply one event; sequences at or below the last one have no effect."""
        if recorded.sequence <= self.sequence:
            return
        self.sequence = recorded.sequence
        if recorded.sequence >= self.first:
            self._pending.append((recorded.sequence, event_digest(recorded), recorded.subject in self._own))
        if recorded.subject == self._subject:
            self.observe_seal(recorded)

    def observe_seal(self, recorded: RecordedEvent) -> None:
        """Add a seal, before or after the events around it."""
        if recorded.sequence > self.newest_sequence:
            self.newest_sequence, self.newest_producer = recorded.sequence, recorded.producer
        event = recorded.event
        if isinstance(event, HistorySealed) and (event.first, event.previous) == (self.first, self.previous):
            if event.last < event.first:
                return
            self.first, self.previous = event.last + 1, event.digest
            self._pending = [entry for entry in self._pending if entry[0] > event.last]

    async def record_seal(self, history: EventLog, events: int = MAX_EVENTS) -> HistorySealed | None:
        """Append a seal for the oldest ``events``, at most ``MAX_EVENTS``, of which at least one is pending.

        Returns the seal as it was recorded. ConflictError if another sealer appended first; its seal is still to be
        read then.
        """
        digests = [digest for _, digest, _ in self._pending[: min(events, MAX_EVENTS)]]
        made = HistorySealed(
            first=self.first,
            last=self._pending[len(digests) - 1][0],
            events=len(digests),
            previous=self.previous,
            digest=range_digest(self.previous, digests),
            checks=base64.b64encode(b"".join(digest[:CHECK_BYTES] for digest in digests)).decode(),
        )
        sequence = await history.append(made, expected=self.newest_sequence)
        seal = None
        async for recorded in history.read(sequence, sequence, only=HistorySealed):
            self.observe_seal(recorded)
            seal = recorded.event
        return seal if isinstance(seal, HistorySealed) else None


async def seal_through(
    history: EventLog, last: int, every: int, on_progress: Callable[[int], None] = lambda sequence: None
) -> Sealer:
    """Seal all events up to ``last`` outside a worker, in ranges of ``every``; ConflictError beside another sealer."""
    sealer = await Sealer.resume(history)
    async for batch in history.batches(sealer.first, last):
        for recorded in batch:
            sealer.apply(recorded)
            if sealer.pending_count >= min(every, MAX_EVENTS):
                await sealer.record_seal(history, every)
        on_progress(sealer.sequence)
    if sealer.has_events_to_seal:
        await sealer.record_seal(history)
    return sealer
