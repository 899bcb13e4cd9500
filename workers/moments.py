"""Places in a history by sequence or time; times are looked up in the projection, quick however long it is."""

from datetime import UTC

from league.log.jetstream import JetStreamLog
from schemas.errors import UsageError
from workers.places import parse_time, place_in
from workers.run import Run


async def place_in_tables(run: Run, history: JetStreamLog, text: str, option: str) -> int:
    """Sequence of the event that ``text`` means, like ``places.place_in`` without reading the history.

    Args:
        run: Whose projection.
        history: Its log.
        text: A sequence, or a time in ISO 8601; UTC unless it says otherwise.
        option: What the text was given for, for messages.

    Raises:
        UsageError: neither, or a place that the history does not have; the message says what it has.
    """
    if text.isascii() and text.isdigit():
        return await place_in(history, text, option)
    # Imported here: every worker imports the commands, and none needs the projection.
    from workers.tables import ask

    moment = parse_time(text, option).astimezone(UTC).replace(tzinfo=None)
    statement = f"SELECT sequence_at(TIMESTAMP '{moment.isoformat(sep=' ')}'), min(time), max(time) FROM events"
    [(place, began, ended)] = (await ask(run, history, statement)).rows
    if not place:
        raise UsageError(
            f"{option} {text}: before the first event; the history of {history.league!r} goes from "
            f"{began:%Y-%m-%d %H:%M:%S} to {ended:%Y-%m-%d %H:%M:%S} UTC"
        )
    return int(place)
