"""The leaderboard as a table for a terminal, with footnotes on what its numbers mean."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from league.analysis.leaderboard import LIKELIHOOD_MODELS, Leaderboard, make_leaderboard
from league.analysis.roster import Grouping, LeaderboardEntry
from league.projections.query import QueryResult
from league.queries.tables import open_tables, resolve_sequence, unreadable_warning
from league.queries.text_table import Column, number_columns, render_rows, render_table
from league.ratings.rating_history import MIN_GAMES
from league.run import Run


async def load_leaderboard(
    run: Run,
    at: str | None = None,
    system: str | None = None,
    game: str | None = None,
    by: Grouping = "agent",
    draws: int | None = None,
) -> Leaderboard:
    """The leaderboard of a run, from tables that are brought up to its newest event.

    ``at`` is a sequence or a time; None for now. The others are those of ``make_leaderboard``.

    Raises:
        UsageError: there is no such sequence, system or game; or the matches do not suffice for a likelihood.
        BusyError: another process has held the tables for a minute.
    """
    upto = None
    async with run.open_log() as history:
        if at is not None:
            upto = await resolve_sequence(run, history, at, "--at")
            async for recorded in history.read(upto, upto):
                kind = type(recorded.event).__name__ if recorded.event is not None else "unknown"
                clock = datetime.fromtimestamp(recorded.time_ns / 1e9, tz=UTC)
                print(f"as of event {upto:,} ({kind}) of {clock:%Y-%m-%d %H:%M:%S} UTC", file=sys.stderr)
        async with open_tables(run, history) as tables:
            connection = tables.connection
            skipped = "SELECT coalesce(type, 'no event'), events FROM unreadable_events ORDER BY ALL"
            if text := unreadable_warning(QueryResult([], [], [], tuple(connection.execute(skipped).fetchall()))):
                print(text, file=sys.stderr)
            upto = upto or connection.execute("SELECT sequence FROM position").fetchall()[0][0]
            return make_leaderboard(connection, upto, system, game, by, draws)


_OPTIONAL_COLUMNS = ("reason", "active", "mean rank", "kind")
"""Columns that a narrow terminal does without, in the order in which they go."""


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """A table of at most ``width`` characters a line, with a heading on the origin of its ratings, and footnotes."""
    columns, values = zip(*_fields(board), strict=True)
    rows = [[value(row) for value in values] for row in board.rows]
    parts = [leaderboard_heading(board), render_table(columns, rows, width, _OPTIONAL_COLUMNS)]
    if board.seats:
        parts.append("What a seat is worth by itself, in rating points against the mean of all:\n")
        worths = [[s.seat, f"{s.effect:+.1f}", _interval(s.low, s.high, "{:+.0f}")] for s in board.seats]
        parts.append(render_table(["seat", *number_columns("worth", "95 % interval")], worths, width))
    notes = list(board.notes)
    is_fitted = bool(board.rows) and board.system in LIKELIHOOD_MODELS
    if is_fitted and board.by != "kind":
        notes.append("The mean is that of the same agents' official ratings.")
    if board.draws and is_fitted:
        notes.append(f"Intervals: {board.draws:,} resamplings of whole matches.")
    elif board.draws:
        notes.append(
            f"Intervals: the middle of {board.draws:,} resampled histories: chance in the results, not a skill that "
            f"changes. None under {MIN_GAMES} games."
        )
    if any(row.one_sided for row in board.rows):
        notes.append("* won or lost every comparison: how far it stands from the others is the prior's word.")
    return "".join([*parts, *(f"{note}\n" for note in notes)])


def leaderboard_json(board: Leaderboard) -> str:
    """A JSON list of objects, one per entrant, best first."""
    columns = leaderboard_columns(board)
    rows = [[getattr(row, name) for name in columns] for row in board.rows]
    return render_rows(columns, [""] * len(columns), rows, "json")


def leaderboard_columns(board: Leaderboard) -> list[str]:
    """Fields of an entry that apply to the entrants."""
    left_out = {"agent": ("seat",), "seat": (), "kind": ("agent", "seat", "active", "reason")}[board.by]
    return [name for name in LeaderboardEntry.__struct_fields__ if name not in left_out]


def leaderboard_heading(board: Leaderboard) -> str:
    """System, game and number of matches of the ratings."""
    matches = f"{board.matches:,} rated match{'' if board.matches == 1 else 'es'} up to event {board.sequence:,}"
    name = f"{board.system}{' (official)' if board.official else ''} in {board.game}"
    origin = "as recorded" if board.recorded else "computed now, not recorded"
    by = {"agent": "", "seat": ", every agent in each of its seats by itself", "kind": ", all agents of a kind as one"}
    return f"{name}, {origin}: {matches}{by[board.by]}\n"


def _fields(board: Leaderboard) -> list[tuple[Column, Callable[[LeaderboardEntry], Any]]]:
    """The columns that apply, with the value of a row in each."""
    deviates = any(row.deviation is not None for row in board.rows)
    fields: list[tuple[bool, Column, Callable[[LeaderboardEntry], Any]]] = [
        (True, Column("rank", True), lambda row: row.rank),
        (board.by != "kind", Column("agent"), lambda row: row.agent),
        (board.by == "seat", Column("seat"), lambda row: row.seat),
        (True, Column("kind"), lambda row: row.kind),
        (True, Column("rating", True), lambda row: _number(row.rating, "{:.1f}*" if row.one_sided else "{:.1f}")),
        (bool(board.draws), Column("95 % interval", True), lambda row: _interval(row.low, row.high, "{:.0f}")),
        (deviates, Column("deviation", True), lambda row: _number(row.deviation, "{:.1f}")),
        (True, Column("games", True), lambda row: row.rated_games),
        (True, Column("wins", True), lambda row: row.wins),
        (True, Column("mean rank", True), lambda row: _number(row.mean_rank, "{:.2f}")),
        (board.by == "agent", Column("active"), lambda row: "yes" if row.active else "no"),
        (board.by == "agent", Column("reason"), lambda row: row.reason),
    ]
    return [(column, value) for applies, column, value in fields if applies]


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _interval(low: float | None, high: float | None, form: str) -> str | None:
    return None if low is None or high is None else f"{form.format(low)} … {form.format(high)}"
