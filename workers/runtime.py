"""What a worker opens and closes together: connections, stores, the folded history, background work.

One file, since these depend on each other in the order in which they are opened and closed.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from league.blobs import CachedBlobStore
from league.history.corrections import apply_checked
from league.integrity import snapshots
from league.log.base import RecordedEvent
from league.log.connection import retry_until_ready
from league.log.jetstream import JetStreamLog
from league.log.queues import ExperienceStream, WorkQueue
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from players.remote.model import RemoteUsage
from players.remote.remote_player import RemoteAgents
from schemas import events as e
from schemas.codec import NewerSchemaError, UnknownEventError
from schemas.config import LeagueConfig
from schemas.errors import DecodeError, ReplayError, VersionError
from schemas.loggers import get_logger
from schemas.metrics import InferenceMetrics, MatchMetrics, TrainingMetrics
from workers.compatibility import restart_keys

log = get_logger()

_MAX_DEAD_LETTERS = 1_000
"""Undecodable messages for which one process writes dead letters."""
_MAX_SKIPPED_TYPES = 100
"""Unknown event types that are counted by name; further ones are counted together."""
_MAX_TYPE_NAME_CHARS = 300
_CANCEL_RETRY_S = 1.0
_NICE = 5

T = TypeVar("T")


@dataclass
class Gauges:
    """A process's gauges: set by its components, read at each heartbeat."""

    inference: Callable[[], InferenceMetrics] | None = None
    play: Callable[[], MatchMetrics] | None = None
    training: Callable[[], TrainingMetrics] | None = None
    uses_gpus: bool = False
    """Whether this process computes on GPUs, or one that it started."""


