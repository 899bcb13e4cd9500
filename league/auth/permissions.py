"""The permission model as one table: role × subject × headers × API request body.

A broker permits by subject; ``GRANTS`` lists the subjects that each role may publish on. Those of a worker's results
and blobs contain its name (``schemas/subjects.py``). What a subject does not tell, a stream or the form of a request
decides:

- Headers: streams permit no roll-ups, no expiry, no schedules and no counters (``league/log/streams.py``).
- Request bodies: a consumer is created on a subject that contains its name and filter, which have to be those of the
  body. The names are a fixed few of each user (``consumer_names``), which bounds its consumers on a stream; those left
  behind are removed. Requests whose body could reach further (creating and changing streams, durable consumers, reading
  or deleting by sequence, purging, snapshots) are the operator's, except for the rows that say so.
- Replies: a broker publishes its answer on the subject that a request names, whatever the requester may publish on.
  The streams are therefore in an account of the operator, and all other users in a second one, which imports
  ``IMPORTS`` from it. Answers to them are published in their own account, where no stream listens.
"""

from typing import Literal

import msgspec

from schemas import events as e
from schemas.errors import UsageError, format_choices
from schemas.jobs import SESSION_PURPOSE
from schemas.subjects import (
    BLOB_BUCKET,
    DEAD_LETTER_STREAM,
    EXPERIENCE_STREAM,
    LEAGUE_STREAM,
    METRICS_STREAM,
    STATE_BUCKET,
    WORK_STREAM,
    blob_subject,
    dead_letter_subject,
    experience_subject,
    league_subjects,
    match_end_subject,
    metrics_subject,
    work_consumer,
    work_subject,
    worker_event_subject,
)

ROLES = ("rollout", "evaluator", "inference", "rater", "trainer", "archivist", "tracker", "dashboard", "operator")
WORKERS = tuple(role for role in ROLES if role not in ("dashboard", "operator"))
_READERS = (*WORKERS, "dashboard")
_STORERS = ("rollout", "evaluator", "trainer", "archivist")
_API = "$JS.API"
_BLOBS, _STATES = f"OBJ_{BLOB_BUCKET}", f"OBJ_{STATE_BUCKET}"
READERS_PER_USER = 8
"""Largest number of consumers of a user on one stream."""
STREAMS = (LEAGUE_STREAM, WORK_STREAM, EXPERIENCE_STREAM, METRICS_STREAM, DEAD_LETTER_STREAM, _BLOBS, _STATES)


class Grant(msgspec.Struct, frozen=True):
    """A row of the table."""

    roles: tuple[str, ...]
    subject: str
    """Pattern with ``{league}`` and ``{name}``, the user's name."""
    body: str = ""
    """Bound of the body of a request to the broker's interface."""


class Permissions(msgspec.Struct, frozen=True):
    """Subjects, wildcards allowed."""

    publish: list[str]
    subscribe: list[str]


def inbox_prefix(name: str) -> str:
    """Prefix of the subjects on which a user receives replies; only that user may subscribe to them."""
    return f"_INBOX.{name}"


def consumer_names(name: str) -> list[str]:
    """Names under which a user may create consumers, on each stream."""
    return [f"read-{nth}-{name}" for nth in range(1, READERS_PER_USER + 1)]


_Answers = Literal["Singleton", "Stream"]
IMPORTS: dict[str, _Answers] = {
    **dict.fromkeys(("league.>", "work.>", "experience.>", "metrics.>", "dead.>", "$O.>"), "Singleton"),
    # ``INFO``, the account's figures.
    f"{_API}.*": "Singleton",
    **dict.fromkeys((f"{_API}.STREAM.{verb}.*" for verb in ("INFO", "PURGE", "MSG.GET", "MSG.DELETE")), "Singleton"),
    **dict.fromkeys((f"{_API}.CONSUMER.{verb}.*.*" for verb in ("INFO", "DELETE")), "Singleton"),
    f"{_API}.CONSUMER.CREATE.>": "Singleton",
    f"{_API}.CONSUMER.MSG.NEXT.*.*": "Stream",
    "$JS.ACK.>": "Singleton",
}
"""Subjects that pass from the users' account to the streams', with the number of answers to a message.

Each ends in a wildcard: an answer directed to an imported subject passes on under its own random subject, but to a
literal one as a request.
"""

_EVENTS: dict[tuple[str, ...], tuple[type[e.Event], ...]] = {
    WORKERS: (e.WorkerJoined, e.WorkerLeft, e.ArtifactStored),
    ("rollout",): (e.OpponentsSampled,),
    ("rollout", "evaluator", "trainer"): (e.DecisionsStored,),
    ("rollout", "evaluator", "inference"): (e.RemoteAsked, e.AdapterSlotsReduced),
    ("evaluator",): (e.EvaluationRequested, e.EvaluationFinished),
    ("inference",): (e.InferenceServing, e.OpponentsSampled, e.SessionOpened, e.ExternalVersionAdded),
    ("rater",): (
        *(e.RatingUpdated, e.RatingsCorrected, e.CheckpointPromoted, e.PromotionDecided),
        # Also versions that no schedule has let join, as elite.
        *(e.CheckpointAdded, e.AgentRetired, e.AgentActivated),
    ),
    ("trainer",): (e.PolicyPublished, e.PolicyReset, e.GradientStepTaken, e.CheckpointAdded, e.TrainingFinished),
    ("archivist",): (e.HistoryArchived, e.SnapshotTaken),
}
_PURPOSES = {
    "rollout": ("training",),
    "evaluator": ("evaluation", "exhibition", "benchmark"),
    "inference": (SESSION_PURPOSE,),
}


