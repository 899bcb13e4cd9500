"""Objectives inside the learner: what each loss asks the model for, what is left out, what rings the alarm."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from models import adapters
from models.decoder import Decoder, allowed_distribution
from models.forward import detach_weights
from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig, TransformsConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends.native import NativeAdapter
from trainer.batch import flatten, microbatches, minibatches
from trainer.learner import Learner
from trainer.loss_inputs import compute_loss_inputs, recompute_logprobs
from trainer.losses import LOSSES, LossInputs

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)


def learner(decoder: Decoder, loss: str = "ppo_clip", moved: float = 0.1, **settings: Any) -> Learner:
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        lora.flat_P.add_(moved * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(2)))
    table = {"minibatch_sequences": 8, "rectangle_tokens": 64} | settings.pop("learner", {})
    plugin = Plugin(name=loss, settings=settings.pop("loss_settings", {}))
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(learner=table, loss=plugin, **settings), seed=5)


def flat(player: Learner) -> torch.Tensor:
    return player.adapter.flat_P.detach().clone()


@pytest.fixture(scope="module")
def rollouts(decoder: Decoder) -> list[Trajectory]:
    """Ten games of three calls, whose log-probabilities are the moved learner's own."""
    rng = np.random.default_rng(3)
    games = []
    for game in range(10):
        steps = [_step(rng, clock) for clock in (1, 1, 2)]
        steps = [_sampled(learner(decoder), step) for step in steps]
        role = "AB"[game % 2]
        games.append(Trajectory(f"m{game}", "game", "main", 0, role, role, steps, 2, float(rng.normal(4, 3)), 0.5, 1))
    return games


def _step(rng: np.random.Generator, clock: int) -> ModelCall:
    prompt = rng.integers(SHAPE.vocab_size, size=rng.integers(3, 12)).tolist()
    completion = rng.integers(SHAPE.vocab_size, size=rng.integers(5, 10)).tolist()
    # Two of the tokens are forced, the last one among them.
    branches = sorted(rng.choice(len(completion) - 1, size=len(completion) - 2, replace=False).tolist())
    allowed = [sorted({completion[at], *rng.integers(SHAPE.vocab_size, size=3).tolist()}) for at in branches]
    return ModelCall(
        prompt, completion, branches, [-1.0] * len(branches), allowed, 0, clock, float(rng.integers(9)), 0.7
    )


def _sampled(player: Learner, step: ModelCall) -> ModelCall:
    logprob_W, _ = recompute_logprobs(player.adapter.decoder, player.adapter.lora, [step])
    return msgspec.structs.replace(step, logprobs=[min(float(logprob), 0.0) for logprob in logprob_W])


