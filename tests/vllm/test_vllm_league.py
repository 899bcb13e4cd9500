"""A league whose inference process samples with the real vLLM."""

import asyncio
import subprocess
import sys
from pathlib import Path

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, TrainingFinished

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STEPS = 3


async def read(run: Path) -> list[RecordedEvent]:
    with EmbeddedServer(run / "nats") as server:
        client = await connect(server.url, "test")
        events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
        await flush_and_close(client)
        return events


def test_league_trains_to_its_end_without_a_failed_match_and_replays_identically(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "league.toml"
    file.write_text(CONFIG.read_text() + '\n[inference]\nbackend = "vllm"\nservers = 1\nmax_adapters = 4\n')
    command = [sys.executable, "-m", "ui", "up", "--config", str(file), "--run", str(run)]
    up = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert up.returncode == 0, up.stdout + up.stderr
    history = asyncio.run(read(run))
    events = [recorded.event for recorded in history]
    assert [event.step for event in events if isinstance(event, GradientStepTaken)] == list(range(1, STEPS + 1))
    assert any(isinstance(event, TrainingFinished) for event in events)
    assert sum(isinstance(event, MatchFinished) for event in events) > STEPS
    assert [event for event in events if isinstance(event, MatchFailed)] == []
    assert verify_events(history).is_identical
    assert "identical" in up.stdout + up.stderr
