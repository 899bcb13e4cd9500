"""The public interface for environments: what ``from arena import …`` finds. Some of it is defined in packages above.

Aliases are names under which the self-play engine's users know a type.
"""

from arena.arena import Arena
from arena.clients import InferenceClient, ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode, SingleTurnEpisode
from arena.model_call import Limits
from arena.rubrics import RewardFn, Rubric
from arena.stores import ArtifactStore
from players.remote.openai_client import OpenAIClient, OpenAIClientConfig
from schemas.batches import Credit, CreditAssigner, StepKey, TrainingBatch, TrainingRecord, apply_credit
from schemas.episodes import (
    Artifact,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    Messages,
    ModelResponse,
    Role,
    Rollout,
    Step,
    unconstrained_model_call,
)
from schemas.errors import LeagueError
from trainer.advantages.total_reward import Constant, Episodic, GroupRelative, LeaveOneOut, Rae
from workers.logs import VerboseLogger

Actor = Role
MockInferenceClient = ScriptedClient
RolloutStepKey = StepKey
ConstantCredit = Constant
EpisodicRewardCredit = Episodic
GRPOCredit = GroupRelative
LeaveOneOutCredit = LeaveOneOut
RAECredit = Rae

__all__ = [
    "Actor",
    "AlternatingRolesEpisode",
    "Arena",
    "Artifact",
    "ArtifactStore",
    "ChatEpisode",
    "ConstantCredit",
    "Credit",
    "CreditAssigner",
    "Episode",
    "EpisodeRequest",
    "EpisodeState",
    "EpisodicRewardCredit",
    "GRPOCredit",
    "GenerateResult",
    "InferenceClient",
    "LeagueError",
    "LeaveOneOutCredit",
    "Limits",
    "Message",
    "Messages",
    "MockInferenceClient",
    "ModelResponse",
    "MultiTurnEpisode",
    "OpenAIClient",
    "OpenAIClientConfig",
    "RAECredit",
    "RewardFn",
    "Role",
    "Rollout",
    "RolloutStepKey",
    "Rubric",
    "SingleTurnEpisode",
    "Step",
    "StepKey",
    "TrainingBatch",
    "TrainingRecord",
    "VerboseLogger",
    "apply_credit",
    "unconstrained_model_call",
]
