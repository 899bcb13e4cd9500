"""Kinds of machines with settings that fit them, and settings computed for a model on one card of some size."""

from itertools import product

import msgspec

from lifecycle.model_dimensions import KNOWN_MODELS
from lifecycle.resource_estimate import ASLEEP_GB, BETWEEN_TURNS, cached_tokens, trainer_device_memory
from schemas.config import LeagueConfig, convert

MADE = "made"


class Hardware(msgspec.Struct, frozen=True):
    """A kind of machine, with settings that fit it."""

    what: str
    model: str
    """Default base model."""
    minutes: float
    """Default training time, in minutes."""
    gpu_gb: float | None
    """Memory of each GPU; None without GPU."""
    lines: str
    """Tables [inference], [rollout], [evaluation] and [trainer], with comments."""
    lora_rank: int = 16
    starting: str = ""
    """Further commands, where ``league up`` is not enough."""


_GPU_INFERENCE = """
[inference]
backend = "vllm"
device = "cuda"
# One process holds the playing model; rollout workers and evaluators ask it. Without it each would start a vLLM.
servers = 1{turns}
max_rows = {rows}
# Distinct adapters of the opponents and the hero in one batch.
max_adapters = {loras}
options = {{ gpu_memory_utilization = {share}, max_model_len = {length}, max_loras = {loras} }}

[rollout]
workers = {workers}
games_in_flight = {games}

[evaluation]
every = 20
games_in_flight = 16
gatekeeper_games = 28
benchmark_games = 56
"""

_IN_TURNS = """
# They do not fit beside each other: vLLM sleeps while a step is trained, with its weights in the host's memory.
colocate = true"""

_GPU_TRAINER = """
[trainer]
device = "{device}"
# Of the base model. The adapter, its gradient and moments are float32 whatever this says.
dtype = "bfloat16"
rollouts_per_step = 64

[trainer.learner]
learning_rate = {rate}
epochs = 1
# Tokens computed at once: memory for activations follows this and the longest sequence, hardly the batch.
rectangle_tokens = {tokens}
layout = "packed"
# Layers are computed again in the backward pass: a third more time, a small part of the activations.
recompute_layers = true
"""

_LAPTOP = """
[inference]
# In every playing worker's own process: fastest for a small model.
backend = "local"

[rollout]
# One for each core but one, so that the trainer has a core too.
workers = 1
games_in_flight = 35
# Play and train in turns: on few cores as fast as both at once, and every step is on-policy.
ahead_steps = 1.0

[evaluation]
every = 50
gatekeeper_games = 21
benchmark_games = 70

[trainer]
rollouts_per_step = 70
learner = { learning_rate = 1e-3, epochs = 2, minibatch_sequences = 200 }
"""

HARDWARE = {
    "laptop": Hardware("a laptop without a GPU: two cores, 4 GB", MADE, 10, None, _LAPTOP),
    "gpu-24gb": Hardware(
        "one GPU of 24 GB",
        "Qwen/Qwen3-1.7B",
        480,
        24.0,
        _GPU_INFERENCE.format(turns="", rows=64, loras=4, share=0.5, length=8192, workers=1, games=64)
        + _GPU_TRAINER.format(device="cuda", rate="5e-5", tokens=8192),
    ),
    "gpu-80gb": Hardware(
        "one GPU of 80 GB",
        "Qwen/Qwen3-8B",
        720,
        80.0,
        _GPU_INFERENCE.format(turns="", rows=128, loras=8, share=0.5, length=8192, workers=2, games=96)
        + _GPU_TRAINER.format(device="cuda", rate="2e-5", tokens=8_192),
        lora_rank=32,
    ),
    "trainer-and-rollouts": Hardware(
        "one GPU of 80 GB that trains, and N that play, in one machine",
        "Qwen/Qwen3-8B",
        720,
        80.0,
        _GPU_INFERENCE.format(turns="", rows=256, loras=8, share=0.9, length=8192, workers=4, games=128)
        + _GPU_TRAINER.format(device="cuda:1", rate="2e-5", tokens=32_768),
        lora_rank=32,
        starting="""\
# `league up` plays on GPU 0 and trains on GPU 1. Each further GPU is one process more, of which all players hear:
#   CUDA_VISIBLE_DEVICES=2 league worker inference --run .league
# and, once the inference processes wait for requests, players: league worker rollout --run .league
""",
    ),
}

