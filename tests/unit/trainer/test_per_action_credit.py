"""What the parts of an action are credited with, and how that goes into a step's advantages."""

import math

import msgspec
import numpy as np
import pytest

from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig, convert
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from tests.builders import model_call, trajectory
from trainer.admission import rejection_reason
from trainer.batch import flatten
from trainer.buffer import BatchItem
from trainer.credit import AdvantagePipeline, AdvantageState, per_action_advantages

SHAPE = DecoderShape(
    model_type="qwen3",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=8,
    max_positions=64,
)


def step(clock: int, credits: list[float], branches: int = 2) -> ModelCall:
    return model_call(
        clock=clock,
        progress=float(clock),
        completion_ids=[2] * branches,
        branches=list(range(branches)),
        logprobs=[-0.5] * branches,
        allowed=[[2, 3]] * branches,
        credits=credits,
    )


def rollout(name: str, *steps: ModelCall, role: str = "A") -> Trajectory:
    return trajectory(name, steps, game="game", role=role, final_clock=9, final_progress=9.0, score=0.0)


def test_a_part_is_compared_with_the_other_rollouts_of_its_role_and_clock() -> None:
    first, second = rollout("1", step(1, [1.0, 0.0])), rollout("2", step(1, [0.0, 0.0]))
    other_role, later = rollout("3", step(1, [5.0, 5.0]), role="B"), rollout("4", step(2, [7.0, 7.0]))
    found = per_action_advantages([first, second, other_role, later])
    # 1 - 0, 0 - 0; 0 - 0.5, 0 - 0.5; nobody to compare with: over their root mean square.
    scale = math.sqrt((1 + 0 + 0.25 + 0.25) / 8)
    assert np.allclose(found[0][0], np.array([1.0, 0.0]) / scale)
    assert np.allclose(found[1][0], np.array([-0.5, -0.5]) / scale)
    assert not found[2][0].any()
    assert not found[3][0].any()


def test_steps_without_parts_get_nothing_and_disturb_nobody() -> None:
    told, untold = rollout("1", step(1, [1.0, 0.0])), rollout("2", step(1, []), step(1, [0.5, 0.5]))
    found = per_action_advantages([told, untold])
    assert not found[1][0].any()
    assert len(found[1][0]) == 2
    assert found[0][0][0] > 0 > found[0][0][1]
    assert per_action_advantages([rollout("1", step(1, []))])[0][0].tolist() == [0.0, 0.0]


def test_a_step_that_is_not_trained_on_now_still_counts() -> None:
    whole = rollout("1", step(1, [1.0, 0.0]), step(2, [0.0, 2.0]))
    other = rollout("2", step(1, [0.0, 0.0]), step(2, [0.0, 0.0]))
    now = BatchItem(1, whole, steps=[0], left=1).trainable_trajectory
    credited = AdvantagePipeline(TrainerConfig(part_credit=0.25), SHAPE, False)([now, other], AdvantageState())
    assert (credited.refused, len(credited.trajectories)) == ([], 2)
    assert credited.parts is not None
    for part_B, expected_B in zip(credited.parts[1], per_action_advantages([whole, other])[1], strict=True):
        assert np.allclose(part_B, 0.25 * expected_B)
    assert len(flatten(credited.trajectories, credited.advantages, parts=credited.parts)) == 3


def test_step_and_parts_have_their_shares_of_an_advantage() -> None:
    config = TrainerConfig(part_credit=0.25)
    rollouts = [rollout("1", step(1, [1.0, 0.0])), rollout("2", step(1, [0.0, 0.0]))]
    rollouts[1] = msgspec.structs.replace(rollouts[1], final_progress=2.0)
    mixed = AdvantagePipeline(config, SHAPE, filter_zero=False)(rollouts, AdvantageState())
    alone = AdvantagePipeline(TrainerConfig(), SHAPE, filter_zero=False)(rollouts, AdvantageState())
    assert alone.parts is None
    assert mixed.parts is not None
    for share, whole in zip(mixed.advantages, alone.advantages, strict=True):
        assert np.allclose(share, 0.75 * whole)
    assert np.allclose(mixed.parts[0][0], 0.25 * per_action_advantages(rollouts)[0][0])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_trajectory_with_the_credit_of_parts_alone_is_trained_on_and_recorded_with_their_mean(share: float) -> None:
    config = TrainerConfig(advantage=Plugin("group_relative"), reward=Plugin("outcome"), part_credit=share)
    # Equal scores. The second's parts cancel out on average, the third has none and nobody to be compared with.
    rollouts = [rollout("1", step(1, [3.0, 2.0])), rollout("2", step(1, [1.0, 4.0]), step(2, []))]
    rollouts.append(rollout("3", step(1, []), role="B"))
    found = AdvantagePipeline(config, SHAPE, filter_zero=True)(rollouts, AdvantageState())
    assert [each.match_id for each in found.trajectories] == ["1", "2"]
    assert (found.filtered, found.zero_advantage_share) == ([2], pytest.approx(1 / 3))
    assert found.parts is not None
    assert np.abs(found.parts[1][0]).min() > 0.1
    assert [credit.advantages.tolist() for credit in found.credits] == [[0.0], [0.0, 0.0], [0.0]]
    rollouts[1] = rollout("2", step(1, [1.0, 1.0]), step(2, []))
    found = AdvantagePipeline(config, SHAPE, filter_zero=True)(rollouts, AdvantageState())
    assert found.parts is not None
    batch = flatten(found.trajectories, found.advantages, parts=found.parts)
    recorded = [credit.advantages for credit in found.credits]
    assert batch.advantage_W[:2].mean() == pytest.approx(recorded[0][0])
    assert batch.advantage_W[2:4].mean() == pytest.approx(recorded[1][0])
    assert recorded[0][0] > 0 > recorded[1][0]
    assert recorded[1][1] == recorded[2][0] == 0
    assert found.advantage_std == pytest.approx(np.concatenate(recorded).std())
    assert found.advantage_std > 0


def test_batch_mixes_step_and_parts() -> None:
    rollouts = [rollout("1", step(1, [1.0, 0.0]), step(2, []))]
    batch = flatten(rollouts, [np.array([0.5, -0.5])], None, [[np.array([1.0, -1.0]), np.zeros(2)]])
    assert batch.advantage_W.tolist() == [1.5, -0.5, -0.5, -0.5]
    plain = flatten(rollouts, [np.array([0.5, -0.5])])
    assert plain.advantage_W.tolist() == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize("credits", [[1.0], [1.0, math.nan], [1.0, 2.0, 3.0]])
def test_credits_that_fit_no_branches_are_refused(credits: list[float]) -> None:
    assert rejection_reason(rollout("1", step(1, [0.0, 1.0]))) is None
    reason = rejection_reason(rollout("1", step(1, credits)))
    assert reason is not None
    assert "credits" in reason


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.part_credit: 1\.5"):
        convert({"part_credit": 1.5}, TrainerConfig, "trainer")


def test_rollouts_of_before_there_were_credits_can_be_read() -> None:
    old = {name: getattr(step(1, []), name) for name in ModelCall.__struct_fields__ if name != "credits"}
    assert msgspec.json.decode(msgspec.json.encode(old), type=ModelCall) == step(1, [])
