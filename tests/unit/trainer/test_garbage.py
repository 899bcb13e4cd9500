"""What a step leaves behind: nothing that only the collector of reference cycles would find.

It looks ever more rarely as a process comes to know more, and cannot see how large tensors are: a trainer of a thousand
steps grew by a quarter of a gigabyte.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import adapters
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends.native import NativeAdapter
from trainer.learner import Learner

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)


def learner(**settings: Any) -> Learner:
    decoder = Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(**settings), 5)


def played(games: int = 8) -> list[Trajectory]:
    rng, rollouts = np.random.default_rng(3), []
    for game in range(games):
        steps = [
            ModelCall(
                rng.integers(30, size=6).tolist(), [1, 2, 3], [0, 2], [-0.7, -0.6], [[1, 4], [3, 5, 6]], 0, clock, 1.0
            )
            for clock in (1, 2)
        ]
        role = "AB"[game % 2]
        rollouts.append(Trajectory(f"m{game}", "game", "main", 0, role, role, steps, 2, float(game), 0.5, 1))
    return rollouts


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tensors() -> int:
    # By type: asking some of torch's objects what they are makes them warn.
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learner": {"layout": "packed"}},
        {"learner": {"recompute_layers": True}},
        {"advantage": Plugin(name="gae")},
        {"loss": Plugin(name="ppo_clip", settings={"kl": {"weight": 0.1}})},
    ],
    ids=["rectangles", "packed", "recomputed", "critic", "reference"],
)
def test_steps_leave_no_tensors_in_reference_cycles(settings: dict[str, Any], tmp_path: Path) -> None:
    player, rollouts = learner(**settings), played()
    # The first steps make what stays: the optimiser's moments, and what torch itself keeps.
    for _ in range(2):
        assert not player.step(rollouts).skipped
    with without_collector():
        before = tensors()
        for _ in range(3):
            assert not player.step(rollouts).skipped
            player.save_adapter(tmp_path / "adapter")
            player.save_state(tmp_path / "state")
        assert tensors() == before
