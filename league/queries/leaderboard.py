"""The leaderboard of a run, and as a table for a terminal."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from league.analysis.leaderboard import Leaderboard, LeaderboardEntry, leaderboard
from league.projections.query import QueryResult
from league.queries.tables import open_tables, resolve_sequence, unreadable_warning
from league.queries.text_table import Column, render_table
from league.run import Run


async def load_leaderboard(
    run: Run, at: str | None = None, system: str | None = None, game: str | None = None, *, all_games: bool = False
) -> Leaderboard:
    """Make the leaderboard of a run, from tables that are brought up to its newest event.

    ``at`` is a sequence or a time, by default the newest event. The others are those of ``leaderboard``.

    Raises:
        UsageError: no such sequence, system or game.
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
            return leaderboard(connection, game, upto, system, all_games=all_games)


_OPTIONAL_COLUMNS = ("reason", "active", "mean rank", "kind", "deviation")
"""Columns that a narrow terminal does without, in the order in which they go."""


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """A table of at most ``width`` characters a line, with a heading and footnotes."""
    columns, values = zip(*_fields(board), strict=True)
    rows = [[value(row) for value in values] for row in board.rows]
    text = leaderboard_heading(board) + render_table(columns, rows, width, _OPTIONAL_COLUMNS)
    if any(row.rating is not None for row in board.rows):
        text += "Ratings: Bradley–Terry over all rated matches, with 95 % intervals; on average as the official ones.\n"
    if any(row.one_sided for row in board.rows):
        text += "* won or lost every comparison: its distance from the others is an assumption.\n"
    return text


def leaderboard_json(board: Leaderboard) -> str:
    """A JSON list of objects, one per entrant, best first."""
    return msgspec.json.format(msgspec.json.encode(board.rows), indent=1).decode() + "\n"


def leaderboard_heading(board: Leaderboard) -> str:
    """Game, number of matches and order of the leaderboard, as a line."""
    matches = f"{board.matches:,} rated match{'' if board.matches == 1 else 'es'} up to event {board.sequence:,}"
    order = "Bradley–Terry rating" if board.order != board.system else board.system
    return f"{board.game}, by {order}: {matches}\n"


def _fields(board: Leaderboard) -> list[tuple[Column, Callable[[LeaderboardEntry], Any]]]:
    """The columns, with the value of a row in each."""
    fields: list[tuple[Column, Callable[[LeaderboardEntry], Any]]] = [
        (Column("rank", True), lambda row: row.rank),
        (Column("agent"), lambda row: row.agent),
        (Column("kind"), lambda row: row.kind),
        (Column("rating", True), lambda row: _number(row.rating, "{:.1f}*" if row.one_sided else "{:.1f}")),
        (
            Column("95 % interval", True),
            lambda row: None if row.low is None or row.high is None else f"{row.low:.0f} … {row.high:.0f}",
        ),
        (Column(board.system, True), lambda row: f"{row.online:.1f}"),
        (Column("deviation", True), lambda row: _number(row.deviation, "{:.1f}")),
        (Column("games", True), lambda row: row.rated_games),
        (Column("wins", True), lambda row: row.wins),
        (Column("mean rank", True), lambda row: _number(row.mean_rank, "{:.2f}")),
        (Column("active"), lambda row: "yes" if row.active else "no"),
        (Column("reason"), lambda row: row.reason),
    ]
    deviates = any(row.deviation is not None for row in board.rows)
    return [(column, value) for column, value in fields if column.name != "deviation" or deviates]


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)
