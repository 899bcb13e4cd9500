"""Every kind of process dies again and again, the broker among them, while short matches are played.

``LEAGUE_MATCHES`` says how many matches, ``LEAGUE_KILL_EVERY_S`` how often somebody dies; ``make test-faults`` plays
10,000.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from league.log.cluster import LocalCluster

MATCHES = int(os.environ.get("LEAGUE_MATCHES", "500"))
TIMES = max(MATCHES // 500, 1)
"""How often each is killed at least."""

EVERY_S = float(os.environ.get("LEAGUE_KILL_EVERY_S", "3"))
WORKERS = ("rollout", "evaluator", "rater", "trainer", "tracker")

pytestmark = pytest.mark.slow


def test_a_league_and_its_own_broker_are_killed_again_and_again(
    harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    league = harassed(seed=1)
    victims = {role: partial(league.kill_worker, role) for role in WORKERS}
    league.harass(MATCHES, EVERY_S, victims | {"nats-server": league.kill_broker}, TIMES)
    league.finish()
    with capsys.disabled():
        league.assert_nothing_is_lost_or_doubled()
    assert league.kills["nats-server"]


def test_a_league_and_the_leader_of_its_cluster_are_killed_again_and_again(
    harassed: Callable[..., Any], leader: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        league = harassed(cluster.url, seed=2)

        def kill_leader() -> bool:
            number = leader(cluster.url)
            cluster.kill(number)
            league.kills["leading nats-server"] += 1
            time.sleep(1.0)
            cluster.start(number)
            return True

        victims = {role: partial(league.kill_worker, role) for role in WORKERS}
        league.harass(MATCHES, EVERY_S, victims | {"leader": kill_leader}, TIMES)
        league.finish()
        with capsys.disabled():
            league.assert_nothing_is_lost_or_doubled()
        assert league.kills["leading nats-server"]
