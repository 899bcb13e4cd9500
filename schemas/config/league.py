"""The whole configuration of a league, and the file that it is read from."""

import os
import re
import tomllib
from pathlib import Path

import msgspec

from schemas.config.agents import AgentConfig, CheckpointScheduleConfig, PolicyConfig, _check_remote
from schemas.config.base import Plugin, Table, convert
from schemas.config.evaluation import (
    EpisodesConfig,
    EvaluationConfig,
    MatchmakingConfig,
    PromotionConfig,
    RatingsConfig,
    RolloutConfig,
)
from schemas.config.history import AlarmsConfig, BlobsConfig, HistoryConfig, TrackerConfig, WorkersConfig
from schemas.config.training import (
    ExperienceConfig,
    InferenceConfig,
    ModelConfig,
    PromptsConfig,
    StopConfig,
    TrainerConfig,
)
from schemas.errors import ConfigError, LeagueError, format_choices
from schemas.files import read_bounded
from schemas.numbers import Int64
from schemas.subjects import check_name

_DEFAULT_AGENTS = {
    "base_model": AgentConfig(kind="base", rating=1000.0, baseline=True),
    "random_bot": AgentConfig(kind="bot", rating=800.0, baseline=True),
    "chaos_bot": AgentConfig(kind="bot", rating=900.0, baseline=True),
}
_DIPLOMACY = "diplomacy"
"""The only game that ``chaos_bot`` plays."""


class LeagueConfig(Table, frozen=True):
    """The whole configuration of a league."""

    name: str = "league"
    seed: Int64 = 0
    """Master seed; every match, draw and initialisation derives from it by name."""
    game: Plugin = Plugin(name=_DIPLOMACY)
    """Game (``arena/games``) or episodes (``arena/environments``) to play."""
    plugins: tuple[str, ...] = ()
    """Folders with plugins, laid out like the package (``arena/games/race.py``), relative to this file; also those of
    the environment variable ``LEAGUE_PLUGINS``, which other machines set to where their copies are."""
    agents: dict[str, AgentConfig] = msgspec.field(default_factory=lambda: _DEFAULT_AGENTS)
    """Agents that the league starts with: by default the base model, ``random_bot``, and in Diplomacy ``chaos_bot``."""
    model: ModelConfig = ModelConfig()
    inference: InferenceConfig = InferenceConfig()
    prompts: PromptsConfig = PromptsConfig()
    rollout: RolloutConfig = RolloutConfig()
    episodes: EpisodesConfig = EpisodesConfig()
    matchmaking: MatchmakingConfig = MatchmakingConfig()
    schedule: CheckpointScheduleConfig = CheckpointScheduleConfig()
    promotion: PromotionConfig = PromotionConfig()
    ratings: RatingsConfig = RatingsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    experience: ExperienceConfig = ExperienceConfig()
    trainer: TrainerConfig = TrainerConfig()
    policies: dict[str, PolicyConfig] = {}
    """Policies that are trained beside ``trainer.policy``, by name."""
    history: HistoryConfig = HistoryConfig()
    blobs: BlobsConfig = BlobsConfig()
    tracker: TrackerConfig = TrackerConfig()
    workers: WorkersConfig = WorkersConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    stop: StopConfig = StopConfig()

    def __post_init__(self) -> None:
        if self.agents is _DEFAULT_AGENTS:
            playing = {name: a for name, a in _DEFAULT_AGENTS.items() if name != "chaos_bot"}
            msgspec.structs.force_setattr(
                self, "agents", dict(_DEFAULT_AGENTS) if self.game.name == _DIPLOMACY else playing
            )
        check_name("name", self.name)
        check_name("trainer.policy", self.trainer.policy)
        for agent, config in self.agents.items():
            if (config.search is not None) != (config.kind == "search"):
                raise ConfigError(f"agents.{agent}.search: expected for kind 'search', and only for it")
            if config.search is not None and config.search.policy not in ("", *self.trained_policies):
                raise ConfigError(
                    f"agents.{agent}.search.policy: {config.search.policy!r}; "
                    f"expected {format_choices(self.trained_policies)}"
                )
            if (config.remote is not None) != (config.kind == "remote"):
                raise ConfigError(f"agents.{agent}.remote: expected for kind 'remote', and only for it")
            if config.remote is not None:
                _check_remote(f"agents.{agent}.remote", config.remote)
        for policy in self.policies:
            check_name(f"policies.{policy}", policy)
            if policy == self.trainer.policy or policy in self.agents:
                raise ConfigError(f"policies.{policy}: the name is taken; expected another")
        for policy, trained in self.policies.items():
            others = [name for name in self.trained_policies if name != policy]
            if trained.against and trained.against not in others:
                raise ConfigError(f"policies.{policy}.against: {trained.against!r}; expected {format_choices(others)}")
            for parent in trained.reset_parents:
                if parent not in self.trained_policies:
                    raise ConfigError(
                        f"policies.{policy}.reset_parents: {parent!r}; expected {format_choices(self.trained_policies)}"
                    )
        if [a.kind for a in self.agents.values()].count("base") != 1:
            raise ConfigError("agents: expected exactly one of kind 'base'")
        _check_buffer(self)
        if self.max_lora_rank < self.model.lora_rank:
            raise ConfigError(
                f"inference.max_lora_rank: {self.max_lora_rank}; expected at least model.lora_rank, which is "
                f"{self.model.lora_rank}"
            )

    @property
    def base_agent(self) -> str:
        """Name of the agent that is the base model without an adapter."""
        return next(name for name, agent in self.agents.items() if agent.kind == "base")

    @property
    def max_lora_rank(self) -> int:
        """Largest rank of an adapter that is loaded."""
        largest = self.inference.max_lora_rank
        return self.model.lora_rank if largest is None else largest

    @property
    def trained_policies(self) -> dict[str, PolicyConfig]:
        """All policies that are trained: ``trainer.policy`` first, in the role ``main``; then the others by name."""
        hero = PolicyConfig(role="main", rollout_workers=self.rollout.workers)
        return {self.trainer.policy: hero} | dict(sorted(self.policies.items()))

    @property
    def chooses_by_reward(self) -> bool:
        """Whether any population is compared by rewards."""
        return any(policy.reset_by == "reward" for policy in self.policies.values())


