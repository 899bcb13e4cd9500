"""One GPU in about ten minutes, without downloads: random weights in the shapes of Qwen3 0.6B, 1.7B and 4B.

Parity of sampler and learner; the learner's tokens per second and model FLOP utilisation, packed and padded; sampled
tokens per second of the local engine and, where it is installed, of vLLM, by number of adapters; adapter swaps; peak
memory beside the estimate of ``league config check``; gradient steps per hour of a small league whose players and
trainer share the card. Writes a Markdown table. Run: ``make gpu`` or ``python -m benchmarks gpu --out FILE``; each
shape is a process of its own, so that its memory is. In miniature the same code runs on a CPU, without the league.
"""

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch

import league
from benchmarks.bench_inference import DType, LocalSampler
from benchmarks.inference_cases import (
    CASES,
    InferenceCase,
    adapter_names,
    make_models,
    make_prompts,
    make_requests,
    sample_requests,
)
from benchmarks.sizes import is_miniature, size, skip
from benchmarks.trainer_cases import make_rollouts, peak_memory
from benchmarks.vllm_peer import VllmPeer, vllm_peer
from inference import Request, SamplingParameters
from lifecycle.resource_estimate import ModelDimensions, trainer_memory
from schemas.config import LeagueConfig, Plugin, convert
from schemas.events import GradientStepTaken
from schemas.trajectories import ModelCall
from trainer.backends import AdapterSpec, LearnerBackend, load_backend
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import recompute_choices

SHAPES = size(("0.6b", "1.7b", "4b"), ("tiny",))
LINE_UPS = size((1, 2, 4, 8), (1, 2))
LEARNER_SEQUENCES, LEARNER_LENGTH, RECTANGLE_TOKENS = size(32, 4), size(2_000, 64), size(16_384, 128)
STEPS, PARITY_PROMPTS, SWAP_TOKENS = size(3, 1), size(16, 2), size(48, 4)
LEAGUE_STEPS = 5
LORA = AdapterSpec(16, 32.0, ())
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}
"""Dense bfloat16 operations per second that the maker states, by a part of the card's name, in 10^12."""

Row = tuple[str, str]
"""A measurement's name and its value."""


def flops_per_token(case: InferenceCase, length: int) -> float:
    """Useful operations of a training step per token, counted as in PaLM (2022), appendix B, for a frozen base.

    Two per parameter in the forward pass, and two in the backward pass, which has no gradients of base weights; and
    causal attention over sequences of ``length``, forward and twice as much backward. What is recomputed is not useful.
    """
    sizes = _dimensions(case)
    attention = 2 * sizes.layers * sizes.heads * sizes.head_dim * length
    return 4.0 * sizes.parameters + 3.0 * attention


def _dimensions(case: InferenceCase) -> ModelDimensions:
    shape = case.shape
    return ModelDimensions(
        shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.mlp, case.vocabulary, shape.head_dim, shape.tied
    )


def measure_parity(backend: LearnerBackend, sampler: LocalSampler, case: InferenceCase) -> list[Row]:
    """Differences of log-probabilities on what the local engine sampled freely, with the base model."""
    requests = [
        Request(prompt, None, None, SamplingParameters(seed=row, max_tokens=case.tokens))
        for row, prompt in enumerate(make_prompts(case, 0)[:PARITY_PROMPTS])
    ]

    async def generate() -> list[ModelCall]:
        found = await asyncio.gather(*map(sampler.backend.generate, requests))
        return [
            ModelCall(list(request.prompt_ids), one.completion_ids, one.branches, one.logprobs, one.allowed, 0, 1, 0.0)
            for request, one in zip(requests, found, strict=True)
        ]

    calls, adapter = asyncio.run(generate()), backend.new_adapter(LORA, 0)
    with torch.no_grad():
        evaluate = adapter.begin(LearnerConfig(), enabled=False).loss_inputs
    learner_W, recorded_W = recompute_choices(evaluate, backend.shape, adapter.device, calls)
    apart_W = abs(learner_W - recorded_W)
    return [("parity, mean and largest difference", f"{apart_W.mean():.1e}, {apart_W.max():.1e} nats")]


def measure_learner(folder: Path, case: InferenceCase, device: str, dtype: str, layout: str) -> list[Row]:
    """The learner's speed, utilisation and peak memory in one layout."""
    table = {"epochs": 1, "rectangle_tokens": RECTANGLE_TOKENS, "layout": layout, "recompute_layers": True}
    trainer = {"learner": table, "dtype": dtype, "device": device, "advantage": "episodic"}
    config = convert({"model": {"base": str(folder / "base")}, "trainer": trainer}, LeagueConfig, "")
    backend = load_backend(Plugin(name="auto"), folder / "base", device, dtype)
    learner = Learner(backend.new_adapter(LORA, 0), config.trainer, seed=0)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    rollouts = make_rollouts(LEARNER_SEQUENCES, LEARNER_LENGTH, case.vocabulary)
    reports = [learner.step(rollouts) for _ in range(1 + STEPS)]
    assert not reports[-1].skipped, reports[-1].skipped
    rate = max(report.tokens / report.seconds for report in reports[1:])
    rows = [(f"learner, {layout}, tokens/s", f"{rate:,.0f}")]
    peak = device_tflops(device)
    if peak:
        used = rate * flops_per_token(case, LEARNER_LENGTH) / (peak * 1e12)
        rows.append((f"learner, {layout}, MFU", f"{used:.1%}"))
    if device != "cpu":
        estimate = sum(part.gb for part in trainer_memory(config, _dimensions(case)))
        rows.append(
            (f"learner, {layout}, peak GB, and as estimated", f"{peak_memory(device) / 1e9:.1f}, {estimate:.1f}")
        )
    return rows