def test_the_default_step_is_the_plain_one_bit_for_bit(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    """PPO over the mean of a minibatch's branches, written out: nothing that can be asked for has a say unasked."""
    ours, plain = learner(decoder), learner(decoder)
    optimizer = torch.optim.AdamW([plain.adapter.flat_P], lr=3e-3, weight_decay=0.01)
    for number in (1, 2):
        report = ours.step(rollouts)
        batch, rng = flatten(rollouts, plain.assign_credit(rollouts).advantages), np.random.default_rng([5, number])
        for _ in range(2):
            for sequences_S in minibatches(batch, rng, 8, 65_536):
                plain.adapter.flat_P.grad = None
                count = int(batch.branches_S[sequences_S].sum())
                shared = detach_weights(decoder.weights(plain.adapter.lora))
                for chunk in microbatches(batch, sequences_S, 64, CPU):
                    terms = compute_loss_inputs(shared.weights, chunk)
                    ratio_W = (terms.logprob_W - terms.old_logprob_W).exp()
                    gain_W = torch.minimum(ratio_W * terms.advantage_W, ratio_W.clamp(0.8, 1.25) * terms.advantage_W)
                    ((-gain_W - 0.01 * terms.entropy_W).sum() / count).backward()
                shared.backward()
                torch.nn.utils.clip_grad_norm_([plain.adapter.flat_P], 1.0)
                optimizer.step()
        assert torch.equal(flat(ours), flat(plain))
        assert (report.filtered, report.passed_over, report.alarm, report.value_loss) == ([], 0, "", 0.0)


@pytest.mark.parametrize("name", LOSSES.names())
def test_prompts_and_forced_tokens_have_no_say_in_a_loss(
    decoder: Decoder, rollouts: list[Trajectory], name: str
) -> None:
    """Moving the logits of everything that could not have been sampled leaves loss and gradient as they were."""
    untied = Decoder(msgspec.structs.replace(SHAPE, tied=False)).requires_grad_(False)
    assert untied.head is not None
    untied.load_state_dict(decoder.state_dict() | {"head": decoder.embed.clone()})
    steps = rollouts[0].steps
    batch = flatten([rollouts[0]], [np.array([1.0, -0.5, 0.3])])
    (chunk,) = microbatches(batch, np.arange(len(batch)), 10_000, CPU)
    allowed = {token for step in steps for tokens in step.allowed for token in tokens}
    never = sorted(set(range(SHAPE.vocab_size)) - allowed)
    found = []
    for shift in (0.0, 3.0):
        player = learner(untied, name)
        with torch.no_grad():
            untied.head[never] += shift
        terms = compute_loss_inputs(untied.weights(player.adapter.lora), chunk)
        terms = terms._replace(proximal_W=terms.old_logprob_W, reference_W=terms.old_logprob_W - 0.1)
        value = player._loss(terms)
        player._objective.total(value.loss_W, terms, len(value.loss_W), len(steps)).backward()
        assert player.adapter.flat_P.grad is not None
        found.append((value.loss_W.detach(), player.adapter.flat_P.grad))
    assert never
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", LOSSES.names())
def test_every_loss_raises_what_was_good_above_what_was_bad(
    decoder: Decoder, rollouts: list[Trajectory], name: str
) -> None:
    player = learner(decoder, name, learner={"epochs": 4, "learning_rate": 0.01})
    batch = flatten(rollouts, player.assign_credit(rollouts).advantages)

    def agreement() -> float:
        terms = [
            compute_loss_inputs(decoder.weights(player.adapter.lora), c)
            for c in microbatches(batch, np.arange(30), 10_000, CPU)
        ]
        return sum(float((part.logprob_W * part.advantage_W).sum().detach()) for part in terms)

    before = agreement()
    report = player.step(rollouts)
    assert (report.skipped, report.alarm) == ("", "")
    assert agreement() > before + 1.0


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "tis"])
def test_rectangles_do_not_change_the_gradient(decoder: Decoder, rollouts: list[Trajectory], name: str) -> None:
    gradients = []
    for tokens in (1, 64, 10_000):
        player = learner(decoder, name, learner={"rectangle_tokens": tokens, "epochs": 1, "minibatch_sequences": 1000})
        player.step(rollouts)
        gradients.append(player.adapter.flat_P.grad)
    torch.testing.assert_close(gradients[0], gradients[2], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(gradients[1], gradients[2], atol=1e-6, rtol=1e-4)


def test_the_gradient_of_a_sequence_loss_with_kl_equals_finite_differences(
    decoder: Decoder, rollouts: list[Trajectory]
) -> None:
    wide = Decoder(SHAPE, dtype=torch.float64)
    wide.load_state_dict(decoder.state_dict())
    wide.requires_grad_(False)
    player = learner(decoder, "gspo", loss_settings={"low": 0.5, "high": 2.0, "kl": {"weight": 0.5}})
    start = player.adapter.flat_P.detach().double()
    batch = player._with_comparison_logprobs(flatten(rollouts[:3], [np.array([1.0, -1.0, 0.5])] * 3))
    (chunk,) = microbatches(batch, np.arange(len(batch)), 10_000, CPU)

    def total(flat_P: torch.Tensor) -> torch.Tensor:
        terms = compute_loss_inputs(
            wide.weights(adapters.Lora(4, 8.0, player.adapter.lora.sizes, flat_P), merge=True), chunk
        )
        value = player._loss(terms)
        return player._objective.total(value.loss_W, terms, len(value.loss_W), len(batch))

    flat_P = start.clone().requires_grad_(True)
    total(flat_P).backward()
    assert flat_P.grad is not None
    for index in torch.randperm(len(start), generator=torch.Generator().manual_seed(0))[:25].tolist():
        nudge = torch.zeros_like(start)
        nudge[index] = 1e-5
        slope = float((total(start + nudge) - total(start - nudge)) / 2e-5)
        assert float(flat_P.grad[index]) == pytest.approx(slope, abs=1e-6)


def test_the_reference_is_the_base_with_the_adapter_off_and_is_computed_only_if_asked_for(
    decoder: Decoder, rollouts: list[Trajectory]
) -> None:
    steps = rollouts[0].steps
    batch = flatten([rollouts[0]], [np.ones(3)])
    unasked = learner(decoder)._with_comparison_logprobs(batch)
    assert (unasked.reference_W, unasked.proximal_W) == (None, None)
    asked = learner(decoder, "grpo")._with_comparison_logprobs(batch)
    assert asked.reference_W is not None
    assert sorted(asked.reference_W) == pytest.approx(sorted(recompute_logprobs(decoder, None, steps)[0]), abs=1e-6)
    assert asked.proximal_W is None
    begun = learner(decoder, "tis")._with_comparison_logprobs(batch)
    assert begun.proximal_W == pytest.approx(batch.old_logprob_W, abs=1e-5)
    assert begun.reference_W is None


@pytest.mark.parametrize("into", ["loss", "advantage"])
def test_kl_keeps_the_policy_nearer_to_the_base(decoder: Decoder, rollouts: list[Trajectory], into: str) -> None:
    apart = []
    for weight in (0.0, 2.0):
        kl = {"weight": weight, "into": into, "estimator": "k2" if into == "loss" else "k1"}
        player = learner(decoder, "reinforce", loss_settings={"kl": kl}, learner={"epochs": 8})
        player.step(rollouts)
        batch = flatten(rollouts, [np.zeros(3)] * 10)
        now_W, base_W = (player._choice_logprobs(batch, enabled) for enabled in (True, False))
        apart.append(float(np.mean((now_W - base_W) ** 2)))
    assert apart[1] < 0.9 * apart[0]


def test_kl_warms_up_with_the_steps(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    kl = {"weight": 3.0, "warmup_steps": 2}
    settings = {"epochs": 1, "minibatch_sequences": 1000}
    with_kl = learner(decoder, "dapo", loss_settings={"kl": kl}, learner=settings)
    without = learner(decoder, "dapo", learner=settings)
    extra = []
    for steps in (0, 1, 5):
        with_kl.steps = steps
        extra.append(learner_loss(with_kl, rollouts) - learner_loss(without, rollouts))
    assert extra[0] > 0
    assert extra[1] == pytest.approx(2 * extra[0])
    assert extra[2] == pytest.approx(extra[1])


def learner_loss(player: Learner, rollouts: list[Trajectory]) -> float:
    """The loss of a step, which is taken back."""
    steps, before = player.steps, player._optimizer.state().copy()
    loss = player.step(rollouts).loss
    player._optimizer.load(before)
    player.steps = steps
    return loss


def test_minibatches_with_too_much_clipping_are_passed_over(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    off_policy = [change(r, lambda s: {"logprobs": [value - 1.0 for value in s.logprobs]}) for r in rollouts]
    settings: dict[str, Any] = {"loss_settings": {"max_clipped": 0.1}, "advantage": Plugin(name="constant")}
    player = learner(decoder, **settings)
    before = flat(player)
    report = player.step(off_policy)
    assert report.skipped == ""
    assert report.passed_over == 2 * round(30 / 8)
    assert report.metrics()["passed_over"] == report.passed_over
    assert torch.equal(flat(player), before)
    sound = learner(decoder, **settings).step(rollouts)
    assert 0 <= sound.passed_over < report.passed_over


def change(rollout: Trajectory, changes: Any) -> Trajectory:
    steps = [msgspec.structs.replace(step, **changes(step)) for step in rollout.steps]
    return msgspec.structs.replace(rollout, steps=steps)


def test_samples_that_were_drawn_as_recorded_ring_no_alarm(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    report = learner(decoder).step(rollouts)
    assert report.alarm == ""
    assert report.on_policy_gap < 1e-5
    assert report.metrics()["alarms"] == 0


@pytest.mark.parametrize("what", ["temperature", "mask", "weights"])
def test_samples_that_were_drawn_otherwise_ring_the_alarm(
    decoder: Decoder, rollouts: list[Trajectory], what: str
) -> None:
    player = learner(decoder, moved=0.15 if what == "weights" else 0.1)
    if what == "temperature":
        rollouts = [change(r, lambda s: {"temperature": 0.8}) for r in rollouts]
    if what == "mask":
        rollouts = [change(r, lambda s: {"allowed": [[]] * len(s.allowed)}) for r in rollouts]
    report = player.step(rollouts)
    assert "another temperature, mask or weights than recorded" in report.alarm
    assert report.metrics()["alarms"] == 1
    assert report.on_policy_gap > 0.01


def test_older_versions_ring_no_alarm_and_a_bound_can_be_set(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    player = learner(decoder, moved=0.15)
    player.steps = 3
    report = player.step(rollouts)
    assert report.alarm == ""
    assert report.sampler_gap > 0.01
    assert learner(decoder, moved=0.15, learner={"ratio_bound": 10.0}).step(rollouts).alarm == ""


def test_a_narrow_base_is_allowed_a_wider_gap(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    narrow = Decoder(SHAPE, dtype=torch.bfloat16)
    narrow.load_state_dict(decoder.state_dict())
    report = learner(narrow.requires_grad_(False)).step(rollouts)
    assert 1e-3 < report.on_policy_gap < 0.05
    assert report.alarm == ""


def test_rollouts_that_teach_nothing_can_be_left_out(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    lone = msgspec.structs.replace(rollouts[4], group="of its own")
    batch = [*rollouts[:4], lone, *rollouts[5:]]
    settings: dict[str, Any] = {"advantage": Plugin(name="group_relative")}
    filtering, plain = (learner(decoder, learner={"filter_zero_advantage": f}, **settings) for f in (True, False))
    others = learner(decoder, **settings)
    assert filtering.assign_credit(batch).filtered == [4]
    report = filtering.step(batch)
    others.step([*rollouts[:4], *rollouts[5:]])
    assert (report.filtered, report.trajectories, report.metrics()["filtered"]) == ([4], 9, 1)
    assert torch.equal(flat(filtering), flat(others))
    assert plain.step(batch).filtered == []
    assert not torch.equal(flat(filtering), flat(plain))


def test_a_batch_of_equal_rewards_is_a_step_without_effect(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    settings: dict[str, Any] = {
        "reward": Plugin(name="outcome"),
        "advantage": Plugin(name="group_relative", settings={"normalize": True}),
        "transforms": TransformsConfig(sampling=(Plugin(name="normalise", settings={"z_score": True}),)),
    }
    player = learner(decoder, learner={"filter_zero_advantage": True}, **settings)
    before = flat(player)
    report = player.step(rollouts)
    assert report.skipped == "every advantage is 0"
    assert report.filtered == list(range(10))
    assert torch.equal(flat(player), before)
    unfiltered = learner(decoder, **settings).step(rollouts)
    assert (unfiltered.skipped, unfiltered.filtered) == ("", [])
    assert math.isfinite(unfiltered.loss)


def test_a_reward_that_is_not_a_number_is_refused_alone(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    reward = Plugin(name="outcome", settings={"scale": 1e300})
    broken = msgspec.structs.replace(rollouts[0], match_id="bad", score=1e300)
    report = learner(
        decoder, reward=reward, advantage=Plugin(name="group_relative", settings={"normalize": True})
    ).step([broken, *rollouts[1:]])
    assert report.refused == [("bad", "a reward is not a finite number")]
    assert report.trajectories == 9


def test_terms_say_which_sequence_a_branch_is_of(decoder: Decoder, rollouts: list[Trajectory]) -> None:
    batch = flatten(rollouts, [np.zeros(3)] * 10)
    seen = []
    for chunk in microbatches(batch, np.arange(30), 64, CPU):
        terms = compute_loss_inputs(decoder.weights(None), chunk)
        counts = torch.bincount(terms.sequence_W)
        assert terms.branches_W.tolist() == counts[terms.sequence_W].tolist()
        assert terms.sequence_W.diff().ge(0).all()
        means = terms.sequence_mean(terms.advantage_W + 2.0)
        assert torch.allclose(means, torch.full_like(means, 2.0))
        seen += chunk.branch_W.tolist()
    assert sorted(seen) == list(range(len(batch.position_W)))


def test_the_mean_over_a_sequence_is_each_branchs() -> None:
    row_N, chosen_W = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 2, 4])
    logits_N = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    logprob_W, entropy_W = allowed_distribution(logits_N, row_N, chosen_W, torch.ones(3))
    terms = LossInputs(logprob_W, logprob_W, entropy_W, logprob_W, torch.tensor([0, 0, 1]), torch.tensor([2, 2, 1]))
    expected = [float(logprob_W[:2].mean())] * 2 + [float(logprob_W[2])]
    assert terms.sequence_mean(logprob_W).tolist() == pytest.approx(expected)
