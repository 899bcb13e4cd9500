"""An event log in one process's memory: the reference implementation of the contract ``EventLog``."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from league.log.base import EventReader, RecordedEvent, check_batch_size, publication_digest
from schemas.codec import encode_event
from schemas.errors import ConflictError, LogError
from schemas.events import Event
from schemas.subjects import event_subject, event_type_filter, subject_matches

_BATCH = 5_000


class MemoryLog(EventReader):
    """A league's history in one process's memory, for tests; see ``EventLog``."""

    def __init__(self, league: str = "league", producer: str = "memory") -> None:
        self.league = league
        self.producer = producer
        self._events: list[RecordedEvent] = []
        self._published: dict[str, int] = {}
        """First sequence of what was appended, by its digest."""
        self._grew = asyncio.Condition()

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """See ``EventLog.append``."""
        return (await self.append_batch([event], expected=expected))[0]

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """See ``EventLog.append_batch``."""
        check_batch_size(events)
        messages = [(event_subject(self.league, event), encode_event(event)) for event in events]
        name, next_sequence = publication_digest(messages), await self.last_sequence() + 1
        if messages and name not in self._published:
            newest = await self.last_sequence(messages[0][0])
            if expected not in (None, newest):
                raise ConflictError(
                    f"recording {events[0].key}: newest on {messages[0][0]} is {newest}; expected {expected}"
                )
            self._published[name] = next_sequence
            await self._add(
                RecordedEvent(sequence, time.time_ns(), subject, self.producer, payload)
                for sequence, (subject, payload) in enumerate(messages, next_sequence)
            )
        first = self._published.get(name, next_sequence)
        return list(range(first, first + len(events)))

    async def copy(self, events: Sequence[RecordedEvent]) -> None:
        """See ``EventLog.copy``."""
        for recorded in events:
            if recorded.sequence <= (newest := await self.last_sequence()):
                raise LogError(f"copying event {recorded.sequence}: the history is at {newest} already")
            await self._add([recorded])

    async def _add(self, recorded: Iterable[RecordedEvent]) -> None:
        self._events.extend(recorded)
        async with self._grew:
            self._grew.notify_all()

    async def batches(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        """Events up to ``last``, by default up to the newest now."""
        stop = last if last is not None else await self.last_sequence()
        subject = None if only is None else event_type_filter(self.league, only)
        reached = [r for r in self._events if first <= r.sequence <= stop]
        selected = reached if subject is None else [r for r in reached if subject_matches(subject, r.subject)]
        for start in range(0, len(selected), _BATCH):
            yield selected[start : start + _BATCH]

    async def follow(self, first: int = 1) -> AsyncIterator[RecordedEvent]:
        """See ``EventLog.follow``."""
        at = 0
        while True:
            async with self._grew:
                while len(self._events) <= at:
                    await self._grew.wait()
            if self._events[at].sequence >= first:
                yield self._events[at]
            at += 1

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event on one subject or on all; 0 when there is none."""
        return next((r.sequence for r in reversed(self._events) if subject in (None, r.subject)), 0)

    async def newest(self, kind: type[Event]) -> RecordedEvent | None:
        """See ``EventLog.newest``."""
        subject = event_type_filter(self.league, kind)
        return next((r for r in reversed(self._events) if subject_matches(subject, r.subject) and r.is_event), None)

    async def stored_count(self) -> int:
        """See ``EventLog.held``."""
        return len(self._events)
