"""Silent processes: recorded as left, with the matches that they did not finish.

The rater does this for all workers. Time is counted in the rater's own heartbeats, which take the same way over the
broker as all others': while the rater is paused, the broker is away or its credentials do not allow it to listen, none
arrive, and no worker counts as silent. Each event is appended on the condition that nothing was appended on its subject
since the history was read, so several raters append it once.
"""

import math
from collections.abc import Mapping

from league.log.metrics import MetricsStream
from league.state.saved_state import WorkerState
from schemas.errors import AccessError, ConflictError
from schemas.events import MatchFailed, WorkerLeft
from schemas.loggers import get_logger
from schemas.metrics import HEARTBEAT_S, Heartbeat
from schemas.subjects import event_subject
from workers.runtime import Context

log = get_logger()

_MAX_BATCH = 100
"""Matches that are recorded as failed in one batch."""


class SilenceDetector:
    """Counts, per process, the observer's own heartbeats since the process's last one.

    Args:
        observer: Incarnation of the observing process.
    """

    def __init__(self, observer: str) -> None:
        self._observer = observer
        self._beats = 0
        self._beats_at: dict[str, int] = {}
        """The observer's heartbeats before each process's last one, by incarnation."""

    def observe(self, heartbeat: Heartbeat) -> None:
        """Count a heartbeat."""
        self._beats += heartbeat.incarnation == self._observer
        self._beats_at[heartbeat.incarnation] = self._beats

    def silent(self, workers: Mapping[str, WorkerState], silence_s: float) -> list[WorkerState]:
        """The running processes without a heartbeat for ``silence_s``; others that have left are forgotten."""
        running = {worker.joined.incarnation: worker for worker in workers.values() if worker.left is None}
        # A process that was never seen is counted from now on.
        self._beats_at = {incarnation: self._beats_at.get(incarnation, self._beats) for incarnation in running}
        limit = math.ceil(silence_s / HEARTBEAT_S)
        return [running[known] for known, last_beat in self._beats_at.items() if self._beats - last_beat > limit]


class SilenceRecorder:
    """Appends ``WorkerLeft`` for silent processes, and ``MatchFailed`` for matches that ended with their process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._detector = SilenceDetector(context.incarnation)
        self._is_refused = False

    async def run(self) -> None:
        """Listen to heartbeats and record what is due; runs until cancelled."""
        context = self._context
        async with MetricsStream(context.client, context.log.league).listen() as heartbeats:
            while True:
                heartbeat = await heartbeats.get()
                self._detector.observe(heartbeat)
                if heartbeat.incarnation == context.incarnation:
                    await self.record_due()

    async def record_due(self) -> None:
        """Append what is due; nothing once the broker has refused it."""
        context = self._context
        try:
            for worker in self._detector.silent(context.state.workers, context.config.workers.silence_s):
                await self._record_left(worker)
            while not self._is_refused and (unfinished := context.state.unfinished_matches):
                await self._record_failed(next(iter(unfinished.values())))
        except AccessError as error:
            if not self._is_refused:
                log.error("silent workers are not recorded: the rater needs new credentials", error=str(error))
            self._is_refused = True

    async def _record_left(self, worker: WorkerState) -> None:
        context, name = self._context, worker.joined.worker
        reason = f"silent: no heartbeat for {context.config.workers.silence_s:g} s"
        left = WorkerLeft(name, worker.joined.incarnation, reason)
        newest = await context.fold_newest(event_subject(context.log.league, left))
        if context.state.workers[name] != worker:
            return
        log.warning("worker is silent, recorded as left", worker=name, host=worker.joined.host, pid=worker.joined.pid)
        try:
            await context.fold_through(await context.persistently(lambda: context.log.append(left, expected=newest)))
        except ConflictError:
            log.info("another process has recorded it", worker=name)

    async def _record_failed(self, worker: str) -> None:
        """Record the unfinished matches of a worker as failed; none that ended meanwhile."""
        context = self._context
        example = MatchFailed(match_id="", purpose="training", worker=worker, error="")
        newest = await context.fold_newest(event_subject(context.log.league, example))
        matches = [match for match, name in context.state.unfinished_matches.items() if name == worker][:_MAX_BATCH]
        known = context.state.workers.get(worker)
        why = "started again" if known is None or known.left is None else f"left ({known.left})"
        events = [
            MatchFailed(match_id=match, purpose="training", worker=worker, error=f"unfinished when its worker {why}")
            for match in matches
        ]
        if not events:
            return
        try:
            append = context.log.append_batch
            await context.fold_through(max(await context.persistently(lambda: append(events, expected=newest))))
            log.warning("matches recorded as failed", worker=worker, matches=len(events), why=why)
        except ConflictError:
            log.info("another process records them", worker=worker)
