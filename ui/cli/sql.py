"""``league sql`` and ``export``: the history as tables, for SQL and as files."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import format_bytes, print_json, terminal_width


class RowFormat(StrEnum):
    """Format of printed rows."""

    table = "table"
    csv = "csv"
    json = "json"


async def sql(
    statement: Annotated[
        str | None, Argument(help="A query; `SHOW TABLES` lists the tables. Without one: a prompt.")
    ] = None,
    *,
    run: Run,
    form: Annotated[RowFormat, Option("--format", help="Format of the rows.")] = RowFormat.table,
    as_json: JsonOption = False,
    timeout_s: Annotated[float, Option("--timeout", help="Seconds that a query may run.")] = 30.0,
    memory: Annotated[str, Option(help="Memory that a query may use, e.g. 512MB or 4GB.")] = "1GB",
) -> None:
    """Query the history in SQL; read-only, over tables rebuilt from the events.

    Without a statement, a terminal gets a prompt; otherwise statements are read from standard input, each up to its
    semicolon.
    """
    from league.projections.query import QueryLimits
    from league.queries.tables import query_run, unreadable_warning
    from league.queries.text_table import render_rows

    how, limits = "json" if as_json else form.value, QueryLimits(timeout_s, memory)
    if statement is None:
        from ui.cli.sql_prompt import SqlPrompt

        await SqlPrompt(run, how, limits).run(sys.stdin)
        return
    result = await query_run(run, statement, limits)
    if text := unreadable_warning(result):
        print(text, file=sys.stderr)
    print(render_rows(result.columns, result.types, result.rows, how, terminal_width()), end="")


async def export(
    to: Annotated[Path, Option(help="Folder; empty or not existing yet.")], *, run: Run, as_json: JsonOption = False
) -> None:
    """Write every table as partitioned Parquet files, for DuckDB or pandas."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"--to {to}: is not empty; expected a folder that is empty or not there yet")
    from league.projections.export import export_tables
    from league.queries.tables import update_projection

    def report(table: str, rows: int, seconds: float) -> None:
        print(f"{table:<20} {rows:>12,} rows {seconds:>7.1f} s", file=sys.stderr, flush=True)

    async with run.open_log() as history:
        await update_projection(run, history)
    exported = export_tables(run.projection, to, report)
    if as_json:
        print_json(exported)
    else:
        print(f"{to}: {len(exported.tables)} tables up to event {exported.position:,}, {format_bytes(exported.bytes)}")
