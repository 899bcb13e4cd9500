"""AdamW against torch's own."""

import pytest
import torch
from torch import Tensor

from models.adamw import AdamW

SHAPES = ((3, 5), (7,), (2, 2))
UPDATES = 5


def parameters() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).requires_grad_(True) for shape in SHAPES]


@pytest.mark.parametrize("foreach", [None, False, True])
def test_updates_equal_torchs_to_the_bit(foreach: bool | None) -> None:
    own, reference = parameters(), parameters()
    adamw = AdamW([own[0], own[2]], 1e-2, 0.1, undecayed=[own[1]], betas=(0.9, 0.98), foreach=foreach)
    groups = [{"params": [reference[0], reference[2]], "weight_decay": 0.1}, {"params": [reference[1]]}]
    expected = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0, betas=(0.9, 0.98), foreach=foreach)
    random = torch.Generator().manual_seed(1)
    for update in range(UPDATES):
        for param, other in zip(own, reference, strict=True):
            param.grad = torch.randn(param.shape, generator=random)
            other.grad = param.grad.clone()
        if update == 2:
            own[2].grad = reference[2].grad = None
        for group in (*adamw.param_groups, *expected.param_groups):
            group["lr"] = 1e-2 / (update + 1)
        adamw.step()
        expected.step()
        assert all(torch.equal(*pair) for pair in zip(own, reference, strict=True))
        adamw.zero_grad()
        assert all(param.grad is None for param in own)
    for param, other in zip(own, reference, strict=True):
        assert {key: float(value.sum()) for key, value in adamw.state[param].items()} == {
            key: float(value.sum()) for key, value in expected.state[other].items()
        }
