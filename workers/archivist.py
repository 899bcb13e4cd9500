"""The archivist: archives the history and takes the snapshots that workers start from.

All its state is in the history, so any number of archivists may run. The one that archived last does the work; the
others stand by until a segment has been due for ``STANDBY_DELAY_S``.
"""

import asyncio
import time

from league.blobs import ARCHIVE_AREA
from league.integrity import snapshots
from league.integrity.archive import archive_history, copy_archive, event_digest, is_bookkeeping, newest_manifest
from league.integrity.decision_segments import read_decision_segments
from league.log.base import RecordedEvent
from schemas.errors import ConflictError, LeagueError, StoreFullError
from schemas.events import HistoryArchived, SnapshotTaken
from schemas.loggers import get_logger
from schemas.subjects import event_type_filter
from workers.runtime import Context, lower_priority

log = get_logger()

STANDBY_DELAY_S = 15.0
"""Time that a standby leaves the archivist that archived last to archive a segment that is due."""

_RETRY_S = 60.0
_DECISIONS_INTERVAL_S = 600.0
"""Time between two checks of the limits of ``history.decisions``."""


async def serve(context: Context) -> None:
    """Keep archive and snapshots up to date until the worker is stopped, then archive the rest."""
    lower_priority()
    archivist = Archivist(context)
    await archivist.resume()
    while not context.stopping.is_set():
        await archivist.run_due()
        await context.wait_for_event(timeout_s=1.0)
    await context.fold_through(await context.log.last_sequence())
    await archivist.run_due()
    await archivist.archive(rest=True)
    await archivist.copy_due()


