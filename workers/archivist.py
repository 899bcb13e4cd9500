"""The archivist: seals history, copies sealed segments to the archive, and takes the snapshots that workers start from.

All its state is in the history, so any number of archivists may run. The one with the newest seal does the work; the
others stand by until a seal has been due for ``STANDBY_DELAY_S``.
"""

import asyncio
import time

from league.blobs import ARCHIVE_AREA
from league.integrity import snapshots
from league.integrity.archive import archive_sealed, copy_archive, newest_manifest
from league.integrity.seals import MAX_EVENTS, Sealer
from league.log.base import RecordedEvent
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.errors import ConflictError, LeagueError, StoreFullError
from schemas.events import HistoryArchived, HistorySealed, SnapshotTaken
from schemas.loggers import get_logger
from schemas.subjects import event_type_filter
from workers.runtime import Context, SequenceProgress, beside, lower_priority

log = get_logger()

STANDBY_DELAY_S = 15.0
"""Time that a standby leaves the producer of the newest seal to append a seal that is due."""

_RETRY_S = 60.0


async def serve(context: Context) -> None:
    """Keep seals, archive and snapshots up to date until the worker is stopped, then seal the rest."""
    lower_priority()
    archivist = Archivist(context)
    await archivist.resume()
    async with beside(archivist.follow()):
        while not context.stopping.is_set():
            await archivist.run_due()
            await context.wait_for_event(timeout_s=1.0)
        await archivist.progress.wait_for_sequence(await context.log.last_sequence())
        await archivist.run_due()
        if archivist.sealer.has_events_to_seal:
            await archivist.seal(MAX_EVENTS)


class Archivist:
    """Folds the history and tracks how far it is sealed, archived and covered by a snapshot."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.config.history
        self._blobs = context.run.open_blob_store(context.client, context.log.league, ARCHIVE_AREA)
        self.sealer = Sealer(context.log.league)
        self._state = LeagueState()
        self._ratings = RatingFold()
        self.progress = SequenceProgress()
        self._unarchived_seals: dict[int, int] = {}
        """Events in each unarchived seal, by the seal's last sequence."""
        self._snapshots = event_type_filter(context.log.league, SnapshotTaken)
        self._snapshot = (0, 0)
        """Sequence of the newest ``SnapshotTaken``, and the sequence of the state in it."""
        self._due_since: float | None = None
        self._archive_after = 0.0
        self._copy_after = 0.0
        self._is_copied = False
        """Whether the copy of the archive, if there is to be one, holds all of it."""

    async def resume(self) -> None:
        """Restore progress from the history."""
        history, artifacts = self._context.log, self._blobs
        manifest = await newest_manifest(history, artifacts)
        archived = manifest.last if manifest is not None else 0
        async for recorded in history.read(only=HistorySealed):
            self.sealer.observe_seal(recorded)
            if isinstance(recorded.event, HistorySealed) and recorded.event.first > archived:
                self._unarchived_seals[recorded.event.last] = recorded.event.events
        self.sealer.sequence = self.sealer.first - 1
        self._state, self._ratings = await snapshots.load_folds(history, artifacts)
        taken = await history.last_sequence(self._snapshots)
        self._snapshot = (taken, self._state.sequence)
        self.progress.sequence = min(self.sealer.sequence, self._state.sequence)

    async def follow(self) -> None:
        """Fold the history; runs until cancelled."""
        async for recorded in self._context.log.follow(self.progress.sequence + 1):
            self.apply(recorded)
            await self.progress.advance(recorded.sequence)

    def apply(self, recorded: RecordedEvent) -> None:
        """Fold one event."""
        self.sealer.apply(recorded)
        self._state.apply(recorded.sequence, recorded.event)
        self._ratings.apply(recorded.sequence, recorded.event)
        event = recorded.event
        if isinstance(event, HistorySealed):
            self._unarchived_seals[event.last] = event.events
        elif isinstance(event, HistoryArchived):
            self._is_copied = False
            self._drop_archived(event.last)
        if recorded.subject == self._snapshots:
            # Undecodable messages on the subject count too: the append of a snapshot is conditional on the subject.
            saved = event.sequence if isinstance(event, SnapshotTaken) else 0
            self._snapshot = (recorded.sequence, max(saved, self._snapshot[1]))

    async def run_due(self) -> None:
        """Seal, take a snapshot and archive, where due."""
        every = min(self._settings.seal_events, MAX_EVENTS)
        while self.sealer.pending_count >= every and self._is_my_turn():
            if not await self.seal(every):
                return
        if self.sealer.pending_count < every:
            self._due_since = None
        if not self._is_active():
            return
        if self._state.sequence - self._snapshot[1] >= self._settings.snapshot_events:
            await self._take_snapshot()
        unarchived = sum(self._unarchived_seals.values())
        if unarchived >= self._settings.archive_events and time.monotonic() >= self._archive_after:
            await self._archive()
        if self._context.config.history.copy_to and not self._is_copied and time.monotonic() >= self._copy_after:
            await self._copy()

    def _is_active(self) -> bool:
        return self.sealer.newest_producer in ("", self._context.name)

    def _is_my_turn(self) -> bool:
        if self._is_active():
            return True
        if self._due_since is None:
            self._due_since = time.monotonic()
        return time.monotonic() - self._due_since > STANDBY_DELAY_S

    async def seal(self, events: int) -> bool:
        """Seal the next ``events`` events; False if another archivist has."""
        try:
            seal = await self._context.persistently(lambda: self.sealer.record_seal(self._context.log, events))
        except ConflictError:
            log.info("another archivist has sealed this", first=self.sealer.first)
            await asyncio.sleep(0.5)
            return False
        log.info("history sealed", last=seal.last if seal is not None else 0)
        return True

    async def _take_snapshot(self) -> None:
        context = self._context
        taken = await context.persistently(lambda: snapshots.take_snapshot(self._state, self._ratings, self._blobs))
        try:
            await context.persistently(lambda: context.log.append(taken, expected=self._snapshot[0]))
        except ConflictError:
            log.info("another archivist took a snapshot", sequence=taken.sequence)
            return
        self._snapshot = (self._snapshot[0], taken.sequence)
        log.info("snapshot taken", sequence=taken.sequence)

    async def _archive(self) -> None:
        """Archive complete segments. A failure here does not block sealing or snapshots."""
        try:
            done = await archive_sealed(self._context.log, self._blobs, self._settings.archive_events)
        except StoreFullError:
            raise
        except LeagueError as error:
            log.error("history not archived, trying again later", error=str(error), retry_s=_RETRY_S)
            self._archive_after = time.monotonic() + _RETRY_S
            return
        if done:
            self._drop_archived(done[-1].last)

    async def _copy(self) -> None:
        """Copy the archive, where that is configured. A failure, also of a full disk there, holds up nothing else."""
        # What is archived meanwhile is copied next.
        self._is_copied = True
        try:
            await copy_archive(self._context.log, self._blobs)
        except LeagueError as error:
            log.error("archive not copied, trying again later", error=str(error), retry_s=_RETRY_S)
            self._is_copied = False
            self._copy_after = time.monotonic() + _RETRY_S

    def _drop_archived(self, archived: int) -> None:
        self._unarchived_seals = {last: events for last, events in self._unarchived_seals.items() if last > archived}