def device_tflops(device: str) -> float | None:
    """The card's peak in 10^12 operations per second; None where it is not known."""
    name = device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def device_name(device: str) -> str:
    """The card's name, or that it is a CPU."""
    return "CPU" if device == "cpu" else torch.cuda.get_device_name()


def measure_sampling(folder: Path, shape: str, device: str, sampler: LocalSampler) -> list[Row]:
    """Sampled tokens per second by number of adapters, of the local engine and of vLLM."""
    rows = [_sampling_row("local engine", sampler)]
    with vllm_peer(folder, shape, max(LINE_UPS), device) as vllm:
        if vllm:
            rows.append(_sampling_row("vLLM", vllm))
    return rows


def _sampling_row(name: str, sampler: LocalSampler | VllmPeer) -> Row:
    cells = []
    for place, count in enumerate(LINE_UPS):
        timings = [sampler.sample_run(adapter_names(count), False, 10 * place + run) for run in range(2)]
        cells.append(f"{timings[-1].tokens / timings[-1].seconds:,.0f}")
    return f"{name}, tokens/s with {', '.join(map(str, LINE_UPS))} adapters", ", ".join(cells)


def measure_swap(folder: Path, case: InferenceCase, sampler: LocalSampler) -> Row:
    """Seconds to load a new version of an adapter and sample its first tokens."""
    first, second = adapter_names(2)
    seconds = []
    for number, name in enumerate((second, first, second)):
        digest = f"{name}-{number}"
        requests = make_requests(msgspec.structs.replace(case, tokens=SWAP_TOKENS, rows=1), [digest], False, 99)
        began = time.perf_counter()
        sampler.backend.load_adapter(digest, folder / name)
        asyncio.run(sample_requests(sampler.backend, requests))
        seconds.append(time.perf_counter() - began)
    return f"adapter swap and the next {SWAP_TOKENS} tokens", f"{min(seconds):.2f} s"


def measure_shape(shape: str, device: str) -> list[Row]:
    """Everything about one shape, in this process."""
    case = CASES[shape]
    dtype: DType = "float32" if device == "cpu" else "bfloat16"
    with tempfile.TemporaryDirectory() as name:
        folder = make_models(Path(name), case, max(LINE_UPS))
        learner_rows = [
            row for layout in ("packed", "rectangles") for row in measure_learner(folder, case, device, dtype, layout)
        ]
        gc.collect()
        sampler = LocalSampler(folder, case, max(LINE_UPS), device, dtype)
        backend = load_backend(Plugin(name="auto"), folder / "base", device, dtype)
        rows = measure_parity(backend, sampler, case) + learner_rows + [measure_swap(folder, case, sampler)]
        return rows + measure_sampling(folder, shape, device, sampler)


def measure_league(device: str) -> list[Row]:
    """Gradient steps per hour of a league of Nim whose players and trainer share the card."""
    shape = CASES["0.6b"].shape
    config = {
        "name": "gpu",
        "game": {"name": "nim", "settings": {"seats": 3, "heaps": [3, 4, 5]}},
        "agents": {"base_model": {"kind": "base", "rating": 1000.0}, "random_bot": {"kind": "bot", "rating": 800.0}},
        "model": {
            "shape": {
                name: getattr(shape, name) for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "mlp")
            },
            "cloning": {"sequences": 0},
        },
        "inference": {"device": device, "options": {"dtype": "bfloat16"}},
        "rollout": {"games_in_flight": 64},
        "trainer": {"device": device, "dtype": "bfloat16", "rollouts_per_step": 64},
        "stop": {"steps": LEAGUE_STEPS},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = league.up(config, folder)
        times = [recorded.time_ns for recorded in run.events(GradientStepTaken)]
    hours = (times[-1] - times[0]) / 3.6e12
    return [("a league of Nim on the card, gradient steps/h", f"{(len(times) - 1) / hours:,.0f}")]


def measure_in_subprocess(part: str, device: str) -> list[Row]:
    """Measure a shape, or ``league``, in a process of its own (not in miniature); a failure is a row too."""
    if is_miniature():
        return measure_shape(part, device)
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--device", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return [("failed", f"exit code {done.returncode}; the reasons are on standard error")]
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Row])


def write_table(device: str) -> str:
    """All measurements as Markdown."""
    lines = [f"Card: {device_name(device)}; torch {torch.__version__}. `make gpu`, random weights.", ""]
    lines += ["| shape | measurement | value |", "|---|---|---|"]
    for part in (*SHAPES, *([] if is_miniature() else ["league"])):
        found = measure_in_subprocess(part, device)
        lines += [f"| {part} | {name} | {value} |" for name, value in found]
        print("\n".join(lines[-len(found) :]), flush=True)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and write the table; 1 where a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu")
    parser.add_argument("--device", default=size("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=None, help="file for the table")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        skip("no CUDA device")
    if options.part:
        rows = (
            measure_league(options.device) if options.part == "league" else measure_shape(options.part, options.device)
        )
        print(msgspec.json.encode(rows).decode())
        return 0
    text = write_table(options.device)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
        print(f"written to {options.out}")
    return int("| failed |" in text)


if __name__ == "__main__":
    sys.exit(main())
