"""The learner: on-policy ratios, what gets gradient, what is refused, what a killed trainer resumes."""

from collections.abc import Callable
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
from schemas.config import Plugin, TrainerConfig
from schemas.errors import ConfigError, ModelError
from schemas.trajectories import ModelCall, Trajectory
from trainer.admission import is_stale, rejection_reason
from trainer.backends.native import NativeAdapter
from trainer.batch import flatten, microbatches, minibatches
from trainer.learner import Learner
from trainer.loss_inputs import compute_loss_inputs
from trainer.losses import LossInputs, LossValue

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)


def learner(decoder: Decoder, seed: int = 5, moved: bool = True, **settings: Any) -> Learner:
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    if moved:
        with torch.no_grad():
            lora.flat_P.add_(0.1 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(2)))
    small: dict[str, Any] = {"minibatch_sequences": 8, "rectangle_tokens": 64}
    config = TrainerConfig(learner=small | settings.pop("learner", {}), **settings)
    return Learner(NativeAdapter(decoder, lora), config, seed)


def sample_step(player: Learner, rng: np.random.Generator, clock: int, progress: float) -> ModelCall:
    """A step sampled from the learner's own weights, one whole forward pass per token, as a slow reference."""
    temperature = float(rng.choice([0.7, 1.0]))
    prompt = rng.integers(SHAPE.vocab_size, size=rng.integers(3, 12)).tolist()
    completion: list[int] = []
    branches, logprobs, allowed = [], [], []
    weights = player.adapter.decoder.weights(player.adapter.lora)
    for at in range(int(rng.integers(4, 10))):
        tokens = sorted(rng.choice(SHAPE.vocab_size, size=rng.integers(1, 5), replace=False).tolist())
        choice = 0
        if len(tokens) > 1:
            with torch.no_grad():
                hidden = forward_rectangle(weights, torch.tensor([prompt + completion]))[0, -1]
                scores = (player.adapter.decoder.logits(hidden).double()[tokens] / temperature).log_softmax(-1)
            choice = int(rng.choice(len(tokens), p=scores.exp().numpy() / float(scores.exp().sum())))
            branches.append(at)
            logprobs.append(float(scores[choice]))
            allowed.append(tokens)
        completion.append(tokens[choice])
    return ModelCall(prompt, completion, branches, logprobs, allowed, 0, clock, progress, temperature)


