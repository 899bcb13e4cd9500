"""Events of the league itself, of its worker processes, and of its history as a whole."""

from typing import Any, ClassVar

from schemas.events.base import Event
from schemas.numbers import Count


class LeagueOpened(Event, frozen=True, tag=True):
    """A league was opened with this configuration."""

    KEY: ClassVar[str] = "opened:{e.league}"
    """One opening per league."""
    league: str
    config: dict[str, Any]
    """The whole configuration, defaults included."""
    model: str
    """Where workers find the base model: an artifact digest, a hub id, or a folder; empty where there is none yet."""
    rules: Count = 1
    """Version of the rules of the game; workers with other rules do not join."""


class LeagueConfigured(Event, frozen=True, tag=True):
    """The configuration changed: the one in force from here on."""

    KEY: ClassVar[str] = "configured:{e.after}:{e.config_digest}"
    """One change per replaced configuration and content."""
    config: dict[str, Any]
    config_digest: str
    after: Count
    """Sequence of the configuration that this one replaces."""
    model: str = ""
    """The base model of a league that was opened without one, as in ``LeagueOpened``; empty in all other changes."""


class LeaguePaused(Event, frozen=True, tag=True):
    """No new matches and no gradient steps until ``LeagueResumed``; matches under way are played to their end."""

    KEY: ClassVar[str] = "paused:{e.policy}:{e.after}"
    """One pause per policy and resumption."""
    policy: str = ""
    """The paused policy; empty for the whole league, evaluations included."""
    reason: str = ""
    after: Count = 0
    """Sequence of the ``LeaguePaused`` or ``LeagueResumed`` before, of the same policy; 0 when there is none."""


class LeagueResumed(Event, frozen=True, tag=True):
    """The league, or a paused policy, continues."""

    KEY: ClassVar[str] = "resumed:{e.policy}:{e.after}"
    """One resumption per pause."""
    policy: str = ""
    """As in ``LeaguePaused``: a policy that was paused by name is resumed by name."""
    reason: str = ""
    after: Count = 0
    """Sequence of the ``LeaguePaused`` before."""


class LeagueBranched(Event, frozen=True, tag=True):
    """Everything before is a copy of another run's history; from here on the league continues independently."""

    KEY: ClassVar[str] = "branched:{e.at}"
    """One branching per place."""
    origin: str
    """The other run: its folder's name or its broker's address."""
    at: Count
    """Sequence of the last copied event, here and there."""
    digest: str
    """Of the state there."""
    blobs: str = ""
    """Name of this league's folder in the store of large blobs; empty where that follows from this event."""


class HistoryImported(Event, frozen=True, tag=True):
    """Agents and matches of another program's registry follow, as recorded there."""

    KEY: ClassVar[str] = "imported:{e.digest}"
    """One import per file."""
    source: str
    """Name of the file."""
    digest: str
    """SHA-256 of the file."""
    agents: Count
    matches: Count
    metadata: dict[str, Any] = {}
    """What the registry says about itself."""


class ResultsImported(Event, frozen=True, tag=True):
    """Results of another system's matches follow: ``MatchFinished`` and ``MatchFailed`` of the purpose ``external``."""

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
    """Number of results in the file; those that the history holds already are not recorded again."""
    agents: dict[str, str]
    """Agent of the league by its name in the file."""


class HistoryArchived(Event, frozen=True, tag=True):
    """The history from the first event to ``last`` is in the blob store as Parquet too, and sealed by its digests."""

    KEY: ClassVar[str] = "archived:{e.last}"
    """One archiving per end."""
    first: Count
    """Beginning of the newest segment."""
    last: Count
    manifest: str
    """Digest of the blob that lists all segments and the digests of their files
    (``league.integrity.archive.ArchiveManifest``): kept elsewhere, it vouches for all events up to ``last``."""
    bytes: Count
    """Of the newest segment's files."""


class SnapshotTaken(Event, frozen=True, tag=True):
    """Folds of the history up to a sequence were saved, so that a new worker need not replay all of it."""

    KEY: ClassVar[str] = "snapshot:{e.version}:{e.sequence}"
    """One snapshot per sequence and format."""
    sequence: Count
    """Of the last event in it."""
    artifact: str
    """Digest of the saved folds (``league.integrity.snapshots.Snapshot``)."""
    state: str
    """Digest of the state: ``LeagueState.digest``."""
    version: Count
    """Of the snapshot's format; snapshots of other versions are ignored."""


class WorkerJoined(Event, frozen=True, tag=True):
    """A worker process joined the league."""

    KEY: ClassVar[str] = "joined:{e.worker}:{e.incarnation}"
    """One joining per process."""
    worker: str
    role: str
    incarnation: str
    """Different for every start of the process."""
    host: str
    pid: Count
    version: str
    """Of the league package."""
    schema: Count = 1
    """Version of the schema in which it writes events, and up to which it reads them."""
    policy: str = ""
    """Policy of a trainer or a rollout worker; empty for other roles."""
    machine: str = ""
    """Digest of the machine's boot and process namespace; empty where the system does not tell them. A later process
    with the same digest can see whether this one still runs."""


class InferenceServing(Event, frozen=True, tag=True):
    """An inference process has loaded its model and accepts requests until its worker leaves."""

    KEY: ClassVar[str] = "serving:{e.worker}:{e.incarnation}"
    """One per process."""
    worker: str
    incarnation: str
    url: str
    """Its address: ``http://host:port``."""
    backend: str
    slots: Count = 0
    """Distinct adapters that one batch can hold; 0 for no bound."""


class AdapterSlotsReduced(Event, frozen=True, tag=True):
    """A process has memory for fewer adapters than configured, and continues with fewer.

    Until it leaves, matches use no more: opponents are cloned over the seats.
    """

    KEY: ClassVar[str] = "slots:{e.worker}:{e.incarnation}:{e.slots}"
    """One per process and number of slots, which only decreases."""
    worker: str
    incarnation: str
    slots: Count
    """Adapters that it keeps loaded from now on, at least 1."""
    reason: str


class WorkerLeft(Event, frozen=True, tag=True):
    """A worker process shut down, its supervisor saw it die, another process took its name over, or it was silent."""

    KEY: ClassVar[str] = "left:{e.worker}:{e.incarnation}"
    """One leaving per process."""
    worker: str
    incarnation: str
    reason: str
