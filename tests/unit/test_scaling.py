"""How many rollout workers there should be, from how long the trainer waits."""

import pytest

from schemas.config import RolloutConfig
from schemas.errors import ConfigError
from schemas.events import GradientStepTaken
from workers.scaling import FEWER_BELOW, LEAST_STEPS, MORE_ABOVE, SETTLE_S, Scaler

BOUNDS = RolloutConfig(workers=2, workers_min=1, workers_max=3)


def step(number: int, share: float) -> GradientStepTaken:
    return GradientStepTaken(
        policy="main",
        step=number,
        batch="",
        matches=[],
        experience_from=0,
        experience_to=0,
        accepted=0,
        stale=0,
        refused=0,
        state="",
        metrics={"wall_s": 10.0, "wait_s": 10.0 * share},
    )


def run(
    scaler: Scaler, share: float, steps: int, begin: int, each_s: float = SETTLE_S, config: RolloutConfig = BOUNDS
) -> int:
    for number in range(begin, begin + steps):
        scaler.look(number * each_s, config, step(number, share))
    return scaler.workers


def test_a_trainer_that_waits_gets_another_worker_up_to_the_bound() -> None:
    scaler = Scaler(BOUNDS)
    assert run(scaler, 0.9, LEAST_STEPS, 0) == 2
    assert run(scaler, 0.9, 1, LEAST_STEPS) == 3
    assert run(scaler, 0.9, 10 * LEAST_STEPS, 100) == 3


def test_a_trainer_that_never_waits_goes_on_with_fewer_down_to_the_bound() -> None:
    scaler = Scaler(BOUNDS)
    assert run(scaler, 0.0, 10 * LEAST_STEPS, 0) == 1


@pytest.mark.parametrize("share", [FEWER_BELOW, (FEWER_BELOW + MORE_ABOVE) / 2, MORE_ABOVE])
def test_between_the_shares_the_number_rests(share: float) -> None:
    assert run(Scaler(BOUNDS), share, 10 * LEAST_STEPS, 0) == 2


def test_moves_rest_in_between_however_fast_steps_are() -> None:
    scaler = Scaler(RolloutConfig(workers=1, workers_min=1, workers_max=9))
    config = RolloutConfig(workers=1, workers_min=1, workers_max=9)
    assert run(scaler, 0.9, 10 * LEAST_STEPS, 0, each_s=SETTLE_S / 10 / LEAST_STEPS, config=config) == 1
    assert run(scaler, 0.9, 4, 100, each_s=SETTLE_S, config=config) == 2


def test_a_step_that_is_seen_again_counts_once() -> None:
    scaler = Scaler(BOUNDS)
    for look in range(10 * LEAST_STEPS):
        scaler.look(look * SETTLE_S, BOUNDS, step(7, 0.9))
    assert scaler.workers == 2


def test_without_bounds_the_configured_number_holds_and_can_be_changed() -> None:
    scaler = Scaler(RolloutConfig(workers=2))
    assert run(scaler, 0.9, 10 * LEAST_STEPS, 0, config=RolloutConfig(workers=2)) == 2
    assert scaler.look(1e6, RolloutConfig(workers=4), None) == 4
    assert scaler.look(1e6, RolloutConfig(workers=4, workers_min=1, workers_max=3), None) == 3


def test_bounds_come_together_and_in_order() -> None:
    for bounds in (
        {"workers_min": 1},
        {"workers_max": 2},
        {"workers_min": 3, "workers_max": 2},
        {"workers_min": 0, "workers_max": 2},
    ):
        with pytest.raises(ConfigError, match=r"rollout\.workers_min"):
            RolloutConfig(**bounds)
