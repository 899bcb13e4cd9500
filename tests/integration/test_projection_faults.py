"""A run's tables in bad company: killed processes, two at once, events that come meanwhile; the prompt, the export."""

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import uvloop
from typer.testing import CliRunner

from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.projections import projection as catching_up
from league.projections.projection import Projection, catch_up
from league.projections.tables import TABLES, VIEWS
from league.queries.tables import query_history
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import LeagueError
from schemas.events import AgentRegistered
from tests.simulated_history import Simulation
from ui.cli import app
from ui.cli.sql import split_statements

SMALL = LeagueConfig(seed=2, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
# The broker keeps one of each key.
EVENTS = list({r.event.key: r.event for r in Simulation(SMALL).run_with_voids(25) if r.event is not None}.values())
CATCH_UP = """
import sys
import uvloop
from pathlib import Path
import league.projections.projection as catching_up
from league.projections.projection import Projection
from league.run import Run

catching_up.BATCH, catching_up._BATCHES_PER_COMMIT = 20, 2

class InSmallPieces:
    def __init__(self, history):
        self.history = history

    async def batches(self, first, last):
        piece = []
        async for recorded in self.history.read(first, last):
            piece.append(recorded)
            if len(piece) == 20:
                yield piece
                piece = []
        yield piece

async def main():
    run = Run(Path(sys.argv[1]))
    async with run.open_log() as history:
        with Projection(run.projection) as projection:
            print("begun", flush=True)

            def tell(position):
                print(position, flush=True)
                if position >= int(sys.argv[2]):
                    sys.stdin.read()

            await catching_up.catch_up(projection, InSmallPieces(history), None, tell)
    print("done", flush=True)

uvloop.run(main())
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run's folder with a history; its broker stays up for the test."""
    run = Run(tmp_path / "run")

    async def fill() -> None:
        async with run.connect("fill") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "fill").append_batch(EVENTS)

    with run._start_broker():
        uvloop.run(fill())
        yield run


def dump(projection: Projection) -> dict[str, list[tuple[object, ...]]]:
    return {name: projection.query(f"FROM {name} ORDER BY ALL") for name in [*TABLES, *VIEWS]}


def undisturbed(run: Run) -> dict[str, list[tuple[object, ...]]]:
    async def rebuild() -> dict[str, list[tuple[object, ...]]]:
        async with run.open_log() as history:
            with Projection() as projection:
                await catch_up(projection, history)
                assert projection.position == len(EVENTS)
                return dump(projection)

    return uvloop.run(rebuild())


