"""The trainer stands still, or is not there at all, while others play on: streams stay short and memory flat.

``LEAGUE_STILL_S`` says for how long memory is measured; the report extrapolates it to an hour.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import nats.js.errors
import psutil
import pytest
from typer.testing import CliRunner

from league.run import Run
from schemas.errors import LeagueError
from tests.faults.conftest import worker_role
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
STILL_S = float(os.environ.get("LEAGUE_STILL_S", "90"))
MOST = 48
"""Rollouts that may wait."""
IN_FLIGHT = 16
GROWTH_MB = 10
"""In the whole time, whatever it is: allocators breathe."""
SETTLE_S = 45
"""Until workers have written their first decisions, for which libraries of 83 MB are loaded."""

pytestmark = pytest.mark.slow


def configured(folder: Path) -> Path:
    """Nothing holds play back but the stream of rollouts."""
    text = CONFIG.read_text()
    for old, new in (
        ("games_in_flight = 8", f"games_in_flight = {IN_FLIGHT}\nahead_steps = 1000.0"),
        ("every = 2", "every = 20"),
        ("rollouts_per_step = 8", "rollouts_per_step = 16\nmax_lag_steps = 1000"),
        ("steps = 3", "steps = 1_000_000"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = folder / "league.toml"
    path.write_text(f"{text}\n[experience]\nmax_messages = {MOST}\n")
    return path


@contextmanager
def running(printed: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours until the block ends, which it is told to survive or to end by then."""
    with printed.open("a") as out:
        process = subprocess.Popen([sys.executable, "-m", "ui", *words], stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _counted(run: Run) -> dict[str, int]:
    async with run.connect("count") as connection:
        js = connection.jetstream(timeout=10)
        held = {name: (await js.stream_info(name)).state.messages for name in ("LEAGUE", "EXPERIENCE", "WORK", "DEAD")}
        steps = (await js.stream_info("LEAGUE", subjects_filter="league.*.step.taken")).state.subjects or {}
        return held | {"steps": sum(steps.values())}


def until(what: str, holds: Callable[[], bool], printed: Path, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {printed.read_text()[-4_000:]}"
        time.sleep(0.5)


def counted(run: Run) -> dict[str, int]:
    """Messages of each stream, and gradient steps."""
    return asyncio.run(_counted(run))


def memory(run: Run, processes: list[psutil.Process]) -> dict[str, float]:
    """Megabytes of every process, the broker's among them."""
    found = {}
    for process in [*processes, psutil.Process(int(_server(run)["pid"]))]:
        name = worker_role(process) or process.name()
        found[f"{name} {process.pid}"] = process.memory_info().rss / 1e6
    return found


def _server(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((run.folder / "nats" / "server.json").read_bytes())
    return found


def expect_quiet(run: Run, processes: list[psutil.Process]) -> str:
    """Look for a while that nothing grows; what was measured."""
    held, before, began = counted(run), memory(run, processes), time.monotonic()
    time.sleep(STILL_S)
    after, now, hours = memory(run, processes), counted(run), (time.monotonic() - began) / 3600
    grown = {name: after[name] - before[name] for name in before}
    assert held["EXPERIENCE"] <= now["EXPERIENCE"] <= MOST
    # Each player ends what it has in hand at most: its result is recorded once its rollout has found room.
    assert now["LEAGUE"] - held["LEAGUE"] <= 2 * IN_FLIGHT
    assert now["steps"] == held["steps"]
    assert now["DEAD"] == 0
    assert max(grown.values()) < GROWTH_MB, grown
    worst = max(grown, key=lambda name: grown[name])
    each = ", ".join(f"{name.split()[0]} {change:+.1f}" for name, change in sorted(grown.items()))
    return (
        f"{STILL_S:.0f} s still: {now}; MB {each}; worst {worst} {grown[worst] / hours:+.0f} MB in an hour at that rate"
    )


def expect_balanced(run: Run) -> None:
    result = CliRunner().invoke(app, ["ledger", "--json", "--run", str(run.folder)])
    assert result.exit_code == 0, result.output
    accounts = msgspec.json.decode(result.stdout)
    assert accounts
    assert all(account["balanced"] for account in accounts)
    assert not any(account["unrecorded"] for account in accounts)


def workers_of(process: subprocess.Popen[bytes], role: str = "") -> list[psutil.Process]:
    """Worker processes under a supervisor."""
    children = psutil.Process(process.pid).children()
    return [child for child in children if (found := worker_role(child)) and found.startswith(role)]


def test_everybody_waits_for_a_trainer_that_stands_still(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, printed = Run(tmp_path / "run"), tmp_path / "up.log"
    words = ("up", "--config", str(configured(tmp_path)), "--run", str(run.folder))
    with running(printed, *words) as league:
        until("a league", lambda: (run.folder / "nats" / "server.json").exists() and run.exists(), printed)
        until("steps", lambda: steps_of(run) >= 3, printed)
        (trainer,) = workers_of(league, "trainer")
        trainer.suspend()
        try:
            until("a full stream", lambda: counted(run)["EXPERIENCE"] >= MOST, printed)
            time.sleep(SETTLE_S)
            said = expect_quiet(run, [p for p in workers_of(league) if p.pid != trainer.pid])
            until("word of it", lambda: "waiting for the broker" in logged(run), printed)
        finally:
            with suppress(psutil.NoSuchProcess):
                trainer.resume()
        before = counted(run)["steps"]
        until("steps again", lambda: counted(run)["steps"] >= before + 3, printed)
        league.send_signal(signal.SIGINT)
        assert league.wait(240) == 0, printed.read_text()
    with capsys.disabled():
        print(f"\ntrainer stopped, {said}")
    assert not re.search(r"ended with code", printed.read_text())
    expect_balanced(run)


def test_everybody_waits_for_a_trainer_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, printed = Run(tmp_path / "run"), tmp_path / "up.log"
    with running(printed, "up", "--config", str(configured(tmp_path)), "--run", str(run.folder)) as league:
        until("a league", lambda: (run.folder / "nats" / "server.json").exists() and run.exists(), printed)
        until("steps", lambda: steps_of(run) >= 2, printed)
        league.send_signal(signal.SIGINT)
        assert league.wait(240) == 0, printed.read_text()
    at = ("--run", str(run.folder))
    with running(printed, "worker", "rollout", *at) as players, running(printed, "worker", "rater", *at) as rater:
        until("a broker", lambda: "joined" in printed.read_text(), printed)
        until("a full stream", lambda: counted(run)["EXPERIENCE"] >= MOST, printed)
        time.sleep(SETTLE_S)
        said = expect_quiet(run, [psutil.Process(players.pid), psutil.Process(rater.pid)])
        before = counted(run)["steps"]
        with running(printed, "worker", "trainer", *at):
            until("steps again", lambda: counted(run)["steps"] >= before + 3, printed)
    with capsys.disabled():
        print(f"\nno trainer, {said}")
    expect_balanced(run)


def logged(run: Run) -> str:
    """What supervised workers say."""
    return "".join(path.read_text() for path in sorted(run.logs.rglob("*")) if path.is_file())


def steps_of(run: Run) -> int:
    """None yet while the league is being opened."""
    try:
        return counted(run)["steps"]
    except (LeagueError, nats.js.errors.NotFoundError):
        return 0
