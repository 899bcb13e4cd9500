"""The process that runs one query: request as JSON on standard input, pickled answer on standard output.

The answer is (columns, types, rows), or the ``LeagueError`` that a person should read.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from league.projections.connect import connect
from league.projections.views import quoted
from schemas.errors import LeagueError, UsageError

_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)

Answer = tuple[list[str], list[str], list[tuple[Any, ...]]]


class _Request(msgspec.Struct, frozen=True):
    path: str
    sql: str
    memory: str
    max_rows: int


def _answer(request: _Request) -> Answer | LeagueError:
    try:
        return _run(request)
    except duckdb.OutOfMemoryException as error:
        return LeagueError(f"query stopped: it needs more than {request.memory} of memory: {error}")
    except duckdb.Error as error:
        return UsageError(f"SQL: {error}")
    except LeagueError as error:
        return error


def _run(request: _Request) -> Answer:
    connection = connect(
        Path(request.path),
        {
            "python_enable_replacements": False,
            "memory_limit": request.memory,
            # Nothing is spilled beside the file: what does not fit in memory is refused.
            "max_temp_directory_size": "0B",
        },
        read_only=True,
    )
    _lock_down(connection)
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
    return [column[0] for column in description], [str(column[1]) for column in description], rows


def _lock_down(connection: duckdb.DuckDBPyConnection) -> None:
    """Leave the files of attached segments readable and nothing else, before anything of the request runs."""
    paths = [path for (path,) in connection.execute("SELECT DISTINCT path FROM kept.attached").fetchall()]
    connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, paths))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def main() -> None:
    """Answer one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    sys.stdout.buffer.write(pickle.dumps(_answer(request)))


if __name__ == "__main__":
    main()
