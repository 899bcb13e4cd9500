"""The leaderboard as a table for a terminal, with footnotes on what its numbers mean."""

import contextlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from league.analysis.leaderboard import LIKELIHOOD_MODELS, Leaderboard, LeaderboardQuery, make_leaderboard
from league.analysis.roster import Grouping, LeaderboardEntry
from league.projections.query import QueryResult
from league.queries.tables import open_reader, open_run_reader, resolve_sequence, unreadable_warning
from league.queries.text_table import Column, number_columns, render_rows, render_table
from league.ratings.rating_history import MIN_GAMES
from league.run import Run

if TYPE_CHECKING:
    from league.log.jetstream import JetStreamLog

Field = tuple[Column, Callable[[LeaderboardEntry], Any]]
"""A column, and the value of a row in it."""


class LeaderboardCommand(msgspec.Struct, frozen=True):
    """The options of ``league leaderboard``; see ``LeaderboardQuery`` for the last four."""

    at: str | None
    """A sequence or a time; None for now."""
    system: str | None
    game: str | None
    by: Grouping
    draws: int | None


async def load_leaderboard(run: Run, asked: LeaderboardCommand) -> Leaderboard:
    """The leaderboard of a run, from tables that are brought up to its newest event.

    Raises:
        UsageError: there is no such sequence, system or game; or the matches do not suffice for a likelihood.
        BusyError: another process has held the tables for a minute.
    """
    if asked.at is None:
        tables, upto = await open_run_reader(run), None
    else:
        async with run.open_log() as history:
            upto = await _resolve_place(run, history, asked.at)
            tables = await open_reader(run, history)
    with contextlib.closing(tables.connection) as connection:
        skipped = "SELECT coalesce(type, 'no event'), events FROM unreadable_events ORDER BY ALL"
        if text := unreadable_warning(QueryResult([], [], [], tuple(connection.execute(skipped).fetchall()))):
            print(text, file=sys.stderr)
        upto = upto or connection.execute("SELECT sequence FROM position").fetchall()[0][0]
        return make_leaderboard(connection, LeaderboardQuery(upto, asked.system, asked.game, asked.by, asked.draws))


async def _resolve_place(run: Run, history: "JetStreamLog", at: str) -> int:
    place = await resolve_sequence(run, history, at, "--at")
    async for recorded in history.read(place, place):
        kind = type(recorded.event).__name__ if recorded.event is not None else "unknown"
        clock = datetime.fromtimestamp(recorded.time_ns / 1e9, tz=UTC)
        print(f"as of event {place:,} ({kind}) of {clock:%Y-%m-%d %H:%M:%S} UTC", file=sys.stderr)
    return place


_OPTIONAL_COLUMNS = ("reason", "active", "mean rank", "kind")
"""Columns that a narrow terminal does without, in the order in which they go."""


def leaderboard_text(found: Leaderboard, width: int | None = None) -> str:
    """A table for a terminal, with a heading on the origin of its ratings and footnotes below.

    Columns that can be missed are left out until no line of a table has more than ``width`` characters.
    """
    columns, values = zip(*_fields(found), strict=True)
    rows = [[value(row) for value in values] for row in found.rows]
    parts = [leaderboard_heading(found), render_table(columns, rows, width, _OPTIONAL_COLUMNS)]
    if found.seats:
        parts.append("What a seat is worth by itself, in rating points against the mean of all:\n")
        ends = [(seat.low, seat.high) for seat in found.seats]
        worths = [
            [s.seat, f"{s.effect:+.1f}", _format_interval(e, "{:+.0f}")] for s, e in zip(found.seats, ends, strict=True)
        ]
        parts.append(render_table(["seat", *number_columns("worth", "95 % interval")], worths, width))
    return "".join([*parts, *(f"{note}\n" for note in _footnotes(found))])


def leaderboard_json(found: Leaderboard) -> str:
    """A JSON list of objects, one per entrant, best first."""
    columns = leaderboard_columns(found)
    return render_rows(
        columns, [""] * len(columns), [[getattr(row, name) for name in columns] for row in found.rows], "json"
    )


def leaderboard_columns(found: Leaderboard) -> list[str]:
    """Fields of an entry that apply to the entrants."""
    left_out = {"agent": ("seat",), "seat": (), "kind": ("agent", "seat", "active", "reason")}[found.by]
    return [name for name in LeaderboardEntry.__struct_fields__ if name not in left_out]


def leaderboard_heading(found: Leaderboard) -> str:
    """System, game and number of matches of the ratings."""
    matches = f"{found.matches:,} rated match{'' if found.matches == 1 else 'es'} up to event {found.sequence:,}"
    name = f"{found.system}{' (official)' if found.official else ''} in {found.game}"
    what = "as recorded" if found.recorded else "computed now, not recorded"
    by = {"agent": "", "seat": ", every agent in each of its seats by itself", "kind": ", all agents of a kind as one"}
    return f"{name}, {what}: {matches}{by[found.by]}\n"


def _fields(found: Leaderboard) -> list[Field]:
    fields: list[Field] = [(Column("rank", True), lambda row: row.rank)]
    if found.by != "kind":
        fields.append((Column("agent"), lambda row: row.agent))
    if found.by == "seat":
        fields.append((Column("seat"), lambda row: row.seat))
    fields.append((Column("kind"), lambda row: row.kind))
    fields.append((Column("rating", True), lambda row: _format_rating(row)))
    if found.draws:
        fields.append((Column("95 % interval", True), lambda row: _format_interval((row.low, row.high), "{:.0f}")))
    if any(row.deviation is not None for row in found.rows):
        fields.append((Column("deviation", True), lambda row: _format_number(row.deviation, "{:.1f}")))
    fields += [
        (Column("games", True), lambda row: row.rated_games),
        (Column("wins", True), lambda row: row.wins),
        (Column("mean rank", True), lambda row: _format_number(row.mean_rank, "{:.2f}")),
    ]
    if found.by == "agent":
        fields.append((Column("active"), lambda row: "yes" if row.active else "no"))
        fields.append((Column("reason"), lambda row: row.reason))
    return fields


def _format_rating(row: LeaderboardEntry) -> str | None:
    return None if row.rating is None else f"{row.rating:.1f}{'*' if row.one_sided else ''}"


def _format_number(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _format_interval(ends: tuple[float | None, float | None], form: str) -> str | None:
    low, high = ends
    return None if low is None or high is None else f"{form.format(low)} … {form.format(high)}"


def _footnotes(found: Leaderboard) -> list[str]:
    notes = list(found.notes)
    board = bool(found.rows) and found.system in LIKELIHOOD_MODELS
    if board and found.by != "kind":
        notes.append("The mean is that of the same agents' official ratings.")
    if found.draws and board:
        notes.append(f"Intervals: {found.draws:,} resamplings of whole matches.")
    elif found.draws:
        notes.append(
            f"Intervals: the middle of {found.draws:,} resampled histories: chance in the results, not a skill that "
            f"changes. None under {MIN_GAMES} games."
        )
    if any(row.one_sided for row in found.rows):
        notes.append("* won or lost every comparison: how far it stands from the others is the prior's word.")
    return notes
