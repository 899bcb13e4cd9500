"""What every worker process does: connect, fold the history, announce itself, serve, drain and leave."""

import asyncio
import contextlib
import os
import platform
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version

import structlog
import uvloop
from nats.aio.client import Client

from league.artifacts import CachedStore
from league.log.base import Recorded
from league.log.experience import Experience
from league.log.jetstream import JetStreamLog
from league.log.work import WorkQueue
from league.state import LeagueState
from schemas.config import LeagueConfig
from schemas.errors import LeagueError
from schemas.events import WorkerJoined, WorkerLeft
from workers.run import Run

log = structlog.get_logger()


class Context:
    """What a worker works with. ``state`` is its own fold of the history, always moving on."""

    def __init__(self, run: Run, client: Client, history: JetStreamLog, name: str) -> None:
        self.run = run
        self.name = name
        self.client = client
        self.log = history
        self.experience = Experience(client, history.league)
        self.work = WorkQueue(client, history.league)
        self.artifacts: CachedStore = run.artifacts(client)
        self.state = LeagueState()
        self.stopping = asyncio.Event()
        self._moved = asyncio.Condition()
        self._listeners: list[Callable[[Recorded], None]] = []

    @property
    def config(self) -> LeagueConfig:
        """The configuration in force."""
        assert self.state.config is not None
        return self.state.config

    def listen(self, listener: Callable[[Recorded], None]) -> None:
        """Call ``listener`` with every event from now on, after the state has taken it in."""
        self._listeners.append(listener)

    async def follow(self) -> None:
        """Take in the history, for ever."""
        async for recorded in self.log.follow(self.state.sequence + 1, undecodable=self._undecodable):
            self.state.apply(recorded.sequence, recorded.event)
            for listener in self._listeners:
                listener(recorded)
            async with self._moved:
                self._moved.notify_all()

    async def _undecodable(self, recorded: Recorded, error: LeagueError) -> None:
        log.warning("undecodable message set aside", sequence=recorded.sequence, error=str(error))
        await self.log.bury(recorded, error)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the state satisfies ``condition`` or the worker is told to stop."""
        async with self._moved:
            while not (condition() or self.stopping.is_set()):
                await self._moved.wait()

    async def moved(self, timeout_s: float) -> None:
        """Wait for the next event, at most ``timeout_s``, or until the worker is told to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._moved:
                if not self.stopping.is_set():
                    await self._moved.wait()

    async def reached(self, sequence: int) -> None:
        """Wait until the state has taken in the event at ``sequence``."""
        await self.until(lambda: self.state.sequence >= sequence)

    async def stop(self) -> None:
        """Tell the worker to finish what it has in hand and leave."""
        self.stopping.set()
        async with self._moved:
            self._moved.notify_all()


Serve = Callable[[Context], Awaitable[None]]


def run_worker(run: Run, role: str, name: str, serve: Serve) -> int:
    """Run one worker process until it is done or told to stop; return its exit code.

    This is the process's one boundary for unexpected errors: they are logged, recorded as the reason of leaving,
    and end the process with exit code 1, so that its supervisor starts it again.
    """
    return uvloop.run(_main(run, role, name, serve))


async def _main(run: Run, role: str, name: str, serve: Serve) -> int:
    async with run.history(name) as history:
        context = Context(run, history._client, history, name)
        async with _following(context):
            await context.reached(await history.last_sequence())
            async with _membership(context, role) as leave:
                leave.reason = await _served(context, serve)
    return 0 if leave.reason == "done" else 1


@contextlib.asynccontextmanager
async def _following(context: Context) -> AsyncIterator[None]:
    """Follow the history in the background; without it a worker would decide from an old state, so its end ends us."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(context.stop()))
    task = asyncio.create_task(context.follow())
    me = asyncio.current_task()
    assert me is not None
    task.add_done_callback(lambda done: None if done.cancelled() else me.cancel(f"following ended: {done.exception()}"))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Leave:
    reason = "done"


@contextlib.asynccontextmanager
async def _membership(context: Context, role: str) -> AsyncIterator[_Leave]:
    incarnation = secrets.token_hex(4)
    joined = WorkerJoined(
        worker=context.name,
        role=role,
        incarnation=incarnation,
        host=platform.node(),
        pid=os.getpid(),
        version=version("event-sourced-league"),
    )
    await context.log.append(joined)
    log.info("joined", role=role, league=context.log.league, history=context.state.sequence)
    leave = _Leave()
    try:
        yield leave
    finally:
        await context.log.append(WorkerLeft(worker=context.name, incarnation=incarnation, reason=leave.reason))
        log.info("left", reason=leave.reason)


async def _served(context: Context, serve: Serve) -> str:
    try:
        await serve(context)
    except LeagueError as error:
        log.error("stopped by an error", error=str(error))
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        log.exception("stopped by an unexpected error")
        return f"{type(error).__name__}: {error}"
    return "done"


async def together(*jobs: Awaitable[None]) -> None:
    """Run coroutines side by side; the first error ends all and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(_awaited(job))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _awaited(job: Awaitable[None]) -> None:
    await job
