"""Starts, watches and restarts the workers of one machine, and shows the league's progress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Protocol

from rich.live import Live

from arena.environments import evaluation_seat_counts
from league.evaluation import plan as evaluations
from league.evaluation import promotion
from league.queries.terminal import Console
from schemas.config import LeagueConfig
from schemas.errors import StoreFullError
from schemas.loggers import get_logger
from workers.monitoring.alarms import watch_alarms
from workers.monitoring.live_table import Dashboard
from workers.process import ROLES, Announce, WorkerProcess, WorkerSpec
from workers.runtime import Context, beside, call_on_signals

log = get_logger()

_LINE_INTERVAL_S = 10.0
_POLL_INTERVAL_S = 2.0


def make_worker_specs(config: LeagueConfig) -> list[WorkerSpec]:
    """The worker processes of a league on one machine, in starting order.

    Workers of policies other than ``trainer.policy`` have the policy in their names: ``rollout-exploiter-1``.
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
    specs = []
    for role in ROLES:
        specs += [WorkerSpec(role, f"{role}-{number}") for number in range(1, counts[role] + 1)]
        if role in ("trainer", "rollout"):
            for policy, settings in sorted(config.policies.items()):
                count = settings.rollout_workers if role == "rollout" else 1
                specs += [WorkerSpec(role, f"{role}-{policy}-{number}", policy) for number in range(1, count + 1)]
    return specs


class WorkerPool(Protocol):
    """The workers that a machine should run."""

    specs: list[WorkerSpec]

    def is_done(self, children: Collection[WorkerProcess]) -> bool:
        """Whether all work is done."""


class LeagueWorkerPool:
    """All workers of a league, until training and evaluation are done."""

    def __init__(self, context: Context) -> None:
        self._context = context
        game = context.config.game
        self._seats = evaluation_seat_counts(game.name, game.settings)
        self.specs = make_worker_specs(context.config)

    def is_done(self, children: Collection[WorkerProcess]) -> bool:
        """Whether training, evaluations and promotions are done, and every match that counts is rated.

        Results of a promotion test may come in after its decision: evaluators finish the matches they have begun.
        """
        state = self._context.state
        if any(state.training_finished(policy) is None for policy in self._context.config.trained_policies):
            return False
        measured = all(e.finished is not None for e in state.evaluations.values()) and not state.has_unrated_matches
        return measured and not promotion.due_decisions(state) and not evaluations.plan_evaluations(state, self._seats)


class Supervisor:
    """Runs the workers of one machine.

    ``announce`` is called with one line when a worker ends unexpectedly, and for the league's ``alarms``, which one
    machine should watch for.
    """

    def __init__(self, context: Context, pool: WorkerPool, announce: Announce, alarms: bool = True) -> None:
        self._context = context
        self._pool = pool
        self._announce = announce
        self._alarms = alarms
        self.workers = [WorkerProcess(context, process, announce) for process in pool.specs]

    async def run(self) -> bool:
        """Run all workers until their work is done or they are stopped; returns whether it is done.

        Raises:
            StoreFullError: the broker's store is full.
        """
        if self._is_done():
            return True
        watching = [self._watch_store()]
        if self._alarms:
            watching.append(watch_alarms(self._context, self._announce))
        try:
            async with beside(*watching, *(child.supervise() for child in self.workers)):
                await self._context.wait_until(self._is_done)
                done = self._is_done()
                for role in reversed(ROLES):
                    await asyncio.gather(*(child.stop() for child in self.workers if child.role == role))
        finally:
            self.kill()
        return done

    def _is_done(self) -> bool:
        return self._pool.is_done(self.workers)

    async def _watch_store(self) -> None:
        while True:
            try:
                self._context.run.check_store()
            except StoreFullError:
                raise
            except OSError as error:
                log.debug("the broker's log cannot be read", error=str(error))
            await asyncio.sleep(_POLL_INTERVAL_S)

    def kill(self) -> None:
        """Kill all workers; work in progress is repeated by later ones."""
        for child in self.workers:
            child.kill()


def make_announcer(console: Console) -> Announce:
    """Make a function that prints lines unformatted."""
    return lambda text: console.print(text, highlight=False, soft_wrap=True)


def stop_on_signals(
    context: Context, supervisor: Supervisor, console: Console
) -> contextlib.AbstractContextManager[None]:
    """During a block, drain at the first SIGINT or SIGTERM; kill all workers at the second."""

    def stop() -> None:
        if context.stopping.is_set():
            supervisor.kill()
            return
        console.print("stopping: running matches are finished first (press again to stop now)", highlight=False)
        context.stop()

    return call_on_signals(stop)


@contextlib.asynccontextmanager
async def show_dashboard(context: Context, console: Console) -> AsyncIterator[None]:
    """Show progress while a block runs: a live table on a terminal, a line every ten seconds elsewhere."""
    dashboard = Dashboard(context.state, context.config.trainer.policy)
    context.observers.append(dashboard.observe)
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    async def refresh() -> None:
        while True:
            await asyncio.sleep(_LINE_INTERVAL_S if live is None else 0.5)
            if live is None:
                console.print(dashboard.render_line(context.config.stop), highlight=False, soft_wrap=True)
            else:
                live.update(dashboard.render(context.config.stop), refresh=True)

    with live or contextlib.nullcontext():
        async with beside(refresh()):
            yield
