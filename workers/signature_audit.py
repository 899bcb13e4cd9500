"""Finds results with invalid signatures, which the rater voids."""

import asyncio
from collections.abc import Sequence

from league.integrity.signatures import SignatureVerifier
from league.log.base import EventLog, RecordedEvent
from league.ratings.fold import RatingFold
from schemas.events import Event, MatchFailed, MatchFinished, MatchVoided, RatingsCorrected, RatingUpdated, WorkerJoined
from schemas.loggers import get_logger

log = get_logger()

VOID_REASON = "signature"
"""The reason for voiding a match with a forged result."""

_MAX_WAITING = 1_000
"""Approximate bound on results waiting for verification, which are kept in memory."""


class SignatureAudit:
    """Verifies the signatures of folded results in a thread, before the rater records their ratings.

    Args:
        through: Results up to this sequence have been verified.
    """

    def __init__(self, through: int = 0) -> None:
        self._checked_through = through
        self._signatures = SignatureVerifier()
        self._waiting: list[RecordedEvent] = []
        self._forged: list[RecordedEvent] = []
        self._check_lock = asyncio.Lock()

    @classmethod
    async def resume(cls, history: EventLog, fold: RatingFold) -> "SignatureAudit":
        """Continue after the results behind the newest recorded rating, up to the sequence of the fold."""
        through = await _find_checked_through(history, fold.recorded_sequence)
        checks = cls(through)
        if through:
            checks._signatures.verify_batch([r async for r in history.read(1, through, only=WorkerJoined)])
        if fold.sequence > through:
            async for batch in history.batches(through + 1, fold.sequence):
                for recorded in batch:
                    checks.observe(recorded)
                await checks.check_waiting()
        if checks._forged:
            counted = await _find_counted(
                history, {_match_id(r.event) for r in checks._forged}, checks._forged[-1].sequence
            )
            checks._forged = [r for r in checks._forged if r.sequence in counted]
        return checks

    @property
    def is_full(self) -> bool:
        """Whether enough results wait that they should be verified now."""
        return len(self._waiting) >= _MAX_WAITING

    def observe(self, recorded: RecordedEvent, is_over: bool = False) -> None:
        """Queue an event, in order of the history.

        Args:
            recorded: The event.
            is_over: Whether a result's match had ended before. Such a result does not count, whatever its signature,
                and voiding it would void the one that counts.
        """
        event = recorded.event
        if recorded.sequence > self._checked_through and (
            isinstance(event, WorkerJoined) or (isinstance(event, MatchFinished) and not is_over)
        ):
            self._waiting.append(recorded)

    async def check_waiting(self) -> None:
        """Verify all waiting results."""
        async with self._check_lock:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                self._forged += await asyncio.to_thread(self._signatures.verify_batch, batch)

    async def collect_voids(self, fold: RatingFold) -> Sequence[MatchVoided]:
        """Returns the events that void forged results; each result is returned once."""
        await self.check_waiting()
        forged, self._forged = self._forged, []
        return [_make_void(recorded) for recorded in forged if _match_id(recorded.event) not in fold.voided]


def _make_void(recorded: RecordedEvent) -> MatchVoided:
    match = recorded.event
    assert isinstance(match, MatchFinished)
    log.error("forged result voided", match=match.match_id, worker=match.worker, sequence=recorded.sequence)
    return MatchVoided(match=match, match_sequence=recorded.sequence, reason=VOID_REASON)


async def _find_checked_through(history: EventLog, recorded: int) -> int:
    """The match sequence of the rating at ``recorded``: all results up to it were verified before it was recorded."""
    if not recorded:
        return 0
    async for recorded_event in history.read(recorded, recorded):
        if isinstance(recorded_event.event, RatingUpdated):
            return recorded_event.event.match_sequence
        if isinstance(recorded_event.event, RatingsCorrected):
            return recorded_event.event.through
    return 0


async def _find_counted(history: EventLog, matches: set[str], last: int) -> set[int]:
    """Sequences of the first outcome of each match: only these count."""
    places: dict[str, int] = {}
    async for batch in history.batches(1, last):
        for recorded in batch:
            if ".match." in recorded.subject and (name := _match_id(recorded.event)) in matches:
                places.setdefault(name, recorded.sequence)
    return set(places.values())


def _match_id(event: Event | None) -> str:
    return event.match_id if isinstance(event, MatchFinished | MatchFailed) else ""
