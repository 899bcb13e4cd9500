"""Losses against the papers' formulas in plain float64, hand-computed cases and finite differences."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.decoder import allowed_distribution
from schemas.config import Plugin
from schemas.errors import ConfigError
from trainer.losses import LOSSES, LossInputs, Objective

ALLOWED = [[0, 3], [1, 2, 4], [5]]
SAMPLED = [3, 1, 5]


def ragged() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    row_N = torch.tensor([row for row, tokens in enumerate(ALLOWED) for _ in tokens])
    token_N = torch.tensor([token for tokens in ALLOWED for token in tokens])
    chosen_W = torch.tensor([1, 2, 5])
    return row_N, token_N, chosen_W


def terms(ratios: list[float], advantages: list[float], old: float = -1.0) -> LossInputs:
    logprob_W = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_(True)
    return LossInputs(
        logprob_W,
        torch.full_like(logprob_W, old).detach(),
        torch.zeros_like(logprob_W).detach(),
        torch.tensor(advantages, dtype=torch.float64),
        torch.arange(len(ratios)),
        torch.ones(len(ratios)),
    )


def loss(name: str, **settings: Any) -> Objective:
    return LOSSES.build(Plugin(name=name, settings=dict(settings)))


def test_distribution_is_renormalised_over_allowed_tokens_at_the_temperature() -> None:
    logits_WV = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    temperature_W = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    row_N, token_N, chosen_W = ragged()
    logprob_W, entropy_W = allowed_distribution(logits_WV[row_N, token_N], row_N, chosen_W, temperature_W)
    for row, (tokens, sampled) in enumerate(zip(ALLOWED, SAMPLED, strict=True)):
        weights = [math.exp(float(logits_WV[row, t]) / float(temperature_W[row])) for t in tokens]
        shares = [weight / sum(weights) for weight in weights]
        assert float(logprob_W[row]) == pytest.approx(math.log(shares[tokens.index(sampled)]), abs=1e-12)
        assert float(entropy_W[row]) == pytest.approx(-sum(s * math.log(s) for s in shares), abs=1e-12)


def test_extreme_logits_give_finite_numbers_and_gradients() -> None:
    row_N, token_N, chosen_W = ragged()
    logits_N = (torch.tensor([1e4, -1e4, 0.0, 1e4, -1e4, 1e4])).requires_grad_(True)
    logprob_W, entropy_W = allowed_distribution(logits_N, row_N, chosen_W, torch.ones(3))
    (logprob_W.sum() + entropy_W.sum()).backward()
    assert logprob_W.isfinite().all()
    assert entropy_W.isfinite().all()
    assert logits_N.grad is not None
    assert logits_N.grad.isfinite().all()
    assert token_N.shape == logits_N.shape


HELD = ("reinforce", "cispo")
"""Losses whose importance weight is held constant."""


def batch_of(logits_N: torch.Tensor, base_N: torch.Tensor) -> LossInputs:
    """Two sequences of branches, three and one, a little off policy."""
    row_N = torch.tensor([row for row, tokens in enumerate(WIDE) for _ in tokens])
    chosen_W = torch.tensor([1, 2, 6, 7])
    temperature_W = torch.tensor([0.7, 1.0, 1.0, 1.3], dtype=torch.float64)
    logprob_W, entropy_W = allowed_distribution(logits_N, row_N, chosen_W, temperature_W)
    begun_W = allowed_distribution(base_N, row_N, chosen_W, temperature_W)[0].detach()
    return LossInputs(
        logprob_W,
        begun_W - torch.tensor([0.05, -0.04, 0.02, 0.03], dtype=torch.float64),
        entropy_W,
        torch.tensor([1.5, -0.7, 0.3, -1.1], dtype=torch.float64),
        torch.tensor([0, 0, 0, 1]),
        torch.tensor([3, 3, 3, 1]),
        begun_W,
        begun_W - 0.3,
    )


WIDE = [[0, 3], [1, 2, 4], [0, 5], [2, 4]]


def numpy_loss(name: str, terms: LossInputs, held: LossInputs) -> np.ndarray:
    """The papers' formulas, branch by branch, apart from the implementation; weights taken from ``held``."""
    new, old, entropy, advantage, proximal, reference = (
        np.asarray(part.detach()) for part in (*terms[:4], terms.proximal_W, terms.reference_W)
    )
    weight = np.exp(np.asarray(held.logprob_W.detach()) - old)
    values = []
    for i in range(len(new)):
        mine = [j for j in range(len(new)) if terms.sequence_W[j] == terms.sequence_W[i]]
        ratio = math.exp(new[i] - old[i])
        low, high = 0.8, {"ppo_clip": 1.25, "dapo": 1.28}.get(name, 1.2)
        factor, bonus, penalty = 1.0, 0.0, 0.0
        if name == "gspo":
            ratio, low, high = math.exp(np.mean([new[j] - old[j] for j in mine])), 1 - 3e-4, 1 + 4e-4
        if name == "tis":
            ratio, factor = math.exp(new[i] - proximal[i]), min(math.exp(proximal[i] - old[i]), 2.0)
        if name == "grpo":
            apart = reference[i] - new[i]
            penalty = 0.04 * (math.exp(apart) - apart - 1)
        if name in ("ppo_clip", "reinforce"):
            bonus = 0.01 * entropy[i]
        gain = factor * min(ratio * advantage[i], min(max(ratio, low), high) * advantage[i])
        if name in HELD:
            gain = min(weight[i], 2.0 if name == "reinforce" else 5.0) * advantage[i] * new[i]
        if name == "cross_entropy":
            gain = advantage[i] * new[i]
        values.append(-gain - bonus + penalty)
    return np.array(values)


