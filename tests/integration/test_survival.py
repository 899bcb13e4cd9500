"""Processes are killed, stopped and started again: nothing is lost, nothing is used twice, history stays one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from league.log.base import Recorded
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, wait_closed
from league.log.server import EmbeddedServer
from league.replay import verify
from schemas.events import GradientStepTaken, MatchFinished, OpponentsSampled, PolicyPublished, WorkerJoined, WorkerLeft
from workers.commands import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"


Start = Callable[[Path, Path], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``league up``; what a failed test leaves running ends with it, workers after their supervisor."""
    started: list[subprocess.Popen[str]] = []

    def up(run: Path, config: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "workers", "up", "--config", str(config), "--run", str(run)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield up
    for process in started:
        process.kill()
        process.communicate()


def with_steps(folder: Path, steps: int) -> Path:
    path = folder / "league.toml"
    path.write_text(CONFIG.read_text().replace("steps = 3", f"steps = {steps}"))
    return path


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
        time.sleep(0.3)
    raise AssertionError(f"no {wanted} gradient steps within {timeout_s} s")


def finish(process: subprocess.Popen[str], timeout_s: float = 180) -> tuple[str, str]:
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, out + err
    return out, err


def assert_sound(history: list[Recorded], steps: int) -> None:
    """One step after the other, each rollout used once and consumed in order, ratings as refolded."""
    taken = [r.event for r in history if isinstance(r.event, GradientStepTaken)]
    used = [match for step in taken for match in step.matches]
    assert [step.step for step in taken] == list(range(1, steps + 1))
    assert len(used) == len(set(used))
    assert [step.experience_from for step in taken] == [1, *(step.experience_to + 1 for step in taken[:-1])]
    assert [r.event.version for r in history if isinstance(r.event, PolicyPublished)] == list(range(steps + 1))
    assert verify(history).identical


def balance(run: Path) -> dict[str, int]:
    """The hero's account, which must balance at any moment."""
    result = CliRunner().invoke(app, ["ledger", "--json", "--run", str(run)])
    assert result.exit_code == 0, result.output
    account = json.loads(result.stdout)[0]
    fates = ("trained", "stale", "filtered", "voided", "refused", "abandoned", "pending")
    assert account["generated"] == sum(account[fate] for fate in fates)
    return account


def test_killed_workers_come_back_and_nothing_is_lost(tmp_path, start):
    run = tmp_path / "run"
    process = start(run, with_steps(tmp_path, 80))
    for wanted in (2, 20):
        joined = {r.event.worker: r.event.pid for r in wait_for_steps(run, wanted) if isinstance(r.event, WorkerJoined)}
        for worker in ("trainer-1", "rollout-1", "rater-1", "evaluator-1"):
            os.kill(joined[worker], signal.SIGKILL)
            if worker == "trainer-1":
                assert balance(run)["trained"] >= wanted * 8
    out, _ = finish(process)
    assert balance(run)["trained"] == 80 * 8
    history = read(run)
    assert_sound(history, 80)
    assert "identical" in out
    killed = [r.event for r in history if isinstance(r.event, WorkerLeft) and "code -9" in r.event.reason]
    assert {event.worker for event in killed} >= {"trainer-1", "rollout-1"}


@pytest.mark.slow
def test_ctrl_c_drains_and_the_same_command_goes_on(tmp_path, start):
    run, config = tmp_path / "run", with_steps(tmp_path, 200)
    process = start(run, config)
    wait_for_steps(run, 2)
    process.send_signal(signal.SIGINT)
    _, err = finish(process)
    assert "goes on from here" in err
    history = read(run)
    drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    played = {r.event.match_id for r in history if isinstance(r.event, MatchFinished)}
    assert drawn <= played
    assert not (run / "nats" / "server.json").exists()
    steps = sum(isinstance(r.event, GradientStepTaken) for r in history)
    out, _ = finish(start(run, with_steps(tmp_path, steps + 3)))
    assert_sound(read(run), steps + 3)
    assert "identical" in out


@pytest.mark.slow
def test_the_whole_run_killed_at_once_goes_on(tmp_path, start):
    run, config = tmp_path / "run", with_steps(tmp_path, 8)
    process = start(run, config)
    pids = {r.event.pid for r in wait_for_steps(run, 2) if isinstance(r.event, WorkerJoined)}
    process.kill()
    process.communicate()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    out, _ = finish(start(run, config))
    assert_sound(read(run), 8)
    assert "identical" in out


@pytest.mark.slow
def test_a_standby_rater_writes_nothing_twice(tmp_path, start):
    run = tmp_path / "run"
    process = start(run, with_steps(tmp_path, 6))
    wait_for_steps(run, 1)
    command = [
        sys.executable,
        "-m",
        "workers",
        "worker",
        "rater",
        "--run",
        str(run),
        "--name",
        "standby",
        "--supervised",
    ]
    standby = subprocess.Popen(command)
    out, _ = finish(process)
    standby.terminate()
    assert standby.wait(60) == 0
    assert_sound(read(run), 6)
    assert "identical" in out
