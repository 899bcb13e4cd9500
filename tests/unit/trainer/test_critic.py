"""The learned critic: what it learns, what is put back, and that a killed trainer resumes with it."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from models import adapters
from models.adapter_bundle import pack_folder
from models.decoder import Decoder
from models.forward import forward_rectangle
from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig, TransformsConfig
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.advantages.per_step import CriticConfig
from trainer.backends.native import NativeAdapter
from trainer.critic import Critic
from trainer.learner import Learner
from trainer.losses import LossInputs, LossValue
from trainer.optimizer import FlatAdamW

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
A2C = {"advantage": Plugin(name="gae", settings={"critic": {"learning_rate": 0.01}}), "loss": Plugin(name="reinforce")}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)


@pytest.fixture(scope="module")
def rollouts() -> list[Trajectory]:
    """Games of two to four calls; those whose prompts end with an even token gain 4, the others lose 4."""
    rng = np.random.default_rng(3)
    games = []
    for game in range(12):
        steps = []
        for clock in range(int(rng.integers(2, 5))):
            last = 2 * int(rng.integers(SHAPE.vocab_size // 2)) + game % 2
            prompt = [*rng.integers(SHAPE.vocab_size, size=rng.integers(2, 9)).tolist(), last]
            steps.append(ModelCall(prompt, [1, 4], [0, 1], [-0.7, -0.7], [[1, 3], [2, 4]], 0, clock, 0.0))
        gain = 4.0 if game % 2 == 0 else -4.0
        games.append(Trajectory(f"m{game}", "game", "main", 0, "AB"[game % 2], "A", steps, 4, gain, gain, 1))
    return games


def learner(decoder: Decoder, seed: int = 5, **settings: Any) -> Learner:
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    table = {"minibatch_sequences": 8, "rectangle_tokens": 64}
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(learner=table, **settings), seed)


def flat(player: Learner) -> torch.Tensor:
    return player.adapter.flat_P.detach().clone()


def test_a_critic_expects_nothing_at_first_and_learns_what_follows(
    decoder: Decoder, rollouts: list[Trajectory]
) -> None:
    critic = Critic(decoder, CriticConfig(epochs=20, learning_rate=0.01, grad_clip=10.0), seed=0, cells=256)
    assert [values_S.tolist() for values_S in critic.predict_values(rollouts)] == [
        [0.0] * len(r.steps) for r in rollouts
    ]
    returns = [np.full(len(rollout.steps), rollout.score) for rollout in rollouts]
    assert 0 < critic.fit(rollouts, returns, np.random.default_rng(0), 8) < 16.0
    errors = np.concatenate(critic.predict_values(rollouts)) - np.concatenate(returns)
    assert np.mean(errors**2) < 0.2 * 16.0


def test_the_value_is_read_from_the_prompts_last_token(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    critic = Critic(decoder, CriticConfig(), seed=0, cells=64)
    with torch.no_grad():
        critic.flat_C.add_(0.1 * torch.randn(critic.flat_C.shape, generator=torch.Generator().manual_seed(1)))
    head = critic.flat_C[-SHAPE.hidden_size - 1 :].detach()
    for rollout, values_S in zip(rollouts, critic.predict_values(rollouts), strict=True):
        for step, value in zip(rollout.steps, values_S, strict=True):
            hidden = forward_rectangle(decoder.weights(critic._adapter()), torch.tensor([step.prompt_ids]))[0, -1]
            assert value == pytest.approx(float(hidden.detach() @ head[:-1] + head[-1]), abs=1e-5)


def test_the_critics_gradient_equals_finite_differences(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    wide = Decoder(SHAPE, dtype=torch.float64)
    wide.load_state_dict(decoder.state_dict())
    critic = Critic(wide.requires_grad_(False), CriticConfig(grad_clip=1e9, learning_rate=1.0), seed=0, cells=64)
    start = 0.1 * torch.randn(critic.flat_C.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    critic.flat_C = start.clone().requires_grad_(True)
    returns = [np.full(len(rollout.steps), rollout.score) for rollout in rollouts]
    critic._optimizer = FlatAdamW(critic.flat_C, grad_clip=1e9)
    critic._optimizer._adamw = torch.optim.SGD([critic.flat_C], lr=1.0)  # type: ignore[assignment]
    critic.fit(rollouts, returns, np.random.default_rng(0), 10_000)
    gradient = start - critic.flat_C.detach()

    def error(flat_C: torch.Tensor) -> float:
        critic.flat_C = flat_C
        return 0.5 * float(np.mean((np.concatenate(critic.predict_values(rollouts)) - np.concatenate(returns)) ** 2))

    places = torch.randperm(len(start), generator=torch.Generator().manual_seed(0))[:20].tolist()
    for index in [*places, len(start) - 1, len(start) - 2]:
        nudge = torch.zeros_like(start)
        nudge[index] = 1e-3
        slope = (error(start + nudge) - error(start - nudge)) / 2e-3
        assert float(gradient[index]) == pytest.approx(slope, abs=1e-4)


def test_a_step_trains_policy_and_critic(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, **A2C)
    before = flat(player)
    losses = [player.step(rollouts).value_loss for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    assert not torch.equal(flat(player), before)
    assert player.critic is not None
    assert player.critic.updates == 8 * round(sum(len(r.steps) for r in rollouts) / 8)


def test_estimators_without_a_critic_have_none(decoder: Decoder) -> None:
    assert learner(decoder).critic is None


@pytest.mark.parametrize("advantage", ["gae", "rae"])
def test_resume_is_bit_identical_with_critic_and_transformations(
    decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path, advantage: str
) -> None:
    settings: dict[str, Any] = {
        "advantage": Plugin(name=advantage),
        "reward": Plugin(name="outcome"),
        "transforms": TransformsConfig(final=(Plugin(name="role_advantage", settings={"decay": 0.5}),)),
    }
    whole = learner(decoder, **settings)
    for progress in (0.0, 0.25):
        whole.step(rollouts, progress)
    whole.save_state(tmp_path)
    assert whole.memory.transforms == pytest.approx({"0.role_advantage/A": 3.0, "0.role_advantage/B": -3.0})
    resumed = learner(decoder, seed=99, **settings)
    resumed.load_state(tmp_path)
    for player in (whole, resumed):
        player.step(rollouts[::-1], 0.5)
        player.step(rollouts, 0.75)
    assert torch.equal(flat(whole), flat(resumed))
    assert whole.memory == resumed.memory
    for name, player in (("whole", whole), ("resumed", resumed)):
        player.save_state(tmp_path / name)
    assert pack_folder(tmp_path / "whole") == pack_folder(tmp_path / "resumed")


def test_a_state_from_before_the_critic_is_gone_on_from_with_a_new_one(
    decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path
) -> None:
    plain, asking = learner(decoder), learner(decoder, **A2C)
    plain.step(rollouts)
    plain.save_state(tmp_path / "plain")
    asking.load_state(tmp_path / "plain")
    assert asking.critic is not None
    assert asking.critic.updates == 0
    assert torch.equal(flat(asking), flat(plain))
    asking.step(rollouts)
    asking.save_state(tmp_path / "asking")
    plain.load_state(tmp_path / "asking")
    assert torch.equal(flat(asking), flat(plain))


def test_a_loss_that_is_not_a_number_puts_the_critic_back_too(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, **A2C)
    player.step(rollouts)
    assert player.critic is not None
    before, (critic, updates), memory = flat(player), player.critic.snapshot(), player.memory
    sound = player._loss

    def breaking(terms: LossInputs) -> LossValue:
        value = sound(terms)
        return value._replace(loss_W=value.loss_W * torch.nan)

    player._loss = breaking
    assert player.step(rollouts).skipped == "gradient norm is nan"
    after, counted = player.critic.snapshot()
    assert counted == updates
    assert all(torch.equal(after[name], critic[name]) for name in critic)
    assert torch.equal(flat(player), before)
    assert player.memory == memory


def test_a_critic_that_breaks_leaves_everything_untouched(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, reward=Plugin(name="outcome"), **A2C)
    before, memory = flat(player), player.memory
    assert player.critic is not None
    critic = player.critic.snapshot()[0]
    report = player.step([msgspec.structs.replace(rollouts[0], score=1e100), *rollouts[1:]])
    assert report.skipped == "the critic's gradient is not a finite number"
    assert all(np.isfinite(value) for value in report.metrics().values())
    assert torch.equal(flat(player), before)
    assert player.memory == memory
    assert all(torch.equal(player.critic.snapshot()[0][name], critic[name]) for name in critic)


def test_senseless_settings_are_config_errors(decoder: Decoder) -> None:
    with pytest.raises(ConfigError, match="gamma: 2"):
        learner(decoder, advantage=Plugin(name="gae", settings={"gamma": 2.0}))
    with pytest.raises(ConfigError, match="rank: 0"):
        learner(decoder, advantage=Plugin(name="gae", settings={"critic": {"rank": 0}}))
