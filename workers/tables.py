"""A run's DuckDB file: brought up to the newest event when it is asked."""

from league.log.base import EventLog, Recorded
from league.projections.projection import Projection
from league.projections.query import Result, run_query
from workers.run import Run

LEADERBOARD = "SELECT * FROM leaderboard ORDER BY rank"

_BATCH = 10_000


async def catch_up(run: Run, history: EventLog) -> None:
    """Take in the events since the last time.

    Raises:
        LeagueError: another process is doing so now.
    """
    with Projection(run.projection) as projection:
        batch: list[Recorded] = []
        async for recorded in history.read(projection.position + 1):
            batch.append(recorded)
            if len(batch) == _BATCH:
                projection.apply(batch)
                batch = []
        projection.apply(batch)


async def ask(run: Run, statement: str) -> Result:
    """Answer SQL over the whole history as it is now.

    Raises:
        UsageError: the statement is wrong, writes, or reads anything but the tables.
    """
    async with run.history() as history:
        await catch_up(run, history)
    return run_query(run.projection, statement)
