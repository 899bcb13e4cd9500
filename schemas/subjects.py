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
BLOB_BUCKET = "ARTIFACTS"
STATE_BUCKET = "STATES"
"""Trainer states, which their trainer deletes again; everything else in a bucket is written once."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_ENTITIES: dict[type[e.Event], str] = {
    e.LeagueOpened: "league.opened",
    e.LeagueConfigured: "league.configured",
    # One subject for both: a condition on the newest of them lets one command at a time decide.
    e.LeaguePaused: "league.paused",
    e.LeagueResumed: "league.paused",
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
    e.AdaptersDropped: "policy.dropped",
    e.GradientStepTaken: "step.taken",
    e.TrainingFinished: "training.finished",
    e.EvaluationRequested: "evaluation.requested",
    e.EvaluationFinished: "evaluation.finished",
    e.BenchmarkRequested: "benchmark.requested",
    e.PromotionDecided: "promotion.decided",
    e.HistoryArchived: "history.archived",
    e.SnapshotTaken: "history.snapshot",
    e.DecisionsDropped: "decisions.dropped",
    e.LeagueBranched: "league.branched",
    e.HistoryImported: "history.imported",
    e.ResultsImported: "results.imported",
}

_WORKER_EVENTS: dict[type[e.Event], str] = {
    e.OpponentsSampled: "opponents.sampled",
    e.SessionOpened: "session.opened",
    e.ExternalVersionAdded: "external.added",
    e.RemoteAsked: "remote.asked",
    e.ArtifactStored: "artifact.stored",
    e.DecisionsStored: "decisions.stored",
    e.WorkerJoined: "worker.joined",
    e.WorkerLeft: "worker.left",
    e.InferenceServing: "inference.serving",
    e.AdapterSlotsReduced: "inference.reduced",
}
"""Events of single workers, each on its own subject."""

MATCH_ENDS: dict[type[e.Event], str] = {e.MatchFinished: "finished", e.MatchFailed: "failed"}
"""Events on a subject per purpose and worker."""


def check_name(what: str, name: str) -> str:
    """Check that ``name`` can be one token of a subject, and return it; ``UsageError`` if it cannot."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{what}: {name!r} cannot be a name; expected 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def event_subject(league: str, event: e.Event) -> str:
    """The subject that an event is published on."""
    if isinstance(event, e.MatchFinished | e.MatchFailed):
        return match_end_subject(league, event.purpose, type(event), event.worker)
    return worker_event_subject(league, type(event), getattr(event, "worker", ""))


def match_end_subject(league: str, purpose: str, kind: type[e.Event], worker: str) -> str:
    """Subject of the ends of a worker's matches of a purpose; ``kind`` is ``MatchFinished`` or ``MatchFailed``."""
    return f"league.{league}.match.{purpose}.{MATCH_ENDS[kind]}.{worker}"


def match_ends_filter(league: str, purpose: str) -> str:
    """Subject filter for the ends of all matches of a purpose."""
    return f"league.{league}.match.{purpose}.>"


def worker_event_subject(league: str, kind: type[e.Event], worker: str) -> str:
    """Subject of a worker's events of a type other than matches' ends; ``*`` for all workers."""
    verb = _WORKER_EVENTS.get(kind)
    return f"league.{league}.{_ENTITIES[kind]}" if verb is None else f"league.{league}.{verb}.{worker}"


def is_allowed_on(event: e.Event, subject: str) -> bool:
    """Whether an event is allowed on a subject. Permissions are by subject, so the type of an event must match it."""
    league = subject.split(".", 2)[1] if subject.startswith("league.") else ""
    return subject == event_subject(league, event)


def event_type_filter(league: str, kind: type[e.Event]) -> str:
    """Filter for all events of a type of any worker, and maybe of other types; ``UsageError`` for ends of matches."""
    if kind in MATCH_ENDS:
        raise UsageError(f"{kind.__name__}: has one subject per purpose and worker")
    return worker_event_subject(league, kind, "*")


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern with ``*`` for single tokens, and ``>`` for all that follow."""
    tokens, actual = pattern.split("."), subject.split(".")
    if tokens[-1] == ">" and len(actual) >= len(tokens):
        tokens, actual = tokens[:-1], actual[: len(tokens) - 1]
    return len(tokens) == len(actual) and all(t in ("*", a) for t, a in zip(tokens, actual, strict=True))


def league_subjects(league: str) -> str:
    """All events of a league."""
    return f"league.{league}.>"


def work_subject(league: str, kind: str) -> str:
    """Jobs of one kind: ``play_match``."""
    return f"work.{league}.{kind}"


def experience_subject(league: str, policy: str) -> str:
    """Trajectories for one policy."""
    return f"experience.{league}.{policy}"


def metrics_subject(league: str, worker: str) -> str:
    """Heartbeats of one process; ``*`` for all."""
    return f"metrics.{league}.{worker}"


def blob_subject(bucket: str, part: str, league: str, area: str, writer: str, rest: str) -> str:
    """Subject of a blob's entry (part ``M``) or chunks (``C``) that a process stored; ``*`` for all leagues.

    ``area`` is ``blob``, ``archive`` (the archivist's) or ``state`` (trainers'); ``rest`` is the blob's name, for
    chunks also the upload's id.
    """
    return f"$O.{bucket}.{part}.{league}.{area}.{writer}.{rest}"


def work_consumer(league: str) -> str:
    """Name of the consumer that a league's evaluators share."""
    return f"players-{league}"


def dead_letter_subject(league: str, stream: str) -> str:
    """Messages of a stream that could not be decoded."""
    return f"dead.{league}.{stream}"
