"""Export of all tables as Parquet files for DuckDB, pandas or Polars, and copies of a projection's file."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import duckdb
import msgspec

from league.projections.projection import Projection
from league.projections.tables import LOADER_SETTINGS, TABLES, VIEWS, connect_duckdb, sql_literal
from schemas.errors import LeagueError, UsageError
from schemas.files import atomic_folder

PARTITIONS = {
    "events": ("type",),
    "matches": ("game", "purpose"),
    "match_seats": ("game", "purpose"),
    "match_failures": ("purpose",),
    "ratings": ("game", "system"),
}
"""Columns that a table's folders are named by (``game=nim/purpose=training``)."""

_SOURCES = {
    "match_seats": "(SELECT s.*, m.game, m.purpose FROM match_seats s JOIN matches m USING (sequence, match_id))",
    "events": "(SELECT * REPLACE (coalesce(type, 'no event') AS type) FROM events)",
}

_SETTINGS = {**LOADER_SETTINGS, "memory_limit": "600MB", "preserve_insertion_order": False}
"""2,048 rows are read at a time, which an event may make 64 KiB long. Row groups of a size in bytes need the second; a
single thread keeps the order all the same."""


class ExportReport(msgspec.Struct, frozen=True):
    """Counts of an export."""

    position: int
    """Sequence of its last event."""
    tables: dict[str, int]
    """Rows by table."""
    bytes: int


def export_tables(path: Path, to: Path, report: Callable[[str, int, float], None] = lambda *_: None) -> ExportReport:
    """Write every table and view of a projection into a new folder, whole or not at all.

    ``report`` is called after each table with its name, its rows and the seconds it took.

    Raises:
        UsageError: ``to`` is not empty, or cannot be written.
        BusyError: another process is writing the projection.
        LeagueError: it cannot be written whole, as when the disk is full.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to}: is not empty; expected a folder that is empty or not there yet")
    with contextlib.ExitStack() as drafts:
        try:
            draft = drafts.enter_context(atomic_folder(to))
        except OSError as error:
            raise UsageError(f"{to}: cannot be made ({error.strerror})") from None
        try:
            with drafts, connect_duckdb(path, _SETTINGS, read_only=True) as connection:
                rows = {}
                for table in [*TABLES, *VIEWS]:
                    began = time.monotonic()
                    rows[table] = _write_table(connection, table, draft / table)
                    report(table, rows[table], time.monotonic() - began)
                [(position,)] = connection.execute("SELECT sequence FROM position").fetchall()
                size = sum(file.stat().st_size for file in draft.rglob("*.parquet"))
        except (duckdb.Error, OSError) as error:
            raise LeagueError(f"{to}: the export was given up and nothing was left there: {error}") from error
    return ExportReport(position, rows, size)


def _write_table(connection: duckdb.DuckDBPyConnection, table: str, folder: Path) -> int:
    folder.mkdir()
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    source, columns = _SOURCES.get(table, table), PARTITIONS.get(table, ()) if count else ()
    # One at a time: DuckDB's own partitions keep all their rows in memory.
    parts = connection.execute(f"SELECT DISTINCT {', '.join(columns)} FROM {source}").fetchall() if columns else [()]
    for values in parts:
        target, condition = folder, "true"
        for column, value in zip(columns, values, strict=True):
            target /= f"{column}={_folder_name(value)}"
            condition += f" AND {column} {'IS NULL' if value is None else f'= {sql_literal(value)}'}"
        target.mkdir(parents=True, exist_ok=True)
        target /= "data_0.parquet" if columns else f"{table}.parquet"
        rows, to = f"FROM {source} WHERE {condition}", sql_literal(str(target))
        connection.execute(f"COPY ({rows}) TO {to} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE_BYTES '16MB')")
    return int(count)


def _folder_name(value: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")


def copy_projection(projection: Projection, path: Path) -> None:
    """Write a projection's tables to a file, which is replaced atomically: open readers keep the old one.

    DuckDB does not let a process read a file that another one writes. No events may be applied meanwhile. LeagueError
    if the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    if projection.path is None:
        try:
            with projection.open_reader() as connection:
                connection.execute(f"ATTACH {sql_literal(str(draft))} AS copied")
                try:
                    connection.execute("COPY FROM DATABASE memory TO copied")
                finally:
                    connection.execute("DETACH copied")
        except duckdb.Error as error:
            draft.unlink(missing_ok=True)
            raise LeagueError(f"{path}: the tables cannot be copied for queries: {error}") from error
    else:
        projection.connection.execute("CHECKPOINT")
        source = str(projection.path)
        # By another process: closing the file in this one would release DuckDB's lock on it.
        done = subprocess.run(["cp", "--", source, str(draft)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            draft.unlink(missing_ok=True)
            raise LeagueError(f"{source}: cannot be copied for queries: {done.stderr.strip()}")
    os.replace(draft, path)
