"""A disk that is full while a state is saved: the one before stays whole, and nothing half-written is left."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from models import adapters
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.config import TrainerConfig
from trainer.backends.native import NativeAdapter
from trainer.learner import Learner

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write more than that into a file, as it does when the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def learner() -> Learner:
    decoder = Decoder.random(SHAPE, seed=0).requires_grad_(False)
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(), 5)


def test_a_state_that_does_not_fit_leaves_the_one_before_it(tmp_path: Path) -> None:
    saved = learner()
    saved.save_state(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    before = saved.adapter.flat_P.detach().clone()
    with torch.no_grad():
        saved.adapter.flat_P.add_(1.0)
    saved.steps = 9
    with files_of_at_most(size // 2), pytest.raises(OSError, match="File too large"):
        saved.save_state(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    resumed = learner()
    resumed.load_state(tmp_path)
    assert resumed.steps == 0
    assert torch.equal(resumed.adapter.flat_P, before)
