"""A projection copied to a file while its own stays open."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from league.projections.export import copy_projection
from league.projections.projection import Projection
from league.queries import stored
from league.queries.stored import LeagueReader
from schemas.config import LeagueConfig
from schemas.errors import LeagueError, LogUnavailableError
from tests.builders import run_query
from tests.simulated_history import Simulation

ASKED = "SELECT count(*), (SELECT count(*) FROM leaderboard_at(50)) FROM matches"
OPENING = "import duckdb, sys; duckdb.connect(sys.argv[1])"


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    simulation = Simulation(LeagueConfig(seed=4), seats=3)
    simulation.run(3, 4)
    return simulation


@pytest.mark.parametrize("name", ["it's.duckdb", None])
def test_a_copy_answers_as_the_tables_do_and_is_replaced_by_the_next(
    simulated: Simulation, tmp_path: Path, name: str | None
) -> None:
    half, target = len(simulated.history) // 2, tmp_path / "the copy's.duckdb"
    with Projection(tmp_path / name if name else None) as projection:
        for batch in (simulated.history[:half], simulated.history[half:]):
            projection.apply(batch)
            copy_projection(projection, target)
            assert run_query(target, ASKED).rows == projection.query(ASKED)
            comment = "SELECT comment FROM duckdb_tables() WHERE table_name = 'agents'"
            assert run_query(target, comment).rows == projection.query(comment) != []
    assert [path.name for path in tmp_path.glob("*.draft")] == []


def test_the_tables_stay_locked_for_other_processes_while_and_after_they_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "tables.duckdb"
    with Projection(path) as projection:
        copy_projection(projection, tmp_path / "copy.duckdb")
        opened = subprocess.run([sys.executable, "-c", OPENING, str(path)], capture_output=True, text=True, check=False)
    assert "lock" in opened.stderr


@pytest.mark.parametrize("name", ["copy.duckdb", None])
def test_what_cannot_be_written_is_said_with_the_file(tmp_path: Path, name: str | None) -> None:
    table_file = tmp_path / name if name else None
    with Projection(table_file) as projection, pytest.raises(LeagueError, match=r"copy\.duckdb"):
        copy_projection(projection, tmp_path / "nowhere" / "copy.duckdb")


def test_reading_through_a_server_that_is_too_busy_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_TIMEOUT_S", 0.01)

    async def body() -> None:
        reader = LeagueReader.__new__(LeagueReader)
        reader._loop = asyncio.get_running_loop()
        with pytest.raises(LogUnavailableError, match=r"not read within 0\.01 s; try again later"):
            await asyncio.to_thread(reader._wait_for, asyncio.Event().wait())

    asyncio.run(body())
