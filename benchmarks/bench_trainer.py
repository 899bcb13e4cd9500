"""The learner against the usual loop: Hugging Face + PEFT, one sequence at a time, text tokenised again.

Both compute the same loss on the same synthetic trajectories with the same 91,000-parameter model and a LoRA of rank 16
on every linear, on one thread; a padded-batch variant of the usual loop is timed too, at several batch sizes. Run:
``python -m benchmarks trainer``; with ``--memory``, peak memory as batch and length grow, ``--shape 1.7b --device cuda
--dtype bfloat16`` of a large model (``small`` runs on a CPU in a few minutes).
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.sizes import size
from benchmarks.trainer_cases import SHAPES, memory_growth
from models import adapters
from models.decoder import Decoder
from schemas.config import TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends.native import NativeAdapter
from trainer.learner import Learner

VOCABULARY, PROMPT, EPOCHS = 150, 72, 2
ROUNDS, PEER_SECONDS = size(3, 1), size(2.0, 0.05)
ROLLOUTS, CALLS = size(70, 4), size(12, 4)
PADDED_ROWS = size((8, 16, 32), (4,))


def synthetic_trajectories(count: int, steps: int, seed: int) -> list[Trajectory]:
    """Rollouts of ``steps`` sequences of about 110 tokens, about 12 branches of about 8 allowed tokens in each."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for game in range(count):
        calls = [_make_call(rng, clock=year // 2, progress=float(rng.integers(1, 9))) for year in range(steps)]
        role = f"role{game % 7}"
        trajectories.append(
            Trajectory(f"m{game}", "game", "main", game % 7, role, role, calls, steps // 2, 5.0, 0.5, 1)
        )
    return trajectories


def _make_call(rng: np.random.Generator, clock: int, progress: float) -> ModelCall:
    length = int(rng.integers(28, 49))
    completion = rng.integers(VOCABULARY, size=length).tolist()
    branches = np.sort(rng.choice(length, size=12, replace=False)).tolist()
    allowed = [
        sorted({completion[at], *rng.integers(VOCABULARY, size=rng.integers(1, 15)).tolist()}) for at in branches
    ]
    logprobs = [-float(np.log(len(tokens))) for tokens in allowed]
    prompt = rng.integers(VOCABULARY, size=PROMPT + int(rng.integers(-8, 9))).tolist()
    return ModelCall(prompt, completion, branches, logprobs, allowed, 0, clock, progress)


def make_base(folder: Path) -> Any:
    """A random model of the prototype's shape as a Hugging Face directory; returns the Hugging Face model."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return model


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def hugging_face_rate(model: Any, tokenizer: Tokenizer, trajectories: Sequence[Trajectory], rows: int) -> float:
    """Sequences a second of the usual loop, ``rows`` padded sequences at a time, an update every 200."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    texts = [
        (" ".join(f"w{i}" for i in step.prompt_ids), " ".join(f"w{i}" for i in step.completion_ids), step)
        for trajectory in trajectories
        for step in trajectory.steps
    ]
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < PEER_SECONDS:
        at = done % (len(texts) - rows)
        torch.autograd.backward(hugging_face_loss(model, tokenizer, texts[at : at + rows]))
        done += rows
        if done % 200 < rows:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return done / (time.perf_counter() - began)


def hugging_face_loss(model: Any, tokenizer: Tokenizer, batch: Sequence[tuple[str, str, ModelCall]]) -> torch.Tensor:
    """The clipped objective on the branches, over the allowed tokens, by padded Hugging Face forward."""
    prompts = [tokenizer.encode(prompt).ids for prompt, _, _ in batch]
    completions = [tokenizer.encode(completion).ids for _, completion, _ in batch]
    rows = [torch.tensor(p + c) for p, c in zip(prompts, completions, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits = model(input_ids=ids, attention_mask=mask).logits
    total = torch.zeros(())
    for row, (prompt, (_, _, step)) in enumerate(zip(prompts, batch, strict=True)):
        places = torch.tensor(step.branches) + len(prompt) - 1
        allowed = torch.zeros(len(places), logits.shape[-1], dtype=torch.bool)
        for branch, tokens in enumerate(step.allowed):
            allowed[branch, tokens] = True
        logprobs = logits[row, places].masked_fill(~allowed, -torch.inf).log_softmax(-1)
        chosen = logprobs.gather(1, ids[row, places + 1, None]).squeeze(1)
        entropy = -(logprobs.exp() * logprobs.masked_fill(~allowed, 0.0)).sum()
        ratio = (chosen - torch.tensor(step.logprobs)).exp()
        total = total - torch.minimum(ratio, ratio.clamp(0.8, 1.25)).sum() - 0.01 * entropy
    return total


def make_learner(folder: Path, layout: str = "rectangles") -> Learner:
    decoder = Decoder.load(folder)
    lora = adapters.create(decoder.shape, adapters.LoraConfig(), seed=0)
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(learner={"epochs": EPOCHS, "layout": layout}), seed=0)


def learner_rate(learner: Learner, trajectories: list[Trajectory]) -> float:
    """Sequences a second of ``Learner.step``, from trajectories to the end of the last epoch."""
    report = learner.step(trajectories)
    return report.sequences * EPOCHS / report.seconds


def main(write: Callable[[str], object] = print) -> dict[str, float]:
    """Measure in turns, take the best round of each, print, and return the figures."""
    from peft import PeftModel

    torch.set_num_threads(1)
    trajectories = synthetic_trajectories(ROLLOUTS, CALLS, seed=1)
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    mean_tokens = sum(len(step.prompt_ids) + len(step.completion_ids) for step in steps) / len(steps)
    names = ["learner", "learner, packed in rows", "HF + PEFT, one sequence at a time"]
    rates = dict.fromkeys([*names, *(f"HF + PEFT, padded batches of {rows}" for rows in PADDED_ROWS)], 0.0)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = make_base(Path(scratch) / "base")
        learner, packed = (make_learner(Path(scratch) / "base", layout) for layout in ("rectangles", "packed"))
        learner.save_adapter(Path(scratch) / "lora")
        peer = PeftModel.from_pretrained(base, Path(scratch) / "lora", is_trainable=True)
        tokenizer = make_tokenizer()
        for _ in range(ROUNDS):
            rounds = (
                learner_rate(learner, trajectories),
                learner_rate(packed, trajectories),
                *(hugging_face_rate(peer, tokenizer, trajectories, rows) for rows in (1, *PADDED_ROWS)),
            )
            rates = {name: max(best, rate) for (name, best), rate in zip(rates.items(), rounds, strict=True)}
    for name, rate in rates.items():
        write(f"trainer: {name:34} {rate * mean_tokens:9,.0f} tokens/s {rate:7,.0f} sequences/s")
    own, _, single, *batches = rates.values()
    padded = max(batches)
    write(f"trainer: ratio {own / single:.1f}x one sequence at a time, {own / padded:.1f}x the best padded batches")
    return {"tokens_per_s": own * mean_tokens, "ratio_single": own / single, "ratio_padded": own / padded}


MEMORY_SETTINGS: list[dict[str, object]] = [
    {"logit_elements": 1 << 40},
    {},
    {"recompute_layers": True},
    {"layout": "packed"},
]
"""All logits at once, and what bounds them."""


def measure_memory(shape: str, device: str, dtype: str, rectangle_tokens: int) -> None:
    """Print peak memory and speed as the batch grows, and the sequences."""
    count = max(rectangle_tokens // 128, 1)
    for way in MEMORY_SETTINGS:
        # Of the small model's 8,000 tokens' vocabulary the default holds as many logits as a rectangle has.
        pieces = {"logit_elements": 1 << 20} if shape == "small" and "logit_elements" not in way else {}
        settings = {"rectangle_tokens": rectangle_tokens} | pieces | way
        sizes = [(count, 256), (4 * count, 256), (count, 1024)]
        print(f"trainer: {shape} {dtype} {memory_growth(shape, device, dtype, sizes, settings)}", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--memory", action="store_true")
    options.add_argument("--shape", choices=SHAPES)
    options.add_argument("--device", default="cpu")
    options.add_argument("--dtype", default="float32")
    options.add_argument("--tokens", type=int, default=2_048, help="computed at once; 8192 for a GPU")
    given = options.parse_args()
    if given.memory or given.shape:
        measure_memory(given.shape or "small", given.device, given.dtype, given.tokens)
    else:
        main()
