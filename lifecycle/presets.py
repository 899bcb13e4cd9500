"""Settings files to start from, by game, hardware, model and training time.

Tables for a kind of machine are those of a file in ``configs/presets``. For an arena of this package on a made model,
and for a game that a packaged model was seen to learn, all settings come from its file in ``configs``.
"""

import re
import tomllib
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from arena.environments import ADAPTERS, ArenaSpec, EnvironmentSpec, arena_names, make_environment, reports_progress
from arena.games import game_names
from models.gguf import PACKAGED_MODELS
from schemas.config import LeagueConfig, TrainerConfig, convert, load_config
from schemas.config.base import toml_document
from schemas.config.league import config_path
from schemas.errors import ConfigError, UsageError, format_choices
from schemas.subjects import check_name

MADE = "made"
PRESETS = ("laptop", "gpu-24gb", "gpu-80gb", "trainer-and-rollouts")


class Preset(msgspec.Struct, frozen=True):
    """A file of ``configs/presets``."""

    name: str
    comments: str
    """Comment lines at its top: the machine, and how to start a league there."""
    tables: str
    """Tables that depend on the machine: [inference], [rollout], [evaluation] and [trainer], but its loss."""
    config: LeagueConfig

    @property
    def model(self) -> str:
        """Default base model."""
        return self.config.model.base

    @property
    def known_models(self) -> list[str]:
        """Base models by name that suit the machine: made or packaged ones without a GPU."""
        return [MADE, *PACKAGED_MODELS] if self.config.inference.device == "cpu" else [self.model]

    @property
    def minutes(self) -> float:
        """Default training time."""
        return self.config.stop.minutes or 0.0


def load_preset(name: str) -> Preset:
    """Load a preset by its name; ``UsageError`` if there is none of that name."""
    if name not in PRESETS:
        raise UsageError(f"--hardware {name}: no such preset; expected {format_choices(PRESETS, name)}")
    path = Path("configs", "presets", f"{name}.toml")
    text = config_path(path).read_text(encoding="utf-8")
    comments = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    tables = re.split(r"\[trainer\.loss\]|\[stop\]", text[text.index("[inference]") :])[0]
    return Preset(name, comments, tables, load_config(path))


class PresetOptions(msgspec.Struct, frozen=True):
    """Options of ``league config init``."""

    preset: Preset
    game: str
    model: str
    minutes: float


_PACKAGED_MINUTES = 60.0
_PACKAGED_GAMES = {
    "kuhn_poker": "smollm2-kuhn",
    "nim": "smollm2-nim",
    "tic_tac_toe": "smollm2-tic-tac-toe",
    "word_problems": "smollm2-word-problems",
}
"""Files of games that the packaged model was seen to learn (``docs/results.md``)."""
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
_OUTCOME_REWARD = """\
# The final score: {} tells nothing on the way.
[trainer.reward]
name = "outcome"
"""
DEFAULT_LOSS = TrainerConfig().loss.name
_SAMPLER_LOSS = "# Weighs out what vLLM's log-probabilities, of bfloat16, differ from the learner's."
_EPISODES = """
# An empty reply is scored as others are: a match that failed would cost nothing.
[episodes]
empty = "count"
"""
_BOTS = {"random_bot": (800.0, True), "chaos_bot": (900.0, True)}
"""Initial rating, and whether the bot is a baseline of the success criteria; a game's other bots have neither."""


def _check_options(answers: PresetOptions) -> None:
    if answers.game in ADAPTERS:
        raise UsageError(
            f"--game {answers.game}: it needs settings that name an environment, which cannot be given here; "
            "expected a settings file as in docs/environments.md"
        )
    if answers.game not in (contests := [*game_names(), *arena_names()]):
        raise UsageError(
            f"--game {answers.game}: no such game or arena, nor one in a folder that LEAGUE_PLUGINS names; expected "
            f"{format_choices(contests, answers.game)}"
        )
    if not 0 < answers.minutes < float("inf"):
        raise UsageError(f"--minutes {answers.minutes:g}: expected a finite number above 0")
    if not answers.model.strip() or not answers.model.isprintable():
        raise UsageError(f"--model: expected {format_choices([MADE, *PACKAGED_MODELS])}, a folder or a hub id")
    if answers.model == MADE and answers.preset.config.inference.device != "cpu":
        raise UsageError(
            f"--model made: too small to keep a GPU busy; expected a folder or a hub id with --hardware "
            f"{answers.preset.name}, or --hardware laptop"
        )


def settings_file(answers: PresetOptions, explain: Callable[[LeagueConfig], list[str]]) -> str:
    """Render the settings file; ``explain`` returns comment lines on the resources that settings need."""
    _check_options(answers)
    body = _body(answers)
    comments = "".join(f"# {line}".rstrip() + "\n" for line in explain(convert(tomllib.loads(body), LeagueConfig, "")))
    packaged = _packaged_file(answers.preset, answers.game, answers.model)
    source = f"configs/{packaged.name}" if packaged else f"the preset {answers.preset.name}"
    return (
        f"# A league of {answers.game}, written by `league config init` from {source}.\n"
        f"{'' if packaged else answers.preset.comments}"
        "# Every key has a default; schemas/config/ explains them all.\n"
        "#\n#   league config check FILE      what is wrong, what would be started, and what it takes\n"
        f"#   league up --config FILE       run it\n{comments}{body}"
    )


