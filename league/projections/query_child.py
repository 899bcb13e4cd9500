"""The process that runs one query.

It reads a request (a line of JSON), opens the file and answers with its position; then it reads the statement (a line
of JSON) and answers with the result. Answers are pickled; errors for the user are ``LeagueError`` instances.
"""

import os
import pickle
import resource
import signal
import sys
from pathlib import Path

import duckdb
import msgspec

from league.projections.query import QueryLimits, QueryResult, memory_bytes
from league.projections.tables import connect_duckdb, read_projection_position
from schemas.errors import LeagueError, UsageError

_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)

_HIDDEN = {
    *("current_setting", "duckdb_settings", "pg_settings", "duckdb_databases", "pragma_database_list"),
    *("duckdb_secrets", "which_secret", "duckdb_extensions", "duckdb_extension_repositories"),
}
"""Functions and views of DuckDB that tell paths of this machine."""
_DYNAMIC = {"query", "query_table", "json_execute_serialized_sql"}
"""Functions that run a statement, or read a table, named by a string."""

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
    attached = connection.execute("SELECT path FROM kept.attached").fetchall()
    connection.execute("SET allowed_paths = ?", [[path for (path,) in attached]])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection, position


def run_statement(connection: duckdb.DuckDBPyConnection, sql: str, limits: QueryLimits) -> QueryResult | LeagueError:
    """The statement's result or its error."""
    try:
        return _run(connection, sql, limits)
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        return LeagueError(f"query stopped: it needs more than {limits.memory} of memory: {error}")
    except duckdb.Error as error:
        return UsageError(f"SQL: {error}")
    except LeagueError as error:
        return error


def _run(connection: duckdb.DuckDBPyConnection, sql: str, limits: QueryLimits) -> QueryResult:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"SQL: {len(statements)} statements; expected one")
    if statements[0].type not in _ALLOWED:
        raise UsageError(f"SQL: a statement of type {statements[0].type.name}; expected one that reads, as SELECT")
    _check_names(sql)
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


def _check_names(sql: str) -> None:
    """Refuse ``_HIDDEN`` names, also as string literals, by which tables may be named, and ``_DYNAMIC`` calls.

    Offsets of tokens count bytes.
    """
    data = sql.encode()
    starts = [start for start, _ in duckdb.tokenize(sql)]
    tokens = [data[a:b].decode(errors="replace").strip() for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        name = token.strip("\"'").lower()
        if name in _HIDDEN or (name in _DYNAMIC and following.startswith("(")):
            raise UsageError(
                f"SQL: {name}: not available here; expected the tables and views of the league (SHOW TABLES)"
            )


def main() -> None:
    """Answer one request."""
    # Ctrl-C ends it without a word; the terminal sends it to us too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    path, limits = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[str, QueryLimits])
    limit_process(limits)
    opened = None
    try:
        opened = open_projection(Path(path), limits.memory)
        answer: int | LeagueError | None = opened[1] if opened else None
    except LeagueError as error:
        answer = error
    sys.stdout.buffer.write(pickle.dumps(answer).hex().encode() + b"\n")
    sys.stdout.buffer.flush()
    if opened and (line := sys.stdin.buffer.readline()):
        sys.stdout.buffer.write(pickle.dumps(run_statement(opened[0], msgspec.json.decode(line, type=str), limits)))


if __name__ == "__main__":
    main()
