"""SQL by people: in a child process, read-only, with limits on time, memory and rows.

The child is this module run as a program. It gets the request as JSON on its standard input and answers with one
pickled ``_Answer``; a process of its own is the only way to stop a query for certain and to cap what it can touch.
"""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec

from league.projections.connect import connect
from schemas.errors import LeagueError, UsageError

_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


class Result(NamedTuple):
    """The result of a query."""

    columns: list[str]
    types: list[str]
    """DuckDB's names of the columns' types."""
    rows: list[tuple[Any, ...]]


class _Request(msgspec.Struct, frozen=True):
    path: str
    sql: str
    memory: str
    max_rows: int


class _Answer(NamedTuple):
    result: Result | None
    error: LeagueError | None


def run_query(path: Path, sql: str, timeout_s: float = 30.0, memory: str = "1GB", max_rows: int = 1_000_000) -> Result:
    """Run one query on a projection's file.

    Files other than this one cannot be read or written, and settings cannot be changed.

    Args:
        path: A file that ``Projection`` made and no process is writing.
        sql: One statement that reads: SELECT, WITH, FROM, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN.
        timeout_s: Wall-clock seconds after which the query is stopped.
        memory: DuckDB's limit on memory, e.g. ``512MB``.
        max_rows: Most rows that are handed back.

    Raises:
        UsageError: no such file; not one reading statement; an error in it (with DuckDB's pointer to the place); or
            more rows than ``max_rows``.
        LeagueError: time or memory ran out, or another process is writing the file.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file; expected a projection of a league's history")
    request = msgspec.json.encode(_Request(str(path), sql, memory, max_rows))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "league.projections.query"], input=request, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise LeagueError(f"query stopped: it ran longer than {timeout_s:g} s") from None
    if child.returncode != 0:
        tail = child.stderr.decode(errors="replace").strip()[-500:]
        raise LeagueError(f"query stopped: its process ended with status {child.returncode}: {tail}")
    answer: _Answer = pickle.loads(child.stdout)
    if answer.error is not None:
        raise answer.error
    assert answer.result is not None
    return answer.result


def _answer(request: _Request) -> _Answer:
    try:
        return _Answer(_run(request), None)
    except duckdb.OutOfMemoryException as error:
        return _Answer(None, LeagueError(f"query stopped: it needs more than {request.memory} of memory: {error}"))
    except duckdb.Error as error:
        return _Answer(None, UsageError(f"SQL: {error}"))
    except LeagueError as error:
        return _Answer(None, error)


def _run(request: _Request) -> Result:
    connection = connect(
        Path(request.path),
        {
            "enable_external_access": False,
            "python_enable_replacements": False,
            "memory_limit": request.memory,
            # Nothing is spilled beside the file: what does not fit in memory is refused.
            "max_temp_directory_size": "0B",
            "lock_configuration": True,
        },
        read_only=True,
    )
    statements = connection.extract_statements(request.sql)
    if len(statements) != 1:
        raise UsageError(f"SQL: {len(statements)} statements; expected one")
    if statements[0].type not in _ALLOWED:
        raise UsageError(f"SQL: a statement of type {statements[0].type.name}; expected one that reads, as SELECT")
    cursor = connection.execute(statements[0])
    rows = cursor.fetchmany(request.max_rows + 1)
    if len(rows) > request.max_rows:
        raise UsageError(f"SQL: more than {request.max_rows:,} rows; add a LIMIT or aggregate")
    description = cursor.description or []
    return Result([column[0] for column in description], [str(column[1]) for column in description], rows)


def _main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    sys.stdout.buffer.write(pickle.dumps(_answer(request)))


if __name__ == "__main__":
    _main()
