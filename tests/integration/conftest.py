"""Leagues under ``league up``, in processes of their own, and access to their histories."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from schemas.events import GradientStepTaken
from tests.forks import ForkedCommand


class League:
    """A league of Nim under ``league up``. Its output goes to files, since a pipe that is not read would block it."""

    def __init__(self, run: Path, config: Path) -> None:
        self.run = run
        self._printed = run.with_suffix(".out"), run.with_suffix(".err")
        self.process = ForkedCommand(["up", "--config", str(config), "--run", str(run)], *self._printed)

    def finish(self, timeout_s: float = 600) -> tuple[str, str]:
        """Wait for a successful exit and return standard output and standard error."""
        self.process.wait(timeout_s)
        out, err = (path.read_text() for path in self._printed)
        assert self.process.returncode == 0, out + err
        return out, err

    def wait_for_steps(self, wanted: int, timeout_s: float = 600) -> list[RecordedEvent]:
        """Wait for so many gradient steps and return the history."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (self.run / "nats" / "server.json").exists() and (self.run / "model").exists():
                events = self.history()
                if sum(isinstance(r.event, GradientStepTaken) for r in events) >= wanted:
                    return events
            time.sleep(0.2)
        said = "".join(path.read_text() for path in self._printed)
        raise AssertionError(f"no {wanted} gradient steps within {timeout_s} s; it said: {said}")

    def history(self) -> list[RecordedEvent]:
        async def body() -> list[RecordedEvent]:
            with EmbeddedServer(self.run / "nats") as server:
                client = await connect(server.url, "test")
                events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
                await flush_and_close(client)
                return events

        return asyncio.run(body())

    def end(self) -> None:
        """Stop a league that a failed test left running, gracefully if possible: then workers and broker stop too."""
        self.process.terminate()
        try:
            self.process.wait(300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def league_up() -> Iterator[Callable[[Path, Path], League]]:
    """Starts ``league up`` in a run's folder, from a configuration."""
    started: list[League] = []

    def up(run: Path, config: Path) -> League:
        started.append(League(run, config))
        return started[-1]

    yield up
    for league in started:
        league.end()