def _read_grants(roles: tuple[str, ...], stream: str, *filters: str) -> list[Grant]:
    """Grants for reading what a filter covers, with consumers of the reader's own names."""
    creating = "name and filter are those of the subject; removed when idle"
    return [
        Grant(roles, f"{_API}.CONSUMER.CREATE.{stream}.{consumer}.{each}", creating)
        for each in filters
        for consumer in consumer_names("{name}")
    ]


def _write_blobs(roles: tuple[str, ...], bucket: str, area: str) -> list[Grant]:
    return [
        Grant(roles, blob_subject(bucket, "M", "{league}", area, "{name}", "*")),
        Grant(roles, blob_subject(bucket, "C", "{league}", area, "{name}", "*.*")),
    ]


_JOBS = f"{WORK_STREAM}.{work_consumer('{league}')}"

GRANTS: tuple[Grant, ...] = (
    *(
        Grant(roles, worker_event_subject("{league}", kind, "{name}"))
        for roles, kinds in _EVENTS.items()
        for kind in kinds
    ),
    *(
        Grant((role,), match_end_subject("{league}", purpose, kind, "{name}"))
        for role, purposes in _PURPOSES.items()
        for purpose in purposes
        for kind in (e.MatchFinished, e.MatchFailed)
    ),
    # The rater records silent workers as left, and the matches that they did not finish as failed.
    Grant(("rater",), worker_event_subject("{league}", e.WorkerLeft, "*")),
    Grant(("rater",), match_end_subject("{league}", "training", e.MatchFailed, "*")),
    Grant(WORKERS, metrics_subject("{league}", "{name}")),
    Grant(WORKERS, dead_letter_subject("{league}", ">")),
    Grant(("rollout",), experience_subject("{league}", "*")),
    Grant(("evaluator",), work_subject("{league}", "play_match")),
    # To compare a job that the broker calls a duplicate.
    Grant(("evaluator",), f"{_API}.STREAM.MSG.GET.{WORK_STREAM}", "any sequence: jobs of all leagues"),
    Grant(("evaluator",), f"{_API}.CONSUMER.INFO.{_JOBS}", "empty"),
    Grant(("evaluator",), f"{_API}.CONSUMER.MSG.NEXT.{_JOBS}", "number of jobs and patience"),
    Grant(
        ("evaluator",), f"$JS.ACK.{_JOBS}.>", "of any delivery of that consumer, which the broker does not tell apart"
    ),
    *_write_blobs(_STORERS, BLOB_BUCKET, "blob"),
    *_write_blobs(("archivist",), BLOB_BUCKET, "archive"),
    *_write_blobs(("trainer",), STATE_BUCKET, "state"),
    Grant(("trainer",), f"{_API}.STREAM.PURGE.{_STATES}", "any filter: trainers' states of all leagues"),
    Grant(("trainer",), f"{_API}.STREAM.PURGE.{EXPERIENCE_STREAM}", "any filter: trajectories of all leagues"),
    Grant(("trainer",), f"{_API}.STREAM.MSG.DELETE.{EXPERIENCE_STREAM}", "any sequence: trajectories of all leagues"),
    *_read_grants(_READERS, LEAGUE_STREAM, league_subjects("{league}")),
    *_read_grants(_READERS, _BLOBS, f"$O.{BLOB_BUCKET}.*.{{league}}.>"),
    *_read_grants(_READERS, _STATES, f"$O.{STATE_BUCKET}.*.{{league}}.>"),
    *(
        Grant(_READERS, f"{_API}.CONSUMER.{verb}.*.{consumer}", "of the reader's own consumers")
        for verb in ("MSG.NEXT", "DELETE")
        for consumer in consumer_names("{name}")
    ),
    *_read_grants(("trainer", "dashboard"), EXPERIENCE_STREAM, experience_subject("{league}", "*")),
    *_read_grants(("tracker", "dashboard"), METRICS_STREAM, metrics_subject("{league}", "*")),
    *_read_grants(("dashboard",), DEAD_LETTER_STREAM, dead_letter_subject("{league}", ">")),
    *(
        Grant(_READERS, f"{_API}.STREAM.INFO.{stream}", "any filter: names and numbers, no contents")
        for stream in STREAMS
    ),
    Grant(("dashboard",), f"{_API}.INFO", "none: bytes stored, and the limit"),
    Grant(("operator",), ">", "any"),
)

_HEARTBEATS = metrics_subject("{league}", "*")
# The trainer's are for other trainers of its policy.
_SUBSCRIPTIONS = dict.fromkeys(("rater", "trainer", "tracker", "dashboard"), _HEARTBEATS) | {"operator": ">"}


def permissions(role: str, name: str, league: str = "*") -> Permissions:
    """The permissions of a user, whose name is the worker's, in one league or, for ``*``, in all on the broker.

    UsageError for an unknown role.
    """
    if role not in ROLES:
        raise UsageError(f"role {role!r}: no such role; expected {format_choices(ROLES)}")

    def fill(pattern: str) -> str:
        # A wildcard stands for a whole token only.
        consumer = "*" if league == "*" else work_consumer(league)
        return pattern.replace(work_consumer("{league}"), consumer).replace("{league}", league).replace("{name}", name)

    # A worker listens for the heartbeats of an earlier process of its name.
    subscriptions = [metrics_subject("{league}", "{name}")] if role in WORKERS else []
    subscriptions += [_SUBSCRIPTIONS[role]] if role in _SUBSCRIPTIONS else []
    subjects = dict.fromkeys(fill(row.subject) for row in GRANTS if role in row.roles)
    return Permissions(list(subjects), [f"{inbox_prefix(name)}.>", *map(fill, subscriptions)])
