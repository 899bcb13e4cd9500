"""Learner backends side by side: the native decoder against transformers and PEFT, on the same batch and adapter.

Processor time of one step on one thread, in rectangles and in packed rows, on models of several sizes, and which of the
two ``auto`` takes. The gradient norms are compared, so that the backends are known to compute the same step. Run:
``python -m benchmarks backends``.
"""

import os
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.bench_trainer import VOCABULARY, synthetic_trajectories
from benchmarks.sizes import size
from schemas.config import Plugin, TrainerConfig
from trainer.backends import AdapterSpec, load_backend
from trainer.backends.native import choose_backend
from trainer.learner import Learner

ROUNDS = size(2, 1)
ROLLOUTS, CALLS = size(8, 2), size(12, 2)
WIDTHS = size(((64, 2), (256, 4), (512, 8), (512, 16)), ((64, 2),))
"""Hidden size and layers."""
ADAPTER = AdapterSpec(rank=16, alpha=32.0, targets=())
TOLERANCE = 1e-3
"""Largest relative difference of the gradient norms."""


def make_model(folder: Path, width: int, layers: int) -> Path:
    """A random Qwen3 as a Hugging Face directory."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        max_position_embeddings=512,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def step_cost(folder: Path, backend: str, layout: str) -> tuple[float, float]:
    """Processor seconds of the best of some steps, and the gradient norm of the first one."""
    config = TrainerConfig(learner={"epochs": 1, "layout": layout})
    adapter = load_backend(Plugin(name=backend), folder, "cpu", "float32").new_adapter(ADAPTER, 0)
    learner, rollouts = Learner(adapter, config, seed=0), synthetic_trajectories(ROLLOUTS, CALLS, seed=1)
    costs, norms = [], []
    for _ in range(ROUNDS):
        began = time.process_time()
        norms.append(learner.step(rollouts).grad_norm)
        costs.append(time.process_time() - began)
    return min(costs), norms[0]


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    calls = ROLLOUTS * CALLS
    print(f"{calls} sequences of about 110 tokens, one epoch, rank {ADAPTER.rank}; load {os.getloadavg()[0]:.1f}")
    print(
        f"{'hidden × layers':16} {'layout':11} {'native s':>9} {'peft s':>9} {'peft / native':>14} {'norms differ':>13}"
        f" {'auto':>7}"
    )
    for width, layers in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder) / "model", width, layers)
            auto, _ = choose_backend(model, "cpu")
            for layout in ("rectangles", "packed"):
                (native, expected), (peft, found) = (step_cost(model, name, layout) for name in ("native", "peft"))
                apart = abs(found - expected) / expected
                assert apart < TOLERANCE, f"gradient norms {expected} and {found}"
                shape = f"{width} × {layers}"
                ratio = peft / native
                print(
                    f"{shape:16} {layout:11} {native:9.2f} {peft:9.2f} {ratio:14.2f} {apart:13.1e} {auto:>7}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
