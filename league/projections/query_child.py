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
from league.projections.table_files import TableFiles
from league.projections.tables import (
    DamagedFileError,
    connect_duckdb,
    decision_view_statements,
    is_damage,
    read_projection_position,
    sql_literal,
    table_view_statements,
    union_view_statements,
    view_statements,
)
from schemas.errors import LeagueError, UsageError

_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)

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


def open_projection(path: Path, memory: str, decisions: bool = False) -> tuple[duckdb.DuckDBPyConnection, int] | None:
    """A locked-down connection with the tables of a file, and their position; None when it must be (re)built first.

    For ``decisions`` also when their segments must be attached first.

    DuckDB tells every statement its settings and the paths of its files, and runs statements that are given as texts.
    So it is given nothing to tell: its only files are those of ``TableFiles``, by names without a path, and its
    catalogue is made here, of views.
    """
    if not path.exists():
        return None
    settings: dict[str, str | int | bool] = {
        "python_enable_replacements": False,
        "memory_limit": memory,
        # Nothing is spilled to disk: queries that exceed the memory are rejected.
        "max_temp_directory_size": "0B",
        "temp_directory": "",
        "home_directory": ".",
        "secret_directory": ".",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    files = TableFiles(path)
    connection = connect_duckdb(None, settings)
    connection.register_filesystem(files)
    try:
        connection.execute(f"ATTACH {sql_literal(files.address(path.name))} AS stored (READ_ONLY)")
        connection.execute("USE stored")
        position = read_projection_position(connection, path.parent)
        if position is None or (decisions and not _has_decisions(connection, path.parent)):
            return None
        _make_catalogue(connection, files)
    except duckdb.Error as error:
        raise DamagedFileError(f"{path.name}: cannot be opened as a DuckDB file: {error}") from None
    connection.execute("SET allowed_paths = ?", [files.addresses()])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET lock_configuration = true")
    return connection, position


def _has_decisions(connection: duckdb.DuckDBPyConnection, folder: Path) -> bool:
    """Whether all segments of decisions are attached, and their files are there and whole."""
    stored = connection.execute("SELECT artifact FROM decision_segments WHERE dropped_sequence IS NULL").fetchall()
    attached = connection.execute("SELECT artifact, path, size FROM kept.decision_files").fetchall()
    return {artifact for (artifact,) in stored} == {artifact for artifact, _, _ in attached} and all(
        (folder / path).exists() and (folder / path).stat().st_size == size for _, path, size in attached
    )


def _make_catalogue(connection: duckdb.DuckDBPyConnection, files: TableFiles) -> None:
    """Make all views and macros in memory, over the stored tables and the files of segments."""
    part = "if(starts_with(part, 'events'), 'events', part)"
    attached = f"SELECT {part}, list(path ORDER BY first, part) FROM kept.attached GROUP BY 1"
    decisions = "SELECT kind, list(path) FROM kept.decision_files GROUP BY 1"
    # Decisions of a lost file are fetched again before a statement that names them.
    segments, kinds = (
        {
            kind: [address for name in names if files.exists(address := files.add(name))]
            for kind, names in connection.execute(statement).fetchall()
        }
        for statement in (attached, decisions)
    )
    connection.execute("USE memory")
    for statement in [
        *table_view_statements("stored"),
        *union_view_statements(segments),
        *decision_view_statements(kinds),
        *view_statements(),
    ]:
        connection.execute(statement)


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


def main() -> None:
    """Answer one request."""
    # Ctrl-C ends it without a word; the terminal sends it to us too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    path, limits, decisions = msgspec.json.decode(sys.stdin.buffer.readline(), type=tuple[str, QueryLimits, bool])
    limit_process(limits)
    opened = None
    try:
        opened = open_projection(Path(path), limits.memory, decisions)
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
        sys.stdout.buffer.flush()
    # At once: the parent waits, and nothing is left to be written.
    os._exit(0)


if __name__ == "__main__":
    main()
