"""``league up`` and ``league worker``: the processes that make history."""

import asyncio
import secrets
import signal
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvloop
from rich.console import Console

from schemas.config import LeagueConfig, load_config
from schemas.errors import UsageError, one_of
from schemas.subjects import check_name
from workers import evaluator, rater, rollout, trainer
from workers.checks import check_config
from workers.commands.options import LeagueOption, NatsOption, RunOption, the_run
from workers.logs import set_up_logging
from workers.opening import open_league
from workers.progress import reporting
from workers.report import print_report
from workers.run import DEFAULT_RUN, Run
from workers.runtime import Context, Serve, beside, run_worker
from workers.supervisor import Supervisor, shown

log = structlog.get_logger()

_SERVE: dict[str, Serve] = {
    "rollout": rollout.serve,
    "evaluator": evaluator.serve,
    "rater": rater.serve,
    "trainer": trainer.serve,
}


def up(
    config: Annotated[Path | None, typer.Option("--config", help="The league's settings, a TOML file.")] = None,
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    port: Annotated[int, typer.Option(help="Port of the run's own broker; 0 takes a free one.")] = 0,
    max_store_mb: Annotated[int | None, typer.Option(help="Limit of the run's own store; none: the disk.")] = None,
) -> None:
    """Open a league, or go on with it, and run all its workers on this machine until training is done."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: expected 0 to 65535")
    settings = load_config(config) if config is not None else None
    if settings is not None:
        check_config(settings)
    if max_store_mb is not None and max_store_mb < 1:
        raise UsageError(f"--max-store-mb {max_store_mb}: expected 1 or more")
    here = Run(run, nats=nats, port=port, name=league, max_store_mb=max_store_mb)
    console = Console(stderr=True)
    raise typer.Exit(uvloop.run(_up(here, settings, console)))


def open_only(
    config: Annotated[Path, typer.Option("--config", help="The league's settings, a TOML file.")],
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
) -> None:
    """Open a league on a broker, or change an open one's settings, without starting any worker."""
    settings = load_config(config)
    check_config(settings)
    console = Console(stderr=True)
    uvloop.run(_open(the_run(run, nats, None), settings, console))
    console.print(f"league {settings.name!r} is open", highlight=False)


async def _open(run: Run, settings: LeagueConfig, console: Console) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    async with run.connected("opener") as client:
        with reporting(console, "opening the league") as report:
            await open_league(run, client, settings, report)


async def _up(run: Run, settings: LeagueConfig | None, console: Console) -> int:
    run.folder.mkdir(parents=True, exist_ok=True)
    set_up_logging("supervisor", run.logs / "supervisor.log", terminal=False)
    async with run.connected("supervisor") as client:
        with reporting(console, "opening the league") as report:
            history = await open_league(run, client, settings, report)
        context = Context(run, client, history, "supervisor")
        async with beside(context.follow()):
            await context.reached(await history.last_sequence())
            console.print(f"league {history.league!r} in {run.folder}, logs in {run.logs}", highlight=False)
            supervisor = Supervisor(context)
            _stop_on_signals(context, supervisor, console)
            async with shown(context, console):
                done = await supervisor.run()
        if not done:
            console.print("stopped; the same command goes on from here", highlight=False)
            return 0
        identical = await print_report(run, history, Console())
        return 0 if identical else 1


def _stop_on_signals(context: Context, supervisor: Supervisor, console: Console) -> None:
    """The first Ctrl-C drains; the second ends everything at once."""

    def stop() -> None:
        if context.stopping.is_set():
            supervisor.kill()
            return
        console.print("stopping: matches in hand are finished first (again to stop now)", highlight=False)
        context.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def worker(
    role: Annotated[str, typer.Argument(help="rollout, evaluator, rater or trainer.")],
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker, different from all others.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log to the run's folder only.")] = False,
) -> None:
    """Run one worker process against a league that is open; start as many as you like."""
    if role not in _SERVE:
        raise UsageError(f"worker {role!r}: no such role; expected {one_of(_SERVE)}")
    here = the_run(run, nats, league)
    name = check_name("--name", name or f"{role}-{secrets.token_hex(3)}")
    set_up_logging(name, here.logs / f"{name}.log", terminal=not quiet)
    raise typer.Exit(run_worker(here, role, name, _SERVE[role]))
