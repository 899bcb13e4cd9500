"""Rewards and advantages against cases worked out by hand and against plain float64 loops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from schemas.config import Plugin
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.advantages.base import ADVANTAGES
from trainer.advantages.per_step import Gae
from trainer.rewards import REWARDS


def rollout(
    progress: Sequence[float],
    clocks: Sequence[int],
    final: float,
    role: str = "A",
    group: str = "g",
    score: float = 0.5,
) -> Trajectory:
    steps = [
        ModelCall([1], [2], [0], [-0.5], [[2, 3]], version=0, clock=clock, progress=p)
        for p, clock in zip(progress, clocks, strict=True)
    ]
    return Trajectory("m", "game", "main", 0, role, group, steps, clocks[-1] + 1, final, score, 1)


def returning(value: float, role: str = "A", group: str = "g") -> Trajectory:
    """A rollout of two steps whose progress rewards add up to ``value``."""
    return rollout([0.0, 0.0], [1, 2], value, role, group)


def estimate(name: str, rollouts: list[Trajectory], state: dict[str, float] | None = None, **settings: Any) -> Any:
    rewards = [REWARDS.build(Plugin(name="progress"))(r) for r in rollouts]
    return ADVANTAGES.build(Plugin(name=name, settings=settings))(rollouts, rewards, state or {})


def test_progress_rewards_the_change_until_the_next_step_and_the_end() -> None:
    reward = REWARDS.build(Plugin(name="progress"))
    assert reward(rollout([3, 3, 5, 4], [1, 1, 2, 3], final=6)).tolist() == [0, 2, -1, 2]


def test_progress_can_add_the_final_score() -> None:
    reward = REWARDS.build(Plugin(name="progress", settings={"score_weight": 10.0}))
    assert reward(rollout([3, 4], [1, 2], final=4, score=0.5)).tolist() == [1, 5]


def test_outcome_rewards_only_the_last_step() -> None:
    reward = REWARDS.build(Plugin(name="outcome"))
    assert reward(rollout([3, 3, 5], [1, 1, 2], final=6, score=0.75)).tolist() == [0, 0, 0.75]


def test_group_relative_subtracts_the_mean_of_the_group() -> None:
    batch = [returning(1, group="x"), returning(5, group="x"), returning(7, group="y"), returning(3, group="x")]
    assert [a.tolist() for a in estimate("group_relative", batch).advantages] == [[-2, -2], [2, 2], [0, 0], [0, 0]]


def test_group_relative_normalizes_each_group_and_leaves_equal_ones_at_zero() -> None:
    batch = [returning(1, group="x"), returning(5, group="x"), returning(4, group="y"), returning(4, group="y")]
    advantages = estimate("group_relative", batch, normalize=True).advantages
    assert [a[0] for a in advantages] == [-1, 1, 0, 0]


def test_group_relative_can_keep_only_the_better_half() -> None:
    batch = [returning(1), returning(5)]
    assert [a[0] for a in estimate("group_relative", batch, positive_only=True).advantages] == [0, 2]


def test_clock_leave_one_out_by_hand() -> None:
    # Yearly changes: [1, 2] and [0, 4] and [3]; reward-to-go at 0.5 a year: [2, 2], [2, 4], [3].
    batch = [rollout([3, 3, 4], [1901, 1901, 1902], 6), rollout([3, 3], [1901, 1902], 7), rollout([3], [1901], 6)]
    advantages = estimate("clock_leave_one_out", batch, gamma=0.5, normalize=False).advantages
    assert [a.tolist() for a in advantages] == [[-0.5, -0.5, -2.0], [-0.5, 2.0], [1.0]]


def test_clock_leave_one_out_compares_within_a_role_only() -> None:
    batch = [returning(1, role="A"), returning(9, role="B"), returning(3, role="A")]
    advantages = estimate("clock_leave_one_out", batch, normalize=False).advantages
    assert advantages[1].tolist() == [0, 0]
    assert advantages[0].tolist() == pytest.approx([-1.6, -2.0])


def test_clock_leave_one_out_has_one_global_scale() -> None:
    rng = np.random.default_rng(0)
    batch = [returning(float(v), role=r) for v, r in zip(rng.normal(size=20) * 50, "ABCDE" * 4, strict=True)]
    scaled = estimate("clock_leave_one_out", batch).advantages
    raw = estimate("clock_leave_one_out", batch, normalize=False).advantages
    assert np.mean(np.concatenate(scaled) ** 2) == pytest.approx(1.0)
    ratios = np.concatenate(raw) / np.concatenate(scaled)
    assert ratios == pytest.approx(ratios[0])


def test_clock_leave_one_out_equals_a_plain_loop() -> None:
    rng = np.random.default_rng(1)
    batch = []
    for i in range(30):
        clocks = sorted(rng.integers(1901, 1908, size=rng.integers(1, 9)).tolist())
        batch.append(rollout(rng.normal(size=len(clocks)).tolist(), clocks, float(rng.normal()), role="ABC"[i % 3]))
    rewards = [REWARDS.build(Plugin(name="progress"))(r) for r in batch]

    def to_go(i: int, clock: int) -> float:
        pairs = zip(batch[i].steps, rewards[i], strict=True)
        return sum(0.8 ** (step.clock - clock) * reward for step, reward in pairs if step.clock >= clock)

    for i, got in enumerate(estimate("clock_leave_one_out", batch, normalize=False).advantages):
        for step, value in zip(batch[i].steps, got, strict=True):
            peers = [
                to_go(j, step.clock)
                for j in range(len(batch))
                if j != i and batch[j].role == batch[i].role and step.clock in {s.clock for s in batch[j].steps}
            ]
            expected = to_go(i, step.clock) - float(np.mean(peers)) if peers else 0.0
            assert value == pytest.approx(expected, abs=1e-12)


def test_rae_uses_the_baseline_before_it_updates_it() -> None:
    batch = [returning(2, role="A"), returning(4, role="A"), returning(10, role="B")]
    first = estimate("rae", batch)
    assert [a[0] for a in first.advantages] == [2, 4, 10]
    assert first.state == pytest.approx({"game/A": 0.05 * 3, "game/B": 0.05 * 10})
    second = estimate("rae", batch[:1], state=dict(first.state))
    assert second.advantages[0][0] == pytest.approx(2 - 0.15)
    assert second.state == pytest.approx({"game/A": 0.95 * 0.15 + 0.05 * 2, "game/B": 0.5})


def test_estimators_without_memory_hand_the_state_on() -> None:
    for name in sorted(set(ADVANTAGES.names()) - {"clock_lineup", "rae"}):
        assert estimate(name, [returning(1)], state={"kept": 1.0}).state == {"kept": 1.0}


def test_groups_can_be_made_by_any_of_a_rollouts_fields() -> None:
    batch = [returning(v, role=role, group=group) for v, role, group in ((1, "A", "x"), (5, "B", "x"), (9, "A", "y"))]
    cases = {("group",): [-2, 2, 0], ("role",): [-4, 0, 4], ("group", "role"): [0, 0, 0], ("game",): [-4, 0, 4]}
    for by, expected in cases.items():
        assert [a[0] for a in estimate("group_relative", batch, by=list(by)).advantages] == expected
    with pytest.raises(ConfigError, match=r"by: \['power'\]; expected some of 'game', 'group'"):
        estimate("leave_one_out", batch, by=["power"])


def test_leave_one_out_compares_with_the_others_of_the_group() -> None:
    batch = [returning(1, group="x"), returning(5, group="x"), returning(7, group="y"), returning(3, group="x")]
    advantages = estimate("leave_one_out", batch).advantages
    assert [a.tolist() for a in advantages] == [[-3, -3], [3, 3], [0, 0], [0, 0]]


def test_leave_one_out_is_group_relative_times_n_over_n_less_one() -> None:
    batch = [returning(float(v)) for v in np.random.default_rng(0).normal(size=5)]
    ratios = np.concatenate(estimate("leave_one_out", batch).advantages) / np.concatenate(
        estimate("group_relative", batch).advantages
    )
    assert ratios == pytest.approx(5 / 4)


def test_constant_episodic_and_step_reward_by_hand() -> None:
    batch = [rollout([3, 3, 5], [1, 1, 2], final=6)]
    assert estimate("constant", batch, value=0.5).advantages[0].tolist() == [0.5, 0.5, 0.5]
    assert estimate("episodic", batch).advantages[0].tolist() == [3, 3, 3]
    assert estimate("step_reward", batch).advantages[0].tolist() == [0, 2, 1]


def test_gae_by_hand() -> None:
    gae = ADVANTAGES.build(Plugin(name="gae", settings={"gamma": 0.5, "lam": 0.5, "normalize": False}))
    assert isinstance(gae, Gae)
    # Surprises: 1 + 0.5 * 4 - 2 = 1, then 2 + 0 - 4 = -2; the first advantage is 1 + 0.25 * -2.
    judged = gae.estimate([np.array([1.0, 2.0])], [np.array([2.0, 4.0])])
    assert judged.advantages[0].tolist() == [0.5, -2.0]
    assert judged.returns[0].tolist() == [2.5, 2.0]


def test_gae_equals_the_sum_of_discounted_surprises() -> None:
    rng = np.random.default_rng(3)
    rewards = [rng.normal(size=n) for n in (1, 4, 9)]
    values = [rng.normal(size=n) for n in (1, 4, 9)]
    gae = ADVANTAGES.build(Plugin(name="gae", settings={"gamma": 0.9, "lam": 0.7}))
    assert isinstance(gae, Gae)
    expected = []
    for r, v in zip(rewards, values, strict=True):
        after = [*v[1:].tolist(), 0.0]
        surprises = [r[t] + 0.9 * after[t] - v[t] for t in range(len(r))]
        expected.append([sum((0.9 * 0.7) ** k * d for k, d in enumerate(surprises[t:])) for t in range(len(r))])
    whole = np.concatenate(expected)
    judged = gae.estimate(rewards, values)
    assert np.concatenate(judged.advantages) == pytest.approx((whole - whole.mean()) / whole.std(), abs=1e-7)
    assert np.concatenate(judged.returns) == pytest.approx(whole + np.concatenate(values), abs=1e-12)


def test_without_discounts_and_values_gae_is_the_reward_to_go() -> None:
    batch = [rollout([3, 3, 5, 4], [1, 1, 2, 3], final=6)]
    assert estimate("gae", batch, lam=1.0, normalize=False).advantages[0].tolist() == [3, 3, 1, 2]


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_equal_rewards_give_finite_advantages(name: str) -> None:
    advantages = estimate(name, [returning(2.0) for _ in range(4)]).advantages
    assert np.isfinite(np.concatenate(advantages)).all()
    if name in ("group_relative", "leave_one_out", "clock_leave_one_out"):
        assert np.concatenate(advantages) == pytest.approx(0.0)


def test_outcome_can_reward_every_step() -> None:
    reward = REWARDS.build(Plugin(name="outcome", settings={"every_step": True, "scale": 2.0}))
    assert reward(rollout([3, 3, 5], [1, 1, 2], final=6, score=0.75)).tolist() == [1.5, 1.5, 1.5]


def test_unknown_plugins_and_settings_list_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.reward\.name: 'glory'.* expected 'outcome' or 'progress'"):
        REWARDS.build(Plugin(name="glory"))
    with pytest.raises(ConfigError, match=r"trainer\.advantage\.name: 'x'.*'clock_leave_one_out'.*'rae'"):
        ADVANTAGES.build(Plugin(name="x"))
    with pytest.raises(ConfigError, match="decay_rate: unknown key; expected 'decay'"):
        ADVANTAGES.build(Plugin(name="rae", settings={"decay_rate": 0.9}))


def asked(score: float, *prompts: int, role: str = "A") -> Trajectory:
    """A trajectory that ends with this score, with a step for each prompt."""
    steps = [ModelCall([prompt], [2], [0], [-0.5], [[2, 3]], 0, 0, 0.0) for prompt in prompts]
    return Trajectory("m", "game", "main", 0, role, "g", steps, 1, 0.0, score, 1)


def test_anchor_states_compare_steps_with_the_same_prompt() -> None:
    batch = [asked(1, 10), asked(3, 10, 11), asked(8, 11), asked(9, 10, role="B"), asked(4, 12)]
    rewards = [REWARDS.build(Plugin(name="outcome"))(r) for r in batch]
    built = ADVANTAGES.build(Plugin(name="anchor_state", settings={"prior": 2.0}))
    # Steps of the others of role A have returns to go of 3, 3, 8 and 4 for the first, 1, 8 and 4 for the second, ….
    prior = [18 / 4, 13 / 3, 11 / 4, 0, 15 / 4]
    expected = [
        [1 - (3 + 2 * prior[0]) / 3],
        [3 - (1 + 2 * prior[1]) / 3, 3 - (8 + 2 * prior[1]) / 3],
        [8 - (3 + 2 * prior[2]) / 3],
        [0.0],
        [4 - prior[4]],
    ]
    for got, wanted in zip(built(batch, rewards, {}).advantages, expected, strict=True):
        assert got == pytest.approx(wanted)


def test_anchor_states_never_compare_a_trajectory_with_itself() -> None:
    batch = [asked(1, 10, 10), asked(3, 11)]
    rewards = [np.array([0.5, 0.5]), np.array([3.0])]
    built = ADVANTAGES.build(Plugin(name="anchor_state", settings={"gamma": 0.5}))
    advantages = built(batch, rewards, {}).advantages
    assert advantages[0] == pytest.approx([0.75 - 3, 0.5 - 3])
    assert advantages[1] == pytest.approx([3 - (0.75 + 0.5) / 2])