def play(player: Learner, games: int, seed: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    rollouts = []
    for game in range(games):
        steps = [sample_step(player, rng, clock, float(rng.integers(1, 9))) for clock in (1, 1, 2)]
        role = "AB"[game % 2]
        rollouts.append(Trajectory(f"m{game}", "game", "main", 0, role, role, steps, 2, float(rng.integers(9)), 0.5, 1))
    return rollouts


@pytest.fixture(scope="module")
def rollouts(decoder: Decoder) -> list[Trajectory]:
    return play(learner(decoder), games=10, seed=3)


def flat(player: Learner) -> torch.Tensor:
    return player.adapter.flat_P.detach().clone()


def test_on_policy_ratios_are_one_at_the_first_update(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    report = learner(decoder, learner={"epochs": 1, "minibatch_sequences": 1000}).step(rollouts)
    assert report.skipped == ""
    assert report.sampler_gap < 1e-5
    assert report.ratio_max == pytest.approx(1.0, abs=1e-5)
    assert report.ratio_min == pytest.approx(1.0, abs=1e-5)
    assert report.kl < 1e-8
    assert (report.sequences, report.trajectories) == (sum(bool(s.branches) for r in rollouts for s in r.steps), 10)
    assert report.branches == sum(len(step.branches) for r in rollouts for step in r.steps)


def test_a_step_makes_good_tokens_likelier(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, learner={"epochs": 4, "learning_rate": 0.01})
    batch = flatten(rollouts, [np.zeros(3)] * 10)
    batch = flatten(rollouts, player.assign_credit(rollouts).advantages)

    def agreement() -> float:
        total = 0.0
        for chunk in microbatches(batch, np.arange(len(batch)), 10_000, torch.device("cpu")):
            terms = compute_loss_inputs(decoder.weights(player.adapter.lora), chunk)
            total += float((terms.logprob_W * terms.advantage_W).sum().detach())
        return total

    before = agreement()
    player.step(rollouts)
    assert agreement() > before + 1.0


def test_it_learns_to_choose_what_is_rewarded(decoder: Decoder) -> None:
    """Even tokens pay: exact policy gradient takes this model from 0.47 to 0.61 of the choices, and so do we."""
    player = learner(decoder, moved=False, learner={"minibatch_sequences": 50, "rectangle_tokens": 2048})
    rng = np.random.default_rng(0)
    shares = [player.step(one_choice_games(player, 200, rng)).reward_mean for _ in range(12)]
    assert np.mean(shares[:2]) < 0.52
    assert np.mean(shares[-4:]) > 0.57


def one_choice_games(player: Learner, count: int, rng: np.random.Generator) -> list[Trajectory]:
    """Games of one step with one choice among four tokens; the progress gained is 1 for an even token."""
    prompts = rng.integers(SHAPE.vocab_size, size=(count, 8))
    allowed = np.stack([np.sort(rng.choice(SHAPE.vocab_size, 4, replace=False)) for _ in range(count)])
    with torch.no_grad():
        hidden = forward_rectangle(player.adapter.decoder.weights(player.adapter.lora), torch.from_numpy(prompts))[
            :, -1
        ]
        logprobs = (
            player.adapter.decoder.logits(hidden).double().gather(1, torch.from_numpy(allowed)).log_softmax(-1).numpy()
        )
    rollouts = []
    for prompt, tokens, scores in zip(prompts.tolist(), allowed.tolist(), logprobs, strict=True):
        pick = int(rng.choice(4, p=np.exp(scores)))
        step = ModelCall(prompt, [tokens[pick]], [0], [float(scores[pick])], [tokens], 0, 1, 0.0)
        won = float(tokens[pick] % 2 == 0)
        rollouts.append(Trajectory("m", "game", "main", 0, "A", "A", [step], 1, won, won, 1))
    return rollouts


def test_only_branches_get_gradient(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    """The loss reacts to the hidden states that predict branches, and to no other position."""
    trainable = Decoder.random(SHAPE, seed=0, std=0.2)
    step = next(s for s in rollouts[0].steps if len(s.branches) > 1)
    one = msgspec.structs.replace(rollouts[0], steps=[step])
    batch = flatten([one], [np.ones(1)])
    (chunk,) = microbatches(batch, np.arange(1), 10_000, torch.device("cpu"))
    predicting = {len(step.prompt_ids) + at - 1 for at in step.branches}
    assert set(chunk.wanted_BQ[0].tolist()) == predicting
    assert chunk.ids_BL.shape[1] == max(predicting) + 1
    hidden = forward_rectangle(trainable.weights(), chunk.ids_BL).detach().requires_grad_(True)
    wanted = hidden.gather(1, chunk.wanted_BQ[..., None].expand(-1, -1, SHAPE.hidden_size))
    (wanted.flatten(0, 1)[chunk.cell_W] @ trainable.embed.T).square().sum().backward()
    assert hidden.grad is not None
    touched = hidden.grad.abs().sum(-1)[0].nonzero().flatten().tolist()
    assert set(touched) == predicting


def test_tokens_that_were_never_allowed_get_no_gradient(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    """Neither the prompt nor forced tokens nor the rest of the vocabulary: only what could have been sampled."""
    untied = Decoder(msgspec.structs.replace(SHAPE, tied=False)).requires_grad_(False)
    assert untied.head is not None
    untied.load_state_dict(decoder.state_dict() | {"head": decoder.embed.clone()})
    untied.head.requires_grad_(True)
    step = next(step for r in rollouts for step in r.steps if step.branches)
    batch = flatten([msgspec.structs.replace(rollouts[0], steps=[step])], [np.ones(1)])
    (chunk,) = microbatches(batch, np.arange(1), 10_000, torch.device("cpu"))
    compute_loss_inputs(untied.weights(), chunk).logprob_W.sum().backward()
    assert untied.head.grad is not None
    touched = set(untied.head.grad.abs().sum(-1).nonzero().flatten().tolist())
    assert touched == {token for tokens in step.allowed for token in tokens}


def test_a_bfloat16_base_trains_a_float32_adapter(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    narrow = Decoder(SHAPE, dtype=torch.bfloat16)
    narrow.load_state_dict(decoder.state_dict())
    player = learner(narrow.requires_grad_(False))
    before = flat(player)
    report = player.step(rollouts)
    assert report.skipped == ""
    assert 0 < report.sampler_gap < 0.2
    assert player.adapter.flat_P.dtype == torch.float32
    assert not torch.equal(flat(player), before)


def test_a_step_without_choices_has_no_gradient(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    forced = [msgspec.structs.replace(step, branches=[], logprobs=[], allowed=[]) for step in rollouts[0].steps]
    player = learner(decoder)
    before = flat(player)
    report = player.step([msgspec.structs.replace(rollouts[0], steps=forced)])
    assert report.skipped == "no step with a choice"
    assert torch.equal(flat(player), before)


def test_forced_tokens_behind_the_last_branch_change_nothing(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    longer = [
        msgspec.structs.replace(
            r, steps=[msgspec.structs.replace(s, completion_ids=[*s.completion_ids, 7, 7]) for s in r.steps]
        )
        for r in rollouts
    ]
    plain, padded = learner(decoder), learner(decoder)
    plain.step(rollouts)
    padded.step(longer)
    assert torch.equal(flat(plain), flat(padded))


def test_rectangles_do_not_change_the_update(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    updates = []
    for tokens in (1, 64, 10_000):
        player = learner(decoder, learner={"rectangle_tokens": tokens})
        player.step(rollouts)
        updates.append(flat(player))
    torch.testing.assert_close(updates[0], updates[2], atol=2e-4, rtol=0)
    torch.testing.assert_close(updates[1], updates[2], atol=2e-4, rtol=0)


def test_the_order_of_rollouts_does_not_change_the_gradient(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    gradients = []
    for batch in (rollouts, rollouts[::-1]):
        player = learner(decoder, learner={"epochs": 1, "minibatch_sequences": 1000})
        player.step(batch)
        gradients.append(player.adapter.flat_P.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_the_gradient_equals_finite_differences(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    wide = Decoder(SHAPE, dtype=torch.float64)
    wide.load_state_dict(decoder.state_dict())
    wide.requires_grad_(False)
    player = learner(decoder)
    lora = adapters.Lora(
        4, 8.0, player.adapter.lora.sizes, player.adapter.flat_P.detach().double().requires_grad_(True)
    )
    batch = flatten(rollouts[:3], [np.array([1.0, -1.0, 0.5])] * 3)
    (chunk,) = microbatches(batch, np.arange(len(batch)), 10_000, torch.device("cpu"))

    def total(adapter: adapters.Lora) -> torch.Tensor:
        return player._loss(compute_loss_inputs(wide.weights(adapter, merge=True), chunk)).loss_W.mean()

    total(lora).backward()
    assert lora.flat_P.grad is not None
    for index in torch.randperm(len(lora.flat_P), generator=torch.Generator().manual_seed(0))[:25].tolist():
        ends = []
        for sign in (1, -1):
            moved = lora.flat_P.detach().clone()
            moved[index] += sign * 1e-5
            ends.append(float(total(adapters.Lora(4, 8.0, lora.sizes, moved))))
        assert float(lora.flat_P.grad[index]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("advantage", ["clock_leave_one_out", "rae"])
def test_resume_is_bit_identical(decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path, advantage: str) -> None:
    plugin = Plugin(name=advantage)
    whole = learner(decoder, advantage=plugin)
    for progress in (0.0, 0.25):
        whole.step(rollouts, progress)
    whole.save_state(tmp_path)
    resumed = learner(decoder, seed=99, moved=False, advantage=plugin)
    resumed.load_state(tmp_path)
    for player in (whole, resumed):
        player.step(rollouts[::-1], 0.5)
        player.step(rollouts, 0.75)
    assert torch.equal(flat(whole), flat(resumed))
    assert (whole.steps, whole.memory) == (resumed.steps, resumed.memory)
    whole.save_state(tmp_path / "whole")
    resumed.save_state(tmp_path / "resumed")
    assert pack_folder(tmp_path / "whole") == pack_folder(tmp_path / "resumed")


def test_a_fresh_state_can_be_saved_and_loaded(decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path) -> None:
    fresh, copy = learner(decoder), learner(decoder, moved=False)
    fresh.save_state(tmp_path)
    copy.load_state(tmp_path)
    fresh.step(rollouts)
    copy.step(rollouts)
    assert torch.equal(flat(fresh), flat(copy))


def test_an_adapter_alone_is_gone_on_from_with_fresh_moments(
    decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path
) -> None:
    trained, other = learner(decoder), learner(decoder, moved=False)
    trained.step(rollouts)
    other.load_adapter(trained.save_adapter(tmp_path / "adapter"), steps=7)
    assert other.steps == 7
    assert torch.equal(other.adapter.flat_P, trained.adapter.flat_P)
    other.save_state(tmp_path / "state")
    fresh = Learner(NativeAdapter(decoder, trained.adapter.lora), TrainerConfig(learner={"minibatch_sequences": 8}), 5)
    fresh.load_state(tmp_path / "state")
    assert fresh.step(rollouts).skipped == ""


def test_an_adapter_of_another_shape_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    wide = adapters.create(SHAPE, adapters.LoraConfig(rank=8, alpha=8), seed=1)
    adapters.save(wide, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"rank 8.*expected rank 4"):
        learner(decoder).load_adapter(tmp_path / "adapter", steps=1)


def test_damaged_and_foreign_states_are_model_errors(decoder: Decoder, tmp_path: Path) -> None:
    player = learner(decoder)
    with pytest.raises(ModelError, match="no readable learner state"):
        player.load_state(tmp_path)
    player.save_state(tmp_path)
    other = Learner(NativeAdapter(decoder, adapters.create(SHAPE, adapters.LoraConfig(rank=2), 0)), TrainerConfig(), 0)
    with pytest.raises(ModelError, match=r"rank 4, alpha 8.*expected rank 2"):
        other.load_state(tmp_path)
    file = tmp_path / "learner.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelError, match="no readable learner state"):
        player.load_state(tmp_path)


def test_steps_are_reproducible_and_depend_on_the_seed(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    players = [learner(decoder, seed) for seed in (5, 5, 6)]
    for player in players:
        player.step(rollouts)
    assert torch.equal(flat(players[0]), flat(players[1]))
    assert not torch.equal(flat(players[0]), flat(players[2]))


def test_a_loss_that_is_not_a_number_leaves_everything_untouched(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, advantage=Plugin(name="rae"))
    player.step(rollouts)
    before, state, memory = flat(player), player._optimizer.state().copy(), player.memory
    sound, calls = player._loss, 0

    def breaking(terms: LossInputs) -> LossValue:
        nonlocal calls
        calls += 1
        value = sound(terms)
        return value._replace(loss_W=value.loss_W * torch.nan) if calls > 12 else value

    player._loss = breaking
    report = player.step(rollouts)
    assert calls > 12
    assert report.skipped == "gradient norm is nan"
    assert all(np.isfinite(value) for value in report.metrics().values())
    assert torch.equal(flat(player), before)
    assert player.memory == memory
    again = player._optimizer.state()
    assert again.updates == state.updates > 0
    assert all(torch.equal(again.tensors[key], state.tensors[key]) for key in state.tensors)


def test_the_learning_rate_falls_linearly(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder)
    rates = [player.step(rollouts, progress).learning_rate for progress in (0.0, 0.5, 1.0, 2.0)]
    assert rates == pytest.approx([3e-3, 1.5e-3, 0.0, 0.0])


def test_the_saved_adapter_is_the_trained_one(decoder: Decoder, rollouts: list[Trajectory], tmp_path: Path) -> None:
    player = learner(decoder)
    player.step(rollouts)
    assert torch.equal(adapters.load(player.save_adapter(tmp_path / "adapter"), SHAPE).flat_P, player.adapter.flat_P)


def change_step(**changes: Any) -> Callable[[Trajectory], Trajectory]:
    return lambda r: msgspec.structs.replace(r, steps=[msgspec.structs.replace(r.steps[0], **changes), *r.steps[1:]])


def change(**changes: Any) -> Callable[[Trajectory], Trajectory]:
    return lambda r: msgspec.structs.replace(r, **changes)


DAMAGES = {
    "no steps": change(steps=[]),
    "not a finite number": change(final_progress=float("nan")),
    "score nan": change(score=float("nan")),
    "different lengths": change_step(logprobs=[-0.1]),
    "prompt is empty": change_step(prompt_ids=[]),
    "the model has 30": change_step(prompt_ids=[1, 30]),
    "token ids from -1": change_step(prompt_ids=[-1]),
    "beyond the completion": change_step(branches=[99], logprobs=[-1.0], allowed=[[1]]),
    "not exactly once": change_step(branches=[0], logprobs=[-1.0], allowed=[[29, 29]]),
    "log-probability nan": change_step(branches=[0], logprobs=[float("nan")], allowed=[[1]]),
    "log-probability 0.5": change_step(branches=[0], logprobs=[0.5], allowed=[[1]]),
    "progress nan": change_step(progress=float("nan")),
    "temperature 0": change_step(temperature=0.0),
    "clocks of the steps decrease": change_step(clock=9),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_damaged_rollouts_are_refused_alone(decoder: Decoder, rollouts: list[Trajectory], reason: str) -> None:
    damaged = DAMAGES[reason](msgspec.structs.replace(rollouts[0], match_id="bad"))
    found = rejection_reason(damaged, SHAPE.vocab_size, SHAPE.max_positions)
    assert found is not None
    assert reason in found
    mixed, clean = learner(decoder), learner(decoder)
    report = mixed.step([damaged, *rollouts[1:]])
    clean.step(rollouts[1:])
    assert report.refused == [("bad", found)]
    assert torch.equal(flat(mixed), flat(clean))


def test_sequences_beyond_the_model_are_refused(rollouts: list[Trajectory]) -> None:
    assert rejection_reason(rollouts[0]) is None
    assert "positions" in str(rejection_reason(rollouts[0], max_positions=5))


def test_a_batch_without_usable_rollouts_is_skipped(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder)
    assert player.step([]).skipped == "no usable trajectory"
    assert player.step([msgspec.structs.replace(rollouts[0], steps=[])]).skipped == "no usable trajectory"
    assert player.steps == 2


def test_stale_rollouts_are_told_from_fresh_ones(rollouts: list[Trajectory]) -> None:
    def at(*versions: int) -> Trajectory:
        steps = [msgspec.structs.replace(rollouts[0].steps[0], version=v) for v in versions]
        return msgspec.structs.replace(rollouts[0], steps=steps)

    batch = [at(7, 7), at(7, 2), at(3), at(4, 8)]
    stale = [rollout for rollout in batch if is_stale(rollout, current_version=8, max_lag=4)]
    accepted = [rollout for rollout in batch if rollout not in stale]
    assert accepted == [batch[0], batch[3]]
    assert stale == [batch[1], batch[2]]
    # A policy that began anew at version 8: what it did before is another model's doing, however fresh.
    stale = [is_stale(at(*versions), 9, 4, first_version=8) for versions in ((7, 8), (8, 8), (7,))]
    assert stale == [True, False, True]


def test_minibatches_hold_every_sequence_once(rollouts: list[Trajectory]) -> None:
    batch = flatten(rollouts, [np.zeros(3)] * len(rollouts))
    for sequences, tokens, count in ((8, 10**6, round(len(batch) / 8)), (1000, 10**6, 1), (1000, 1, len(batch))):
        parts = minibatches(batch, np.random.default_rng(0), sequences, tokens)
        assert len(parts) == count
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(batch)))


def test_bad_settings_are_config_errors(decoder: Decoder) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.learner\.rate: unknown key"):
        learner(decoder, learner={"rate": 1.0})
    with pytest.raises(ConfigError, match=r"trainer\.learner.*epochs: 0; expected 1 or more"):
        learner(decoder, learner={"epochs": 0})
