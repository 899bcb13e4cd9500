"""SQL by people in a child process (``query_child``), read-only, with limits on time, memory and rows.

DuckDB's own locks keep a query from files and settings, but not from time and memory, so it runs in a process that can
be killed: ``interrupt`` is looked at between vectors of 2,048 rows, and ``memory_limit`` does not count the text inside
of one. With DuckDB 2.0 and a limit of 200 MB ``sum(length(repeat('x', 100000000 + range)))`` took 3 GB, and
``levenshtein`` of two texts of 300,000 characters went on for two minutes after its interruption. The file is open only
while the process lives, so that other processes are not locked out between two queries.
"""

import contextlib
import pickle
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from schemas.errors import LeagueError, UsageError
from schemas.interpreter import module_command
from schemas.loggers import get_logger

if TYPE_CHECKING:
    import pyarrow as pa

log = get_logger()

TIMEOUT_S = 30.0
MEMORY = "1GB"
MAX_ROWS = 1_000_000
_MAX_TIMEOUT_S, _MAX_MEMORY_BYTES = 1_000_000, 10**15
"""Larger ones the system does not take as limits of a process."""

_DECISIONS = re.compile(r"\bdecisions\b", re.IGNORECASE)
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class QueryResult(NamedTuple):
    """The result of a query."""

    columns: list[str]
    types: list[str]
    """DuckDB's names of the columns' types."""
    rows: list[tuple[Any, ...]]
    unreadable: tuple[tuple[str, int], ...] = ()
    """Number of events that this version cannot read, by their stated type."""
    arrow: "pa.Table | None" = None
    """The rows as an Arrow table, where the limits ask for one; ``rows`` is empty then."""


class QueryLimits(NamedTuple):
    """Limits of a query."""

    timeout_s: float = TIMEOUT_S
    """Wall-clock seconds after which it is stopped."""
    memory: str = MEMORY
    """DuckDB's limit on memory, e.g. ``512MB``."""
    max_rows: int = MAX_ROWS
    cut: bool = False
    """Whether further rows are dropped; otherwise the query is rejected."""
    arrow: bool = False
    """Whether the rows are returned as an Arrow table, with the types of their columns."""


def names_decisions(statement: str) -> bool:
    """Whether a statement may read the view ``decisions``."""
    return _DECISIONS.search(statement) is not None


class QueryProcess:
    """A process that has a projection's file open and waits for a statement.

    Starting it takes a tenth of a second, during which the caller can do other things.
    """

    def __init__(self, path: Path, limits: QueryLimits | None = None, *, decisions: bool = False) -> None:
        """``decisions``: whether ``position`` is None too unless the view of this name has all rows."""
        self.path = path
        self.limits = limits or QueryLimits()
        if not 0.0 < self.limits.timeout_s <= _MAX_TIMEOUT_S:
            raise UsageError(
                f"timeout {self.limits.timeout_s:g}: expected seconds, more than 0, at most {_MAX_TIMEOUT_S:,}"
            )
        # Checked here: the process would only end.
        memory_bytes(self.limits.memory)
        self._child = subprocess.Popen(
            module_command("league.projections.query_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._child.stdin is not None
        # It may end before it reads; its error output is reported when the answer is read.
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(msgspec.json.encode((str(path), self.limits, decisions)) + b"\n")
            self._child.stdin.flush()

    def position(self) -> int | None:
        """The file's position; None when there is no file, or one of another version.

        Raises:
            BusyError: another process is writing the file; the message names it.
            UsageError: it is no DuckDB file.
        """
        answer = self._read_answer(self._child.stdout.readline() if self._child.stdout else b"")
        return answer if isinstance(answer, int) else None

    def run(self, sql: str) -> QueryResult:
        """Run one statement and end the process; ``position`` must have been called before.

        The statement is a SELECT, WITH, FROM, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN.

        Raises:
            UsageError: not one reading statement; an error in it, with DuckDB's pointer to the place; or more rows
                than the limit, where these are not to be left out.
            LeagueError: time or memory ran out.
        """
        began = time.monotonic()
        try:
            text = msgspec.json.encode(sql) + b"\n"
            out, errors = self._child.communicate(text, timeout=self.limits.timeout_s)
        except subprocess.TimeoutExpired:
            raise LeagueError(f"query stopped: it ran longer than {self.limits.timeout_s:g} s") from None
        except UnicodeEncodeError as error:
            raise UsageError(f"SQL: no text at character {error.start + 1}; expected UTF-8") from None
        finally:
            self.close()
        if self._child.returncode != 0:
            raise _process_error(self._child.returncode, errors, time.monotonic() - began)
        result: QueryResult = self._read_answer(out)
        return result

    def close(self) -> None:
        """End the process; ending it again does nothing."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _read_answer(self, data: bytes) -> Any:
        """Decode an answer of the child and raise its errors.

        The position comes as a line of hex, the result of ``run`` as raw bytes; both are pickled.
        """
        if not data:
            errors = self._child.stderr.read() if self._child.stderr else b""
            self._child.wait()
            raise _process_error(self._child.returncode, errors, 0.0)
        answer = pickle.loads(bytes.fromhex(data.decode()) if data.endswith(b"\n") else data)
        if isinstance(answer, LeagueError):
            self.close()
            raise answer
        return answer


def memory_bytes(text: str) -> int:
    """Parse a size like ``512MB`` into bytes; UsageError if it is no number with a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B)", text, re.IGNORECASE)
    size = float(match[1]) * _UNITS[match[2].upper()] if match is not None else 0
    if not 0 < size <= _MAX_MEMORY_BYTES:
        raise UsageError(f"memory {text!r}: expected a size with its unit, e.g. 512MB or 2GB, at most 1000TB")
    return int(size)


def _process_error(status: int, errors: bytes, seconds: float) -> LeagueError:
    ending = f"after {seconds:.0f} s by signal {-status}" if status < 0 else f"with status {status}"
    # A traceback is for the log: it has paths of this machine, and visitors of web pages read the message.
    log.warning("query process ended", status=status, error=errors.decode(errors="replace").strip()[-2_000:])
    return LeagueError(f"query stopped: its process ended {ending}; it may need more memory than the limit")
