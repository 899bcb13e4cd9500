"""A projection of the history in a DuckDB file, or in memory, with the position it has reached."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from league.log.base import Recorded
from league.projections.connect import connect
from league.projections.load import EVENTS, statements_for, to_arrow
from league.projections.tables import VERSION, create_statements
from schemas.errors import UsageError


class Projection:
    """Tables of the history up to ``position``.

    Every batch is one transaction that also moves the position, so a process may be killed at any time and go on
    from there. Deleting the file is how to rebuild; a file of another version is emptied when it is opened.

    Args:
        path: The file, made when it is missing; None keeps the tables in memory.
        threads: Of DuckDB.

    Raises:
        UsageError: the file is not a projection.
        BusyError: another process has it open.
    """

    def __init__(self, path: Path | None = None, *, threads: int = 1) -> None:
        self.path = path
        self.rebuilt = ""
        """Why the tables were emptied on opening; empty when they were not."""
        self.connection = connect(path, {"threads": threads})
        try:
            self.position = self._prepare()
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> "Projection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self.connection.close()

    def apply(self, batch: Sequence[Recorded]) -> int:
        """Add events, in one transaction with the position.

        Events at or below the position are ignored, and copies of what was seen (the same match, agent, step …) add
        rows to ``events`` only.

        Args:
            batch: In order of sequence. Large batches are much faster: 10,000 events are a good size.

        Returns:
            How many of them were new.
        """
        new = self._newer(batch)
        if not new:
            return 0
        self.connection.begin()
        try:
            self._insert(new)
            self.connection.execute(
                "UPDATE position SET sequence = ?, time = make_timestamp(?)",
                [new[-1].sequence, new[-1].time_ns // 1000],
            )
            self.connection.commit()
        except BaseException:
            self.connection.rollback()
            raise
        self.position = new[-1].sequence
        return len(new)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query of our own; SQL by people goes through ``query.run_query``."""
        rows: list[tuple[Any, ...]] = self.connection.execute(sql, list(parameters)).fetchall()
        return rows

    def _newer(self, batch: Sequence[Recorded]) -> list[Recorded]:
        new, last = [], self.position
        for recorded in batch:
            if recorded.sequence > last:
                new.append(recorded)
                last = recorded.sequence
        return new

    def _insert(self, batch: list[Recorded]) -> None:
        self.connection.register("batch", to_arrow(batch))
        try:
            self.connection.execute(EVENTS)
            for statement in statements_for({type(r.event).__name__ for r in batch if r.event is not None}):
                self.connection.execute(statement)
        finally:
            self.connection.unregister("batch")

    def _prepare(self) -> int:
        names = {name for (name,) in self.query("SELECT table_name FROM duckdb_tables() WHERE NOT temporary")}
        if not names:
            self._create()
            return 0
        if "position" not in names:
            raise UsageError(f"{self.path}: holds other tables; expected a projection of a league's history")
        version, sequence = self.query("SELECT schema_version, sequence FROM position")[0]
        if version == VERSION:
            return int(sequence)
        self.rebuilt = f"{self.path}: tables of version {version} were dropped; this version keeps {VERSION}"
        self._drop()
        self._create()
        return 0

    def _create(self) -> None:
        self.connection.begin()
        for statement in create_statements():
            self.connection.execute(statement)
        self.connection.execute("INSERT INTO position VALUES (?, 0, NULL)", [VERSION])
        self.connection.commit()

    def _drop(self) -> None:
        # By what is there rather than by today's names: the other version had its own.
        for kind, catalog in (("VIEW", "duckdb_views()"), ("TABLE", "duckdb_tables()")):
            column = f"{kind.lower()}_name"
            for (name,) in self.query(f"SELECT {column} FROM {catalog} WHERE NOT internal AND NOT temporary"):
                self.connection.execute(f'DROP {kind} "{name}"')
