"""What a learner's step takes: tokens a second and memory, by layout, batch and length; each case a process of its own.

``python -m benchmarks.trainer_cases '{"sequences": 16, "length": 512}'`` measures one and prints JSON.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from models import adapters
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.config import TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends.native import NativeAdapter
from trainer.learner import Learner

SHAPES = {
    "small": DecoderShape(
        "qwen3", 8_000, 128, intermediate_size=384, layers=4, heads=4, kv_heads=2, head_dim=32, tied=True, qk_norm=True
    ),
    "1.7b": DecoderShape(
        "qwen3",
        151_936,
        2048,
        intermediate_size=6144,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        tied=True,
        qk_norm=True,
    ),
}


class TrainerCase(msgspec.Struct, frozen=True):
    """One measurement."""

    sequences: int
    length: int
    """Tokens of the longest sequence, half of them free choices; the shortest has a quarter."""
    shape: str = "small"
    device: str = "cpu"
    dtype: str = "float32"
    learner: dict[str, object] = {}
    """Settings of the learner."""
    repeats: int = 1


class CaseResult(msgspec.Struct, frozen=True):
    """What a case took."""

    tokens_per_s: float
    """Of the last step, prompts and completions once."""
    peak_mib: float
    """More than before the first step: resident memory of the process, or memory allocated on the GPU."""


def make_rollouts(sequences: int, length: int, vocabulary: int) -> list[Trajectory]:
    """Rollouts of one step, a sequence each: random tokens, half of them free choices, ``length`` at most."""
    rng = np.random.default_rng(0)
    trajectories = []
    for game in range(sequences):
        half = int(rng.integers(length // 4, length + 1)) // 2
        prompt, completion = (rng.integers(vocabulary, size=half).tolist() for _ in range(2))
        every = list(range(half))
        step = ModelCall(prompt, completion, every, [-float(np.log(vocabulary))] * half, [[] for _ in every], 0, 1, 0.0)
        trajectories.append(Trajectory(f"m{game}", "game", "main", 0, "A", "A", [step], 2, float(game % 3), 0.5, 1))
    return trajectories


def measure(case: TrainerCase) -> CaseResult:
    """Take the steps of a case in this process."""
    shape, dtype = SHAPES[case.shape], getattr(torch, case.dtype)
    torch.set_num_threads(1 if case.device == "cpu" else torch.get_num_threads())
    decoder = Decoder(shape, case.device, dtype).requires_grad_(False)
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    lora = adapters.create(shape, adapters.LoraConfig(), 0, case.device)
    learner = Learner(NativeAdapter(decoder, lora), TrainerConfig(learner={"epochs": 1} | case.learner), seed=0)
    trajectories = make_rollouts(case.sequences, case.length, SHAPES[case.shape].vocab_size)
    before = peak_memory(case.device)
    for _ in range(case.repeats):
        report = learner.step(trajectories)
    assert not report.skipped, report.skipped
    return CaseResult(report.tokens / report.seconds, (peak_memory(case.device) - before) / 2**20)


def peak_memory(device: str) -> float:
    """Most bytes so far: resident memory of the process, or memory allocated on the GPU."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return float(torch.cuda.max_memory_allocated())


def measure_in_subprocess(case: TrainerCase) -> CaseResult:
    """Measure in a new process, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.trainer_cases", msgspec.json.encode(case).decode()]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return msgspec.json.decode(result.stdout.splitlines()[-1], type=CaseResult)


def memory_growth(
    shape: str, device: str, dtype: str, sizes: Sequence[tuple[int, int]], settings: dict[str, object]
) -> str:
    """Peak memory as batch and length grow, on one line."""
    cases = [TrainerCase(count, length, shape, device, dtype, settings) for count, length in sizes]
    found = [(case, measure_in_subprocess(case)) for case in cases]
    columns = [
        f"{case.sequences} x {case.length}: {each.peak_mib:,.0f} MiB {each.tokens_per_s:,.0f}/s" for case, each in found
    ]
    return f"{json.dumps(settings)}  " + ", ".join(columns)


if __name__ == "__main__":
    print(msgspec.json.encode(measure(msgspec.json.decode(sys.argv[1], type=TrainerCase))).decode())
