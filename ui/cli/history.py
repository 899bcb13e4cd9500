"""``league leaderboard``, ``events``, ``forward`` and ``ledger``: a league's history as text."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from league.log.base import RecordedEvent
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import AtOption, EventTypeOption, JsonOption, check_event_types
from ui.output import print_json, terminal_width

_DRAIN_TIMEOUT_S = 5.0
"""Time for a batch that is on its way when the command is stopped."""


class GroupBy(StrEnum):
    """Entrants of the leaderboard."""

    agent = "agent"
    seat = "seat"
    kind = "kind"


async def leaderboard(
    *,
    run: Run,
    at: AtOption = None,
    system: Annotated[
        str | None, typer.Option(help="A rating system, bradley_terry or plackett_luce; by default the official one.")
    ] = None,
    by: Annotated[GroupBy, typer.Option(help="Rank agents, agents by seat, or kinds of agents.")] = GroupBy.agent,
    game: Annotated[str | None, typer.Option(help="By default the configured one.")] = None,
    draws: Annotated[
        int | None, typer.Option(min=1, help="Resampled histories for the intervals; by default 200.")
    ] = None,
    no_intervals: Annotated[bool, typer.Option("--no-intervals", help="Leave the intervals out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the leaderboard with 95 % intervals, rebuilt from the events, as of now or of an earlier event.

    Ratings of a configured system are those recorded; other systems, seats and kinds are computed from the rated
    matches. Nothing is written.
    """
    if no_intervals and draws is not None:
        raise UsageError("--no-intervals: expected without --draws")
    from league.queries.leaderboard import leaderboard_heading, leaderboard_json, leaderboard_text, load_leaderboard

    result = await load_leaderboard(run, at, system, game, by.value, 0 if no_intervals else draws)
    if as_json:
        print(leaderboard_heading(result), end="", file=sys.stderr)
    print(leaderboard_json(result) if as_json else leaderboard_text(result, terminal_width()), end="")


async def events(
    *,
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new events until Ctrl-C.")] = False,
    kind: EventTypeOption = None,
    first: Annotated[int, typer.Option("--from", help="Sequence to begin at.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Print the history, one event a line."""
    kinds = check_event_types(kind)
    async with run.open_log() as history:
        source = history.follow(first) if follow else history.read(first)
        async for recorded in source:
            name = type(recorded.event).__name__ if recorded.event is not None else "unknown"
            if not kinds or name in kinds:
                print(_event_json(recorded) if as_json else _event_line(recorded, name), flush=follow)


def _event_json(recorded: RecordedEvent) -> str:
    """One JSON object: the event with its sequence, time, subject and producer."""
    payload = recorded.payload
    event: str | msgspec.Raw
    if recorded.event is None:
        event = payload.decode(errors="replace")
    else:
        # As recorded, but on one line.
        is_multiline = b"\n" in payload or b"\r" in payload
        event = msgspec.Raw(msgspec.json.format(payload, indent=-1) if is_multiline else payload)
    head = {
        "sequence": recorded.sequence,
        "time": _recorded_time(recorded).isoformat(),
        "subject": recorded.subject,
        "producer": recorded.producer,
        "event": event,
    }
    return msgspec.json.encode(head).decode()


def _event_line(recorded: RecordedEvent, name: str) -> str:
    fields = msgspec.to_builtins(recorded.event) if recorded.event is not None else {}
    fields.pop("type", None)
    short = " ".join(f"{key}={_truncate(value)}" for key, value in fields.items())
    return f"{recorded.sequence:>8}  {_recorded_time(recorded):%H:%M:%S}  {name:<20}  {short}"


def _truncate(value: object) -> str:
    if isinstance(value, list | dict) and len(value) > 3:
        return f"[{len(value)}]"
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _recorded_time(recorded: RecordedEvent) -> datetime:
    return datetime.fromtimestamp(recorded.time_ns / 1e9, tz=UTC)


async def ledger(*, run: Run, as_json: JsonOption = False) -> None:
    """Print the use of every trajectory, per policy; exits 1 where the account does not balance.

    The generated ones were trained on, too old (stale), without a learning signal (filtered), of voided matches,
    damaged (refused), of a group that was never completed (given_up) or already closed (late), left behind in the run
    that this one branched from (abandoned), or still wait (pending). Unrecorded ones are among these: their match's
    result never reached the history.
    """
    from league.queries.tables import open_tables, row_dicts
    from league.queries.text_table import number_columns, print_table

    async with open_tables(run) as tables:
        account_rows = tables.connection.execute("FROM ledger")
        (policy, *counts, balanced) = [name for name, *_ in account_rows.description]
        accounts = row_dicts(account_rows)
    if as_json:
        print_json(accounts)
    else:
        rows = [list(account.values()) for account in accounts]
        print_table(Console(), [policy, *number_columns(*counts), balanced], rows)
    raise typer.Exit(0 if all(account["balanced"] for account in accounts) else 1)


async def forward(
    to: Annotated[str, typer.Option(help="-, a file, or the address of a log platform: https://…")] = "-",
    *,
    run: Run,
    kind: EventTypeOption = None,
    first: Annotated[
        int | None,
        typer.Option("--from", min=1, help="First sequence to send; by default the first that was not sent."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Include events that were sent before.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Continue with new events, or end with the newest one of now.")
    ] = True,
    token_variable: Annotated[
        str,
        typer.Option(
            help="Environment variable that holds the platform's token; by default LEAGUE_FORWARD_TOKEN, if set."
        ),
    ] = "",
) -> None:
    """Send events as lines of JSON to a file, standard output or a log platform: in order, each at least once.

    Files and platforms are resumed after the last event that was sent. A platform gets arrays of events with a bearer
    token, in the format of Axiom; an event that is sent again has the same `id`.
    """
    from workers.log_export import LogExporter, make_target
    from workers.log_export.lines import LogLineWriter
    from workers.tracker import history_identity

    kinds = check_event_types(kind)
    async with run.open_log("forward") as history:
        writer = LogLineWriter(history.league, await history_identity(history))
        target = make_target(to, token_variable, run.folder / "forwarding", writer.history)
        try:
            sent = await target.open(writer.history)
            begin = max(first or 1, 1 if again else sent + 1)
            last = None if follow else await history.last_sequence()
            forwarder = LogExporter(target, writer, kinds, begin)
            await _run_until_stopped(forwarder.run(history, last), forwarder.stop)
        finally:
            await target.close()


async def _run_until_stopped(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Run to the end, or until shortly after a signal: the next process sends the rest."""
    # Imported on use: the other commands here need no worker's runtime, a tenth of their time.
    from workers.runtime import call_on_signals

    stopped = asyncio.Event()
    working, stopping = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    with call_on_signals(stopped.set):
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    stop()
    await asyncio.wait([working], timeout=_DRAIN_TIMEOUT_S)
    if not working.done():
        working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()
