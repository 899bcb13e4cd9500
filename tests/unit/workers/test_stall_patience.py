"""How long a rollout worker waits for a gradient step before it plays further ahead than it may."""

import math

import msgspec
import pytest

from schemas import events as e
from schemas.config import LeagueConfig
from tests.builders import fold_events, gradient_step, match_finished, opponents_sampled
from workers.rollout import stall_patience_s

CONFIG = LeagueConfig()
TWO = msgspec.structs.replace(CONFIG, trainer=msgspec.structs.replace(CONFIG.trainer, rollouts_per_step=2))
SLOW = {"metrics": {"seconds": 170.0}}
QUICK = {"metrics": {"seconds": 2.0}}


def begun(number: int, worker: str) -> e.OpponentsSampled:
    return opponents_sampled(f"{worker}-{number}", worker)


def ended(number: int, worker: str) -> e.MatchFinished:
    return match_finished(match_id=f"{worker}-{number}", purpose="training", worker=worker, experience="digest")


JOINED = e.WorkerJoined(worker="v", role="rollout", incarnation="first", host="", pid=1, version="")
LEFT = e.WorkerLeft(worker="v", incarnation="first", reason="silent")
FULL = (begun(0, "v"), ended(0, "v"), begun(1, "v"), ended(1, "v"))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # A batch waits: a first step may take long, a later one several times as long as the one before.
        (FULL, 600.0),
        ((gradient_step(1, **SLOW), *FULL), 680.0),
        ((gradient_step(1, **QUICK), *FULL), 60.0),
        # The worker's own matches will fill it, however long they take.
        ((begun(0, "v"), ended(0, "v"), begun(0, "w")), math.inf),
        # Another worker's may never end, though a rater soon says so.
        ((begun(0, "v"), ended(0, "v"), begun(1, "v")), 600.0),
        ((begun(0, "v"), begun(0, "w")), 600.0),
        ((JOINED, begun(0, "v"), begun(0, "w"), LEFT), 60.0),
        # All that is in play would not fill it.
        ((begun(0, "w"),), 60.0),
    ],
)
def test_a_slow_step_is_waited_for_and_lost_matches_are_not(history: tuple[e.Event, ...], expected: float) -> None:
    assert stall_patience_s(TWO, fold_events(*history), "main", "w") == expected
