"""The process that runs one query.

It reads a request (a line of JSON), opens the file and answers with its position; then it reads the statement (a line
of JSON) and answers with the result. Answers are pickled; errors for the user are ``LeagueError`` instances.
"""

import os
import pickle
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from league.projections.query import QueryLimits, QueryResult, memory_bytes
from league.projections.tables import DamagedFileError, connect_duckdb, is_damage, read_projection_position
from schemas.errors import LeagueError, UsageError

_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)

_HIDDEN_PREFIXES = ("duckdb_", "pragma_", "pg_", "sqlite_", "__")
_SHOWN = {"duckdb_tables", "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_types"}
_HIDDEN = {"current_setting", "which_secret", "views", "query", "query_table", "json_execute_serialized_sql"}
"""Functions and tables of DuckDB that tell settings or paths of this machine, or run a statement named by a string."""
_HIDDEN_SCHEMA = "kept"

_MAX_DEPTH = 10_000
"""Depth of a statement's syntax tree: some ten levels an operator."""
_INTERPRETER_BYTES = 4 * 2**30
"""Bytes of address space for the interpreter and its libraries, beside what DuckDB may take."""


def limit_process(limits: QueryLimits) -> None:
    """Have the system enforce what DuckDB should by itself: address space, processor time, no writing to files."""
    seconds = int(limits.timeout_s * (os.cpu_count() or 1)) + 10
    bounds = {
        resource.RLIMIT_AS: memory_bytes(limits.memory) + _INTERPRETER_BYTES,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in bounds.items():
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def open_projection(path: Path, memory: str) -> tuple[duckdb.DuckDBPyConnection, int] | None:
    """A locked-down connection to the file and its position; None when it must be (re)built first."""
    if not path.exists():
        return None
    settings: dict[str, str | int | bool] = {
        "python_enable_replacements": False,
        "memory_limit": memory,
        # Nothing is spilled to disk: queries that exceed the memory are refused.
        "max_temp_directory_size": "0B",
        "temp_directory": "",
        # Messages about files name it.
        "home_directory": ".",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = connect_duckdb(path, settings, read_only=True)
    position = read_projection_position(connection)
    if position is None:
        return None
    attached = connection.execute(
        "SELECT path FROM kept.attached UNION SELECT path FROM kept.decision_files"
    ).fetchall()
    connection.execute("SET allowed_paths = ?", [[path for (path,) in attached]])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection, position


def run_statement(connection: duckdb.DuckDBPyConnection, sql: str, limits: QueryLimits) -> QueryResult | LeagueError:
    """The statement's result or its error."""
    try:
        return _run(connection, sql, limits)
    except (duckdb.OutOfMemoryException, MemoryError):
        return _memory_error(limits)
    except duckdb.Error as error:
        return DamagedFileError(f"SQL: {error}") if is_damage(error) else UsageError(f"SQL: {error}")
    except LeagueError as error:
        return error


def _memory_error(limits: QueryLimits) -> LeagueError:
    return LeagueError(f"query stopped: it needs more than {limits.memory} of memory; ask for fewer or shorter rows")


def _run(connection: duckdb.DuckDBPyConnection, sql: str, limits: QueryLimits) -> QueryResult:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"SQL: {len(statements)} statements; expected one")
    if statements[0].type not in _ALLOWED:
        raise UsageError(f"SQL: a statement of type {statements[0].type.name}; expected one that reads, as SELECT")
    _check_names(connection, sql)
    skipped = "SELECT coalesce(type, 'no event'), events FROM unreadable_events ORDER BY ALL"
    unreadable = tuple(connection.execute(skipped).fetchall())
    # One row more than permitted, by which a larger result is recognised, unless further rows are dropped.
    most = limits.max_rows + (not limits.cut)
    if limits.arrow:
        table = connection.sql(statements[0]).limit(most).to_arrow_table()
        count = table.num_rows
        result = QueryResult(table.column_names, [str(kind) for kind in table.schema.types], [], unreadable, table)
    else:
        cursor = connection.execute(statements[0])
        rows = cursor.fetchmany(most)
        count, description = len(rows), cursor.description or []
        columns, types = [column[0] for column in description], [str(column[1]) for column in description]
        result = QueryResult(columns, types, rows, unreadable)
    if count > limits.max_rows:
        raise UsageError(f"SQL: more than {limits.max_rows:,} rows; add a LIMIT or aggregate")
    return result


def _check_names(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse what ``_is_hidden``, by DuckDB's own syntax tree: neither quotes nor comments hide a name from it."""
    tokens = duckdb.tokenize(sql)
    text = sql.encode()
    # Only a SELECT has a tree, SHOW and DESCRIBE among them; that of an EXPLAIN begins after its words.
    starts = [start for start, _ in tokens if not text[start:].upper().startswith((b"EXPLAIN", b"ANALYZE"))]
    selected = text[min(starts, default=0) :].decode()
    try:
        tree = msgspec.json.decode(connection.execute("SELECT json_serialize_sql(?)", [selected]).fetchall()[0][0])
    except RecursionError:
        raise UsageError("SQL: nested too deeply; expected fewer operators in a row") from None
    if tree["error"]:
        raise UsageError(f"SQL: {tree['error_message']}")
    settings = {name for (name,) in connection.execute("SELECT name FROM duckdb_settings()").fetchall()}
    for node in _nodes(tree):
        name = str(node.get("function_name") or node.get("table_name") or "").strip('"').lower()
        schemas = {str(node.get(key) or "").lower() for key in ("schema", "schema_name")}
        is_setting = node.get("type") == "SHOW_REF" and name in settings
        if is_setting or _is_hidden(name) or _HIDDEN_SCHEMA in schemas:
            raise UsageError(
                f"SQL: {name}: not available here; expected the tables and views of the league (SHOW TABLES)"
            )


def _is_hidden(name: str) -> bool:
    return name in _HIDDEN or (name.startswith(_HIDDEN_PREFIXES) and name not in _SHOWN)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a syntax tree."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def main() -> None:
    """Answer one request."""
    # Ctrl-C ends it without a word; the terminal sends it to us too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.setrecursionlimit(_MAX_DEPTH)
    path, limits = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[str, QueryLimits])
    limit_process(limits)
    opened = None
    try:
        opened = open_projection(Path(path), limits.memory)
        answer: int | LeagueError | None = opened[1] if opened else None
    except LeagueError as error:
        answer = error
    except duckdb.Error as error:
        answer = DamagedFileError(f"{path}: cannot be read: {error}")
    sys.stdout.buffer.write(pickle.dumps(answer).hex().encode() + b"\n")
    sys.stdout.buffer.flush()
    if opened and (line := sys.stdin.buffer.readline()):
        result = run_statement(opened[0], msgspec.json.decode(line, type=str), limits)
        try:
            answer_bytes = pickle.dumps(result)
        except MemoryError:
            answer_bytes = pickle.dumps(_memory_error(limits))
        sys.stdout.buffer.write(answer_bytes)


if __name__ == "__main__":
    main()
