"""A run on a disk that cannot be written: read from a copy, and never appended to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=2, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
EVENTS = list({r.event.key: r.event for r in Simulation(SMALL).run(3, 1) if r.event is not None}.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an ended run that others than its owner can only read."""
    run = Run(tmp_path / "run")

    async def fill() -> None:
        async with run.connect("fill") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "fill").append_batch(EVENTS)

    uvloop.run(fill())
    for path in [run.folder, *run.folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return run.folder


def league(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of a user who may not write the folder: root without the capability to write everything."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    command = [*(drop if os.geteuid() == 0 else ()), sys.executable, "-m", "ui", *words, "--run", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_run_that_cannot_be_written_can_be_read_and_not_changed(folder: Path) -> None:
    before = sorted(str(path) for path in folder.rglob("*"))
    try:
        for words in (("sql", "SELECT count(*) AS n FROM events", "--format", "csv"), ("leaderboard",)):
            done = league(folder, *words)
            assert done.returncode == 0, done.stderr
            assert f"{folder}: cannot be written; reading a copy in " in done.stderr
            assert f"n\n{len(EVENTS)}\n" in done.stdout or "random_bot" in done.stdout
            assert not Path(done.stderr.split("reading a copy in ")[1].split()[0]).exists()
        done = league(folder, "pause")
        assert "is on a disk that cannot be written; nothing was recorded" in done.stderr, done.stderr
        assert sorted(str(path) for path in folder.rglob("*")) == before
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)
