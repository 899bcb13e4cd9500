"""The configuration of a league: one TOML file, decoded into structs that reject what they don't know.

A plugin (game, sampler, rating system, reward, advantage estimator, loss) has a ``name`` and a ``settings`` table;
the plugin's own struct decodes the table, through ``convert``, so that one error form serves all.

- ``base``        plugins by name; mappings to structs and back; checks
- ``agents``      ``agents``, ``policies``, ``schedule``
- ``evaluation``  ``rollout``, ``episodes``, ``matchmaking``, ``ratings``, ``evaluation``, ``promotion``
- ``training``    ``model``, ``inference``, ``prompts``, ``experience``, ``trainer``, ``stop``
- ``history``     ``blobs``, ``history``, ``tracker``, ``alarms``
- ``league``      all of them together, and the file that they are read from

All of them can be imported from here.
"""

from schemas.config.agents import AgentConfig, CheckpointScheduleConfig, PolicyConfig, RemoteAgentConfig, SearchConfig
from schemas.config.base import Plugin, check_at_least, check_positive, convert, to_builtins
from schemas.config.evaluation import (
    EpisodesConfig,
    EvaluationConfig,
    MatchmakingConfig,
    PromotionConfig,
    RatingsConfig,
    RolloutConfig,
)
from schemas.config.history import AlarmsConfig, BlobsConfig, HistoryConfig, LogExportConfig, TrackerConfig
from schemas.config.league import LeagueConfig, load_config
from schemas.config.training import (
    BufferConfig,
    ExperienceConfig,
    GroupAssemblyConfig,
    ImitationConfig,
    InferenceConfig,
    ModelConfig,
    PromptsConfig,
    StopConfig,
    StopCriterion,
    TrainerConfig,
    TransformsConfig,
)

__all__ = [
    "AgentConfig",
    "AlarmsConfig",
    "BlobsConfig",
    "BufferConfig",
    "CheckpointScheduleConfig",
    "EpisodesConfig",
    "EvaluationConfig",
    "ExperienceConfig",
    "GroupAssemblyConfig",
    "HistoryConfig",
    "ImitationConfig",
    "InferenceConfig",
    "LeagueConfig",
    "LogExportConfig",
    "MatchmakingConfig",
    "ModelConfig",
    "Plugin",
    "PolicyConfig",
    "PromotionConfig",
    "PromptsConfig",
    "RatingsConfig",
    "RemoteAgentConfig",
    "RolloutConfig",
    "SearchConfig",
    "StopConfig",
    "StopCriterion",
    "TrackerConfig",
    "TrainerConfig",
    "TransformsConfig",
    "check_at_least",
    "check_positive",
    "convert",
    "load_config",
    "to_builtins",
]
