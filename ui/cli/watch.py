"""``league dash``, ``web``, ``site``, ``status``, ``metrics`` and ``play``: a league as it is now."""

import asyncio
import contextlib
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from league.integrity.snapshots import load_state_at
from league.queries.status import read_status, with_alarms
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import format_bytes, format_count, print_json

ListenOption = Annotated[str, typer.Option(help="HOST:PORT to answer on; port 0 takes a free one.")]


async def status(
    *,
    run: Run,
    include_left: Annotated[bool, typer.Option("--all", help="Include workers that have left.")] = False,
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
    host, port = parse_address(listen)
    from workers.monitoring.exposition import serve_metrics

    uvloop.run(serve_metrics(run, host, port, partial(print, flush=True)))


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        UsageError: the text is no address.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
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


async def site(
    to: Annotated[Path, typer.Option(help="Folder: empty, not there yet, or of an earlier site.")],
    *,
    run: Run,
    matches: Annotated[
        int, typer.Option(min=0, max=5000, help="Pages of matches: the newest, and those of benchmarks.")
    ] = 50,
) -> None:
    """Write a league as static pages, which work from a folder and on any web server.

    They show ratings, benchmarks, criteria, agents and matches as of now, with a CSV file for every table. A folder
    that holds an earlier site is brought up to date; other files in it stay.
    """
    from league.queries.live_league import open_live_league
    from ui.web.offline import SiteFolder
    from ui.web.offline.league_site import make_site
    from workers.progress import show_progress

    folder = SiteFolder(to)
    async with run.open_log() as history, open_live_league(run, history) as league:
        with show_progress(Console(stderr=True), "site") as report:
            count, size = await folder.write(make_site(league, matches, report))
    typer.echo(f"{to}/index.html: {format_count(count, 'file')}, {format_bytes(size)}")


def web(
    listen: ListenOption = "127.0.0.1:8080",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LEAGUE_WEB_TOKEN",
            help="Token that visitors need; generated where other machines can reach the address.",
        ),
    ] = None,
    *,
    runs: list[Run],
) -> None:
    """Show a league in the browser, live or at an earlier event, until stopped.

    With several runs, the page Compare shows them side by side.
    """
    host, port = parse_address(listen)
    from ui.web.server import serve_web

    uvloop.run(serve_web(runs, host, port, partial(print, flush=True), token))


async def play(
    agents: Annotated[
        str, typer.Option(help="Agents of the other seats, with commas; a single one takes all of them.")
    ] = "random_bot",
    seat: Annotated[str | None, typer.Option(help="Your seat, by name or number; by default the first.")] = None,
    *,
    run: Run,
) -> None:
    """Play against agents of the league; recorded as an exhibition, which by default is not rated.

    A move is a number of the list or is written out; the end of input (Ctrl-D) leaves the game. Exits 1 if the game
    was not completed.
    """
    from ui.play.terminal import play_in_terminal

    names, lines = [name for name in agents.split(",") if name], _StdinReader()
    async with run.open_log("play") as history:
        has_result = await play_in_terminal(run, history, seat, names, partial(print, flush=True), lines.ask)
    raise typer.Exit(0 if has_result else 1)


class _StdinReader:
    """Reads standard input in a thread, so that waiting for a line does not block the event loop."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._requests = threading.Semaphore(0)
        # A daemon thread: a thread that reads a terminal cannot be woken.
        threading.Thread(target=self._read_loop, daemon=True).start()

    def _read_loop(self) -> None:
        # Each line when it is asked for: a pipe may hold any number of them.
        while self._requests.acquire():
            line = sys.stdin.readline() or None
            # The event loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def ask(self, prompt: str) -> str | None:
        """Print a prompt and return the next line; None at the end of the input."""
        print(prompt, end="", flush=True)
        self._requests.release()
        return await self._lines.get()
