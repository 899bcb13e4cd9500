"""What bounds the learner's memory changes nothing that it computes: packing, pieces of the head, recomputed layers."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import adapters
from models.decoder import DENSE_LIMIT, Decoder, allowed_logits
from models.forward import forward_rectangle, make_packing, packed_rows
from models.model_config import DecoderShape
from schemas.config import TrainerConfig
from schemas.errors import ConfigError
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends.native import NativeAdapter
from trainer.batch import flatten, microbatches, truncate_choices
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import compute_loss_inputs, full_vocabulary_logprobs

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)


def learner(decoder: Decoder, **settings: Any) -> Learner:
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        lora.flat_P.add_(0.1 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(2)))
    small: dict[str, Any] = {"minibatch_sequences": 8, "rectangle_tokens": 64}
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(learner=small | settings), 5)


def played(player: Learner, games: int = 8) -> list[Trajectory]:
    """Rollouts that the learner's own weights sampled, listed choices and free ones; log-probabilities are its own."""
    rng, rollouts = np.random.default_rng(3), []
    for game in range(games):
        steps = []
        for clock in (1, 2):
            prompt = rng.integers(30, size=rng.integers(3, 20)).tolist()
            completion = rng.integers(30, size=rng.integers(4, 12)).tolist()
            branches = sorted(rng.choice(len(completion), size=3, replace=False).tolist())
            allowed = [sorted({completion[at], *rng.integers(30, size=4).tolist()}) for at in branches]
            if game % 2:
                allowed = [[] for _ in branches]
            steps.append(
                ModelCall(prompt, completion, branches, [0.0] * 3, allowed, 0, clock, float(rng.integers(9)), 0.7)
            )
        batch = flatten([Trajectory("m", "g", "main", 0, "A", "A", steps, 2, 1.0, 0.5, 1)], [np.zeros(2)])
        (chunk,) = microbatches(batch, np.arange(2), 1_000, player.adapter.decoder.device)
        with torch.no_grad():
            found_W = (
                compute_loss_inputs(player.adapter.decoder.weights(player.adapter.lora), chunk)
                .logprob_W.float()
                .numpy()
            )
        said = dict(zip(chunk.branch_W.tolist(), found_W.tolist(), strict=True))
        steps = [
            msgspec.structs.replace(step, logprobs=[said[3 * at + i] for i in range(3)])
            for at, step in enumerate(steps)
        ]
        role = "AB"[game // 2 % 2]
        rollouts.append(Trajectory(f"m{game}", "g", "main", 0, role, role, steps, 2, float(rng.integers(9)), 0.5, 1))
    return rollouts


@pytest.fixture(scope="module")
def rollouts(decoder: Decoder) -> list[Trajectory]:
    return played(learner(decoder))


def gradient(player: Learner, rollouts: list[Trajectory]) -> torch.Tensor:
    player.step(rollouts)
    assert player.adapter.flat_P.grad is not None
    return player.adapter.flat_P.grad


ONE_UPDATE = {"epochs": 1, "minibatch_sequences": 1_000}
WAYS: list[dict[str, Any]] = [
    {"layout": "packed"},
    {"recompute_layers": True},
    {"logit_elements": 60},
    {"layout": "packed", "recompute_layers": True, "logit_elements": 60},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way))
def test_the_gradient_is_the_same_however_it_is_computed(
    decoder: Decoder, rollouts: list[Trajectory], way: dict[str, Any]
) -> None:
    expected = gradient(learner(decoder, **ONE_UPDATE), rollouts)
    assert expected.norm() > 0.01
    torch.testing.assert_close(
        gradient(learner(decoder, **ONE_UPDATE, **way), rollouts), expected, atol=1e-6, rtol=1e-4
    )


def test_recomputed_layers_give_the_same_bits(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    plain, again = learner(decoder), learner(decoder, recompute_layers=True)
    plain.step(rollouts)
    again.step(rollouts)
    assert torch.equal(plain.adapter.flat_P, again.adapter.flat_P)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", [{}, *WAYS], ids=lambda way: "+".join(way) or "plain")
def test_on_policy_ratios_are_one_in_every_type_and_way(
    decoder: Decoder, dtype: torch.dtype, way: dict[str, Any]
) -> None:
    base = Decoder(SHAPE, dtype=dtype)
    base.load_state_dict(decoder.state_dict())
    player = learner(base.requires_grad_(False), **ONE_UPDATE, **way)
    report = player.step(played(learner(base)))
    mean, largest = (1e-5, 1e-5) if dtype == torch.float32 else (1e-2, 5e-2)
    assert (report.skipped, report.alarm) == ("", "")
    assert report.on_policy_gap < mean
    assert abs(math.log(report.ratio_max)) < largest
    assert abs(math.log(report.ratio_min)) < largest


def test_sequences_of_a_row_do_not_see_each_other(decoder: Decoder) -> None:
    ids = torch.randint(30, (1, 12), generator=torch.Generator().manual_seed(0))
    weights = decoder.weights()
    row = forward_rectangle(weights, ids, packed=make_packing([5, 7], CPU))
    apart = [forward_rectangle(weights, part) for part in ids.split([5, 7], dim=1)]
    torch.testing.assert_close(row, torch.cat(apart, dim=1), atol=1e-5, rtol=0)
    wanted = torch.tensor([[2, 11, 5]])
    chosen = forward_rectangle(weights, ids, wanted, make_packing([5, 7], CPU))
    torch.testing.assert_close(chosen, row[:, wanted[0]], atol=1e-6, rtol=0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 100))
