"""A league whose players leave the model to two inference processes, one of which is killed on the way."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from league.log.base import Recorded
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, wait_closed
from league.log.server import EmbeddedServer
from league.replay import verify
from schemas.events import (
    GradientStepTaken,
    InferenceServing,
    MatchFailed,
    MatchFinished,
    OpponentsSampled,
    TrainingFinished,
    WorkerJoined,
    WorkerLeft,
)

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STEPS = 20


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder = tmp_path_factory.mktemp("served")
    config = CONFIG.read_text().replace("steps = 3", f"steps = {STEPS}") + "\n[inference]\nservers = 2\n"
    (folder / "league.toml").write_text(config)
    run = folder / "run"
    command = [sys.executable, "-m", "workers", "up", "--config", str(folder / "league.toml"), "--run", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        os.kill(pid_of(wait_for_steps(run, 4), "inference-1"), signal.SIGKILL)
        out, err = process.communicate(timeout=180)
    finally:
        # In good order, so that it ends its workers and its broker.
        process.terminate()
        process.wait(timeout=60)
    assert process.returncode == 0, out + err
    assert "identical" in out
    return read(run)


def read(run: Path) -> list[Recorded]:
    async def body() -> list[Recorded]:
        with EmbeddedServer(run / "nats") as server:
            client = await connect(server.url, "test")
            events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
            await wait_closed(client)
            return events

    return asyncio.run(body())


def wait_for_steps(run: Path, wanted: int, timeout_s: float = 120) -> list[Recorded]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (run / "nats" / "server.json").exists() and (run / "model").exists():
            events = read(run)
            if sum(isinstance(r.event, GradientStepTaken) for r in events) >= wanted:
                return events
        time.sleep(0.2)
    raise AssertionError(f"no {wanted} gradient steps within {timeout_s} s")


def pid_of(history: list[Recorded], worker: str) -> int:
    return next(r.event.pid for r in history if isinstance(r.event, WorkerJoined) and r.event.worker == worker)


def test_it_trains_to_its_end_and_replays_identically(history: list[Recorded]) -> None:
    steps = [r.event for r in history if isinstance(r.event, GradientStepTaken)]
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    assert any(isinstance(r.event, TrainingFinished) for r in history)
    assert verify(history).identical


def test_no_match_failed_and_none_was_lost(history: list[Recorded]) -> None:
    assert [r.event for r in history if isinstance(r.event, MatchFailed)] == []
    drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    played = {r.event.match_id for r in history if isinstance(r.event, MatchFinished)}
    assert drawn <= played


def test_players_outlive_the_process_that_was_killed(history: list[Recorded]) -> None:
    serving = [r.event for r in history if isinstance(r.event, InferenceServing)]
    assert {event.worker for event in serving} == {"inference-1", "inference-2"}
    # Each process has an address of its own, the one that comes back too, if it does so in time.
    assert len({event.url for event in serving}) == len(serving)
    killed = [r.event.worker for r in history if isinstance(r.event, WorkerLeft) and "code -9" in r.event.reason]
    assert killed == ["inference-1"]
    joined = [r.event.worker for r in history if isinstance(r.event, WorkerJoined)]
    assert joined.count("rollout-1") == joined.count("evaluator-1") == 1
