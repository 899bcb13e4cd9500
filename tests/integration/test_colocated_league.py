"""A league whose trainer and inference process take turns on one device, each killed in its turn and outside of it."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from league.log.base import RecordedEvent
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, OpponentsSampled, WorkerJoined, WorkerLeft
from workers.device_turns import DeviceTurns

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STEPS = 16


def pid_of(history: list[RecordedEvent], worker: str) -> int:
    return [r.event.pid for r in history if isinstance(r.event, WorkerJoined) and r.event.worker == worker][-1]


def step_count(history: list[RecordedEvent]) -> int:
    return sum(isinstance(r.event, GradientStepTaken) for r in history)


def test_either_side_goes_on_when_the_other_dies(tmp_path: Path, league_up: Callable[[Path, Path], Any]) -> None:
    config = CONFIG.read_text().replace("steps = 3", f"steps = {STEPS}")
    (tmp_path / "league.toml").write_text(config + "\n[inference]\nservers = 1\ncolocate = true\n")
    league = league_up(tmp_path / "run", tmp_path / "league.toml")
    kills = []

    def kill(worker: str, history: list[RecordedEvent]) -> None:
        os.kill(pid_of(history, worker), signal.SIGKILL)
        kills.append(worker)

    for worker in ("inference-1", "trainer-1"):
        # Whichever of them has the turn at that moment.
        history = league.wait_for_steps(step_count(league.wait_for_steps(1)) + 1)
        kill(worker, history)
        # With the turn in this process's hands: inference sleeps, and the trainer waits or is about to.
        history = league.wait_for_steps(step_count(history) + 2)
        turns = DeviceTurns(tmp_path / "run")
        asyncio.run(asyncio.wait_for(turns.acquire(), 600))
        kill(worker, league.history())
        turns.release()
        league.wait_for_steps(step_count(history) + 1)
    out, _ = league.finish()
    assert "identical" in out
    history = list(league.history())
    steps = [r.event.step for r in history if isinstance(r.event, GradientStepTaken)]
    assert steps == list(range(1, STEPS + 1))
    left = [r.event.worker for r in history if isinstance(r.event, WorkerLeft) and "code -9" in r.event.reason]
    assert left == kills
    assert not [r.event for r in history if isinstance(r.event, MatchFailed)]
    drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    assert drawn <= {r.event.match_id for r in history if isinstance(r.event, MatchFinished)}