def _check_buffer(config: LeagueConfig) -> None:
    buffer = config.trainer.buffer
    window = buffer.window(config.trainer.rollouts_per_step)
    if buffer.batch_delay > max(config.rollout.ahead_steps, 1.0):
        raise ConfigError(
            f"trainer.buffer.batch_delay: {buffer.batch_delay}; expected at most rollout.ahead_steps, "
            f"{config.rollout.ahead_steps}"
        )
    if buffer.capacity is not None and buffer.capacity <= window:
        raise ConfigError(f"trainer.buffer.capacity: {buffer.capacity}; expected more than the {window} drawn from")


_PACKAGED = Path(__file__).resolve().parents[2]
"""The folder of the installed packages; ``configs`` is beside them, as in the repository."""


def config_path(path: Path) -> Path:
    """The file of a configuration: ``configs/NAME.toml`` is the package's own where there is no such file."""
    own = _PACKAGED / path
    return own if path.parts[:1] == ("configs",) and not path.exists() and own.is_file() else path


MAX_CONFIG_BYTES = 4 * 1024 * 1024
_STRINGS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|' + r"'''.*?'''" + r'|"(?:\\.|[^"\\\n])*+"' + r"|'[^'\n]*+'|#[^\n]*+", re.DOTALL
)
_LONG_KEY = re.compile(r'(?<![\w"-])(?:[\w"-]++[ \t]*+\.[ \t]*+){32}')
"""A key such as ``a.a.a``, for which tomllib takes time and memory by the square of its parts."""


def load_config(path: Path) -> LeagueConfig:
    """Read a league's configuration, as ``config_path`` finds it; ``ConfigError`` for a missing or wrong file."""
    try:
        text = read_bounded(config_path(path), MAX_CONFIG_BYTES).decode()
        if _LONG_KEY.search(_STRINGS.sub('""', text)):
            raise ConfigError(f"{path}: a key of 32 parts or more; expected fewer")
        plain = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a TOML file") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, LeagueError):
            raise
        # Integers of thousands of digits, and tables within tables without end, are no TOMLDecodeError.
        raise ConfigError(f"{path}: not TOML: {error}") from None
    try:
        config = convert(plain, LeagueConfig, "")
        folders = tuple(os.path.abspath(config_path(path).parent / folder) for folder in config.plugins)
        return msgspec.structs.replace(config, plugins=folders)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
