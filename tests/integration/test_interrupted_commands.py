"""Commands that make a league are interrupted or killed at several moments: nothing of them is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from typer.testing import CliRunner

from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig, LeagueConfig
from schemas.errors import UsageError
from tests.simulated_history import Simulation
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
DEADLINE_S = 600.0
"""After so long, something hangs."""


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a league whose base model takes hours to make."""
    path = tmp_path_factory.mktemp("settings") / "league.toml"
    path.write_text(CONFIG.read_text().replace("sequences = 512", "sequences = 1_000_000_000"))
    return path


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "league.json"
    path.write_text('{"agents": {"base_model": {"type": "baseline", "elo": 1000.0}}, "history": [], "metadata": {}}')
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a league with some hundred events, whose broker does not run."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    simulation = Simulation(LeagueConfig(seed=4), seats=3)
    simulation.run(20, 8)

    async def write() -> None:
        async with Run(folder).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "test").copy(simulation.history)

    asyncio.run(write())
    return folder


class Command(NamedTuple):
    """A ``league`` command in a process of its own."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for a moment in the command's course, or for its end."""
        deadline = time.monotonic() + DEADLINE_S
        while not reached() and self.process.poll() is None:
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.005)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code once the process and all that it started have ended."""
        # A command that has ended in the meantime has left nothing behind either.
        started = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE_S)
        _, alive = psutil.wait_procs(started, timeout=DEADLINE_S)
        for process in alive:
            process.kill()
        assert not alive
        output = self.output.read_text()
        assert "Traceback" not in output
        assert "Exception ignored" not in output
        return code


@pytest.fixture
def league(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts ``league`` commands."""
    started: list[Command] = []

    def start(*arguments: object) -> Command:
        output = tmp_path / f"output-{len(started)}.txt"
        with output.open("wb") as file:
            command = [sys.executable, "-m", "ui", *map(str, arguments)]
            started.append(Command(subprocess.Popen(command, stdout=file, stderr=file), output))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.end(signal.SIGKILL)


def paths(folder: Path) -> list[str]:
    """All paths below a folder that others are writing."""
    return [str(Path(place) / name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]


def drafts(folder: Path) -> set[str]:
    return {path for path in paths(folder) if ".draft-" in Path(path).name}


def has_broker(folder: Path) -> bool:
    return any(path.endswith("server.json") for path in paths(folder))


def makes_model(folder: Path) -> bool:
    return any(".model.draft-" in Path(path).parent.name for path in paths(folder))


def test_the_opening_of_a_league_ends_with_its_command_and_a_second_one_is_refused(
    tmp_path: Path, endless: Path, league: Callable[..., Command]
) -> None:
    run = tmp_path / "run"
    first = league("up", "--config", endless, "--run", run)
    first.wait_until(lambda: has_broker(run))
    assert first.end(signal.SIGINT) == 130
    assert not drafts(tmp_path)
    assert not has_broker(run)

    second = league("up", "--config", endless, "--run", run)
    second.wait_until(lambda: makes_model(run))
    refused = league("up", "--config", endless, "--run", run)
    assert refused.process.wait(DEADLINE_S) == 2
    said = " ".join(refused.output.read_text().split())
    assert f"`league up` is running this league already (process {second.process.pid} on " in said
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    # What it leaves is removed at the next start, as the next test shows.
    assert len(drafts(tmp_path)) == 1


def test_an_import_leaves_nothing_or_what_the_next_one_removes(
    tmp_path: Path, endless: Path, registry: Path, league: Callable[..., Command]
) -> None:
    arguments = ("import", registry, "--config", endless, "--run", tmp_path / "run")
    killed = league(*arguments)
    killed.wait_until(lambda: bool(drafts(tmp_path)))
    killed.end(signal.SIGKILL)
    left = drafts(tmp_path)
    assert left
    ended = league(*arguments)
    ended.wait_until(lambda: bool(drafts(tmp_path) - left))
    assert ended.end(signal.SIGTERM) == 143
    assert not drafts(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_branch_and_a_release_leave_no_broker(tmp_path: Path, recorded: Path, league: Callable[..., Command]) -> None:
    branching = league("branch", "--from", recorded, "--at", 100, "--run", tmp_path / "run")
    branching.wait_until(lambda: bool(drafts(tmp_path)))
    branching.end(signal.SIGKILL)
    left = drafts(tmp_path)
    releasing = league("release", "--run", recorded, "--to", tmp_path / "release")
    releasing.wait_until(lambda: bool(drafts(tmp_path) - left))
    releasing.end(signal.SIGTERM)
    # That of the killed command was removed when the next one began.
    assert not drafts(tmp_path)


@pytest.mark.parametrize("command", ["up", "up --no-workers", "worker rater"])
def test_a_folder_that_cannot_be_made_is_named(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for run in (Path("/proc/nope"), tmp_path / "file"):
        options = [] if command.startswith("worker") else ["--config", str(CONFIG)]
        result = CliRunner().invoke(app, [*command.split(), *options, "--run", str(run)])
        assert isinstance(result.exception, UsageError)
        assert str(run) in str(result.exception)
