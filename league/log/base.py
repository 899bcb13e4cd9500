"""The contract of an event log: append once, read from a sequence, follow.

A sequence is an event's place in the history, from 1 upward and without order other than that of appending. The log
drops an event whose key it has seen within its duplicate window; beyond the window readers drop it (folds ignore
what they have folded).
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from schemas.events import Event


class Recorded(msgspec.Struct, frozen=True):
    """An event and its place in the history."""

    sequence: int
    time_ns: int
    """When the fact happened, in nanoseconds since 1970 (UTC): the origin time if it was imported, else the time of
    recording."""
    subject: str
    producer: str
    """Worker that appended it."""
    payload: bytes
    """The event as it was written: JSON."""
    event: Event | None
    """None when this version of the league does not know the type or could not decode it."""


class EventLog(Protocol):
    """A league's history."""

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """Record one event; when this returns, it is on disk.

        Args:
            event: The fact.
            expected: Sequence of the newest event on the same subject that the writer has seen (0: none). The
                event is recorded only if that still holds.

        Returns:
            Its sequence; that of the first copy, when the key was seen before.

        Raises:
            ConflictError: ``expected`` does not hold.
            StoreFullError: no space; nothing was recorded.
            LogUnavailableError: the broker cannot be reached.
        """

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """Record several events in order, as few round trips as the log can; else like ``append``.

        ``expected`` is the condition of the first event; the others follow it. An event seen before is skipped.
        """

    def read(self, first: int = 1, last: int | None = None) -> AsyncIterator[Recorded]:
        """Events from sequence ``first`` to ``last`` (by default the newest when the call was made), then end."""

    def follow(self, first: int = 1) -> AsyncIterator[Recorded]:
        """Events from sequence ``first`` on, for ever: old ones, then new ones as they are recorded."""

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event, on one subject or on all; 0 when there is none."""
