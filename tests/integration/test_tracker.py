"""Trackers as processes: started late, killed, or with a sink that fails, they tell the same."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.metrics import MetricsStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig, Plugin, TrackerConfig, to_builtins
from schemas.errors import UsageError
from schemas.events import Event, WorkerJoined, WorkerLeft
from schemas.metrics import Heartbeat, InferenceMetrics
from tests.simulated_history import Simulation
from ui.cli import app
from workers.runtime import SequenceProgress
from workers.tracker import SinkFeed, make_rows
from workers.trackers import Row
from workers.trackers.sinks import Line, Place, read

CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=6, benchmark_games=6),
    tracker=TrackerConfig(
        every_s=0.15, sinks=[Plugin("jsonl"), Plugin("wandb", {"mode": "online", "init_timeout_s": 1.0})]
    ),
)
RATER = WorkerJoined(worker="rater-1", role="rater", incarnation="x", host="", pid=1, version="1")
HISTORY: list[Event] = [
    *(recorded.event for recorded in Simulation(CONFIG).run(20, 3) if recorded.event is not None),
    RATER,
    WorkerLeft(worker="rater-1", incarnation="x", reason="done"),
]
"""Ends with a full row, as a league does."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServer(tmp_path / "nats") as server:
        yield server.url


@contextlib.asynccontextmanager
async def league_on(url: str) -> AsyncIterator[JetStreamLog]:
    client = await connect(url, "test")
    try:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield JetStreamLog(client, CONFIG.name, "test")
    finally:
        await flush_and_close(client)


@contextlib.contextmanager
def tracker(url: str, folder: Path, *sinks: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "ui", "worker", "tracker", "--nats", url, "--run", str(folder)]
    for sink in sinks or ("jsonl",):
        command += ["--sink", sink]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(folder: Path) -> list[Line]:
    return [line for path in sorted((folder / "tracking").glob("*.jsonl")) for line in read(path)]


def told(folder: Path) -> list[tuple[int, int, int, dict[str, float], bool]]:
    """All that comes from the history."""
    return [(line.sequence, line.time_ns, line.step, line.values, line.full) for line in lines(folder)]


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "logs").glob("*.log"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.025)


async def until_told(folder: Path, sequence: int) -> None:
    await until(lambda: any(line.sequence >= sequence for line in lines(folder)))


async def stopped(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 300)


def test_one_that_ran_all_along_one_that_was_killed_and_one_that_comes_late_tell_the_same(
    broker: str, tmp_path: Path
) -> None:
    live, killed, late = (tmp_path / name for name in ("live", "killed", "late"))

    async def body() -> None:
        async with league_on(broker) as log:
            await log.append_batch(HISTORY[:40])
            with tracker(broker, live) as process:
                await until_told(live, 1)
                for start in range(40, len(HISTORY), 60):
                    await log.append_batch(HISTORY[start : start + 60])
                    if start == 160:
                        with tracker(broker, killed) as short:
                            before = len(lines(killed))
                            await until(lambda before=before: len(lines(killed)) > before)  # type: ignore[misc]
                            short.kill()
                    await asyncio.sleep(0.1)
                newest = await log.last_sequence()
                await until_told(live, newest - 5)
                assert await stopped(process) == 0
            for folder in (killed, late):
                with tracker(broker, folder) as process:
                    await until_told(folder, newest - 5)
                    assert await stopped(process) == 0

    asyncio.run(body())
    rows = told(live)
    assert len([row for row in rows if row[4]]) > 5
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    # What follows is the coming and going of the trackers after it.
    for folder in (killed, late):
        assert told(folder)[: len(rows)] == rows


NOW = "inference/inference-1/queued"


