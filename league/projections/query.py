"""SQL by people: in a child process (``query_child``), read-only, with limits on time, memory and rows.

A process of its own is the only way to stop a query for certain and to cap what it can touch.
"""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from schemas.errors import LeagueError, UsageError


class Result(NamedTuple):
    """The result of a query."""

    columns: list[str]
    types: list[str]
    """DuckDB's names of the columns' types."""
    rows: list[tuple[Any, ...]]


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
    request = msgspec.json.encode({"path": str(path), "sql": sql, "memory": memory, "max_rows": max_rows})
    command = [sys.executable, "-m", "league.projections.query_child"]
    try:
        child = subprocess.run(command, input=request, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise LeagueError(f"query stopped: it ran longer than {timeout_s:g} s") from None
    if child.returncode != 0:
        tail = child.stderr.decode(errors="replace").strip()[-500:]
        raise LeagueError(f"query stopped: its process ended with status {child.returncode}: {tail}")
    answer = pickle.loads(child.stdout)
    if isinstance(answer, LeagueError):
        raise answer
    return Result(*answer)
