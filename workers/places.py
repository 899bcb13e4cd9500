"""Places in a history as people name them: a sequence, or a time."""

from datetime import UTC, datetime

from league.log.base import EventLog
from schemas.errors import UsageError


async def place_in(history: EventLog, text: str, option: str) -> int:
    """Sequence of the event that ``text`` means: itself, or the newest event recorded at or before a time.

    Args:
        history: Which history.
        text: A sequence, or a time in ISO 8601; UTC unless it says otherwise.
        option: What the text was given for, for messages.

    Raises:
        UsageError: neither, or a place that the history does not have; the message says what it has.
    """
    last = await history.last_sequence()
    if text.isascii() and text.isdigit():
        if not 1 <= int(text) <= last:
            raise UsageError(f"{option} {text}: no such event; the history of {history.league!r} holds 1 to {last}")
        return int(text)
    return await _at_time(history, parse_time(text, option), option)


def parse_time(text: str, option: str) -> datetime:
    """A time in ISO 8601; UTC unless it says otherwise.

    Raises:
        UsageError: it is none.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text}: neither a sequence nor a time; expected a number, or ISO 8601 like 2026-01-31T12:00:00"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


async def _at_time(history: EventLog, time: datetime, option: str) -> int:
    # Whole microseconds, all that a datetime holds; as a float it would be off by some hundred nanoseconds.
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    limit_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds + 1) * 1_000 - 1
    found, first_ns = 0, 0
    async for batch in history.batches():
        first_ns = first_ns or batch[0].time_ns
        # Times are those of the writers' clocks, which may be apart: the order of events is that of sequences.
        found = next((recorded.sequence for recorded in reversed(batch) if recorded.time_ns <= limit_ns), found)
    if not found:
        began = datetime.fromtimestamp(first_ns / 1e9, tz=UTC)
        raise UsageError(f"{option} {time.isoformat()}: before the first event, which happened at {began.isoformat()}")
    return found
