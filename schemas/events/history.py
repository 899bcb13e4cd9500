"""Events of the league itself, of its worker processes, and of its history as a whole."""

from typing import Any, ClassVar

from schemas.events.base import MAX_EVENT_BYTES, Event
from schemas.numbers import Count


class LeagueOpened(Event, frozen=True, tag=True):
    """A league was opened with this configuration."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "opened:{e.league}"
    """One opening per league."""
    league: str
    config: dict[str, Any]
    """The whole configuration, defaults included."""
    model: str
    """Source of the base model: a blob's digest, a hub id, or a folder; empty if there is none yet."""
    rules: Count = 1
    """Version of the rules of the game; workers with other rules do not join."""


class LeagueConfigured(Event, frozen=True, tag=True):
    """The configuration changed and takes effect from here on."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "configured:{e.after}:{e.config_digest}"
    """One change per replaced configuration and content."""
    config: dict[str, Any]
    config_digest: str
    after: Count
    """Sequence of the configuration that this one replaces."""
    model: str = ""
    """Base model of a league that was opened without one, as in ``LeagueOpened``; otherwise empty."""


class LeaguePaused(Event, frozen=True, tag=True):
    """Play and training stop until ``LeagueResumed``; matches in progress are played to their end."""

    KEY: ClassVar[str] = "paused:{e.policy}:{e.after}"
    """One pause per policy and resumption."""
    policy: str = ""
    """The paused policy; empty for the whole league, evaluations included."""
    reason: str = ""
    after: Count = 0
    """Sequence of the policy's previous ``LeaguePaused`` or ``LeagueResumed``; 0 for none."""


class LeagueResumed(Event, frozen=True, tag=True):
    """The league, or a paused policy, continues."""

    KEY: ClassVar[str] = "resumed:{e.policy}:{e.after}"
    """One resumption per pause."""
    policy: str = ""
    """Resumed policy; empty for the whole league. A policy paused by name must be resumed by name."""
    reason: str = ""
    after: Count = 0
    """Sequence of its ``LeaguePaused``."""


class LeagueBranched(Event, frozen=True, tag=True):
    """Everything before is a copy of another run's history; from here on the league continues independently."""

    KEY: ClassVar[str] = "branched:{e.at}"
    """One branch per sequence."""
    origin: str
    """Origin of the history: a run's folder name or a broker's address."""
    at: Count
    """Sequence of the last copied event, here and there."""
    digest: str
    """Digest of the state at that sequence."""
    blobs: str = ""
    """Name of this league's folder in the store of large blobs; empty if it follows from this event."""


class HistoryImported(Event, frozen=True, tag=True):
    """Agents and matches of another program's registry follow, as recorded there."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "imported:{e.digest}"
    """One import per file."""
    source: str
    """Name of the file."""
    digest: str
    """SHA-256 of the file."""
    agents: Count
    matches: Count
    metadata: dict[str, Any] = {}
    """Metadata in the registry."""
    trusted: list[str] = []
    """Keys of the settings that came with it whose reach beyond the run's folder the user trusted."""
    left_off: dict[str, str] = {}
    """What the settings that came with it would have reached, by their keys, and was left off."""


class ResultsImported(Event, frozen=True, tag=True):
    """Results of another system's matches follow: ``MatchFinished`` and ``MatchFailed`` of the purpose ``external``."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "results:{e.origin}:{e.digest}"
    """One import per origin and file."""
    origin: str
    """Name of the other system; the ``worker`` of its results and of the agents that they add."""
    format: str
    """Form of the file: ``textarena`` or ``verifiers``."""
    source: str
    """Name of the file."""
    digest: str
    """SHA-256 of the file."""
    matches: Count
    """Number of results in the file; those already in the history are not recorded again."""
    agents: dict[str, str]
    """Agents by their names in the file."""


class HistoryArchived(Event, frozen=True, tag=True):
    """The history up to ``last`` is archived in the blob store as Parquet and sealed by digests."""

    KEY: ClassVar[str] = "archived:{e.last}"
    """One archive per last sequence."""
    first: Count
    """First sequence of the newest segment."""
    last: Count
    manifest: str
    """Digest of the blob that lists all segments with the digests of their files
    (``league.integrity.archive.ArchiveManifest``). A copy of it kept elsewhere vouches for all events up to
    ``last``."""
    bytes: Count
    """Total size of the newest segment's files."""


class SnapshotTaken(Event, frozen=True, tag=True):
    """Folds of the history up to a sequence were saved, so that new workers need not replay all of it."""

    KEY: ClassVar[str] = "snapshot:{e.version}:{e.sequence}"
    """One snapshot per sequence and format."""
    sequence: Count
    """Sequence of its last event."""
    artifact: str
    """Digest of the saved folds (``league.integrity.snapshots.Snapshot``)."""
    state: str
    """Digest of the state: ``LeagueState.digest``."""
    version: Count
    """Version of the snapshot's format; other versions are ignored."""


class DecisionsStored(Event, frozen=True, tag=True):
    """A worker stored a segment of decisions, or of what gradient steps credited them with, as a Parquet blob."""

    KEY: ClassVar[str] = "decisions:{e.worker}:{e.artifact}"
    """One per worker and content."""
    worker: str
    kind: str
    """``decisions``, or ``credit`` for rewards and advantages."""
    artifact: str
    """Digest of the Parquet file."""
    rows: Count
    bytes: Count


class DecisionsDropped(Event, frozen=True, tag=True):
    """Segments of decisions were dropped from the store by the limits of ``history.decisions``."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "decisions-dropped:{e.first}"
    """One per oldest segment, since a segment is dropped once."""
    first: str
    """Digest of the oldest segment."""
    artifacts: list[str]
    """Digests of the segments, oldest first."""
    bytes: Count


class WorkerJoined(Event, frozen=True, tag=True):
    """A worker process joined the league."""

    KEY: ClassVar[str] = "joined:{e.worker}:{e.incarnation}"
    """One joining per start of the process."""
    worker: str
    role: str
    incarnation: str
    """Id of this start of the process."""
    host: str
    pid: Count
    version: str
    """Version of the league package."""
    schema: Count = 1
    """Schema version in which the process writes events, and the newest that it can read."""
    policy: str = ""
    """Policy of a trainer or a rollout worker; empty for other roles."""
    machine: str = ""
    """Digest of the machine's boot and process namespace, by which a later process there can check whether this one
    still runs; empty if the system does not expose them."""


class InferenceServing(Event, frozen=True, tag=True):
    """An inference process has loaded its model and accepts requests until it leaves."""

    KEY: ClassVar[str] = "serving:{e.worker}:{e.incarnation}"
    """One per process."""
    worker: str
    incarnation: str
    url: str
    """Address: ``http://host:port``."""
    backend: str
    slots: Count = 0
    """Maximum distinct adapters per batch; 0 for no limit."""


class AdapterSlotsReduced(Event, frozen=True, tag=True):
    """A process lacks memory for the configured number of adapters, and continues with fewer.

    Until it leaves, matches use no more: opponents are cloned over the seats.
    """

    KEY: ClassVar[str] = "slots:{e.worker}:{e.incarnation}:{e.slots}"
    """One per process and number of slots, which only decreases."""
    worker: str
    incarnation: str
    slots: Count
    """Adapters kept in memory from now on, at least 1."""
    reason: str


class WorkerLeft(Event, frozen=True, tag=True):
    """A worker process shut down, died, fell silent, or was replaced under its name."""

    KEY: ClassVar[str] = "left:{e.worker}:{e.incarnation}"
    """One leaving per process."""
    worker: str
    incarnation: str
    reason: str