class Context:
    """A worker's connections, stores and state. ``follow`` keeps ``state``, its fold of the history, up to date."""

    def __init__(self, run: Run, client: Client, history: JetStreamLog, name: str) -> None:
        self.run = run
        self.name = name
        self.incarnation = secrets.token_hex(4)
        """Different for every start of the process, and every time that it joins."""
        self.role = ""
        """Role of the worker; empty for other processes."""
        self.client = client
        self.log = history
        self.experience = ExperienceStream(client, history.league)
        self.work_queue = WorkQueue(client, history.league)
        self.blobs: CachedBlobStore = run.open_blob_store(client, history.league)
        self.state = LeagueState()
        self.ratings = RatingFold()
        """The ratings in the snapshot that was loaded; ``follow`` folds them further where ``folds_ratings``."""
        self.folds_ratings = False
        self.checks_ratings = False
        """Whether a recorded rating that differs from the folded one ends this process."""
        self.snapshot_sequence = 0
        """Sequence of the snapshot that was loaded."""
        self.observers: list[Callable[[RecordedEvent], None]] = []
        """Callback for every event that ``follow`` has folded, the process's only reader of the history."""
        self.skipped_types: Counter[str] = Counter()
        """Events skipped because this version does not know their type or schema."""
        self._damaged = 0
        self.refuses_newer = False
        """Whether an event of a newer schema ends this process; otherwise it is skipped."""
        self.refusal = ""
        """Why this process cannot continue; empty if it can."""
        self.announced: list[e.InferenceServing | e.AdapterSlotsReduced] = []
        """Events about this process that are appended again when it joins again."""
        self.membership_changed = asyncio.Event()
        """Set when an event about this worker's joining or leaving was folded."""
        self.joined_sequence = 0
        """Sequence of the newest joining of a process of this name that was folded here."""
        self.gauges = Gauges()
        self.published_ns: dict[str, tuple[int, int]] = {}
        """Newest version of each policy published since this process started, and its time."""
        self._started_ns = time.time_ns()
        self.stopping = asyncio.Event()
        self._wake_event = asyncio.Event()

    @property
    def config(self) -> LeagueConfig:
        """The configuration in force."""
        assert self.state.config is not None
        return self.state.config

    async def load_snapshot(self) -> None:
        """Load the newest snapshot, so that the history is not folded from its first event."""
        self.state, self.ratings = await snapshots.load_folds(self.log, self.blobs)
        self.snapshot_sequence = self.state.sequence

    async def follow(self) -> None:
        """Fold the history; runs until cancelled, or until a recorded rating differs (``ReplayError``)."""
        async for recorded in self.log.follow(self.state.sequence + 1):
            if recorded.error is not None:
                await self._skip_event(recorded, recorded.error)
            event = recorded.event
            if isinstance(event, e.PolicyPublished) and recorded.time_ns >= self._started_ns:
                self.published_ns[event.policy] = (event.version, recorded.time_ns)
            before = self.state.config
            self.state.apply(recorded.sequence, event)
            if self.folds_ratings:
                self._fold_ratings(recorded)
            if before is not None and self.config is not before and self.log.fence is not None:
                # This worker keeps its own of these settings.
                for key, roles in restart_keys(before, self.config).items():
                    if self.role in roles:
                        log.warning("this setting takes effect when this worker restarts", key=key)
            if isinstance(event, e.WorkerJoined | e.WorkerLeft) and event.worker == self.name:
                if isinstance(event, e.WorkerJoined):
                    self.joined_sequence = recorded.sequence
                self.membership_changed.set()
            for observe in self.observers:
                observe(recorded)
            self.wake()

    def _fold_ratings(self, recorded: RecordedEvent) -> None:
        try:
            if self.checks_ratings:
                apply_checked(self.ratings, recorded)
            else:
                self.ratings.apply(recorded.sequence, recorded.event)
        except ReplayError as error:
            self.refusal = str(error)
            raise

    async def _skip_event(self, recorded: RecordedEvent, error: DecodeError) -> None:
        """Log an undecodable event: damaged ones each time, unknown types once, with totals when the worker leaves."""
        if isinstance(error, NewerSchemaError) and self.refuses_newer:
            self.refusal = (
                f"event {recorded.sequence} of the history, on {recorded.subject}: {error}; if no newer version runs, "
                f"that worker's credentials are to be revoked, and `league branch --at {recorded.sequence - 1}` goes on"
            )
            raise VersionError(self.refusal)
        if not isinstance(error, UnknownEventError | NewerSchemaError):
            self._damaged += 1
            # Dead letters are bounded, so that a flood of garbage does not delay the fold.
            if self._damaged <= _MAX_DEAD_LETTERS:
                log.warning("undecodable message set aside", sequence=recorded.sequence, error=str(error))
                await self.persistently(lambda: self.log.publish_dead_letter(recorded))
            elif self._damaged % _MAX_DEAD_LETTERS == 0:
                log.warning("undecodable messages skipped", messages=self._damaged, at=recorded.sequence)
            return
        what = str(error)[:_MAX_TYPE_NAME_CHARS]
        if what not in self.skipped_types and len(self.skipped_types) >= _MAX_SKIPPED_TYPES:
            what = "events of further types"
        self.skipped_types[what] += 1
        if self.skipped_types[what] == 1:
            log.warning("skipped, like all events of its type: upgrade this worker", what=what, at=recorded.sequence)

    async def wait_for_event(self, timeout_s: float) -> None:
        """Wait for the next event, for ``stop``, or for ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake_event.wait()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds or the worker is stopped."""
        while not (condition() or self.stopping.is_set()):
            await self.wait_for_event(timeout_s=60.0)

    async def wait_for_sequence(self, sequence: int) -> None:
        """Wait until the event at ``sequence`` has been folded."""
        await self.wait_until(lambda: self.state.sequence >= sequence)

    async def fold_newest(self, subject: str) -> int:
        """Fold the history up to the newest event on a subject, also when stopped; return that event's sequence."""
        newest = await self.persistently(lambda: self.log.last_sequence(subject))
        await self.fold_through(newest)
        return newest

    async def fold_through(self, sequence: int) -> None:
        """Wait until the event at ``sequence`` has been folded, also when stopped."""
        while self.state.sequence < sequence:
            await self.wait_for_event(timeout_s=1.0)

    async def append(self, event: e.Event) -> int:
        """Append an event; return its sequence."""
        return await self.log.append(event)

    async def announce(self, event: e.InferenceServing | e.AdapterSlotsReduced) -> int:
        """Append an event about this process, which holds until it leaves; return its sequence."""
        self.announced.append(event)
        return await self.append(event)

    async def persistently(self, attempt: Callable[[], Awaitable[T]], give_up: Callable[[], bool] = lambda: False) -> T:
        """Repeat anything but an append, which repeats itself, while the broker is unavailable or a stream is full.

        Raises:
            LogError: the last failure, once ``give_up`` returns True; or one that waiting cannot fix.
            StoreFullError: the broker's store is full, and stays so until the broker is restarted.
        """
        return await retry_until_ready("waiting for the broker", attempt, math.inf, give_up)

    def stop(self) -> None:
        """Tell the worker to finish its work in progress and leave."""
        self.stopping.set()
        self.wake()

    def wake(self) -> None:
        """Wake all current waiters; later ones wait for the next event."""
        waiting, self._wake_event = self._wake_event, asyncio.Event()
        waiting.set()


