"""Processes are killed, stopped and started again: nothing is lost, nothing is used twice, history stays one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from schemas.events import (
    GradientStepTaken,
    MatchFailed,
    MatchFinished,
    OpponentsSampled,
    PolicyPublished,
    WorkerJoined,
    WorkerLeft,
)
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STEPS = 20
"""Enough that workers which are killed at the eighth come back before the last."""


def with_steps(folder: Path, steps: int) -> Path:
    path = folder / "league.toml"
    path.write_text(CONFIG.read_text().replace("steps = 3", f"steps = {steps}"))
    return path


def assert_sound(history: list[RecordedEvent], steps: int) -> None:
    """One step after the other, each rollout used once and consumed in order, ratings as refolded."""
    taken = [r.event for r in history if isinstance(r.event, GradientStepTaken)]
    used = [match for step in taken for match in step.matches]
    assert [step.step for step in taken] == list(range(1, steps + 1))
    assert len(used) == len(set(used))
    assert [step.experience_from for step in taken] == [1, *(step.experience_to + 1 for step in taken[:-1])]
    assert [r.event.version for r in history if isinstance(r.event, PolicyPublished)] == list(range(steps + 1))
    assert verify_events(history).is_identical


def assert_all_matches_end(history):
    """Also those of killed workers, and those that were trained on before their result was recorded."""
    sampled = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    ended = {r.event.match_id for r in history if isinstance(r.event, MatchFinished | MatchFailed)}
    used = {match for r in history if isinstance(r.event, GradientStepTaken) for match in r.event.matches}
    assert sampled | used == sampled
    assert sampled <= ended


def balance(run: Path) -> dict[str, int]:
    """The hero's account, which must balance at any moment."""
    result = CliRunner().invoke(app, ["ledger", "--json", "--run", str(run)])
    assert result.exit_code == 0, result.output
    account = json.loads(result.stdout)[0]
    fates = ("trained", "stale", "filtered", "voided", "refused", "abandoned", "pending")
    assert account["generated"] == sum(account[fate] for fate in fates)
    return account


def test_killed_workers_come_back_and_nothing_is_lost(tmp_path, league_up):
    run = tmp_path / "run"
    league = league_up(run, with_steps(tmp_path, STEPS))
    ended: set[int] = set()
    for wanted in (2, 8):
        joined = {
            r.event.worker: r.event.pid for r in league.wait_for_steps(wanted) if isinstance(r.event, WorkerJoined)
        }
        for worker in ("trainer-1", "rollout-1", "rater-1", "evaluator-1"):
            # On a busy machine one may still be starting after its first end.
            if joined[worker] not in ended:
                os.kill(joined[worker], signal.SIGKILL)
                ended.add(joined[worker])
            if worker == "trainer-1":
                assert balance(run)["trained"] >= wanted * 8
    out, _ = league.finish()
    assert balance(run)["trained"] == STEPS * 8
    history = league.history()
    assert_sound(history, STEPS)
    assert_all_matches_end(history)
    assert "identical" in out
    killed = [r.event for r in history if isinstance(r.event, WorkerLeft) and "code -9" in r.event.reason]
    assert {event.worker for event in killed} >= {"trainer-1", "rollout-1"}


@pytest.mark.slow
def test_ctrl_c_drains_and_the_same_command_goes_on(tmp_path, league_up):
    run, config = tmp_path / "run", with_steps(tmp_path, 200)
    league = league_up(run, config)
    league.wait_for_steps(2)
    league.process.send_signal(signal.SIGINT)
    _, err = league.finish()
    assert "continues from here" in err
    history = league.history()
    drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    played = {r.event.match_id for r in history if isinstance(r.event, MatchFinished)}
    assert drawn <= played
    assert not (run / "nats" / "server.json").exists()
    steps = sum(isinstance(r.event, GradientStepTaken) for r in history)
    league = league_up(run, with_steps(tmp_path, steps + 3))
    out, _ = league.finish()
    assert_sound(league.history(), steps + 3)
    assert "identical" in out


@pytest.mark.slow
def test_the_whole_run_killed_at_once_goes_on(tmp_path, league_up):
    run, config = tmp_path / "run", with_steps(tmp_path, 8)
    league = league_up(run, config)
    pids = {r.event.pid for r in league.wait_for_steps(2) if isinstance(r.event, WorkerJoined)}
    league.process.kill()
    league.process.wait()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    league = league_up(run, config)
    out, _ = league.finish()
    assert_sound(league.history(), 8)
    assert_all_matches_end(league.history())
    assert "identical" in out


@pytest.mark.slow
def test_a_standby_rater_writes_nothing_twice(tmp_path, league_up):
    run = tmp_path / "run"
    league = league_up(run, with_steps(tmp_path, 6))
    league.wait_for_steps(1)
    command = [sys.executable, "-m", "ui", "worker", "rater", "--run", str(run)]
    command += ["--name", "standby", "--supervised"]
    standby = subprocess.Popen(command)
    out, _ = league.finish()
    standby.terminate()
    assert standby.wait(300) == 0
    assert_sound(league.history(), 6)
    assert "identical" in out
