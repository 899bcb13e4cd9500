"""What a line-up's rollouts of this batch and of those before make a rollout be compared with."""

from typing import Any

import numpy as np
import pytest

from schemas.config import Plugin
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.advantages.base import ADVANTAGES
from trainer.rewards import REWARDS


def earning(*yearly: float, group: str = "easy", role: str = "A") -> Trajectory:
    """A rollout with one step a year, whose progress changes by so much in each."""
    before = np.cumsum([0.0, *yearly])
    steps = [
        ModelCall([1], [2], [0], [-0.5], [[2, 3]], version=0, clock=year, progress=float(at))
        for year, at in enumerate(before[:-1])
    ]
    return Trajectory("m", "game", "main", 0, role, group, steps, len(yearly), float(before[-1]), 0.0, 1)


def estimate(rollouts: list[Trajectory], state: Any = None, **settings: Any) -> Any:
    rewards = [REWARDS.build(Plugin(name="progress"))(r) for r in rollouts]
    return ADVANTAGES.build(Plugin(name="clock_lineup", settings=settings))(rollouts, rewards, state or {})


def ratios(advantages: list[np.ndarray]) -> list[float]:
    """First steps' advantages, relative to the first one's."""
    return [float(each[0] / advantages[0][0]) for each in advantages]


def test_rollouts_of_the_same_line_up_count_beside_the_roles_mean() -> None:
    batch = [earning(6), earning(2), earning(1, group="hard"), earning(0, group="hard")]
    # One other of the line-up, and the mean of the role's three others as two rollouts.
    raw = [6 - (2 + 2 * 1) / 3, 2 - (6 + 2 * 7 / 3) / 3, 1 - (0 + 2 * 8 / 3) / 3, 0 - (1 + 2 * 3) / 3]
    assert ratios(estimate(batch, prior=2.0).advantages) == pytest.approx([value / raw[0] for value in raw])


def test_a_line_up_is_remembered_and_fades() -> None:
    first = estimate([earning(6), earning(2), earning(1, group="hard")], memory=0.5).state
    assert first["mean/game|A|easy|0"] == 4
    assert first["weight/game|A|easy|0"] == 2
    second = estimate([earning(7), earning(0, group="hard")], first, memory=0.5, prior=1.0)
    assert (second.state["weight/game|A|easy|0"], second.state["mean/game|A|easy|0"]) == (2, 5.5)
    # 7 against (2 x 4 + 1 x 0) / 3, and 0 against (1 x 1 + 1 x 7) / 2.
    raw = [7 - 8 / 3, 0 - 8 / 2]
    assert ratios(second.advantages) == pytest.approx([1, raw[1] / raw[0]])
    for _ in range(4):
        second = estimate([earning(0, group="hard")], second.state, memory=0.5)
    assert not [key for key in second.state if "easy" in key]


def test_who_meets_the_strong_is_not_blamed_for_it_once_they_are_known() -> None:
    rng = np.random.default_rng(0)
    state: Any = {}
    for _ in range(20):
        batch = [earning(float(6 * (n % 2) + rng.normal()), group=["hard", "easy"][n % 2]) for n in range(64)]
        found = estimate(batch, state)
        state = found.state
    easy = [float(a[0]) for r, a in zip(batch, found.advantages, strict=True) if r.group == "easy"]
    plain = ADVANTAGES.build(Plugin(name="clock_leave_one_out"))
    rewards = [REWARDS.build(Plugin(name="progress"))(r) for r in batch]
    blamed = [
        float(a[0]) for r, a in zip(batch, plain(batch, rewards, {}).advantages, strict=True) if r.group == "easy"
    ]
    assert abs(np.mean(easy)) < 0.5
    assert np.mean(blamed) > 0.8


def test_a_later_year_is_discounted_and_a_lone_rollout_teaches_nothing() -> None:
    pair = estimate([earning(0, 4), earning(0, 0)], gamma=0.5).advantages
    assert pair[0].tolist() == pytest.approx([pair[0][1] / 2, pair[0][1]])
    assert estimate([earning(3, 1)]).advantages[0].tolist() == [0, 0]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory: 1\.0; expected 0 or more, and less than 1"):
        estimate([earning(1)], memory=1.0)
