"""Names of streams and subjects.

A match's subject says purpose and worker, so that broker permissions can tell training from evaluation and one
worker from another: ``league.<league>.match.<purpose>.finished.<worker>``.
"""

import re

from schemas import events as e
from schemas.errors import UsageError

LEAGUE_STREAM = "LEAGUE"
WORK_STREAM = "WORK"
EXPERIENCE_STREAM = "EXPERIENCE"
DEAD_LETTER_STREAM = "DEAD"
METRICS_STREAM = "METRICS"
ARTIFACT_BUCKET = "ARTIFACTS"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_ENTITIES: dict[type[e.Event], str] = {
    e.LeagueOpened: "league.opened",
    e.LeagueConfigured: "league.configured",
    e.AgentRegistered: "agent.registered",
    e.CheckpointAdded: "checkpoint.added",
    e.CheckpointPromoted: "checkpoint.promoted",
    e.AgentRetired: "agent.retired",
    e.AgentActivated: "agent.activated",
    e.MatchVoided: "match.voided",
    # One subject for both: a condition on the newest of them lets only one writer set ratings.
    e.RatingUpdated: "rating.updated",
    e.RatingsCorrected: "rating.updated",
    e.PolicyPublished: "policy.published",
    e.PolicyReset: "policy.reset",
    e.GradientStepTaken: "step.taken",
    e.TrainingFinished: "training.finished",
    e.EvaluationRequested: "evaluation.requested",
    e.EvaluationFinished: "evaluation.finished",
    e.PromotionDecided: "promotion.decided",
    e.RegressionNoticed: "regression.noticed",
    e.WorkerJoined: "worker.joined",
    e.WorkerLeft: "worker.left",
    e.InferenceServing: "inference.serving",
    e.AdapterSlotsReduced: "inference.reduced",
    e.HistorySealed: "history.sealed",
    e.HistoryArchived: "history.archived",
    e.SnapshotTaken: "history.snapshot",
    e.LeagueBranched: "league.branched",
    e.HistoryImported: "history.imported",
}


def check_name(what: str, name: str) -> str:
    """Return ``name`` if it can be one token of a subject.

    Raises:
        UsageError: it cannot; the message says which characters may.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{what}: {name!r} cannot be a name; expected 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def event_subject(league: str, event: e.Event) -> str:
    """The subject that an event is published on."""
    if isinstance(event, e.MatchFinished | e.MatchFailed):
        verb = "finished" if isinstance(event, e.MatchFinished) else "failed"
        return f"league.{league}.match.{event.purpose}.{verb}.{event.worker}"
    if isinstance(event, e.OpponentsSampled):
        return f"league.{league}.opponents.sampled.{event.worker}"
    if isinstance(event, e.RemoteAsked):
        return f"league.{league}.remote.asked.{event.worker}"
    if isinstance(event, e.ArtifactStored):
        return f"league.{league}.artifact.stored.{event.worker}"
    return f"league.{league}.{_ENTITIES[type(event)]}"


def kind_subject(league: str, kind: type[e.Event]) -> str:
    """Where all events of a type lie, some of other types beside them perhaps.

    Raises:
        UsageError: a type that every worker has subjects of its own for.
    """
    verb = _ENTITIES.get(kind)
    if verb is None:
        raise UsageError(f"{kind.__name__}: lies on one subject per worker")
    return f"league.{league}.{verb}"


def league_subjects(league: str) -> str:
    """All events of a league."""
    return f"league.{league}.>"


def work_subject(league: str, kind: str) -> str:
    """Jobs of one kind: ``play_match``."""
    return f"work.{league}.{kind}"


def experience_subject(league: str, policy: str) -> str:
    """Rollouts for one policy."""
    return f"experience.{league}.{policy}"


def metrics_subject(league: str, worker: str) -> str:
    """What one process says of itself; ``*`` for all."""
    return f"metrics.{league}.{worker}"


def dead_letter_subject(league: str, stream: str) -> str:
    """Messages of a stream that nobody could decode."""
    return f"dead.{league}.{stream}"