class RemoteUsageRecorder:
    """Appends the usage of remote agents as ``RemoteAsked``, numbered within this process."""

    def __init__(self, context: Context, remotes: RemoteAgents) -> None:
        self._context = context
        self._remotes = remotes
        self._since = context.state.sequence
        self._count = 0

    async def append(self, match_id: str, usage_by_agent: Mapping[str, RemoteUsage]) -> None:
        """Append the usage of a match, an event for each agent, and wait until it is folded."""
        worker = self._context.name
        for agent, usage in usage_by_agent.items():
            spent = msgspec.structs.asdict(usage)
            event = e.RemoteAsked(
                agent=agent, match_id=match_id, worker=worker, since=self._since, number=self._count, **spent
            )
            self._count += 1
            await self._context.wait_for_sequence(await self._context.append(event))
            self._remotes.mark_recorded(agent, usage.cost)


class SequenceProgress:
    """The sequence up to which the history has been folded, or exported to a destination."""

    def __init__(self, sequence: int = 0) -> None:
        self.sequence = sequence
        self._moved = asyncio.Condition()

    async def advance(self, sequence: int) -> None:
        """Record progress and wake waiters."""
        async with self._moved:
            self.sequence = max(sequence, self.sequence)
            self._moved.notify_all()

    async def wait_for_sequence(self, sequence: int) -> None:
        """Wait until ``sequence`` has been reached."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.sequence >= sequence)


@contextlib.asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines in the background of a block: they are cancelled at its end; if one fails, the block fails.

    Of several failures the first counts: a second cancellation would end the wait for the others.
    """
    me = asyncio.current_task()
    assert me is not None
    failures: list[BaseException] = []
    is_running = True

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failures.append(error)
            if is_running and len(failures) == 1:
                me.cancel()

    tasks = [asyncio.create_task(job) for job in jobs]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        if failures:
            raise failures[0] from None
        raise
    finally:
        is_running = False
        if failures:
            # It asked for the block's cancellation, which is over; one that stays is renewed by a later `TaskGroup`.
            me.uncancel()
        await _cancel_all(tasks)


async def _cancel_all(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel until all have ended: libraries may lose a cancellation."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_CANCEL_RETRY_S)


async def run_in(thread: concurrent.futures.Executor, work: Callable[[], T]) -> T:
    """Run blocking work in a given thread, as ``asyncio.to_thread`` does in any."""
    return await asyncio.get_running_loop().run_in_executor(thread, contextvars.copy_context().run, work)


async def run_in_daemon_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread that does not delay shutdown: on cancellation it is abandoned, so it may hang."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(work())
        except Exception as error:  # raised in the waiting coroutine
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="aside").start()
    return await asyncio.wrap_future(outcome)


def lower_priority() -> None:
    """Give play and training priority over this process, on a machine whose cores are all busy."""
    # Only a process with privileges may raise its own, which one of a command under `nice` has less of already.
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


@contextlib.contextmanager
def call_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function at every SIGINT and SIGTERM during a block; later ones have the effect that they had before."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def follow_league(run: Run, history: JetStreamLog) -> AsyncIterator[Context]:
    """Yield a context whose state includes the newest event when the block starts, and follows later ones."""
    context = Context(run, history.client, history, history.producer)
    await context.load_snapshot()
    async with beside(context.follow()):
        await context.wait_for_sequence(await history.last_sequence())
        yield context
