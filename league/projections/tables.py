"""The tables, macros and views of a projection (``schema.sql``, ``analysis.sql``), and the connection to their file.

``VERSION`` goes up whenever anything in ``*.sql`` or ``load`` changes; files of another version are rebuilt.
Times are UTC. Sequences say where in the history a row comes from. No table has a primary key: keys are kept by what
``load`` inserts, since DuckDB's indexes would make bulk loading several times slower.

The schema ``main`` is for queries. ``kept`` holds the bookkeeping and the rows of the tables that grow with every
match; views join those with the rows of attached segments.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb

from schemas.config import LeagueConfig
from schemas.decisions import CREDIT, DECISIONS
from schemas.errors import BusyError, UsageError

VERSION = 22

_FILES = [Path(__file__).with_name(f"{name}.sql") for name in ("schema", "analysis")]
_STATEMENTS = [
    statement for file in _FILES for statement in file.read_text(encoding="utf-8").removesuffix(";\n").split(";\n")
]


def _definitions(kind: str) -> dict[str, str]:
    """Definitions of one kind in the SQL files: by name, the text that follows the name."""
    matches = (re.search(rf"^CREATE {kind} ([\w.]+)\s*(.*)", statement, re.M | re.S) for statement in _STATEMENTS)
    return {match[1]: match[2] for match in matches if match is not None}


_ALL_TABLES = _definitions("TABLE")
TABLES = [name for name in _ALL_TABLES if not name.startswith("kept.")]
"""Small tables: rows are inserted and updated in place."""
VIEWS = list(_definitions("VIEW"))
MACROS = list(_definitions("MACRO"))

_BOOKKEEPING = {f"kept.{name}" for name in ("position", "attached", "dedup", "events", "decision_files")}
_FILES_BOOKKEEPING = {"kept.attached", "kept.dedup", "kept.decision_files"}
_SEGMENTS = {DECISIONS: "kept.decisions", CREDIT: "kept.credit"}
"""Empty tables with the columns of segments, by ``DecisionsStored.kind``."""
_OTHERS = {*TABLES, *_BOOKKEEPING, *_SEGMENTS.values()}
BULK_TABLES = [name.removeprefix("kept.") for name in _ALL_TABLES if name not in _OTHERS]
"""Tables whose rows the dedup index decides about, most with rows for every match; a segment holds each as a file."""

BULK_EVENTS = ("MatchFinished", "MatchFailed", "OpponentsSampled", "RatingUpdated", "RatingsCorrected")
"""The events that the rows of ``BULK_TABLES`` come from."""

RECORDED_EVENTS = """
    SELECT sequence, time_ns, subject, producer, coalesce(raw, encode(payload)) AS payload, schema FROM kept.all_events
"""
"""SQL for events with the fields of ``RecordedEvent``, by name and in order."""


def sql_literal(text: str) -> str:
    """Text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_identifier(text: str) -> str:
    """Text as a quoted SQL name."""
    return '"' + text.replace('"', '""') + '"'


def create_statements() -> list[str]:
    """SQL that creates every stored table, empty but for the configuration before the first event, at sequence 0."""
    config = LeagueConfig()
    purposes, system = json.dumps(list(config.ratings.purposes)), config.ratings.system.name
    default = (
        f"INSERT INTO configurations SELECT 0, NULL, '{config.game.name}', '{system}', ['{system}'], "
        f"json_transform('{purposes}', '[\"VARCHAR\"]'), NULL"
    )
    return [*(text for text in _STATEMENTS if not _reads_tables(text)), default]


def view_statements() -> list[str]:
    """SQL that creates the macros and views, with their comments."""
    return [text for text in _STATEMENTS if _reads_tables(text)]


def _reads_tables(statement: str) -> bool:
    return re.search(r"^(CREATE|COMMENT ON) (MACRO|VIEW|COLUMN)", statement, re.M) is not None


def column_names(table: str) -> list[str]:
    """Columns that rows are inserted into, in order; ``table`` has its schema, if that is ``kept``."""
    columns = re.sub(r"\(.*?\)", "", _ALL_TABLES[table][1:-1])
    return [column.split()[0] for column in columns.split(",") if "GENERATED" not in column]


LOADER_SETTINGS: Mapping[str, str | int | bool] = {"threads": 1, "memory_limit": "200MB"}
"""Settings for loading: beyond this memory DuckDB spills to disk, so that it stays flat on long histories."""


class DamagedFileError(UsageError):
    """A file that DuckDB cannot open or read."""


def is_damage(error: duckdb.Error) -> bool:
    """Whether an error is about a damaged file, and not about a statement."""
    damage = (duckdb.FatalException, duckdb.IOException, duckdb.SerializationException)
    return isinstance(error, damage) or "orrupt" in str(error)


def remove_projection(path: Path) -> None:
    """Remove a projection's file and its log of writes; the tables are built anew from the history."""
    for file in (path, path.with_name(f"{path.name}.wal")):
        file.unlink(missing_ok=True)


