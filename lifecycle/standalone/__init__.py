"""An arena in one process, without a broker: ``league arena``; its options and default configuration.

- ``session``  opens the models and runs the arena's steps
- ``trainee``  a model in this process, with the adapter that is trained
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from arena.environments import make_arena
from schemas.config import AgentConfig, EpisodesConfig, LeagueConfig, ModelConfig, Plugin, TrainerConfig
from schemas.config.base import assign_setting
from schemas.errors import ConfigError, UsageError, format_choices
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

SAME_MODEL = "same"
"""Name of a judge that is the playing model itself, in its current version."""
_QUICK_SEQUENCES = 3_000
"""Examples that a made model learns an arena's form from where no configuration is given: a fifth of a league's."""


class ArenaRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``league arena``."""

    config: LeagueConfig
    """Settings, of which ``game``, ``model``, ``prompts``, ``inference``, ``episodes`` and ``trainer`` are used."""
    steps: int
    seed: int
    """Seed of all draws; a made model's is ``config.seed``, so that another seed can play with the same model."""
    concurrency: int | None = None
    """Number of concurrent episodes; None for a default that suits the client."""
    run: Path = Path(".league")
    """Folder under which made models are kept."""
    where: Literal["here", "local", "hosted"] = "here"
    """Inference in this process, at a server of this machine, or at OpenRouter or OpenAI."""
    model: str = ""
    """Here a folder or hub id, empty for a made model; elsewhere the server's model name, empty for its first model."""
    port: int = 8000
    """Port of a server of this machine."""
    judge: str = ""
    """Model for calls without a role. Here the base model without training, or ``same``; elsewhere another model of the
    same server, empty or ``same`` for the same one."""
    train: bool = True
    """Whether a model in this process is trained."""
    save: Path | None = None
    """Folder to which the trained adapter is written at the end."""
    examples: bool = False
    verbose: bool = False
    """Whether every log message is shown on the terminal."""
    log: Path | None = None
    """File to which every log message is appended, as a JSON object a line."""

    def __post_init__(self) -> None:
        if self.where == "here" and self.judge not in ("", SAME_MODEL):
            raise UsageError(f"--judge-model {self.judge}: expected {SAME_MODEL!r}, or --local or --hosted with it")
        if self.save is not None and (self.where != "here" or not self.train):
            raise UsageError(f"--to {self.save}: training is off; expected a model here, and no --no-train")
        if self.save is not None and self.save.exists() and (not self.save.is_dir() or any(self.save.iterdir())):
            raise UsageError(f"--to {self.save}: something is there; expected a new or empty folder")

    @property
    def is_training(self) -> bool:
        """Whether weights change."""
        return self.train and self.where == "here"


def default_config(arena: str, settings: dict[str, Any]) -> LeagueConfig:
    """Default training configuration of an arena.

    Seats that play each other use as baseline what they earned so far (SPIRAL), with a KL penalty to the base model;
    a single seat is compared with its other attempts (GRPO).
    """
    meeting = len(make_arena(arena, settings).seats) > 1
    pulled = Plugin("grpo", {"entropy": 0.0, "kl": {"weight": 0.01}})
    trainer = TrainerConfig(
        advantage=Plugin("rae" if meeting else "group_relative"),
        # Over the whole vocabulary an entropy bonus rewards nonsense.
        loss=pulled if meeting else Plugin("ppo_clip", {"entropy": 0.0}),
        learner={"learning_rate": 2e-3},
    )
    return LeagueConfig(
        name=arena,
        game=Plugin(arena, settings),
        agents={"base_model": AgentConfig(kind="base", rating=1000.0, baseline=True)},
        model=ModelConfig(cloning={"sequences": _QUICK_SEQUENCES}),
        trainer=trainer,
        # Empty replies are scored, so that a model learns from them.
        episodes=EpisodesConfig(empty="count"),
    )


def resolve_credit_assigner(config: LeagueConfig) -> Plugin:
    """Derive the credit assigner for trees of episodes from a league's configuration.

    Raises:
        ConfigError: its advantage estimator is not for trees of episodes.
    """
    configured = config.trainer.advantage
    name = "grpo" if configured.name == "group_relative" else configured.name
    if name not in CREDIT_ASSIGNERS.names():
        names = ("group_relative", *(name for name in CREDIT_ASSIGNERS.names() if name != "grpo"))
        raise ConfigError(f"trainer.advantage: {configured.name!r} credits no trees; expected {format_choices(names)}")
    return Plugin(name, {key: value for key, value in configured.settings.items() if key != "by"})


def with_settings(config: LeagueConfig, settings: dict[str, Any]) -> LeagueConfig:
    """Replace some of the arena's settings in the configuration."""
    game = msgspec.structs.replace(config.game, settings=config.game.settings | settings)
    return msgspec.structs.replace(config, game=game)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` settings: values are JSON where they parse as it, else text; dots open tables."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--settings {pair}: expected KEY=VALUE")
        parsed: Any = value
        with contextlib.suppress(msgspec.DecodeError):
            parsed = msgspec.json.decode(value.encode())
        assign_setting(settings, key.split("."), parsed, f"--settings {pair}")
    return settings


def make_item_settings(arena: str, items: Sequence[str], questions: str) -> dict[str, Any]:
    """Settings that select the items to play, by the arena's own keys.

    Plain texts are ``items``; ``questions`` is a JSON list of items that are more than a text, in which
    ``ground_truth`` is accepted for ``answer``.
    """
    if not items and not questions:
        return {}
    name = make_arena(arena, {}).items
    if not name:
        raise UsageError(f"league arena {arena}: it takes no items; expected neither ITEMS nor --questions")
    if items and questions:
        raise UsageError(f"league arena {arena}: ITEMS and --questions both; expected one of them")
    if items:
        return {name: list(items)}
    try:
        parsed = msgspec.json.decode(questions.encode(), type=list[Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"--questions: {error}; expected a JSON list") from None
    for index, item in enumerate(parsed):
        if isinstance(item, dict) and "ground_truth" in item:
            parsed[index] = {"answer" if key == "ground_truth" else key: value for key, value in item.items()}
    return {name: parsed}


def make_size_settings(arena: str, batch_size: int | None, attempts: int | None) -> dict[str, int]:
    """Settings for the size of a step, by the arena's own keys."""
    spec = make_arena(arena, {})
    settings: dict[str, int] = {}
    for flag, name, value in (("batch-size", spec.batch, batch_size), ("solver-rollouts", spec.attempts, attempts)):
        if value is None:
            continue
        if not name:
            raise UsageError(f"league arena {arena}: it has no setting for --{flag}")
        settings[name] = value
    return settings