CARDS_GB = (16.0, 24.0, 48.0, 80.0, 141.0)
"""Memory of the cards that the documentation has a table for."""
MAX_CARD_GB = 10_000
_USED_SHARE = 0.92
"""Share of a card that is handed out: estimates are not exact, and allocators leave gaps."""
_RECTANGLES = (32_768, 16_384, 8_192, 4_096)
_MAX_LENGTH = 8_192
_LARGE, _LARGE_CARD_GB = 2.5e9, 40.0
"""Parameters from which a model gets the lower learning rate and, on a card of that memory, the larger rank."""


class CardFit(msgspec.Struct, frozen=True):
    """Settings with which a model plays and is trained on one GPU."""

    rank: int
    rectangle_tokens: int
    max_length: int
    """Longest prompt and completion together."""
    share: float
    """Of the GPU, for vLLM."""
    loras: int
    rows: int
    """Sequences decoded at once."""
    cached_tokens: int
    """Tokens whose keys and values fit."""
    in_turns: bool = False
    """Whether inference and trainer take turns (``inference.colocate``)."""

    def hardware(self, model: str, gb: float) -> Hardware:
        """The card as hardware to write settings for."""
        large = KNOWN_MODELS[model].parameters > _LARGE
        inference = _GPU_INFERENCE.format(
            turns=_IN_TURNS if self.in_turns else "",
            rows=self.rows,
            loras=self.loras,
            share=self.share,
            length=self.max_length,
            workers=1 if self.rows <= 64 else 2,
            games=self.rows,
        )
        trainer = _GPU_TRAINER.format(device="cuda", rate="2e-5" if large else "5e-5", tokens=self.rectangle_tokens)
        return Hardware(f"one GPU of {gb:g} GB", model, 480, gb, inference + trainer, self.rank)


def fit_card(model: str, gb: float) -> CardFit | None:
    """Settings for a known model on one card; None where it does not fit even in turns.

    The largest rectangle that leaves vLLM room for eight sequences of full length, or else for two; where there is
    none, with adapters of half the rank; where there is none either, in turns.
    """
    wide = KNOWN_MODELS[model].parameters > _LARGE and gb >= _LARGE_CARD_GB
    sizes = ((32, 8), (16, 4)) if wide else ((16, 4 if gb < _LARGE_CARD_GB else 8),)
    tried = [*product((False,), sizes, (8, 2), _RECTANGLES), *product((True,), sizes[-1:], (8, 2), _RECTANGLES)]
    for in_turns, (rank, loras), sequences, tokens in tried:
        length = min(tokens, _MAX_LENGTH)
        fit = _fit_vllm(model, gb, CardFit(rank, tokens, length, 0.0, loras, 0, 0, in_turns))
        if fit.cached_tokens >= sequences * length:
            return fit
    return None


def _fit_vllm(model: str, gb: float, fit: CardFit) -> CardFit:
    """The same with what the trainer leaves of the card for vLLM."""
    learner = {"rectangle_tokens": fit.rectangle_tokens, "layout": "packed", "recompute_layers": True}
    trainer = {"device": "cuda", "dtype": "bfloat16", "learner": learner}
    config = convert({"model": {"base": model, "lora_rank": fit.rank}, "trainer": trainer}, LeagueConfig, "")
    sizes = KNOWN_MODELS[model]
    parts = trainer_device_memory(config, sizes)
    taken = sum(part.gb for part in parts if not fit.in_turns or part.what in BETWEEN_TURNS)
    share = int(100 * (_USED_SHARE - taken / gb)) / 100
    if fit.in_turns and sum(part.gb for part in parts) + ASLEEP_GB > _USED_SHARE * gb:
        # Training alone takes more than the card has.
        return fit
    cached = cached_tokens(sizes, fit.loras, fit.rank, share * gb)
    # A sequence of a game takes about a thousand tokens.
    rows = 2 ** min(max((max(cached, 0) // 1_024).bit_length() - 1, 4), 8)
    return msgspec.structs.replace(fit, share=share, rows=rows, cached_tokens=cached)


def card_table() -> str:
    """The known models on ``CARDS_GB`` as a Markdown table: rectangle, vLLM's share, cached tokens."""

    def cell(fit: CardFit | None) -> str:
        if fit is None:
            return "–"
        text = f"{fit.rectangle_tokens:,} · r{fit.rank} · {fit.share:.2f} · {fit.cached_tokens / 1e3:,.0f}k"
        return f"{text} · turns" if fit.in_turns else text

    lines = ["| model | " + " | ".join(f"{gb:g} GB" for gb in CARDS_GB) + " |", "|---|" + "---|" * len(CARDS_GB)]
    for model in KNOWN_MODELS:
        name = model.rpartition("/")[2].removesuffix("-Instruct")
        lines.append(f"| {name} | " + " | ".join(cell(fit_card(model, gb)) for gb in CARDS_GB) + " |")
    return "\n".join(lines)
