"""The power of the machine that runs a whole league fails again and again: the same command goes on each time.

The run's folder lies on a disk of its own, so broker, adapters, caches, logs and charts lose what was not synced.
Nothing acknowledged is lost, and no process ends for a file that was half written.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAILURES = int(os.environ.get("LEAGUE_POWER_FAILURES", "3"))
MATCHES = int(os.environ.get("LEAGUE_POWER_MATCHES", "150"))
"""Played before each failure, and after the last."""

PATIENCE_S = float(os.environ.get("LEAGUE_FAULTS_S", "1800"))

pytestmark = pytest.mark.slow


def test_a_league_goes_on_after_each_failure_of_power(
    tmp_path: Path, new_disk: Callable[[Path], Any], harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = new_disk(tmp_path / "disk")
    league = harassed(seed=9, run=disk.mounted / "run")

    def play(more: int) -> None:
        """Wait for so many results, and for gradient steps: training goes on too."""
        deadline, steps = time.monotonic() + PATIENCE_S, league.steps()
        wanted = league.matches() + more
        while league.matches() < wanted or league.steps() < steps + 2:
            assert time.monotonic() < deadline, league.printed.read_text()
            time.sleep(0.5)

    for _ in range(FAILURES):
        play(MATCHES)
        time.sleep(league.random.uniform(0.0, 3.0))
        disk.cut()
        league.kill_all()
        league.kills["power"] += 1
        disk.off()
        disk.on()
        league.start()
    play(MATCHES)
    league.finish()
    with capsys.disabled():
        league.assert_nothing_is_lost_or_doubled()
    assert not league.said_to_have_ended(), league.printed.read_text()
