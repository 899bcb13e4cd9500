"""``league dash``, ``web``, ``status``, ``metrics`` and ``play``: a league as it is now."""

import asyncio
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from typer import Option

from league.integrity.snapshots import load_state_at
from league.queries.status import read_status, with_alarms
from league.queries.terminal import Console
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import format_bytes, format_count, print_json

ListenOption = Annotated[str, Option(help="HOST:PORT to answer on; port 0 takes a free one.")]


async def status(
    *,
    run: Run,
    include_left: Annotated[bool, Option("--all", help="Include workers that have left.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the workers of a league: health, load and activity; and those that have been silent for too long."""
    async with run.open_log("status") as history:
        state = await load_state_at(history, run.open_blob_store(history.client))
        result = with_alarms(await read_status(history, state, include_left, run), state)
    if as_json:
        print_json(result)
    else:
        from ui.terminal.status import print_status

        print_status(Console(), result)


def metrics(listen: ListenOption = "127.0.0.1:9464", *, run: Run) -> None:
    """Serve a league's metrics to Prometheus at /metrics, until stopped."""
    host, port = _parse_address(listen)
    from workers.monitoring.exposition import serve_metrics

    uvloop.run(serve_metrics(run, host, port, partial(print, flush=True)))


def _parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535):
        raise UsageError(f"--listen {listen}: expected HOST:PORT, for example 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def dash(*, run: Run) -> None:
    """Show a league in the terminal, live or at an earlier event: ? lists the keys, q quits."""
    # The interface is drawn on standard error.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("dash: no terminal to draw on; `league status` and `league leaderboard` print once")
    # Not uvloop: changes of the terminal's size come as signals, which only asyncio's own loop handles at once.
    raise typer.Exit(asyncio.run(_run_dash(run)))


async def _run_dash(run: Run) -> int:
    from league.queries.live_league import open_live_league
    from ui.terminal.app import run_dashboard
    from workers.runtime import beside

    status: int | None = None
    try:
        async with (
            run.open_log("dash") as history,
            open_live_league(run, history) as league,
            beside(league.follow(), league.apply_events()),
        ):
            status = await run_dashboard(league)
    except OSError:
        # Closing the connection fails while the broker is gone.
        if status is None:
            raise
    return status or 0


def web(
    listen: ListenOption = "127.0.0.1:8080",
    token: Annotated[
        str | None,
        Option(
            envvar="LEAGUE_WEB_TOKEN",
            help="Token that visitors need; generated where other machines can reach the address.",
        ),
    ] = None,
    to: Annotated[
        Path | None, Option(help="Write the pages as of now to this folder instead: new, empty, or of an earlier call.")
    ] = None,
    matches: Annotated[
        int, Option(min=0, max=5000, help="With --to: pages of matches, the newest and benchmarks'.")
    ] = 50,
    *,
    runs: list[Run],
) -> None:
    """Show a league in the browser, live or at an earlier event, until stopped.

    With several runs, the page Compare shows them side by side. With --to, static files that work from a folder and on
    any web server; a folder that holds earlier ones is brought up to date, and other files in it stay.
    """
    if to is not None:
        if len(runs) > 1:
            raise UsageError("--to: static files show one run; expected a single --run")
        uvloop.run(_write_site(runs[0], to, matches))
        return
    host, port = _parse_address(listen)
    from ui.web.server import serve_web

    uvloop.run(serve_web(runs, host, port, partial(print, flush=True), token))


async def _write_site(run: Run, to: Path, matches: int) -> None:
    from league.queries.live_league import open_live_league
    from ui.web.site import SiteFolder, make_site
    from workers.progress import show_progress

    folder = SiteFolder(to)
    async with run.open_log() as history, open_live_league(run, history) as league:
        with show_progress(Console(stderr=True), "site") as report:
            count, size = await folder.write(make_site(league, matches, report))
    typer.echo(f"{to}/index.html: {format_count(count, 'file')}, {format_bytes(size)}")


async def play(
    agents: Annotated[
        str, Option(help="Agents of the other seats, separated by commas; a single one takes all of them.")
    ] = "random_bot",
    seat: Annotated[str | None, Option(help="Your seat, by name or number; by default the first.")] = None,
    *,
    run: Run,
) -> None:
    """Play against agents of the league; recorded as an exhibition, which by default is not rated.

    A move is a number of the list or is written out; the end of input (Ctrl-D) leaves the game. Exits 1 if the game
    was not completed.
    """
    from ui.play.terminal import play_in_terminal

    names = [name for name in agents.split(",") if name]
    async with run.open_log("play") as history:
        has_result = await play_in_terminal(run, history, seat, names, partial(print, flush=True), _ask)
    raise typer.Exit(0 if has_result else 1)


async def _ask(prompt: str) -> str | None:
    """Print a prompt and return the next line of standard input; None at its end."""
    from workers.runtime import run_in_daemon_thread

    print(prompt, end="", flush=True)
    return await run_in_daemon_thread(sys.stdin.readline) or None
