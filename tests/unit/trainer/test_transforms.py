"""Reward transformations: by hand, in their order through the three stages, and what they remember."""

from typing import Any

import msgspec
import numpy as np
import pytest

from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig, TransformsConfig
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.credit import AdvantagePipeline, AdvantageState, CreditedBatch, check_transforms
from trainer.transforms import FINAL_TRANSFORMS, SAMPLING_TRANSFORMS, STEP_TRANSFORMS

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)


def rollout(
    scores: list[float], seat: int = 0, role: str = "A", game: str = "chess", steps: int = 2, **facts: Any
) -> Trajectory:
    calls = [ModelCall([1], [2], [0], [-0.5], [[2, 3]], 0, clock, 0.0, **facts) for clock in range(steps)]
    return Trajectory("m", game, "main", seat, role, role, calls, steps, 0.0, scores[seat], 1, scores)


def plugin(name: str, **settings: Any) -> Plugin:
    return Plugin(name=name, settings=settings)


def final(name: str, rollouts: list[Trajectory], state: dict[str, float] | None = None, **settings: Any) -> Any:
    return FINAL_TRANSFORMS.build(plugin(name, **settings))(
        rollouts, [np.array(r.scores) for r in rollouts], state or {}
    )


def credited(
    rollouts: list[Trajectory], memory: AdvantageState | None = None, every_step: bool = True, **stages: Any
) -> CreditedBatch:
    """Credit whose advantages are the transformed rewards themselves."""
    config = TrainerConfig(
        reward=plugin("outcome", every_step=every_step),
        advantage=plugin("step_reward"),
        transforms=TransformsConfig(**stages),
    )
    return AdvantagePipeline(config, SHAPE, filter_zero=False)(rollouts, memory or AdvantageState())


def first(found: CreditedBatch) -> list[float]:
    return [advantage_S[0] for advantage_S in found.advantages]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3.0, 1.0], [1, -1]),
        ([0.5, 0.5], [0, 0]),
        ([2.0, 7.0, 7.0, 0.0], [-1, 0, 0, -1]),
        ([-3.0, -1.0, -2.0], [-1, 1, -1]),
        ([1.0], [1]),
    ],
)
def test_win_draw_loss_knows_a_draw_from_a_win(scores: list[float], expected: list[float]) -> None:
    assert final("win_draw_loss", [rollout(scores)]).values[0].tolist() == expected


def test_win_draw_loss_goes_by_rank_where_no_other_score_was_kept() -> None:
    old = [Trajectory("m", "g", "main", 3, "A", "A", [], 1, 0.0, 5.0, rank) for rank in (1, 2)]
    found = FINAL_TRANSFORMS.build(plugin("win_draw_loss"))(old, [np.array([r.score]) for r in old], {})
    assert [value.tolist() for value in found.values] == [[1.0], [-1.0]]


def test_role_advantage_uses_the_average_before_it_moves_it() -> None:
    batch = [rollout([2.0, 9.0]), rollout([4.0, 9.0]), rollout([9.0, 6.0], seat=1, role="B")]
    begun = final("role_advantage", batch, decay=0.9)
    assert [value.tolist() for value in begun.values] == [[2, 9], [4, 9], [9, 6]]
    assert begun.state == pytest.approx({"A": 0.3, "B": 0.6})
    later = final("role_advantage", batch, state=dict(begun.state), decay=0.9)
    assert np.concatenate(later.values) == pytest.approx([1.7, 9, 3.7, 9, 9, 5.4])
    assert later.state == pytest.approx({"A": 0.9 * 0.3 + 0.1 * 3, "B": 0.9 * 0.6 + 0.1 * 6})


def test_role_advantage_by_env_keeps_games_apart() -> None:
    batch = [rollout([2.0, 0.0]), rollout([4.0, 0.0], game="go")]
    assert final("role_advantage", batch).state == pytest.approx({"A": 0.05 * 3})
    assert final("role_advantage_by_env", batch).state == pytest.approx({"chess/A": 0.1, "go/A": 0.2})


def test_step_transformations_by_hand() -> None:
    good, bad = rollout([1.0, 0.0]), rollout([1.0, 0.0], formatted=False, invalid=True)
    rewards = np.array([1.0, 2.0])
    form = STEP_TRANSFORMS.build(plugin("format_reward", reward=1.5, penalty=-0.5))
    move = STEP_TRANSFORMS.build(plugin("invalid_move_penalty", reward=1.0, penalty=-1.0))
    assert [form(r, rewards).tolist() for r in (good, bad)] == [[2.5, 3.5], [0.5, 1.5]]
    assert [move(r, rewards).tolist() for r in (good, bad)] == [[2.0, 3.0], [0.0, 1.0]]
    assert STEP_TRANSFORMS.build(plugin("discount", gamma=0.5))(good, rewards).tolist() == [1.0, 1.0]


def test_sampling_transformations_by_hand() -> None:
    batch = [rollout([0.0, 0.0]), rollout([0.0, 0.0], game="go"), rollout([0.0, 0.0], steps=1)]
    rewards = [np.array([1.0, 3.0]), np.array([10.0, 30.0]), np.array([5.0])]

    def of(name: str, **settings: Any) -> list[list[float]]:
        changed = SAMPLING_TRANSFORMS.build(plugin(name, **settings))(batch, rewards)
        return [np.round(rewards_S, 6).tolist() for rewards_S in changed]

    assert of("normalise") == [[-8.8, -6.8], [0.2, 20.2], [-4.8]]
    assert of("normalise_by_env") == [[-2, 0], [-10, 10], [2]]
    assert of("normalise_by_env", z_score=True)[1] == [-1, 1]
    assert of("clamp", min=2.0, max=6.0) == [[2, 3], [6, 6], [5]]
    z_scores = np.concatenate(SAMPLING_TRANSFORMS.build(plugin("normalise", z_score=True))(batch, rewards))
    assert (z_scores.mean(), z_scores.std()) == pytest.approx((0.0, 1.0))