def test_rows_hold_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    found = [row.tolist() for row in packed_rows(lengths, budget)]
    assert sorted(sequence for row in found for sequence in row) == list(range(len(lengths)))
    assert all(len(row) == 1 or sum(lengths[at] for at in row) <= budget for row in found)


def test_a_head_in_pieces_gives_the_same_numbers_and_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(90, 8, generator=generator), torch.randn(11, 8, generator=generator)
    chosen, temperature = torch.randint(90, (11,), generator=generator), torch.full((11,), 0.7)
    results = []
    for elements in (10**6, 3 * 90, 1):
        leaf = hidden.clone().requires_grad_(True)
        logprob, entropy = full_vocabulary_logprobs(head, leaf, chosen, temperature, elements)
        (logprob.sum() + 0.3 * entropy.square().sum()).backward()
        assert leaf.grad is not None
        results.append((logprob.detach(), entropy.detach(), leaf.grad))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-5, rtol=1e-5)


def test_no_more_logits_than_asked_for_are_held_for_the_backward_pass() -> None:
    head, hidden = torch.randn(500, 8), torch.randn(64, 8, requires_grad=True)
    chosen, temperature = torch.zeros(64, dtype=torch.long), torch.ones(64)

    def largest(elements: int) -> int:
        sizes = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            full_vocabulary_logprobs(head, hidden, chosen, temperature, elements)
        return max(size for size in sizes if size != head.numel())

    assert largest(10**6) >= 64 * 500
    assert largest(4 * 500) < 4 * 500


def test_listed_choices_of_a_large_vocabulary_are_looked_up_in_pieces() -> None:
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(DENSE_LIMIT + 1, 8, generator=generator)
    rows_N, tokens_N = torch.arange(30) % 7, torch.randint(DENSE_LIMIT, (30,), generator=generator)
    results = []
    for elements in (10**6, 40):
        hidden = torch.randn(7, 8, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
        logits = allowed_logits(head, hidden, rows_N, tokens_N, elements)
        logits.square().sum().backward()
        assert hidden.grad is not None
        results.append((logits.detach(), hidden.grad))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results[0][0], (hidden @ head.T)[rows_N, tokens_N].detach(), atol=1e-5, rtol=1e-5)


def test_longer_steps_lose_the_choices_behind_the_limit_and_are_counted(
    decoder: Decoder, rollouts: list[Trajectory]
) -> None:
    longest = 16
    kept = [sum(len(step.prompt_ids) + at + 1 <= longest for at in step.branches) for r in rollouts for step in r.steps]
    report = learner(decoder, max_train_len=longest).step(rollouts)
    assert 0 < sum(kept) < 3 * len(kept)
    assert (report.branches, report.cut) == (sum(kept), 3 * len(kept) - sum(kept))
    assert report.sequences == sum(count > 0 for count in kept)
    assert report.metrics()["cut"] == report.cut
    step = rollouts[0].steps[0]
    assert truncate_choices(step, 1_000) is step
    assert not truncate_choices(step, len(step.prompt_ids)).branches


def test_a_limit_below_every_choice_skips_the_step(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, max_train_len=1)
    before = player.adapter.flat_P.detach().clone()
    assert player.step(rollouts).skipped == "every choice lies behind max_train_len tokens"
    assert torch.equal(player.adapter.flat_P, before)


def test_schedules_fall_as_they_are_named() -> None:
    rates = {
        name: [LearnerConfig(learning_rate=2.0, schedule=name).learning_rate_at(at) for at in (0.0, 0.25, 0.5, 1.0)]
        for name in ("constant", "linear", "cosine")
    }
    assert rates["constant"] == [2.0, 2.0, 2.0, 2.0]
    assert rates["linear"] == [2.0, 1.5, 1.0, 0.0]
    assert rates["cosine"] == pytest.approx([2.0, 1 + math.cos(math.pi / 4), 1.0, 0.0])


def test_the_rate_rises_over_the_updates_of_the_warm_up(
    decoder: Decoder, rollouts: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    player = learner(decoder, warmup_updates=8, schedule="constant", learning_rate=1e-3)
    seen = []
    adamw = player._optimizer._adamw
    update = adamw.step

    def step() -> None:
        seen.append(adamw.param_groups[0]["lr"])
        update()

    monkeypatch.setattr(adamw, "step", step)
    player.step(rollouts)
    player.step(rollouts)
    assert len(seen) == 8
    assert seen == pytest.approx([1e-3 * (at + 1) / 8 for at in range(8)])


@pytest.mark.parametrize(
    "wrong", [{"logit_elements": 0}, {"max_train_len": 0}, {"warmup_updates": -1}, {"layout": "both"}]
)
def test_settings_that_cannot_be_are_refused(decoder: Decoder, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        learner(decoder, **wrong)