def league(*arguments: str, run: Run, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ui", *arguments, "--run", str(run.folder)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=600, check=False)


def sql(run: Run, statement: str) -> str:
    """What the command prints, in this process."""
    result = CliRunner().invoke(app, ["sql", statement, "--format", "csv", "--run", str(run.folder)])
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_a_catch_up_that_is_killed_goes_on_and_ends_in_the_same_tables(run: Run) -> None:
    expected = undisturbed(run)
    reached = []
    # Killed after so many lines and before it goes beyond these positions, where it waits if this process is slow.
    for lines, latest in ((4, 100), (3, len(EVENTS) - 39)):
        command = [sys.executable, "-c", CATCH_UP, str(run.folder), str(latest)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(lines):
                assert child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        with Projection(run.projection) as projection:
            reached.append(projection.position)
            assert projection.query("SELECT count(*) FROM events") == [(projection.position,)]
    assert 0 <= reached[0] < reached[1] < len(EVENTS)
    assert reached[1] > 0

    async def finish() -> None:
        async with run.open_log() as history:
            with Projection(run.projection) as projection:
                await catch_up(projection, history)
                assert dump(projection) == expected

    uvloop.run(finish())


def test_events_that_come_while_a_rebuild_reads_are_neither_lost_nor_doubled(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "BATCH", 20)
    more = [AgentRegistered(agent=f"late_{n}", kind="bot", baseline=False, rating=1.0) for n in range(40)]

    async def both() -> None:
        async with run.open_log("reader") as history, run.open_log("writer") as writer:
            with Projection(run.projection) as projection:
                await asyncio.gather(catch_up(projection, history), writer.append_batch(more))
                assert len(EVENTS) <= projection.position <= len(EVENTS) + len(more)
                await catch_up(projection, history)
                assert projection.position == len(EVENTS) + len(more)
                assert projection.query("SELECT count(*), count(DISTINCT sequence) FROM events") == [
                    (projection.position, projection.position)
                ]
                assert projection.query("SELECT count(*) FROM agents WHERE agent LIKE 'late_%'") == [(len(more),)]

    uvloop.run(both())


def test_a_file_in_use_is_waited_for(run: Run) -> None:
    projection = Projection(run.projection)
    query = [sys.executable, "-m", "ui", "sql", "SELECT count(*) FROM events", "--format", "csv"]
    with subprocess.Popen(
        [*query, "--run", str(run.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        # It says whom it waits for; only then is it let in.
        assert any(f"process {os.getpid()}" in line for line in child.stderr)
        projection.close()
        assert child.stdout.read() == f"count_star()\n{len(EVENTS)}\n"
    assert child.returncode == 0


def test_a_file_that_stays_in_use_is_given_up_with_the_name_of_its_user(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("league.queries.tables._TIMEOUT_S", 0.5)

    async def attempt() -> None:
        async with run.open_log() as history:
            await query_history(run, history, "SELECT 1")

    holder = "import sys; from pathlib import Path; from league.projections.projection import Projection\n"
    holder += "p = Projection(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run.projection)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(LeagueError, match=f"process {child.pid}"):
            uvloop.run(attempt())
        child.communicate("")


def test_unreadable_events_are_counted_in_one_warning(run: Run) -> None:
    async def add() -> None:
        async with run.connect("stranger") as client:
            for payload in (b'{"type":"SeasonBegun","n":1}', b'{"type":"SeasonBegun","n":2}', b"\xff"):
                await client.jetstream().publish("league.league.season.begun", payload)

    uvloop.run(add())
    done = league("sql", "SELECT 1 AS x", "--format", "csv", run=run)
    assert done.stdout == "x\n1\n"
    assert done.stderr.strip() == (
        "warning: 3 events in this history are skipped, since this version cannot read them: 2 SeasonBegun, 1 no event"
    )


def test_statements_of_a_pipe_are_answered_until_one_is_wrong(run: Run) -> None:
    done = league("sql", "--format", "csv", run=run, text="SELECT 1 AS a;\nSELECT\n ';' AS b; FORM x; SELECT 2;")
    assert done.stdout == "a\n1\nb\n;\n"
    assert done.returncode == 2
    assert "LINE 1: FORM x" in done.stderr
    assert "^" in done.stderr


def test_an_open_prompt_answers_goes_on_after_mistakes_and_locks_nobody_out(run: Run) -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "ui", "sql", "--run", str(run.folder)]
    child = subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "dumb"}, start_new_session=True
    )
    os.close(side)
    try:
        assert b".help" in _until(main, b"league> ")
        os.write(main, b"SELECT 40 +\r")
        os.write(main, b"2 AS answer;\r")
        assert b" 42 " in _until(main, b"league> ")
        os.write(main, b"half a thought\x03")
        _until(main, b"league> ")
        os.write(main, b"FORM x;\r")
        assert b"LINE 1: FORM x" in _until(main, b"league> ")
        with Projection(run.projection) as projection:
            assert projection.position == len(EVENTS)
        os.write(main, b".tables\r")
        assert b"opponents_sampled" in _until(main, b"league> ")
        os.write(main, b"\x04")
        assert child.wait(timeout=300) == 0
    finally:
        child.kill()
        child.wait()
        os.close(main)
    assert "SELECT 40" in (run.folder / "sql_history").read_text()


def _until(terminal: int, end: bytes) -> bytes:
    """What the terminal shows, up to ``end``."""
    seen, deadline = b"", time.monotonic() + 300
    while end not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65_536)
    while termios.tcgetattr(terminal)[3] & termios.ISIG:
        # The prompt is shown a moment before it takes the keys.
        time.sleep(0.01)
    return seen


def test_an_export_is_whole_and_opens_in_plain_duckdb(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "export"
    done = league("export", "--to", str(folder), run=run)
    assert done.returncode == 0, done.stderr
    expected = undisturbed(run)
    assert sorted(path.name for path in folder.iterdir()) == sorted(expected)
    with duckdb.connect() as plain:
        for name, rows in expected.items():
            files = f"read_parquet('{folder}/{name}/**/*.parquet', hive_partitioning = false)"
            assert plain.execute(f"SELECT count(*) FROM {files}").fetchall() == [(len(rows),)], name
        one = f"{folder}/match_seats/game=diplomacy/purpose=training/*.parquet"
        seats = plain.execute(f"SELECT count(*) FROM '{one}'").fetchall()[0][0]
        assert seats == sum(7 for row in expected["matches"] if "training" in row)
        ratings = plain.execute(f"SELECT agent, rating FROM '{folder}/leaderboard/*.parquet' ORDER BY rank").fetchall()
    assert ratings == [(row[1], row[3]) for row in expected["leaderboard"]]


def test_an_export_leaves_other_files_alone_and_nothing_half_done(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("x")
    done = league("export", "--to", str(folder), run=run)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".mine")] == []


def test_statements_end_at_semicolons_that_are_none_of_a_text_or_comment() -> None:
    assert split_statements("a;b ; c") == (["a", "b"], "c")
    assert split_statements("select ';' -- ;\n;x") == (["select ';' -- ;"], "x")
    assert split_statements('select ";" /* ; */;') == (['select ";" /* ; */'], "")
    assert split_statements("select 'it''s;';") == (["select 'it''s;'"], "")
    assert split_statements("select 'open;") == ([], "select 'open;")
    assert split_statements(";;") == ([], "")
