"""The reference implementation of the event log: everything in one process's memory, for tests and readers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from league.log.base import Recorded
from schemas.codec import encode_event
from schemas.errors import ConflictError
from schemas.events import Event
from schemas.subjects import event_subject


class MemoryLog:
    """A league's history in memory; ``base.EventLog`` says what the methods do."""

    def __init__(self, league: str = "league", producer: str = "memory") -> None:
        self.league = league
        self.producer = producer
        self._events: list[Recorded] = []
        self._sequences: dict[str, int] = {}
        self._grew = asyncio.Condition()

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """Record one event; return its sequence."""
        known = self._sequences.get(event.key)
        if known is not None:
            return known
        subject = event_subject(self.league, event)
        if expected is not None and expected != (newest := await self.last_sequence(subject)):
            raise ConflictError(f"recording {event.key}: newest on {subject} is {newest}; expected {expected}")
        sequence = len(self._events) + 1
        self._events.append(Recorded(sequence, time.time_ns(), subject, self.producer, encode_event(event), event))
        self._sequences[event.key] = sequence
        async with self._grew:
            self._grew.notify_all()
        return sequence

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """Record events in order; return their sequences."""
        return [await self.append(event, expected=expected if nth == 0 else None) for nth, event in enumerate(events)]

    async def read(self, first: int = 1, last: int | None = None) -> AsyncIterator[Recorded]:
        """Events up to ``last``, by default up to the newest at this moment."""
        for recorded in self._events[max(first, 1) - 1 : last if last is not None else len(self._events)]:
            yield recorded

    async def follow(self, first: int = 1) -> AsyncIterator[Recorded]:
        """Events from ``first`` on, for ever."""
        at = max(first, 1) - 1
        while True:
            async with self._grew:
                while len(self._events) <= at:
                    await self._grew.wait()
            yield self._events[at]
            at += 1

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event on one subject or on all; 0 when there is none."""
        return next((r.sequence for r in reversed(self._events) if subject in (None, r.subject)), 0)
