"""A run's DuckDB file: brought up to the newest event when it is asked."""

import asyncio
import time

from league.archive import attachable
from league.log.jetstream import JetStreamLog
from league.projections.catch_up import catch_up
from league.projections.projection import Projection
from league.projections.query import Result, run_query
from schemas.errors import BusyError
from workers.run import Run

LEADERBOARD = "SELECT * FROM leaderboard ORDER BY rank"

_PATIENCE_S = 60.0


async def ask(run: Run, history: JetStreamLog, statement: str) -> Result:
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


async def _catch_up(run: Run, history: JetStreamLog) -> None:
    with Projection(run.projection) as projection:
        closed = await attachable(history, run.artifacts(history.client), projection.position)
        if closed is not None:
            projection.attach(closed.segments, closed.marks)
        await catch_up(projection, history)
