"""Places in a history by sequence or time; times are looked up in the projection, quick however long it is."""

from datetime import UTC

from league.lineage import Query
from league.log.jetstream import JetStreamLog
from schemas.errors import UsageError
from workers.places import parse_time, place_in


async def place_in_tables(query: Query, history: JetStreamLog, text: str, option: str) -> int:
    """Sequence of the event that ``text`` means, like ``places.place_in`` without reading the history.

    Args:
        query: Over the tables of the run.
        history: Its log.
        text: A sequence, or a time in ISO 8601; UTC unless it says otherwise.
        option: What the text was given for, for messages.

    Raises:
        UsageError: neither, or a place that the history does not have; the message says what it has.
    """
    if is_sequence(text):
        return await place_in(history, text, option)
    moment = parse_time(text, option).astimezone(UTC).replace(tzinfo=None)
    statement = f"SELECT sequence_at(TIMESTAMP '{moment.isoformat(sep=' ')}'), min(time), max(time) FROM events"
    [(place, began, ended)] = await query(statement)
    if not place:
        raise UsageError(
            f"{option} {text}: before the first event; the history of {history.league!r} goes from "
            f"{began:%Y-%m-%d %H:%M:%S} to {ended:%Y-%m-%d %H:%M:%S} UTC"
        )
    return int(place)


def is_sequence(text: str) -> bool:
    """Whether a place is named by its sequence: then no table is needed to find it."""
    return text.isascii() and text.isdigit()
