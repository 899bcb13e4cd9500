"""Membership of worker processes: one live process per name, one trainer per policy, and silent ones recorded as left.

A process joins by appending ``WorkerJoined`` on the condition that no other process of its name joined since it read
the history; all its later appends carry that event as their condition, so the history rejects a process whose name was
taken over. Where the history has another process of the name that did not leave, the newcomer listens for its
heartbeats: one heartbeat rejects the newcomer; silence, counted while the broker is connected, lets it take over.
No clock of another machine is involved.

Silent processes are recorded as left by the rater, with the matches that they did not finish; when the rater ends, so
are the processes of its machine that have ended. Time is counted in the rater's own heartbeats, which take the same
way over the broker as all others': while the rater is paused, the broker is away or its credentials do not allow it
to listen, none arrive, and no worker counts as silent. Each event is appended on the condition that nothing was
appended on its subject since the history was read, so several raters append it once.
"""

import asyncio
import contextlib
import math
import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from league.log.connection import PATIENCE_S
from league.log.metrics import MetricsStream
from league.state.saved_state import WorkerState
from schemas.codec import SCHEMA_VERSION
from schemas.errors import AccessError, ConflictError, WorkerConflictError
from schemas.events import MatchFailed, WorkerJoined, WorkerLeft
from schemas.ids import digest
from schemas.loggers import get_logger
from schemas.metrics import HEARTBEAT_S, SILENCE_TIMEOUT_S, Heartbeat
from schemas.subjects import event_subject, worker_event_subject
from workers.runtime import Context

log = get_logger()

_TICK_S = 1.0
_LISTENERS = ("rater", "trainer")
"""Roles that may receive other workers' heartbeats."""


class Membership:
    """The membership of this process, from joining to leaving; without a ``policy`` it works for none."""

    def __init__(self, context: Context, role: str, policy: str = "") -> None:
        self._context = context
        self._role = context.role = role
        self._policy = policy
        self._subject = worker_event_subject(context.log.league, WorkerJoined, context.name)

    async def join(self) -> None:
        """Join the league, in place of an earlier process of the name if that one is gone.

        On return the history up to this event is folded, and no other process of the name can append after it.

        Raises:
            WorkerConflictError: a live process has the name, or trains the policy.
        """
        context = self._context
        while True:
            # A replica that lags may not have what this process has folded, its own joining among it.
            newest = max(await context.fold_newest(self._subject), context.joined_sequence)
            before = self._running_process(context.name)
            if before is not None and before.incarnation == context.incarnation:
                # Appended in the last round: the broker's reply was lost.
                break
            if context.state.has_joined(context.name, context.incarnation):
                # So it was, and since recorded as gone: folds pass over a second joining of one incarnation.
                context.incarnation = secrets.token_hex(4)
            others = sorted(name for name in context.state.workers if name != context.name)
            running = filter(None, map(self._running_process, others if self._role == "trainer" else ()))
            trainers = (other for other in running if other.role == "trainer" and other.policy == self._policy)
            for other in filter(None, (before, next(trainers, None))):
                await self._check_gone(other)
            with contextlib.suppress(ConflictError):
                await self._append_joined(newest, before)
        context.log.fence = (self._subject, newest)
        log.info("joined", role=self._role, league=context.log.league, history=context.state.sequence)

    async def filter_running(self, workers: Sequence[WorkerJoined]) -> list[WorkerJoined]:
        """The processes without those that are known to run no more, although the history has not recorded it.

        Where all deciders were killed at once, a new rater has to find that out before anyone can join.
        """
        listens = self._role in _LISTENERS
        left = [other for other in workers if not has_ended_here(other)]
        return [other for other in left if not listens or await self._listen(other) is not None]

    async def watch(self) -> None:
        """Rejoin after this process was recorded as silent; runs until cancelled.

        Raises:
            WorkerConflictError: another process has taken the name over.
        """
        context = self._context
        while True:
            await context.membership_changed.wait()
            context.membership_changed.clear()
            worker = context.state.workers[context.name]
            if worker.joined.incarnation != context.incarnation:
                raise WorkerConflictError(
                    f"{context.name}: {_describe(worker.joined)} has taken this name over, since this process was "
                    "silent; expected one live process per name: give one of them another --name"
                )
            if worker.left is not None:
                log.warning("recorded as gone, joining again", reason=worker.left)
                context.incarnation = secrets.token_hex(4)
                context.log.fence = None
                await self.join()
                for event in context.announced:
                    await context.append(msgspec.structs.replace(event, incarnation=context.incarnation))

    async def leave(self, reason: str) -> None:
        """Record that this process left, unless another one has its name by now."""
        context = self._context
        # A process that leaves does not wait for a broker that is gone.
        context.log.patience_s = PATIENCE_S
        try:
            await context.log.append(WorkerLeft(worker=context.name, incarnation=context.incarnation, reason=reason))
        except WorkerConflictError as error:
            log.warning("leaving is not recorded", error=str(error))

    async def _append_joined(self, newest: int, before: WorkerJoined | None) -> None:
        context = self._context
        joined = WorkerJoined(
            worker=context.name,
            role=self._role,
            incarnation=context.incarnation,
            host=platform.node(),
            pid=os.getpid(),
            version=version("event-sourced-league"),
            schema=SCHEMA_VERSION,
            policy=self._policy,
            machine=machine_digest(),
        )
        events: list[WorkerJoined | WorkerLeft] = [joined]
        if before is not None:
            reason = f"gone; {_describe(joined)} took its name over"
            events.append(WorkerLeft(before.worker, before.incarnation, reason))
        await context.log.append_batch(events, expected=newest)

    def _running_process(self, name: str) -> WorkerJoined | None:
        worker = self._context.state.workers.get(name)
        return worker.joined if worker is not None and worker.left is None else None

    async def _check_gone(self, other: WorkerJoined) -> None:
        """Wait until a process is known to be gone, or raise."""
        if has_ended_here(other):
            return
        log.info("listening for heartbeats before joining", of=_describe(other), seconds=SILENCE_TIMEOUT_S)
        heartbeat = await self._listen(other)
        if heartbeat is None:
            return
        me = self._context.name
        what = f"{me} is the name of" if other.worker == me else f"policy {self._policy} is trained by {other.worker},"
        raise WorkerConflictError(
            f"{me}: {what} {_describe(other)}, which started {heartbeat.uptime_s:,.0f} s ago and sent a heartbeat just "
            f"now, at event {heartbeat.sequence}; expected one live process per name and one trainer per policy: end "
            f"that one first (on {other.host}: kill {other.pid})"
            + (", or give this one another --name" if other.worker == me else "")
        )

    async def _listen(self, other: WorkerJoined) -> Heartbeat | None:
        """The next heartbeat of a process; None once it has left or been silent for ``SILENCE_TIMEOUT_S``."""
        context, silent_s = self._context, 0.0
        async with MetricsStream(context.client, context.log.league).listen(other.worker) as heartbeats:
            while silent_s < SILENCE_TIMEOUT_S and self._running_process(other.worker) == other:
                try:
                    async with asyncio.timeout(_TICK_S):
                        heartbeat = await heartbeats.get()
                except TimeoutError:
                    # Counted in ticks: time in which this process or the broker was paused says nothing about others.
                    silent_s = silent_s + _TICK_S if context.client.is_connected else 0.0
                    continue
                if heartbeat.incarnation == other.incarnation:
                    return heartbeat
        return None


