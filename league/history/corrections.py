"""Pending rating events: updates that are not recorded yet, and corrections after a void.

They are appended on the condition that no rating was recorded after the newest one that the writer's fold has seen
(``RatingFold.recorded_sequence``). So two writers cannot both append, and a writer that crashes half-way leaves nothing
to repair: the same events are pending in the next one's fold.
"""

import asyncio
from collections.abc import Sequence

from league.log.base import EventLog, RecordedEvent, append_in_batches
from league.ratings.fold import RatingFold
from schemas.codec import NewerSchemaError
from schemas.errors import ConflictError, ReplayError, VersionError
from schemas.events import Event, RatingsCorrected, RatingUpdated
from schemas.loggers import get_logger
from schemas.subjects import event_type_filter

log = get_logger()

_RETRY_S = 0.2


def apply_checked(fold: RatingFold, recorded: RecordedEvent) -> None:
    """Fold one event of the history; ReplayError if it is an update that differs from the fold's own."""
    if isinstance(recorded.event, RatingUpdated):
        computed = fold.unrecorded.get(recorded.event.key)
        if computed is not None and computed != recorded.event:
            raise ReplayError(
                f"event {recorded.sequence}: the ratings recorded after match {computed.match_id} differ from what "
                "these rules compute; `league replay --verify` lists all differences"
            )
    fold.apply(recorded.sequence, recorded.event)


async def pending_events(history: EventLog, fold: RatingFold) -> Sequence[Event]:
    """The events to append next: updates, or corrections when there are no updates."""
    updates = list(fold.unrecorded.values())
    return updates or await make_corrections(history, fold)


async def make_corrections(history: EventLog, fold: RatingFold) -> list[RatingsCorrected]:
    """Make a correction per game and system in which a voided match had counted, by a refold without voided matches."""
    corrections: list[RatingsCorrected] = []
    due = sorted(fold.due_corrections.items(), key=lambda item: (item[1], item[0]))
    if not due:
        return corrections
    # The voids after the first of these concern other games and systems.
    refold = fold.begin_refold(due[-1][1])
    for key, through in due:
        async for batch in history.batches(refold.sequence + 1, through):
            await asyncio.to_thread(_fold_batch, refold, batch)
        corrections.append(fold.make_correction(key, through, refold))
    return corrections


def _fold_batch(fold: RatingFold, batch: Sequence[RecordedEvent]) -> None:
    for recorded in batch:
        fold.apply(recorded.sequence, recorded.event)


async def skip_undecodable(history: EventLog, newest: int) -> int:
    """Skip messages that are no events under the rating subjects, after a conditional append of ratings has failed.

    They may be published there, and decide nothing. ``newest`` is the sequence of the newest rating that the fold has
    seen, or of such a message after it. The result is the sequence of the last message there if only such messages
    follow ``newest``; otherwise ``newest``, since the fold has to see newer ratings first.
    """
    last = await history.last_sequence(event_type_filter(history.league, RatingUpdated))
    if last > newest:
        async for recorded in history.read(newest + 1, last, only=RatingUpdated):
            if recorded.event is not None or isinstance(recorded.error, NewerSchemaError):
                return newest
    return max(last, newest)


async def record_pending(history: EventLog, fold: RatingFold) -> None:
    """Fold the history to its end and append all pending rating events once, as a rater would; waits for another one.

    Raises:
        ReplayError: the history holds an update that these rules do not give.
        VersionError: it holds an event of a newer schema, so that only a newer rater knows what is pending.
    """
    beyond = 0
    while True:
        async for recorded in history.read(fold.sequence + 1):
            if isinstance(recorded.error, NewerSchemaError):
                why = f"{recorded.error}; a newer rater has to correct the ratings"
                raise VersionError(f"event {recorded.sequence} of the history: {why}")
            apply_checked(fold, recorded)
        events = await pending_events(history, fold)
        if not events:
            return
        try:
            await append_in_batches(history, events, expected=max(fold.recorded_sequence, beyond))
        except ConflictError:
            log.info("another rater is at work", owed=len(events))
            beyond = await skip_undecodable(history, max(fold.recorded_sequence, beyond))
            await asyncio.sleep(_RETRY_S)