class Archivist:
    """Tracks how far the history is archived and covered by a snapshot; the context folds it, ratings too."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.config.history
        self._blobs = context.run.open_blob_store(context.client, context.log.league, ARCHIVE_AREA)
        self._archivings = event_type_filter(context.log.league, HistoryArchived)
        self._archived_to = 0
        self._archived_by = ""
        """Archivist of the newest segment."""
        self._newest_archiving = 0
        """Sequence of the newest message on the subject of ``HistoryArchived``."""
        self._unarchived: dict[int, bytes] = {}
        """Digest of each event after the archive, by sequence, as it was first read."""
        self._newest_news = 0
        """Sequence of the newest event that is no archivist's own."""
        self._snapshots = event_type_filter(context.log.league, SnapshotTaken)
        self._snapshot = (0, 0)
        """Sequence of the newest ``SnapshotTaken``, and the sequence of the state in it."""
        self._due_since: float | None = None
        self._archive_after = 0.0
        self._copy_after = 0.0
        self._decisions_after = 0.0
        self._is_copied = False
        """Whether the copy of the archive, if one is configured, holds all of it."""

    async def resume(self) -> None:
        """Restore progress from the history."""
        context, history = self._context, self._context.log
        manifest = await newest_manifest(history, self._blobs)
        self._archived_to = manifest.last if manifest is not None else 0
        if (newest := await history.newest(HistoryArchived)) is not None:
            self._newest_archiving, self._archived_by = newest.sequence, newest.producer
        self._snapshot = (await history.last_sequence(self._snapshots), context.snapshot_sequence)
        sequence = self._archived_to
        while sequence < (folded := context.state.sequence):
            async for recorded in history.read(sequence + 1, folded):
                self._observe(recorded)
            sequence = folded
        context.observers.append(self._observe)

    def _observe(self, recorded: RecordedEvent) -> None:
        if recorded.sequence > self._archived_to:
            self._unarchived[recorded.sequence] = event_digest(recorded)
            if not is_bookkeeping(recorded):
                self._newest_news = recorded.sequence
        event = recorded.event
        if isinstance(event, HistoryArchived):
            self._is_copied = False
            self._archived_by = recorded.producer
            self._archived_to = max(self._archived_to, event.last)
            self._unarchived = {at: seen for at, seen in self._unarchived.items() if at > event.last}
        if recorded.subject == self._archivings:
            self._newest_archiving = max(recorded.sequence, self._newest_archiving)
        if recorded.subject == self._snapshots:
            # Undecodable messages on the subject count too: the append of a snapshot is conditional on the subject.
            saved = event.sequence if isinstance(event, SnapshotTaken) else 0
            self._snapshot = (recorded.sequence, max(saved, self._snapshot[1]))

    async def run_due(self) -> None:
        """Take a snapshot, archive and copy the archive, where due."""
        while self._is_due() and time.monotonic() >= self._archive_after and self._is_my_turn():
            if not await self.archive():
                return
        if not self._is_due():
            self._due_since = None
        if not self._is_active():
            return
        if self._context.state.sequence - self._snapshot[1] >= self._settings.snapshot_events:
            await self._take_snapshot()
        await self.drop_decisions_due()
        await self.copy_due()

    def _is_due(self) -> bool:
        return len(self._unarchived) >= self._settings.archive_events

    def _is_active(self) -> bool:
        return self._archived_by in ("", self._context.name)

    def _is_my_turn(self) -> bool:
        if self._is_active():
            return True
        if self._due_since is None:
            self._due_since = time.monotonic()
        return time.monotonic() - self._due_since > STANDBY_DELAY_S

    async def archive(self, rest: bool = False) -> bool:
        """Archive the next segment, or all the ``rest``; False if nothing was. A failure does not block snapshots."""
        if rest and self._newest_news <= self._archived_to:
            return False
        history, every = self._context.log, self._settings.archive_events
        try:
            done = await archive_history(
                history,
                self._blobs,
                every,
                rest=rest,
                expected=self._newest_archiving,
                most=None if rest else 1,
                witness=self._unarchived,
            )
        except StoreFullError:
            raise
        except ConflictError:
            log.info("another archivist has archived this", after=self._archived_to)
            await asyncio.sleep(0.5)
        except LeagueError as error:
            log.error("history not archived, trying again later", error=str(error), retry_s=_RETRY_S)
            self._archive_after = time.monotonic() + _RETRY_S
        else:
            # The history says whose archiving was recorded, and what it leaves.
            await self._context.fold_through(await history.last_sequence())
            return bool(done)
        return False

    async def _take_snapshot(self) -> None:
        context = self._context
        taken = await context.persistently(lambda: snapshots.take_snapshot(context.state, context.ratings, self._blobs))
        try:
            await context.persistently(lambda: context.log.append(taken, expected=self._snapshot[0]))
        except ConflictError:
            log.info("another archivist took a snapshot", sequence=taken.sequence)
            return
        self._snapshot = (self._snapshot[0], taken.sequence)
        log.info("snapshot taken", sequence=taken.sequence)

    async def drop_decisions_due(self) -> None:
        """Drop the segments of decisions beyond the limits, every ten minutes.

        Credentials of an archivist do not permit it to delete: then ``league gc --delete`` does.
        """
        if time.monotonic() < self._decisions_after:
            return
        self._decisions_after = time.monotonic() + _DECISIONS_INTERVAL_S
        context = self._context
        try:
            segments = await read_decision_segments(context.log)
            dropped = segments.drop(context.config.history.decisions, time.time_ns())
            if dropped is None:
                return
            await context.append(dropped)
            for artifact in dropped.artifacts:
                await context.blobs.delete(artifact)
            log.info("segments of decisions dropped", segments=len(dropped.artifacts), bytes=dropped.bytes)
        except StoreFullError:
            raise
        except LeagueError as error:
            log.warning("segments of decisions not deleted; `league gc --delete` does", error=str(error))

    async def copy_due(self) -> None:
        """Copy the archive, where that is configured. A failure, also of a full disk there, holds up nothing else."""
        if not self._context.config.history.copy_to or self._is_copied or time.monotonic() < self._copy_after:
            return
        # What is archived meanwhile is copied next.
        self._is_copied = True
        try:
            await copy_archive(self._context.log, self._blobs)
        except LeagueError as error:
            log.error("archive not copied, trying again later", error=str(error), retry_s=_RETRY_S)
            self._is_copied = False
            self._copy_after = time.monotonic() + _RETRY_S