def _body(answers: PresetOptions) -> str:
    is_made = answers.model == MADE
    stop = "\n".join(_stop_lines(answers))
    if packaged := _packaged_file(answers.preset, answers.game, answers.model):
        # Beside the steps that it was seen to learn in.
        return packaged.read_text(encoding="utf-8").replace("[stop]\n", stop)
    tuned = config_path(Path("configs", f"{answers.game.replace('_', '-')}.toml"))
    if is_made and answers.game in arena_names() and tuned.is_file():
        return re.sub(r"\[stop\]\n(.*\n)+", lambda _: stop, tuned.read_text(encoding="utf-8"))
    settings = _GAME_SETTINGS.get(answers.game, {})
    if not is_made:
        settings = settings | _PRETRAINED_GAME_SETTINGS.get(answers.game, {})
    contest = make_environment(answers.game, settings)
    bots = {
        name: {"kind": "bot", "rating": rating, "baseline": is_baseline}
        for name, (rating, is_baseline) in _BOTS.items()
        if name in contest.bots
    }
    if not bots:
        raise ConfigError(f"game.name: {answers.game!r} has none of the bots {format_choices(_BOTS)}")
    agents = {"base_model": {"kind": "base", "rating": 1000.0, "baseline": True}} | bots
    game = {"name": answers.game} | ({"settings": settings} if settings else {})
    return "\n".join(
        (
            toml_document({"name": check_name("name", answers.game.replace("_", "-"))}).rstrip(),
            "# Master seed of every match, draw and initialisation.",
            "seed = 1",
            "",
            toml_document({"game": game}),
            "# Initial agents; the success criteria compare policies with the baselines.",
            toml_document({"agents": agents}),
            "[model]",
            *_model_lines(answers),
            "",
            _machine_tables(answers).rstrip(),
            "",
            *_learning_lines(contest, answers.preset.config.trainer.loss.name),
            *_stop_lines(answers),
        )
    )


def default_minutes(preset: Preset, game: str, model: str) -> float:
    """Training time of the preset, or what the packaged model takes at most on two cores."""
    return _PACKAGED_MINUTES if _packaged_file(preset, game, model) else preset.minutes


def _packaged_file(preset: Preset, game: str, model: str) -> Path | None:
    """The file of ``configs`` for a packaged model and a game that it was seen to learn; None if there is none."""
    if model not in PACKAGED_MODELS or preset.config.inference.device != "cpu":
        return None
    name = _PACKAGED_GAMES.get(game)
    return config_path(Path("configs", f"{name}.toml")) if name else None


def _machine_tables(answers: PresetOptions) -> str:
    """The preset's tables; the learner of a preset with a made model has other settings than a pretrained model."""
    is_for_another = answers.preset.model == MADE != answers.model
    return re.sub(r"learner = .*\n", "", answers.preset.tables) if is_for_another else answers.preset.tables


def _learning_lines(contest: EnvironmentSpec, given: str) -> Iterable[str]:
    """Tables on what is learnt from; an arena's replies are free text, and only its score says how good they were.

    ``given`` is the loss that the machine asks for.
    """
    is_given = given != DEFAULT_LOSS
    if not isinstance(contest, ArenaSpec):
        loss_lines = (_SAMPLER_LOSS, toml_document({"trainer": {"loss": {"name": given}}})) if is_given else ()
        return loss_lines if reports_progress(contest) else (_OUTCOME_REWARD.format("this game"), *loss_lines)
    # Attempts at one task are compared with each other; opponents' results with what the role has earned so far.
    advantage, loss, settings = "rae", "grpo", {"entropy": 0.0, "kl": {"weight": 0.04}}
    if len(contest.seats) == 1:
        advantage, loss, settings = "group_relative", DEFAULT_LOSS, {"entropy": 0.0}
    if is_given:
        loss = given
    return (
        _OUTCOME_REWARD.format("this arena"),
        toml_document({"trainer": {"advantage": {"name": advantage}}}),
        "# Without an entropy bonus: among all tokens of a text it rewards nonsense.",
        toml_document({"trainer": {"loss": {"name": loss, "settings": settings}}}).rstrip("\n"),
        _EPISODES,
    )


def _stop_lines(answers: PresetOptions) -> Iterable[str]:
    return ("[stop]", "# Minutes of training, summed over restarts.", f"minutes = {answers.minutes:g}", "")


def _model_lines(answers: PresetOptions) -> list[str]:
    if answers.model == MADE:
        sequences = 35_000 if answers.game == "diplomacy" else 4_000
        return [
            "# A small model, made here for the game's own pieces and taught random_bot's legal play; no download.",
            'base = "made"',
            f"cloning = {{ sequences = {sequences:_} }}",
        ]
    return [
        "# A folder, or a hub id that is downloaded once.",
        toml_document({"base": answers.model}).rstrip(),
        "# Rank of the adapters, on all linear layers.",
        f"lora_rank = {answers.preset.config.model.lora_rank}",
        f"lora_alpha = {answers.preset.config.model.lora_alpha}",
    ]
