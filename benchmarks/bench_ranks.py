"""A gradient step by one rank and by several, on the same rollouts.

Data-parallel ranks by the wall clock, in turns: two need two free cores to gain anything, and the machine's load is
printed beside. A base model spread over ranks (FSDP2) by its gradient, which has to be that of one rank. Run:
``python -m benchmarks ranks``.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch

from benchmarks.bench_trainer import EPOCHS, VOCABULARY, synthetic_trajectories
from benchmarks.sizes import size
from models import make_base
from models.decoder import Decoder
from schemas.config import Plugin, TrainerConfig
from schemas.trajectories import Trajectory
from trainer.backends import AdapterSpec, load_backend
from trainer.backends.native import NativeBackend
from trainer.learner import Learner
from trainer.rank_processes import RankGroup, RankSpec

ROUNDS, ROLLOUTS, CALLS = size(5, 1), size(70, 4), size(10, 2)
ADAPTER = AdapterSpec(rank=16, alpha=32.0, targets=())
SHARDED_RANKS = size((2, 4), ())
TOLERANCE = 1e-6
"""Largest difference of a gradient."""


def main(write: Callable[[str], object] = print) -> dict[str, float]:
    """Measure in turns, print the best and the median, and return the best."""
    torch.set_num_threads(1)
    rollouts = synthetic_trajectories(ROLLOUTS, CALLS, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base", [f"w{number}" for number in range(VOCABULARY)])
        groups = [
            RankGroup(RankSpec(base, ADAPTER, TrainerConfig(ranks=ranks, learner={"epochs": EPOCHS})))
            for ranks in (1, 2)
        ]
        try:
            learners = [_learner(base, group) for group in groups]
            seconds: list[list[float]] = [[], []]
            for _ in range(ROUNDS + 1):
                for took, group, learner in zip(seconds, groups, learners, strict=True):
                    began = time.perf_counter()
                    group.step(learner, rollouts, 0.0)
                    took.append(time.perf_counter() - began)
        finally:
            for group in groups:
                group.close()
        if SHARDED_RANKS:
            compare_sharded(base, rollouts, write)
    # The first round warms up.
    best = [min(took[1:]) for took in seconds]
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    write(f"{ROLLOUTS} rollouts of {CALLS} calls, {EPOCHS} epochs; {os.cpu_count()} cores, load {load}")
    for ranks, took in enumerate(seconds, 1):
        write(f"  {ranks} rank{'s' * (ranks > 1)}: {min(took[1:]):.2f} s at best, {np.median(took[1:]):.2f} s median")
    write(f"  two ranks are {best[0] / best[1]:.2f} times as fast")
    return {"one_rank_s": best[0], "two_ranks_s": best[1]}


def compare_sharded(base: Path, rollouts: Sequence[Trajectory], write: Callable[[str], object]) -> None:
    """Print how far the gradients of a base model spread over ranks are from those of one rank."""
    one = TrainerConfig(backend=Plugin(name="peft"), learner={"epochs": 1, "minibatch_sequences": 100_000})
    whole = Learner(load_backend(one.backend, base, "cpu", "float32").new_adapter(ADAPTER, 0), one, 0)
    expected = _gradient(whole, lambda: whole.step(rollouts))
    for ranks in SHARDED_RANKS:
        config = msgspec.structs.replace(one, backend=Plugin("peft", {"sharded": True}), ranks=ranks)
        backend = load_backend(config.backend, base, "cpu", "float32")
        with closing(RankGroup(RankSpec(base, ADAPTER, config), backend)) as group:
            learner = Learner(backend.new_adapter(ADAPTER, 0), config, 0, group.ranks)
            found = _gradient(learner, lambda: group.step(learner, rollouts, 0.0))  # noqa: B023  (called at once)
        apart = float((found - expected).abs().max())
        assert apart < TOLERANCE, f"gradients of {ranks} ranks differ by {apart}"
        write(
            f"  FSDP2 on {ranks} ranks: every number of the gradient within {apart:.1e} of one rank's, "
            f"of which the largest is {float(expected.abs().max()):.1e}"
        )


def _gradient(learner: Learner, step: Callable[[], object]) -> torch.Tensor:
    step()
    gradient: torch.Tensor | None = cast(Any, learner.adapter).flat_P.grad
    assert gradient is not None
    return gradient.clone()


def _learner(base: Path, group: RankGroup) -> Learner:
    decoder = Decoder.load(base)
    config = TrainerConfig(learner={"epochs": EPOCHS})
    return Learner(NativeBackend(decoder).new_adapter(ADAPTER, 0), config, 0, group.ranks)


if __name__ == "__main__":
    main()
