"""``league leaderboard``, ``events``, ``ledger`` and ``replay``: a league's history as text."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer import Option

from league.log.base import RecordedEvent
from league.queries.terminal import Console, say
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import AtOption, EventTypeOption, JsonOption, check_event_types
from ui.output import print_answer, print_json, terminal_width

if TYPE_CHECKING:
    from league.history.counterfactual import RatingComparison
    from league.history.replay import ReplayReport, VerifyReport
    from workers.log_export import LogExport

_MAX_DIFFERENCES = 20


async def leaderboard(
    *,
    run: Run,
    at: AtOption = None,
    system: Annotated[
        str | None, Option(help="Rank by a recorded rating system, such as elo; by default by Bradley–Terry ratings.")
    ] = None,
    game: Annotated[str | None, Option(help="By default the configured one.")] = None,
    all_games: Annotated[
        bool, Option("--all-games", help="One board over all games and environments, each with the same weight.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the leaderboard, rebuilt from the events, as of now or of an earlier event.

    It shows Bradley–Terry ratings over all rated matches with 95 % intervals, beside the online rating that decisions
    go by. Nothing is written.
    """
    from league.queries.leaderboard import leaderboard_heading, leaderboard_json, leaderboard_text, load_leaderboard

    result = await load_leaderboard(run, at, system, game, all_games=all_games)
    if as_json:
        print(leaderboard_heading(result), end="", file=sys.stderr)
    print(leaderboard_json(result) if as_json else leaderboard_text(result, terminal_width()), end="")


async def events(
    *,
    run: Run,
    follow: Annotated[bool, Option("--follow", help="Continue with new events until Ctrl-C.")] = False,
    kind: EventTypeOption = None,
    first: Annotated[int, Option("--from", min=1, help="Sequence to begin at.")] = 1,
    to: Annotated[
        str, Option(help="Send JSON lines to a file, to a log platform (https://…), or to - for standard output.")
    ] = "",
    token_variable: Annotated[
        str,
        Option(help="Environment variable that holds the platform's token; by default LEAGUE_FORWARD_TOKEN, if set."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print the history, one event a line; or send it elsewhere in order, each event at least once.

    With --to, files and platforms are resumed after the last event that was sent. A platform gets JSON lines with a
    bearer token, as Axiom takes them; an event that is sent again has the same `id`.
    """
    kinds = check_event_types(kind)
    if to:
        from workers.log_export import LogExport

        await _export(LogExport(to, run.folder / "forwarding", token_variable, kinds, first), run, follow)
        return
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
    short = " ".join(f"{key}={_truncate(value)}" for key, value in fields.items() if key != "type")
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


async def _export(export: "LogExport", run: Run, follow: bool) -> None:
    from workers.runtime import call_on_signals
    from workers.tracker import history_identity

    async with run.open_log("forward") as history:
        last = None if follow else await history.last_sequence()
        exporting = asyncio.create_task(export.run(history, await history_identity(history), last))
        # A batch that is on its way is sent again by the next process.
        with call_on_signals(exporting.cancel), contextlib.suppress(asyncio.CancelledError):
            await exporting


async def replay(
    *,
    run: Run,
    until: Annotated[str | None, Option(help="Fold up to a sequence or a time (ISO 8601, UTC by default).")] = None,
    check: Annotated[bool, Option("--verify", help="Compare with the recorded ratings.")] = False,
    settings: Annotated[
        list[str] | None, Option("--set", help="Rate under another setting: ratings.elo.k=16; repeatable.")
    ] = None,
    system: Annotated[str | None, Option(help="Rate under another rating system.")] = None,
    agents: Annotated[
        list[str] | None, Option("--without-agent", help="Leave an agent's seats out; repeatable.")
    ] = None,
    workers: Annotated[
        list[str] | None, Option("--without-worker", help="Leave a worker's matches out; repeatable.")
    ] = None,
    predicates: Annotated[
        list[str] | None,
        Option("--exclude", help="Leave out matches for which an SQL condition on `matches` holds; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the history again from its first event; print a summary and a digest of the state.

    --verify compares the ratings with the recorded ones, exits 1 if they differ, and states its scope. --set, --system,
    --without-… and --exclude rate under other rules, and print how ranks and ratings differ. Nothing is written.
    """
    from league.history.counterfactual import Counterfactual
    from league.history.replay import replay_log, verify_log
    from league.queries.reports import compare_counterfactual
    from league.queries.tables import resolve_sequence

    is_counterfactual = any((settings, system, agents, workers, predicates))
    if check and is_counterfactual:
        raise UsageError("--verify: compares the history with itself; expected no other rules beside it")
    report: Any
    show: Callable[[Any], None]
    async with run.open_log() as history:
        if until is None:
            sequence = await history.last_sequence()
        else:
            sequence = await resolve_sequence(run, history, until, "--until")
        if check:
            report, show = await verify_log(history, sequence), _print_differences
        elif is_counterfactual:
            rules = Counterfactual(settings or [], system, agents or [])
            report = await compare_counterfactual(run, history, sequence, rules, workers or [], predicates or [])
            show = _print_comparison
        else:
            report, show = await replay_log(history, sequence), _print_replay
    print_answer(report, as_json, show)
    raise typer.Exit(1 if check and not report.is_identical else 0)


def _print_differences(report: "VerifyReport") -> None:
    say(report.summary())
    for difference in report.differences[:_MAX_DIFFERENCES]:
        say(f"  {difference}")
    for line in report.scope():
        say(line)


def _print_replay(report: "ReplayReport") -> None:
    at = datetime.fromtimestamp(report.time_ns / 1e9, tz=UTC)
    steps = ", ".join(f"{policy} {step:,}" for policy, step in report.steps.items()) or "none"
    say(f"{report.events:,} events folded, up to event {report.sequence:,} of {at:%Y-%m-%d %H:%M:%S} UTC")
    say(f"{report.matches:,} matches, {report.voided:,} voided, {report.failed:,} failed")
    say(f"{report.agents:,} agents; gradient steps: {steps}")
    for name, count in report.unknown.items():
        say(f"{count:,} events of the unknown type {name!r}, skipped")
    if report.undecodable:
        say(f"{report.undecodable:,} messages that are no events, skipped")
    say(f"digest of the state: {report.digest}")


def _print_comparison(comparison: "RatingComparison") -> None:
    from league.queries.text_table import Column, number_columns, render_table

    recorded = number_columns("recorded rank", "recorded rating", "recorded games")
    columns = [Column("rank", True), "agent", *number_columns("rating", "games"), *recorded, "moved"]
    rows: list[list[object]] = []
    for move in comparison.moves:
        moved = "out" if move.rank is None else "new"
        if move.rank is not None and move.recorded_rank is not None:
            up = move.recorded_rank - move.rank
            moved = "" if up == 0 else f"{'▲' if up > 0 else '▼'} {abs(up)}"
        before = (move.recorded_rank, move.recorded_rating, move.recorded_games)
        rows.append([move.rank, move.agent, move.rating, move.games, *before, moved])
    print(render_table(columns, rows, terminal_width(), ("recorded games", "games")), end="")
    system = comparison.system
    if comparison.recorded_system != system:
        system += f", recorded {comparison.recorded_system}"
    say(
        f"{comparison.game} under {system}, {comparison.matches:,} matches up to event {comparison.sequence:,}: "
        f"{comparison.changed_count:,} of {len(comparison.moves):,} ratings differ from the recorded ones. Nothing was "
        "written."
    )