def connect_duckdb(
    path: Path | None, config: Mapping[str, str | int | bool], *, read_only: bool = False
) -> duckdb.DuckDBPyConnection:
    """Connect to a file, or to memory (None).

    Raises:
        BusyError: another process has the file open; the message names it.
        DamagedFileError: the file cannot be opened or is no DuckDB file.
    """
    # Names of segments' files are relative to the folder of the tables: no path of this machine is in them.
    folder = {} if path is None or "," in str(path.parent) else {"file_search_path": str(path.parent)}
    try:
        return duckdb.connect(
            ":memory:" if path is None else str(path), read_only=read_only, config={**folder, **config}
        )
    except duckdb.Error as error:
        if "lock on file" not in str(error):
            raise DamagedFileError(f"{path}: cannot be opened as a DuckDB file: {error}") from None
        holder = re.search(r"held in (.*?) \(PID (\d+)\)", str(error))
        name = f" (process {holder[2]}, {holder[1]})" if holder else ""
        raise BusyError(
            f"{path}: another process has this projection open{name}; wait for it or use another file"
        ) from None


def read_projection_position(connection: duckdb.DuckDBPyConnection, folder: Path) -> int | None:
    """Position of an open file in a folder; None if it must be (re)built.

    It must if it is of another version, or attached files are missing or changed.
    """
    try:
        version, position = connection.execute("SELECT schema_version, sequence FROM kept.position").fetchall()[0]
    except duckdb.CatalogException:
        return None
    return int(position) if version == VERSION and not missing_segment_file(connection, folder) else None


def missing_segment_file(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """Fault of the file of a segment that tables in a folder attach; empty when all are unchanged."""
    for name, size in connection.execute("SELECT path, size FROM kept.attached ORDER BY ALL").fetchall():
        path = folder / name
        actual = path.stat().st_size if path.exists() else None
        if actual is None:
            return f"{path}, which they read, no longer exists"
        if actual != size:
            return f"{path}, which they read, has {actual:,} bytes; expected {size:,}"
    return ""


MACRO_COMMENTS = {
    "leaderboard_at(sequence)": "`leaderboard` as it was after that event",
    "entrants_at(sequence)": "who had joined by then, in that order; `active` and `reason` as they were",
    "unadmitted_versions_at(sequence)": "each policy's newest rated version, where it has not joined",
    "ratings_at(sequence)": "`current_ratings` as they were after that event",
    "rated_matches_at(sequence)": "matches that the ratings after that event were made of",
    "rated_games_at(sequence)": "the same of all games and environments, with the `weight` that makes them equal",
    "payoff_at(sequence)": "`payoff` as it was; `playing := 'GAME'` and `purposes := ['PURPOSE']` select matches",
    "wilson(wins, games)": "95 % interval of a share: `.low` and `.high`",
    "sequence_at(time)": "the newest event recorded at or before a time (UTC)",
}
"""All that rate take ``under := 'SYSTEM'`` and ``playing := 'GAME'`` too."""


def decision_view_statements(files: Mapping[str, Sequence[str]]) -> list[str]:
    """SQL for the views of all rows of decision segments, from Parquet ``files`` by kind."""
    views = []
    for kind, table in _SEGMENTS.items():
        parts = [f"SELECT {', '.join(column_names(table))} FROM {table}"]
        if paths := files.get(kind):
            source = f"read_parquet([{', '.join(map(sql_literal, paths))}])"
            parts.insert(0, f"SELECT {', '.join(column_names(table))} FROM {source}")
        name = table.replace("kept.", "kept.all_")
        views.append(f"CREATE OR REPLACE VIEW {name} AS {' UNION ALL '.join(parts)}")
    return views


def table_view_statements(catalog: str) -> list[str]:
    """SQL for a catalogue of views on the tables of another one, with their comments, in place of the tables.

    Bookkeeping that no view reads is left out.
    """
    names = [name for name in _ALL_TABLES if name not in _FILES_BOOKKEEPING]
    comments = [text for text in _STATEMENTS if text.startswith("COMMENT ON TABLE")]
    return [
        "CREATE SCHEMA kept",
        *(f"CREATE VIEW {name} AS FROM {catalog}.{name}" for name in names),
        *(text.replace("COMMENT ON TABLE", "COMMENT ON VIEW") for text in comments),
    ]


def union_view_statements(files: Mapping[str, Sequence[str]]) -> list[str]:
    """SQL for the views of all rows: of attached Parquet ``files`` by part, ``events`` among them, then our own."""
    views = []
    for table in ("events", *BULK_TABLES):
        chosen = ", ".join(column_names(f"kept.{table}"))
        parts = [f"SELECT {chosen} FROM kept.{table}"]
        if paths := files.get(table):
            parts.insert(0, f"SELECT {chosen} FROM read_parquet([{', '.join(map(sql_literal, paths))}])")
        views.append(f"CREATE OR REPLACE VIEW kept.all_{table} AS {' UNION ALL '.join(parts)}")
    return views
