"""``league replay``: the history folded again, to inspect or verify it, or to rate it under other rules."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from league.history.replay import ReplayReport, VerifyReport, replay_log, verify_log
from league.queries.tables import resolve_sequence
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import print_answer, terminal_width

if TYPE_CHECKING:
    from league.history.counterfactual import RatingComparison

_MAX_DIFFERENCES = 20


async def replay(
    *,
    run: Run,
    until: Annotated[
        str | None, typer.Option(help="Fold up to a sequence or a time (ISO 8601, UTC by default).")
    ] = None,
    check: Annotated[bool, typer.Option("--verify", help="Compare with the recorded ratings.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Rate under another setting: ratings.elo.k=16; repeatable.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Rate under another rating system.")] = None,
    agents: Annotated[
        list[str] | None, typer.Option("--without-agent", help="Leave an agent's seats out; repeatable.")
    ] = None,
    workers: Annotated[
        list[str] | None, typer.Option("--without-worker", help="Leave a worker's matches out; repeatable.")
    ] = None,
    predicates: Annotated[
        list[str] | None,
        typer.Option("--exclude", help="Leave out matches for which an SQL condition on `matches` holds; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the history again from its first event; print a summary and a digest of the state.

    --verify compares the ratings with the recorded ones, exits 1 if they differ, and states its scope. --set, --system,
    --without-… and --exclude rate under other rules, and print how ranks and ratings differ. Nothing is written.
    """
    from league.history.counterfactual import Counterfactual
    from league.queries.reports import compare_counterfactual

    is_counterfactual = any((settings, system, agents, workers, predicates))
    if check and is_counterfactual:
        raise UsageError("--verify: compares the history with itself; expected no other rules beside it")
    async with run.open_log() as history:
        place = (
            await history.last_sequence() if until is None else await resolve_sequence(run, history, until, "--until")
        )
        report: Any
        show: Callable[[Any], None]
        if check:
            report, show = await verify_log(history, place), _print_differences
        elif is_counterfactual:
            rules = Counterfactual(settings or [], system, agents or [])
            report = await compare_counterfactual(run, history, place, rules, workers or [], predicates or [])
            show = _print_comparison
        else:
            report, show = await replay_log(history, place), _print_report
    print_answer(report, as_json, show)
    raise typer.Exit(1 if isinstance(report, VerifyReport) and not report.is_identical else 0)


def _print_differences(report: VerifyReport) -> None:
    print(report.summary())
    for difference in report.differences[:_MAX_DIFFERENCES]:
        print(f"  {difference}")
    print(report.scope())


def _print_report(report: ReplayReport) -> None:
    at = datetime.fromtimestamp(report.time_ns / 1e9, tz=UTC)
    steps = ", ".join(f"{policy} {step:,}" for policy, step in report.steps.items()) or "none"
    print(f"{report.events:,} events folded, up to event {report.sequence:,} of {at:%Y-%m-%d %H:%M:%S} UTC")
    print(f"{report.matches:,} matches, {report.voided:,} voided, {report.failed:,} failed")
    print(f"{report.agents:,} agents; gradient steps: {steps}")
    for name, count in report.unknown.items():
        print(f"{count:,} events of the unknown type {name!r}, skipped")
    if report.undecodable:
        print(f"{report.undecodable:,} messages that are no events, skipped")
    print(f"digest of the state: {report.digest}")


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
    system, recorded_system = comparison.system, comparison.recorded_system
    system += "" if system == recorded_system else f", recorded {recorded_system}"
    print(
        f"{comparison.game} under {system}, {comparison.matches:,} matches up to event {comparison.sequence:,}: "
        f"{comparison.changed_count:,} of {len(comparison.moves):,} ratings differ from the recorded ones. Nothing was "
        "written."
    )