def test_equal_rewards_are_normalised_to_zero() -> None:
    batch = [rollout([0.0, 0.0]), rollout([0.0, 0.0])]
    for name in ("normalise", "normalise_by_env"):
        changed = SAMPLING_TRANSFORMS.build(plugin(name, z_score=True))(batch, [np.full(2, 0.3), np.full(2, 0.3)])
        assert np.concatenate(changed) == pytest.approx(0.0)


def test_stages_follow_one_another_and_scores_stay_as_they_were() -> None:
    batch = [rollout([8.0, 2.0]), rollout([2.0, 8.0]), rollout([5.0, 5.0], formatted=False)]
    found = credited(
        batch,
        final=(plugin("win_draw_loss"),),
        step=(plugin("format_reward", reward=0.5, penalty=-0.5), plugin("discount", gamma=0.5)),
        sampling=(plugin("clamp", min=-0.4, max=1.0),),
    )
    assert [a.tolist() for a in found.advantages] == [[1.0, 0.75], [-0.4, -0.25], [-0.4, -0.25]]
    assert [r.score for r in found.trajectories] == [8.0, 2.0, 5.0]
    assert found.reward_mean == pytest.approx(10.0)


def test_final_transformations_are_applied_in_their_order() -> None:
    batch = [rollout([8.0, 2.0]), rollout([8.0, 2.0])]
    memory = AdvantageState(transforms={"1.role_advantage/A": 0.25, "0.role_advantage/A": 7.0})
    both = {"outcome": plugin("win_draw_loss"), "role": plugin("role_advantage", decay=0.5)}
    outcome_first = credited(batch, memory, final=(both["outcome"], both["role"]))
    assert first(outcome_first) == [0.75, 0.75]
    assert outcome_first.memory.transforms == pytest.approx({"1.role_advantage/A": 0.625, "0.role_advantage/A": 7.0})
    role_first = credited(batch, memory, final=(both["role"], both["outcome"]))
    assert first(role_first) == [-1.0, -1.0]


def test_two_transformations_of_one_name_do_not_share_their_memory() -> None:
    twice = (plugin("role_advantage", decay=0.5), plugin("role_advantage", decay=0.0))
    found = credited([rollout([8.0, 2.0])], final=twice)
    assert found.memory.transforms == {"0.role_advantage/A": 4.0, "1.role_advantage/A": 8.0}


def test_a_rollout_with_a_score_that_is_no_number_is_refused_and_spoils_no_other() -> None:
    sound = [rollout([1.0, 0.0]), rollout([0.0, 1.0])]
    broken = rollout([1.0, float("nan")])
    stages: dict[str, Any] = {"final": (plugin("win_draw_loss"),), "sampling": (plugin("normalise"),)}
    found = credited([sound[0], broken, sound[1]], **stages)
    assert [reason for _, reason in found.refused] == ["scores [1.0, nan] are not finite numbers with one of seat 0"]
    assert first(found) == first(credited(sound, **stages)) == [1.0, -1.0]


def test_rollouts_that_teach_nothing_are_named_by_their_place() -> None:
    broken = Trajectory("bad", "chess", "main", 0, "A", "A", [], 2, 0.0, 0.0, 1)
    batch = [broken, rollout([1.0, 0.0]), rollout([1e-12, 1.0]), rollout([2.0, 1.0])]
    config = TrainerConfig(reward=plugin("outcome"), advantage=plugin("step_reward"))
    found = AdvantagePipeline(config, SHAPE, filter_zero=True)(batch, AdvantageState())
    assert found.filtered == [2]
    assert found.trajectories == [batch[1], batch[3]]
    assert found.refused == [("bad", "no steps")]
    assert found.usable == batch[1:]


def test_rollouts_of_before_the_scores_were_kept_still_decode() -> None:
    now = rollout([1.0, 0.0])
    plain = msgspec.to_builtins(now)
    del plain["scores"]
    for step in plain["steps"]:
        del step["formatted"], step["invalid"]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=Trajectory)
    assert old == msgspec.structs.replace(now, scores=[])
    assert first(credited([old], final=(plugin("win_draw_loss"),))) == [1.0]


def check(reward: Plugin | None = None, **stages: Any) -> None:
    reward = reward or plugin("outcome")
    check_transforms(TrainerConfig(reward=reward, transforms=TransformsConfig(**stages)))


def test_unknown_and_senseless_settings_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.transforms\.final\.name: 'clamp'.*'win_draw_loss'"):
        check(final=(plugin("clamp"),))
    with pytest.raises(ConfigError, match="min: 2"):
        check(sampling=(plugin("clamp", min=2.0),))
    with pytest.raises(ConfigError, match="gamma: 0"):
        check(step=(plugin("discount", gamma=0.0),))
    with pytest.raises(ConfigError, match="decay: 1"):
        check(final=(plugin("role_advantage", decay=1.0),))


def test_final_transformations_of_scores_that_nobody_looks_at_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'progress' does not look at the score"):
        check(plugin("progress"), final=(plugin("win_draw_loss"),))
    check(plugin("progress", score_weight=1.0), final=(plugin("win_draw_loss"),))
    check(plugin("progress"), step=(plugin("discount"),))
