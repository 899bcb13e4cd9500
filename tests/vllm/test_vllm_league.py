"""A league that leaves its model to a real vLLM server, which finds adapters in the league's store."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, PolicyPublished, TrainingFinished

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STEPS = 3
LEAGUE = [sys.executable, "-m", "ui"]


class Played(NamedTuple):
    said: str
    history: list[RecordedEvent]
    fetched: list[str]
    """Adapters that the server took from the league's store, by digest."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("league")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    run, file = folder / "run", folder / "league.toml"
    file.write_text(CONFIG.read_text() + f'\n[inference]\nurls = ["http://127.0.0.1:{port}"]\nmax_adapters = 4\n')
    subprocess.run([*LEAGUE, "open", "--config", str(file), "--run", str(run)], check=True, timeout=1800)
    with (folder / "vllm.log").open("wb") as log:
        command = [*LEAGUE, "vllm", "--run", str(run), "--port", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            # Workers start before the server answers, and wait for it.
            up = subprocess.run([*LEAGUE, "up", "--run", str(run)], capture_output=True, text=True, timeout=3600)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=300) == 0, (folder / "vllm.log").read_text()
    assert up.returncode == 0, up.stdout + up.stderr + (folder / "vllm.log").read_text()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
    fetched = [name for name in sorted(os.listdir(run / "vllm-adapters")) if len(name) == 64]
    return Played(up.stdout + up.stderr, asyncio.run(read(run)), fetched)


async def read(run: Path) -> list[RecordedEvent]:
    with EmbeddedServer(run / "nats") as server:
        client = await connect(server.url, "test")
        events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
        await flush_and_close(client)
        return events


def test_it_trains_to_its_end_without_a_failed_match_and_replays_identically(played):
    events = [recorded.event for recorded in played.history]
    assert [event.step for event in events if isinstance(event, GradientStepTaken)] == list(range(1, STEPS + 1))
    assert any(isinstance(event, TrainingFinished) for event in events)
    assert sum(isinstance(event, MatchFinished) for event in events) > STEPS
    assert [event for event in events if isinstance(event, MatchFailed)] == []
    assert verify_events(played.history).is_identical
    assert "identical" in played.said


def test_versions_that_played_came_to_the_server_from_the_leagues_store(played):
    published = {r.event.adapter: r.event.version for r in played.history if isinstance(r.event, PolicyPublished)}
    assert set(played.fetched) <= set(published)
    # The last one is evaluated.
    assert STEPS in {published[digest] for digest in played.fetched}
