"""The facts of a league's history: immutable, past tense, tagged by ``type``, JSON on the wire.

Every event has a deterministic ``key``: publishing the same fact twice gives the same key, so that the broker and
every fold can drop the copy. New fields get defaults; a changed meaning gets a new schema version (``codec``).

- ``history``   the league itself: opening, configuration, pauses, branches, imports, seals, snapshots; workers
- ``agents``    registration, checkpoints, versions of external agents, retirement
- ``match``     draws of opponents, sessions, results, failures, voids, requests to remote agents, stored artifacts
- ``rating``    ratings, evaluations, promotions, regressions
- ``training``  published policies, gradient steps, resets, ends of training
- ``base``      what all events have

All of them can be imported from here.
"""

from schemas.events.agents import (
    AgentActivated,
    AgentRegistered,
    AgentRetired,
    CheckpointAdded,
    CheckpointPromoted,
    ExternalVersionAdded,
)
from schemas.events.base import Event
from schemas.events.history import (
    AdapterSlotsReduced,
    HistoryArchived,
    HistoryImported,
    HistorySealed,
    InferenceServing,
    LeagueBranched,
    LeagueConfigured,
    LeagueOpened,
    LeaguePaused,
    LeagueResumed,
    ResultsImported,
    SnapshotTaken,
    WorkerJoined,
    WorkerLeft,
)
from schemas.events.match import (
    ArtifactStored,
    MatchFailed,
    MatchFinished,
    MatchVoided,
    OpponentPick,
    OpponentsSampled,
    RemoteAsked,
    SeatResult,
    SessionOpened,
)
from schemas.events.rating import (
    AgentRating,
    BenchmarkRequested,
    EvaluationFinished,
    EvaluationRequested,
    PromotionDecided,
    RatingChange,
    RatingsCorrected,
    RatingUpdated,
    RegressionNoticed,
)
from schemas.events.training import (
    MAX_CLOSED_GROUPS,
    AdaptersDropped,
    BufferContents,
    DroppedTrajectories,
    GradientStepTaken,
    OpenGroup,
    ParentAdapter,
    PartialTrajectory,
    PolicyPublished,
    PolicyReset,
    TrainingFinished,
)

EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}
"""Every event by its tag."""

__all__ = [
    "EVENT_TYPES",
    "MAX_CLOSED_GROUPS",
    "AdapterSlotsReduced",
    "AdaptersDropped",
    "AgentActivated",
    "AgentRating",
    "AgentRegistered",
    "AgentRetired",
    "ArtifactStored",
    "BenchmarkRequested",
    "BufferContents",
    "CheckpointAdded",
    "CheckpointPromoted",
    "DroppedTrajectories",
    "EvaluationFinished",
    "EvaluationRequested",
    "Event",
    "ExternalVersionAdded",
    "GradientStepTaken",
    "HistoryArchived",
    "HistoryImported",
    "HistorySealed",
    "InferenceServing",
    "LeagueBranched",
    "LeagueConfigured",
    "LeagueOpened",
    "LeaguePaused",
    "LeagueResumed",
    "MatchFailed",
    "MatchFinished",
    "MatchVoided",
    "OpenGroup",
    "OpponentPick",
    "OpponentsSampled",
    "ParentAdapter",
    "PartialTrajectory",
    "PolicyPublished",
    "PolicyReset",
    "PromotionDecided",
    "RatingChange",
    "RatingUpdated",
    "RatingsCorrected",
    "RegressionNoticed",
    "RemoteAsked",
    "ResultsImported",
    "SeatResult",
    "SessionOpened",
    "SnapshotTaken",
    "TrainingFinished",
    "WorkerJoined",
    "WorkerLeft",
]