@pytest.mark.parametrize("name", LOSSES.names())
def test_losses_equal_the_papers_formulas(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    base_N = torch.randn(9, dtype=torch.float64, generator=generator)
    for scale in (0.0, 0.02, 0.5, 3.0):
        terms = batch_of(base_N + scale * torch.randn(9, dtype=torch.float64, generator=generator), base_N)
        assert loss(name)(terms).loss_W.numpy() == pytest.approx(numpy_loss(name, terms, terms), abs=1e-12)


@pytest.mark.parametrize("name", LOSSES.names())
@pytest.mark.parametrize("normalize", ["token", "sample", "length"])
def test_gradients_match_finite_differences_of_the_formulas(name: str, normalize: str) -> None:
    generator = torch.Generator().manual_seed(2)
    base_N = torch.randn(9, dtype=torch.float64, generator=generator)
    logits_N = (base_N + 0.05 * torch.randn(9, dtype=torch.float64, generator=generator)).requires_grad_(True)
    here = batch_of(logits_N, base_N)
    objective = loss(name, normalize=normalize, max_generation_len=7)
    objective.total(objective(here).loss_W, here, branches=4, sequences=2).backward()

    def total(logits_N: torch.Tensor) -> float:
        values = numpy_loss(name, batch_of(logits_N, base_N), here)
        if normalize == "token":
            return float(values.mean())
        return float(np.mean([values[:3].mean(), values[3]]) if normalize == "sample" else values.sum() / 14)

    assert logits_N.grad is not None
    for i in range(len(logits_N)):
        nudge = torch.zeros_like(base_N)
        nudge[i] = 1e-6
        slope = (total(logits_N.detach() + nudge) - total(logits_N.detach() - nudge)) / 2e-6
        assert float(logits_N.grad[i]) == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped", "slope"),
    [
        (1.0, 2.0, -2.0, False, -2.0),
        (1.5, 2.0, -2.5, True, 0.0),
        (1.5, -2.0, 3.0, False, 3.0),
        (0.5, 2.0, -1.0, False, -1.0),
        (0.5, -2.0, 1.6, True, 0.0),
        (0.5, 0.0, 0.0, False, 0.0),
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, expected: float, clipped: bool, slope: float) -> None:
    one = terms([ratio], [advantage])
    value = loss("ppo_clip")(one)
    value.loss_W.sum().backward()
    assert float(value.loss_W.detach()) == pytest.approx(expected)
    assert bool(value.clipped_W) is clipped
    assert one.logprob_W.grad is not None
    assert float(one.logprob_W.grad) == pytest.approx(slope)


def test_reinforce_truncates_the_weight_and_keeps_the_gradient() -> None:
    batch = terms([1.0, 5.0, 0.5], [2.0, 2.0, -1.0])
    value = loss("reinforce", cap=2.0)(batch)
    value.loss_W.sum().backward()
    assert batch.logprob_W.grad is not None
    assert batch.logprob_W.grad.tolist() == pytest.approx([-2.0, -4.0, 0.5])
    assert value.clipped_W.tolist() == [False, True, False]


def test_entropy_bonus_lowers_the_loss() -> None:
    calm = terms([1.0], [0.0])
    lively = calm._replace(entropy_W=torch.tensor([2.0], dtype=torch.float64))
    for name in ("ppo_clip", "reinforce"):
        objective = loss(name, entropy=0.1)
        assert float((objective(lively).loss_W - objective(calm).loss_W).detach()) == pytest.approx(-0.2)


def test_gspo_clips_a_sequence_as_a_whole() -> None:
    # The mean log-ratio of the first sequence is 0.1, of the second 0: the first is beyond the bound for its advantage.
    apart = torch.tensor([0.3, -0.1, 0.0, 0.0], dtype=torch.float64)
    terms = LossInputs(
        (apart - 1).requires_grad_(True),
        torch.full((4,), -1.0, dtype=torch.float64),
        torch.zeros(4, dtype=torch.float64),
        torch.ones(4, dtype=torch.float64),
        torch.tensor([0, 0, 1, 1]),
        torch.tensor([2, 2, 2, 2]),
    )
    objective = loss("gspo")
    value = objective(terms)
    assert value.clipped_W.tolist() == [True, True, False, False]
    total = objective.total(value.loss_W, terms, branches=4, sequences=2)
    assert float(total.detach()) == pytest.approx(-(1.0004 + 1.0) / 2)
    total.backward()
    assert terms.logprob_W.grad is not None
    assert terms.logprob_W.grad.tolist() == pytest.approx([0, 0, -0.25, -0.25])


def test_dapo_lets_a_token_grow_further_than_it_lets_it_shrink() -> None:
    value = loss("dapo")(terms([1.27, 1.29, 0.81, 0.79], [1.0, 1.0, -1.0, -1.0]))
    assert value.clipped_W.tolist() == [False, True, False, True]


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    batch = terms([1.0, 8.0, 0.1], [2.0, 2.0, -1.0])
    value = loss("cispo")(batch)
    value.loss_W.sum().backward()
    assert batch.logprob_W.grad is not None
    assert batch.logprob_W.grad.tolist() == pytest.approx([-2.0, -10.0, 0.1])
    assert value.clipped_W.tolist() == [False, True, False]


def test_tis_weighs_the_sampler_and_clips_the_step() -> None:
    # Sampled at e^-1, and the learner gave it 4 times, half of, and just that as the step began.
    batch = terms([4.0, 0.5, 1.5], [1.0, 1.0, 1.0])
    batch = batch._replace(
        proximal_W=batch.logprob_W.detach() - torch.tensor([0.0, 0.0, 1.5]).log().nan_to_num(neginf=0)
    )
    value = loss("tis")(batch)
    value.loss_W.sum().backward()
    assert value.loss_W.tolist() == pytest.approx([-2.0, -0.5, -1.2])
    assert value.clipped_W.tolist() == [True, False, True]
    assert batch.logprob_W.grad is not None
    assert batch.logprob_W.grad.tolist() == pytest.approx([-2.0, -0.5, 0.0])


@pytest.mark.parametrize(
    ("estimator", "expected", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 1 + 0.5, 1 - math.exp(-0.5))],
)
def test_kl_to_the_reference_by_hand(estimator: str, expected: float, slope: float) -> None:
    batch = terms([1.0], [0.0])
    batch = batch._replace(reference_W=batch.logprob_W.detach() - 0.5)
    value = loss("dapo", kl={"weight": 2.0, "estimator": estimator})(batch)
    value.loss_W.sum().backward()
    assert float(value.loss_W.detach()) == pytest.approx(2.0 * expected)
    assert batch.logprob_W.grad is not None
    assert float(batch.logprob_W.grad) == pytest.approx(2.0 * slope)


