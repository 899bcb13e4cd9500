"""Any process of a league of SmolLM2 is killed for minutes: nothing that was acknowledged is lost.

``LEAGUE_KILL_MINUTES`` says how long, ``LEAGUE_KILL_EVERY_S`` how often somebody dies.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models import find_base
from schemas.errors import LeagueError

MINUTES = float(os.environ.get("LEAGUE_KILL_MINUTES", "10"))
EVERY_S = float(os.environ.get("LEAGUE_KILL_EVERY_S", "15"))
WORKERS = ("rollout", "evaluator", "rater", "trainer", "tracker", "archivist")
CONFIG = Path(__file__).parents[2] / "configs" / "smollm2-kuhn.toml"
CHANGES = {
    "steps = 50": "steps = 1_000_000",
    "rollouts_per_step = 512": "rollouts_per_step = 32",
    "every = 1000": "every = 2",
    "benchmark_games = 210": "benchmark_games = 10",
}

pytestmark = pytest.mark.slow


def test_any_process_of_a_league_of_a_language_model_is_killed(
    harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        find_base("smollm2-135m-instruct")
    except LeagueError as error:
        pytest.skip(str(error))
    league = harassed(seed=3, config=CONFIG, changes=CHANGES)

    def kill_everything() -> bool:
        league.kill_all()
        league.kills["all at once"] += 1
        league.start()
        return True

    victims = {role: partial(league.kill_worker, role) for role in WORKERS}
    league.harass_for(60 * MINUTES, EVERY_S, victims | {"broker": league.kill_broker, "everything": kill_everything})
    league.wait_for_steps(1)
    league.finish()
    with capsys.disabled():
        league.assert_nothing_is_lost_or_doubled()
    assert set(league.kills) == {*WORKERS, "nats-server", "all at once"}
