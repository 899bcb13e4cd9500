"""Starts, watches and restarts the workers of one machine, and shows how the league is doing."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import structlog
from rich.console import Console
from rich.live import Live

from arena.contests import make_contest
from league.evaluation import planning as evaluations
from league.evaluation import promotion
from schemas.config import LeagueConfig
from schemas.errors import LeagueError, StoreFullError
from schemas.events import WorkerLeft
from workers.runtime import EXIT_STORE_FULL, Context, beside
from workers.scaling import Scaler
from workers.watching.alarms import watch_alarms
from workers.watching.dashboard import Dashboard

log = structlog.get_logger()

Refresh = Callable[[], None]
Announce = Callable[[str], None]

ROLES = ("archivist", "tracker", "rater", "inference", "trainer", "evaluator", "rollout")
"""In the order of starting; stopping goes backward, so that what is played is still trained on, rated and sealed."""

_GRACE_S = dict.fromkeys(ROLES, 120.0) | {"rater": 60.0}
_MAX_BACKOFF_S = 30.0
_MAX_KILLED_S = 2.0
_STEADY_S = 60.0
_LINE_EVERY_S = 10.0
_LOOK_EVERY_S = 2.0


class Process(NamedTuple):
    """A worker process that there is to be."""

    role: str
    name: str
    policy: str | None = None
    """Whom it serves, of a rollout worker or trainer of another policy than ``trainer.policy``."""


def processes(config: LeagueConfig) -> list[Process]:
    """The worker processes of a league on one machine, in the order of starting.

    Those of policies beside ``trainer.policy`` have the policy in their names: ``rollout-exploiter-1``.
    """
    counts = {
        "archivist": config.history.archivists,
        "tracker": config.tracker.workers,
        "rater": 1,
        "inference": config.inference.servers,
        "trainer": config.trainer.workers,
        "evaluator": config.evaluation.workers,
        "rollout": config.rollout.workers,
    }
    found = []
    for role in ROLES:
        found += [Process(role, f"{role}-{number}") for number in range(1, counts[role] + 1)]
        if role in ("trainer", "rollout"):
            for policy, settings in sorted(config.policies.items()):
                count = settings.rollout_workers if role == "rollout" else 1
                found += [Process(role, f"{role}-{policy}-{number}", policy) for number in range(1, count + 1)]
    return found


class Child:
    """One worker process, kept alive until it is done."""

    def __init__(self, context: Context, process: Process, announce: Announce) -> None:
        self.role = process.role
        self.name = process.name
        self.policy = process.policy
        self._announce = announce
        self._context = context
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping

    async def keep(self) -> None:
        """Run the worker; start it again when it fails, after a pause that grows while it keeps failing.

        Raises:
            StoreFullError: the worker found the broker's store full.
        """
        pause_s = 0.5
        while not self._stopping:
            started = time.monotonic()
            code = await self._run()
            if code == 0 or self._stopping:
                return
            if code == EXIT_STORE_FULL:
                raise StoreFullError(
                    f"{self._context.run.nats or self._context.run.folder}: the broker's store is at its limit, so "
                    "nothing new can be recorded. What was recorded is safe: give it more room (--max-store-mb), then "
                    "run the same command again"
                )
            # Who was killed did not fail: it need not be the next one's fate, too.
            most_s = _MAX_KILLED_S if code == -signal.SIGKILL else _MAX_BACKOFF_S
            pause_s = 0.5 if time.monotonic() - started > _STEADY_S else min(pause_s * 2, most_s)
            log.error("worker ended, starting it again", name=self.name, code=code, pause_s=pause_s)
            logs = self._context.run.logs / self.name
            self._announce(f"{self.name} ended with code {code}; again in {pause_s:g} s (why: {logs}.log and .out)")
            await self._say_it_left(code)
            await asyncio.sleep(pause_s)

    async def _run(self) -> int:
        run = self._context.run
        command = [sys.executable, "-m", "workers", "worker", self.role, "--run", str(run.folder), "--name", self.name]
        command += ["--league", self._context.log.league]
        if run.nats is not None:
            command += ["--nats", run.nats]
        if self.policy is not None:
            command += ["--policy", self.policy]
        run.logs.mkdir(parents=True, exist_ok=True)
        with (run.logs / f"{self.name}.out").open("ab") as output:
            # Its own session: Ctrl-C at the terminal reaches us alone, and we stop the workers in order.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                "--supervised",
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
            )
        return await self._process.wait()

    async def _say_it_left(self, code: int) -> None:
        """A killed worker cannot say that it left."""
        known = self._context.state.workers.get(self.name)
        if known is not None and known.left is None:
            incarnation = known.joined.incarnation
            left = WorkerLeft(worker=self.name, incarnation=incarnation, reason=f"ended with code {code}")
            with contextlib.suppress(LeagueError):
                await self._context.log.append(left)

    async def stop(self) -> None:
        """Ask the worker to finish what it has in hand; end it when it takes too long."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE_S[self.role]):
                await process.wait()
        except TimeoutError:
            log.error("worker did not drain in time, ending it", name=self.name)
            self.kill()

    def kill(self) -> None:
        """End the worker now."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def _environment() -> dict[str, str]:
    # Threads of the numeric libraries fight for the cores of a machine that runs several workers.
    return {"OMP_NUM_THREADS": "1", **os.environ}


class Supervisor:
    """The workers of one machine.

    Args:
        context: A connection and a state that is being kept up to date.
        announce: Told in a line when a worker ends that should not have, and of alarms.
    """

    def __init__(self, context: Context, announce: Announce) -> None:
        self._context = context
        self._announce = announce
        game = context.config.game
        self._seats = len(make_contest(game.name, game.settings).seats)
        self._scaler = Scaler(context.config.rollout)
        self._children = [Child(context, process, announce) for process in processes(context.config)]
        self._ending = False

    async def run(self) -> bool:
        """Run all workers until training and measuring are done, or until told to stop; whether they are done.

        Raises:
            StoreFullError: the broker's store is full.
        """
        if self._is_done():
            return True
        try:
            watching = self._watch_store(), watch_alarms(self._context, self._announce), self._scale()
            async with beside(*watching, *(child.keep() for child in self._children)):
                await self._context.until(self._is_done)
                done, self._ending = self._is_done(), True
                for role in reversed(ROLES):
                    await asyncio.gather(*(child.stop() for child in self._children if child.role == role))
        finally:
            self.kill()
        return done

    async def _watch_store(self) -> None:
        while True:
            self._context.run.check_store()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _scale(self) -> None:
        """Keep as many rollout workers as there should be, for ever."""
        state = self._context.state
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    config = self._context.config
                    step = state.last_step(config.trainer.policy)
                    wanted = self._scaler.look(time.monotonic(), config.rollout, step)
                    if not self._ending:
                        self._adjust(wanted, group)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def _adjust(self, wanted: int, group: asyncio.TaskGroup) -> None:
        """Start or stop a rollout worker of ``trainer.policy``, if there is one too few or too many."""
        own = {child.name: child for child in self._children if child.role == "rollout" and child.policy is None}
        staying = [child for child in own.values() if not child.is_stopping]
        if len(staying) < wanted:
            name = next(name for number in range(1, wanted + len(own) + 1) if (name := f"rollout-{number}") not in own)
            child = Child(self._context, Process("rollout", name), self._announce)
            self._children.append(child)
            group.create_task(child.keep())
            log.info("another rollout worker", name=name, workers=len(staying) + 1)
        elif len(staying) > wanted:
            group.create_task(self._dismiss(staying[-1]))
            log.info("a rollout worker less", name=staying[-1].name, workers=len(staying) - 1)

    async def _dismiss(self, child: Child) -> None:
        await child.stop()
        self._children.remove(child)

    def kill(self) -> None:
        """End all workers now; what they had in hand is played or trained again another time."""
        for child in self._children:
            child.kill()

    def _is_done(self) -> bool:
        state = self._context.state
        if any(state.training_finished(policy) is None for policy in self._context.config.trained):
            return False
        measured = all(e.finished is not None and not e.unrated for e in state.evaluations.values())
        return measured and not promotion.due(state) and not evaluations.plan(state, self._seats)


@contextlib.asynccontextmanager
async def shown(context: Context, console: Console) -> AsyncIterator[None]:
    """Show progress while a block runs: a live table on a terminal, a line now and then elsewhere."""
    dashboard = Dashboard(context.state, context.config.trainer.policy)
    with _picture(dashboard, context, console) as refresh:
        async with beside(_watch(context, dashboard), _every(refresh, 0.5 if console.is_terminal else _LINE_EVERY_S)):
            yield


async def _watch(context: Context, dashboard: Dashboard) -> None:
    async for recorded in context.log.follow(context.state.sequence + 1):
        dashboard.take(recorded)


async def _every(refresh: Refresh, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        refresh()


@contextlib.contextmanager
def _picture(dashboard: Dashboard, context: Context, console: Console) -> Iterator[Refresh]:
    if not console.is_terminal:
        yield lambda: console.print(dashboard.line(context.config.stop), highlight=False, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(dashboard.render(context.config.stop), refresh=True)
