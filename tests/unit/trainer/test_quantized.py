"""Base models in 8 and 4 bits, with the real bitsandbytes on a CPU (``make test-quantized``)."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("bitsandbytes", reason="the extra 'quantized'")

from tests.unit.trainer import test_backends as backends
from tests.unit.trainer.test_backends import learner, settings, trajectories

# Of 8-bit products, which are computed in 16 bits whatever the rest is in.
pytestmark = pytest.mark.filterwarnings("ignore:MatMul8bitLt.*:UserWarning")
NEARNESS = {"8bit": 0.02, "4bit": 0.2}
"""Largest distance of the gradient from that of the whole base, relative to that one's norm."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of 4-bit weights have 64 numbers.
        patch.setitem(backends.COMMON, "intermediate_size", 128)
        return backends.make_model(tmp_path_factory.mktemp("mistral"), "mistral")


@pytest.mark.parametrize("bits", NEARNESS)
@pytest.mark.parametrize("layout", ["rectangles", "packed"])
def test_gradient_is_near_that_of_the_whole_base_and_a_resumed_learner_goes_on_alike(
    base: Path, tmp_path: Path, bits: str, layout: str
) -> None:
    config = settings(layout, recompute_layers=layout == "packed")
    whole, held = learner(base, "peft", config), learner(base, "peft", config, quantization=bits)
    for one in (whole, held):
        # Not zero, as B is at first.
        with torch.no_grad():
            one.adapter.flat_P.add_(
                0.02 * torch.randn(one.adapter.flat_P.shape, generator=torch.Generator().manual_seed(1))
            )
        assert not one.step(trajectories()).skipped
    (expected, found) = (one.adapter.flat_P.grad for one in (whole, held))
    assert expected is not None
    assert found is not None
    assert float((found - expected).norm() / expected.norm()) < NEARNESS[bits]
    held.save_state(tmp_path / "state")
    again = learner(base, "peft", config, quantization=bits)
    again.load_state(tmp_path / "state")
    for one in (held, again):
        one.step(trajectories(seed=2))
    assert torch.equal(again.adapter.flat_P, held.adapter.flat_P)
    # The adapter is a plain one.
    held.save_adapter(tmp_path / "adapter")
    whole.load_adapter(tmp_path / "adapter", 2)
    assert torch.equal(whole.adapter.flat_P, held.adapter.flat_P)