def test_kl_as_advantage_shaping_is_held_constant_and_warms_up() -> None:
    batch = terms([1.0], [1.0])
    batch = batch._replace(reference_W=batch.logprob_W.detach() - 0.5)
    objective = loss("dapo", kl={"weight": 0.8, "estimator": "k1", "into": "advantage", "warmup_steps": 4})
    for step, weight in ((1, 0.2), (2, 0.4), (4, 0.8), (9, 0.8)):
        batch.logprob_W.grad = None
        value = objective(batch._replace(warmed_up=objective.kl.warmup_factor(step)))
        value.loss_W.sum().backward()
        assert batch.logprob_W.grad is not None
        assert float(batch.logprob_W.grad) == pytest.approx(-(1.0 - weight * 0.5))


def test_normalisation_by_hand() -> None:
    batch = terms([1.0] * 4, [0.0] * 4)
    batch = batch._replace(sequence_W=torch.tensor([0, 0, 0, 1]), branches_W=torch.tensor([3, 3, 3, 1]))
    loss_W = torch.tensor([1.0, 2.0, 3.0, 10.0])
    totals = {n: float(loss("dapo", normalize=n, max_generation_len=5).total(loss_W, batch, 4, 2)) for n in NORMALS}
    assert totals == pytest.approx({"token": 4.0, "sample": 6.0, "trajectory": 6.0, "length": 1.6})
    # The second sequence is one of two choices of its trajectory, whose other one is in another minibatch.
    batch = batch._replace(trajectory_branches_W=torch.tensor([3, 3, 3, 2]))
    assert float(loss("dapo", normalize="trajectory").total(loss_W, batch, 4, 2, 1.5)) == pytest.approx((2 + 5) / 1.5)


NORMALS = ("token", "sample", "trajectory", "length")


def test_bounds_that_make_no_sense_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.loss\.settings.*low: 1\.1"):
        loss("ppo_clip", low=1.1)
    with pytest.raises(ConfigError, match="cap: 0"):
        loss("reinforce", cap=0.5)
    with pytest.raises(ConfigError, match="cap: 0"):
        loss("tis", cap=0.5)
    with pytest.raises(ConfigError, match="max_generation_len: 0"):
        loss("dr_grpo", max_generation_len=0)
    with pytest.raises(ConfigError, match="max_clipped: 2"):
        loss("dapo", max_clipped=2.0)
    with pytest.raises(ConfigError, match=r"normalize.*'mean'"):
        loss("dapo", normalize="mean")
    with pytest.raises(ConfigError, match="weight: -1"):
        loss("dapo", kl={"weight": -1.0})
    with pytest.raises(ConfigError, match=r"expected 'cispo', 'cross_entropy'.* or 'tis'"):
        loss("guess")
