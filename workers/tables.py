"""A run's DuckDB file: brought up to the newest event when it is asked."""

import asyncio
import time

from league.log.base import EventLog, Recorded
from league.projections.projection import Projection
from league.projections.query import Result, run_query
from schemas.errors import BusyError
from workers.run import Run

LEADERBOARD = "SELECT * FROM leaderboard ORDER BY rank"

_BATCH = 10_000
_PATIENCE_S = 60.0


async def ask(run: Run, history: EventLog, statement: str) -> Result:
    """Answer SQL over the whole history as it is now. Another command on the same file is waited for.

    Raises:
        UsageError: the statement is wrong, writes, or reads anything but the tables.
        BusyError: another process has had the file for a minute.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            await _catch_up(run, history)
            return run_query(run.projection, statement)
        except BusyError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def _catch_up(run: Run, history: EventLog) -> None:
    with Projection(run.projection) as projection:
        batch: list[Recorded] = []
        async for recorded in history.read(projection.position + 1):
            batch.append(recorded)
            if len(batch) == _BATCH:
                projection.apply(batch)
                batch = []
        projection.apply(batch)
