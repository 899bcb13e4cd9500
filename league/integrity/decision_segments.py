"""Segments of decisions in the store, and which of them the limits of ``history.decisions`` drop."""

from typing import NamedTuple

from league.log.base import EventLog, RecordedEvent
from schemas.config import DecisionsConfig
from schemas.events import DecisionsDropped, DecisionsStored, Event

_DAY_NS = 86_400 * 10**9


class _Segment(NamedTuple):
    bytes: int
    time_ns: int


class DecisionSegments:
    """Fold of the segments that were stored and not dropped, oldest first."""

    def __init__(self) -> None:
        self.present: dict[str, _Segment] = {}
        """Segments by digest."""
        self._dropped: set[str] = set()

    def apply(self, recorded: RecordedEvent, event: Event | None) -> None:
        """Fold an event."""
        if isinstance(event, DecisionsStored) and event.artifact not in self._dropped:
            self.present.setdefault(event.artifact, _Segment(event.bytes, recorded.time_ns))
        elif isinstance(event, DecisionsDropped):
            self._dropped.update(event.artifacts)
            for artifact in event.artifacts:
                self.present.pop(artifact, None)

    def drop(self, limits: DecisionsConfig, before_ns: int) -> DecisionsDropped | None:
        """Drop what exceeds the limits, oldest first; returns the event that records it, None if nothing does.

        Segments stored at ``before_ns`` or later are kept; ages count up to then.
        """
        total = sum(segment.bytes for segment in self.present.values())
        dropped, size = [], 0
        for artifact, segment in self.present.items():
            is_old = segment.time_ns < before_ns - limits.days * _DAY_NS
            if segment.time_ns >= before_ns or not (is_old or total - size > limits.bytes):
                break
            dropped.append(artifact)
            size += segment.bytes
        if not dropped:
            return None
        for artifact in dropped:
            del self.present[artifact]
        self._dropped.update(dropped)
        return DecisionsDropped(first=dropped[0], artifacts=dropped, bytes=size)


async def read_decision_segments(history: EventLog) -> DecisionSegments:
    """The segments of a history, by their events alone."""
    kinds = (DecisionsStored, DecisionsDropped)
    found = [recorded for kind in kinds async for recorded in history.read(only=kind)]
    segments = DecisionSegments()
    for recorded in sorted(found, key=lambda each: each.sequence):
        segments.apply(recorded, recorded.event)
    return segments