def _describe(joined: WorkerJoined) -> str:
    return f"process {joined.pid} on {joined.host}"


def machine_digest() -> str:
    """Digest of this machine's boot and process namespace; empty where the system does not tell them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return digest(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}".encode())[:16]
    except OSError:
        return ""


def has_ended_here(joined: WorkerJoined) -> bool:
    """Whether a process ran on this machine and surely runs no more; False where that cannot be known."""
    if not joined.machine or joined.machine != machine_digest():
        return False
    try:
        return joined.pid == os.getpid() or psutil.Process(joined.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


_MAX_BATCH = 100
"""Matches that are recorded as failed in one batch."""


class SilenceDetector:
    """Counts, per process, the heartbeats of the observer, an incarnation, since the process's last one."""

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
        return [
            running[incarnation] for incarnation, last_beat in self._beats_at.items() if self._beats - last_beat > limit
        ]


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

    async def record_due(self, at_end: bool = False) -> None:
        """Append what is due; nothing once the broker has rejected it.

        ``at_end``, when no silence is waited for any more, processes of this machine that have ended count as gone too.
        """
        context = self._context
        silence_s = context.config.workers.silence_s
        try:
            for worker in self._detector.silent(context.state.workers, silence_s):
                await self._record_left(worker, f"silent: no heartbeat for {silence_s:g} s")
            for worker in self._ended_here() if at_end else ():
                await self._record_left(worker, "ended without leaving")
            while not self._is_refused and (unfinished := context.state.in_play.unfinished):
                await self._record_failed(next(iter(unfinished.values())))
        except AccessError as error:
            if not self._is_refused:
                log.error("silent workers are not recorded: the rater needs new credentials", error=str(error))
            self._is_refused = True

    def _ended_here(self) -> list[WorkerState]:
        running = (worker for worker in self._context.state.workers.values() if worker.left is None)
        others = (worker for worker in running if worker.joined.incarnation != self._context.incarnation)
        return [worker for worker in others if has_ended_here(worker.joined)]

    async def _record_left(self, worker: WorkerState, reason: str) -> None:
        context, name = self._context, worker.joined.worker
        left = WorkerLeft(name, worker.joined.incarnation, reason)
        newest = await context.fold_newest(event_subject(context.log.league, left))
        if context.state.workers[name] != worker:
            return
        joined = worker.joined
        log.warning("worker recorded as left", worker=name, reason=reason, host=joined.host, pid=joined.pid)
        try:
            await context.fold_through(await context.log.append(left, expected=newest))
        except ConflictError:
            log.info("another process has recorded it", worker=name)

    async def _record_failed(self, worker: str) -> None:
        """Record the unfinished matches of a worker as failed; none that ended meanwhile."""
        context = self._context
        example = MatchFailed(match_id="", purpose="training", worker=worker, error="")
        newest = await context.fold_newest(event_subject(context.log.league, example))
        matches = [match for match, name in context.state.in_play.unfinished.items() if name == worker][:_MAX_BATCH]
        membership = context.state.workers.get(worker)
        reason = None if membership is None else membership.left
        why = "started again" if reason is None else f"left ({reason})"
        events = [
            MatchFailed(match_id=match, purpose="training", worker=worker, error=f"unfinished when its worker {why}")
            for match in matches
        ]
        if not events:
            return
        try:
            await context.fold_through(max(await context.log.append_batch(events, expected=newest)))
            log.warning("matches recorded as failed", worker=worker, matches=len(events), why=why)
        except ConflictError:
            log.info("another process records them", worker=worker)