def test_figures_of_the_moment_stand_beside_rows_of_the_present_only(broker: str, tmp_path: Path) -> None:
    beat = Heartbeat("inference-1", "inference", "x", "h", 1, 1.0, 5, 0.5, 3, 7, 0, InferenceMetrics("local", queued=4))

    async def body() -> None:
        async with league_on(broker) as log:
            await log.append_batch(HISTORY[:-2])
            before = await log.last_sequence()
            with tracker(broker, tmp_path / "run") as process:
                await until_told(tmp_path / "run", before - 30)
                # Until a row has it: nobody says when the tracker has heard a heartbeat.
                for number in itertools.count():
                    await MetricsStream(log.client, CONFIG.name).publish(beat)
                    comes = msgspec.structs.replace(RATER, incarnation=str(number))
                    leaves = WorkerLeft(worker=RATER.worker, incarnation=str(number), reason="done")
                    await until_told(tmp_path / "run", (await log.append_batch([comes, leaves]))[-1])
                    if any(NOW in line.now for line in lines(tmp_path / "run")):
                        break
                assert await stopped(process) == 0
            found = lines(tmp_path / "run")
            now = {name: value for line in found for name, value in line.now.items()}
            assert now[NOW] == 4.0
            assert now["workers/inference-1/lag"] == 0.0
            assert not [line for line in found if line.sequence <= before and line.now]

    asyncio.run(body())


class Failing:
    """A sink that fails at first, and then hangs."""

    def __init__(self, hangs_at: int) -> None:
        self.rows: list[int] = []
        self.opened = 0
        self.hangs = threading.Event()
        self.released = threading.Event()
        self._hangs_at = hangs_at
        self._failed = False

    def open(self, place: Place) -> int:
        self.opened += 1
        if self.opened < 3:
            raise OSError("no route to host")
        return self.rows[-1] if self.rows else 0

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        if len(self.rows) == 4 and not self._failed:
            self._failed = True
            raise ValueError("a broken row")
        if len(self.rows) == self._hangs_at:
            self.hangs.set()
            self.released.wait(600)
        self.rows.append(row.sequence)

    def close(self) -> None:
        assert not self.hangs.is_set()


def test_a_sink_that_fails_is_tried_again_and_holds_nobody_up(broker: str, tmp_path: Path) -> None:
    good, bad = Failing(hangs_at=-1), Failing(hangs_at=8)
    good.opened = 2
    place = Place(tmp_path, "league", "x" * 16, to_builtins(CONFIG))

    async def body() -> None:
        async with league_on(broker) as log:
            newest = (await log.append_batch(HISTORY))[-1]
            feeds = [SinkFeed("test", sink, place, newest, retry_s=0.01) for sink in (good, bad)]
            progress = SequenceProgress()
            tasks = [asyncio.create_task(work) for work in (make_rows(log, feeds, progress), *(f.run() for f in feeds))]
            async with asyncio.timeout(300):
                await progress.wait_for_sequence(newest)
                await feeds[0].rows.join()
            await until(bad.hangs.is_set)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for feed in feeds:
                await feed.close()

    asyncio.run(body())
    assert good.rows[-1] == len(HISTORY)
    assert bad.opened == 4
    assert bad.rows == good.rows[:8]
    bad.released.set()


def test_wandb_out_of_reach_stops_neither_the_other_sinks_nor_the_end(broker: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    async def body() -> None:
        async with league_on(broker) as log:
            newest = (await log.append_batch(HISTORY))[-1]
            with tracker(broker, tmp_path / "run", "wandb", "jsonl") as process:
                await until_told(tmp_path / "run", newest)
                await until(lambda: "W&B: the run was not opened" in log_of(tmp_path / "run"))
                assert process.poll() is None

    old = dict(os.environ)
    os.environ.update(WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="5" * 40)
    try:
        asyncio.run(body())
    finally:
        os.environ.clear()
        os.environ.update(old)
    assert "5" * 40 not in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tracker", "--sink", "csv"], "--sink csv: no such sink; expected 'jsonl', 'stdout' or 'wandb'"),
        (["rater", "--sink", "jsonl"], "--sink: expected for a worker 'tracker' only, not for 'rater'"),
    ],
)
def test_a_sink_or_a_role_that_does_not_fit_is_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["worker", *arguments, "--run", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == message
