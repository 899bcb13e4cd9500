"""Losses against float64 references, hand-computed cases and finite differences."""

import math
from collections.abc import Callable

import pytest
import torch

from schemas.config import Plugin
from schemas.errors import ConfigError
from trainer.losses import LOSSES, Terms
from trainer.losses.base import LossValue, allowed_distribution

ALLOWED = [[0, 3], [1, 2, 4], [5]]
SAMPLED = [3, 1, 5]


def ragged() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    row_N = torch.tensor([row for row, tokens in enumerate(ALLOWED) for _ in tokens])
    token_N = torch.tensor([token for tokens in ALLOWED for token in tokens])
    chosen_W = torch.tensor([1, 2, 5])
    return row_N, token_N, chosen_W


def terms(ratios: list[float], advantages: list[float], old: float = -1.0) -> Terms:
    logprob_W = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_(True)
    return Terms(
        logprob_W,
        torch.full_like(logprob_W, old).detach(),
        torch.zeros_like(logprob_W).detach(),
        torch.tensor(advantages, dtype=torch.float64),
    )


def loss(name: str, **settings: float) -> Callable[[Terms], LossValue]:
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


@pytest.mark.parametrize("name", ["ppo_clip", "reinforce"])
def test_gradients_match_finite_differences(name: str) -> None:
    row_N, token_N, chosen_W = ragged()
    base_WV = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    base_N = base_WV[row_N, token_N]
    temperature_W = torch.tensor([0.7, 1.0, 1.0], dtype=torch.float64)
    advantage_W = torch.tensor([1.5, -0.7, 0.3], dtype=torch.float64)
    with torch.no_grad():
        old_W = allowed_distribution(base_N, row_N, chosen_W, temperature_W)[0] - 0.05
    objective = loss(name)

    def total(logits_N: torch.Tensor) -> torch.Tensor:
        logprob_W, entropy_W = allowed_distribution(logits_N, row_N, chosen_W, temperature_W)
        if name == "reinforce":
            # The importance weight is held constant: differentiate around it.
            held = (allowed_distribution(base_N, row_N, chosen_W, temperature_W)[0] - old_W).exp()
            return (-held * advantage_W * logprob_W - 0.01 * entropy_W).sum()
        return objective(Terms(logprob_W, old_W, entropy_W, advantage_W)).loss_W.sum()

    logits_N = base_N.clone().requires_grad_(True)
    logprob_W, entropy_W = allowed_distribution(logits_N, row_N, chosen_W, temperature_W)
    objective(Terms(logprob_W, old_W, entropy_W, advantage_W)).loss_W.sum().backward()
    assert logits_N.grad is not None
    for i in range(len(logits_N)):
        nudge = torch.zeros_like(base_N)
        nudge[i] = 1e-6
        slope = (total(base_N + nudge) - total(base_N - nudge)) / 2e-6
        assert float(logits_N.grad[i]) == pytest.approx(float(slope), abs=1e-7)


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


def test_bounds_that_make_no_sense_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.loss\.settings.*low: 1\.1"):
        loss("ppo_clip", low=1.1)
    with pytest.raises(ConfigError, match="cap: 0"):
        loss("reinforce", cap=0.5)
    with pytest.raises(ConfigError, match="expected 'ppo_clip' or 'reinforce'"):
        loss("guess")
