"""Settings files to start from, by game, hardware, model and training time.

``configs/presets`` holds what ``league config init`` writes when only the hardware is given. For a model on a card of
some size, the settings are computed with the estimate of ``league config check`` (``fit_card``).
"""

import tomllib
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec

from arena.environments import arena_names, make_environment, reports_progress
from arena.games import game_names
from lifecycle.resource_estimate import (
    ASLEEP_GB,
    BETWEEN_TURNS,
    KNOWN_MODELS,
    cached_tokens,
    known_model,
    trainer_device_memory,
)
from schemas.config import LeagueConfig, convert
from schemas.config.base import toml_value
from schemas.errors import ConfigError, UsageError, format_choices
from schemas.subjects import check_name

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


class PresetOptions(msgspec.Struct, frozen=True):
    """Options of ``league config init``."""

    game: str
    hardware: str
    model: str
    minutes: float
    card_gb: float | None = None
    """Memory of the one GPU that everything is computed on; then the hardware is not looked at."""


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
"""Hardware by name of the preset."""

CARDS_GB = (16.0, 24.0, 48.0, 80.0, 141.0)
"""Memory of the cards that the documentation has a table for."""
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
    held = trainer_device_memory(config, sizes)
    taken = sum(part.gb for part in held if not fit.in_turns or part.what in BETWEEN_TURNS)
    share = int(100 * (_USED_SHARE - taken / gb)) / 100
    if fit.in_turns and sum(part.gb for part in held) + ASLEEP_GB > _USED_SHARE * gb:
        # Training alone takes more than the card has.
        return fit
    cached = cached_tokens(sizes, fit.loras, fit.rank, share * gb)
    # A sequence of a game takes about a thousand tokens.
    rows = 2 ** min(max((max(cached, 0) // 1_024).bit_length() - 1, 4), 8)
    return msgspec.structs.replace(fit, share=share, rows=rows, cached_tokens=cached)


def card_table() -> str:
    """The known models on ``CARDS_GB`` as a Markdown table: rectangle, vLLM's share, cached tokens."""
    lines = [
        "| model | " + " | ".join(f"{gb:g} GB" for gb in CARDS_GB) + " |",
        "|---|" + "---|" * len(CARDS_GB),
    ]
    for model in KNOWN_MODELS:
        cells = []
        for gb in CARDS_GB:
            fit = fit_card(model, gb)
            cells.append(
                "–"
                if fit is None
                else f"{fit.rectangle_tokens:,} · r{fit.rank} · {fit.share:.2f} · {fit.cached_tokens / 1e3:,.0f}k"
                + (" · turns" if fit.in_turns else "")
            )
        lines.append(f"| {model.rpartition('/')[2].removesuffix('-Instruct')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _hardware(answers: PresetOptions) -> Hardware:
    """The hardware that settings are written for.

    Raises:
        UsageError: the card's model is not known, or does not fit.
    """
    if answers.card_gb is None:
        return HARDWARE[answers.hardware]
    model, gb = known_model(answers.model), answers.card_gb
    if model is None:
        raise UsageError(
            f"--model {answers.model}: its size is not known here; with --card expected one of "
            f"{format_choices([name.rpartition('/')[2] for name in KNOWN_MODELS], answers.model)}"
        )
    fit = fit_card(model, gb)
    if fit is None:
        fitting = [name.rpartition("/")[2] for name in KNOWN_MODELS if fit_card(name, gb) is not None]
        raise UsageError(
            f"--card {gb:g}: {model} does not fit, even where playing and training take turns; expected a larger card, "
            f"or of the models {format_choices(fitting)}"
        )
    return fit.hardware(model, gb)


_PRETRAINED_GAME_SETTINGS: dict[str, dict[str, Any]] = {
    "diplomacy": {"text": "egocentric", "analysis": 256},
    "nim": {"text": "json"},
}
"""Settings with pretrained models, for games whose default pieces are in the vocabulary of made models only."""
_GAME_SETTINGS: dict[str, dict[str, Any]] = {
    "diplomacy": {"text": "signposted"},
    "openspiel": {"game": "kuhn_poker"},
    "textarena": {"env": "SimpleTak-v0-train"},
}
_OUTCOME_REWARD_LINES = (
    "# The final score: this game tells nothing on the way.",
    "[trainer.reward]",
    'name = "outcome"',
    "",
)
_BOTS = {"random_bot": (800.0, True), "chaos_bot": (900.0, True)}
"""Initial rating, and whether the bot is a baseline of the success criteria; a game's other bots have neither."""


def check_options(answers: PresetOptions) -> None:
    """Validate the options.

    Raises:
        UsageError: unknown hardware or game, an invalid training time, or an empty model name.
    """
    if answers.card_gb is None and answers.hardware not in HARDWARE:
        raise UsageError(f"--hardware {answers.hardware}: no such preset; expected {format_choices(HARDWARE)}")
    if answers.game in arena_names():
        raise UsageError(
            f"--game {answers.game}: an arena; expected a game ({format_choices(game_names())}), or begin with the "
            f"configuration of an arena: configs/{answers.game.replace('_', '-')}.toml"
        )
    if answers.game not in game_names():
        raise UsageError(f"--game {answers.game}: no such game; expected {format_choices(game_names())}")
    if not 0 < answers.minutes < float("inf"):
        raise UsageError(f"--minutes {answers.minutes:g}: expected more than 0")
    if not answers.model.strip() or not answers.model.isprintable():
        raise UsageError("--model: expected 'made', a folder or a hub id")
    if answers.card_gb is None and answers.model == MADE and HARDWARE[answers.hardware].gpu_gb is not None:
        raise UsageError(
            f"--model made: too small to keep a GPU busy; expected a folder or a hub id with --hardware "
            f"{answers.hardware}, or --hardware laptop"
        )


def settings_file(answers: PresetOptions, explain: Callable[[LeagueConfig, float | None], list[str]]) -> str:
    """Render the settings file.

    ``explain`` returns comment lines on the settings' resource needs, given the memory of a GPU.

    Raises:
        UsageError: an invalid option.
        ConfigError: the game needs a package that is not installed.
    """
    check_options(answers)
    hardware = _hardware(answers)
    if answers.card_gb is not None and "/" not in answers.model:
        answers = msgspec.structs.replace(answers, model=hardware.model)
    body = _body(answers, hardware)
    comments = [f"# {line}".rstrip() for line in explain(_parse_body(body), hardware.gpu_gb)]
    starting = f"#\n{hardware.starting}" if hardware.starting else ""
    head = (
        f"# A league of {answers.game} for {hardware.what}. Written by `league config init`.\n"
        "# Every key has a default; schemas/config/ explains them all.\n"
        "#\n#   league config check FILE      what is wrong, what would be started, and what it takes\n"
        f"#   league up --config FILE       run it\n{starting}"
    )
    return head + "".join(f"{line}\n" for line in comments) + body


def _parse_body(body: str) -> LeagueConfig:
    return convert(tomllib.loads(body), LeagueConfig, "")


def _body(answers: PresetOptions, hardware: Hardware) -> str:
    is_made = answers.model == MADE
    settings = _GAME_SETTINGS.get(answers.game, {}) | (
        {} if is_made else _PRETRAINED_GAME_SETTINGS.get(answers.game, {})
    )
    contest = make_environment(answers.game, settings)
    known = [bot for bot in _BOTS if bot in contest.bots]
    if not known:
        raise ConfigError(f"game.name: {answers.game!r} has none of the bots {format_choices(_BOTS)}")
    return "\n".join(
        (
            f"name = {toml_value(check_name('name', answers.game.replace('_', '-')))}",
            "# Every match, draw and initialisation derives from it.",
            "seed = 1",
            "",
            "[game]",
            f"name = {toml_value(answers.game)}",
            *([f"settings = {toml_value(settings)}"] if settings else []),
            "",
            "# Who is there from the beginning. Baselines are those that the criteria speak of.",
            "[agents]",
            'base_model = { kind = "base", rating = 1000.0, baseline = true }',
            *(
                f"{bot} = {toml_value({'kind': 'bot', 'rating': _BOTS[bot][0], 'baseline': _BOTS[bot][1]})}"
                for bot in known
            ),
            "",
            "[model]",
            *_model_lines(answers, hardware),
            hardware.lines.rstrip(),
            "",
            *([] if reports_progress(contest) else _OUTCOME_REWARD_LINES),
            "[stop]",
            "# Of training, summed over restarts.",
            f"minutes = {answers.minutes:g}",
            "",
        )
    )


def _model_lines(answers: PresetOptions, hardware: Hardware) -> list[str]:
    if answers.model == MADE:
        sequences = 35_000 if answers.game == "diplomacy" else 4_000
        return [
            "# A small model, made here for the game's own pieces and taught random_bot's legal play; no download.",
            'base = "made"',
            f"cloning = {{ sequences = {sequences:_} }}",
        ]
    return [
        "# A folder, or a hub id that is downloaded once.",
        f"base = {toml_value(answers.model)}",
        "# Of the adapters, on all linears.",
        f"lora_rank = {hardware.lora_rank}",
        f"lora_alpha = {2.0 * hardware.lora_rank}",
    ]
