"""Garbage collection of blobs that no history refers to.

Several leagues may share a store, so references are collected from all of them. Superseded snapshots, and superseded
manifests with the files that only they list, are kept in part. Trainer states are kept for a policy's newest step and
for the steps whose version joined the league.
"""

import contextlib
import re
from collections.abc import Iterable

import msgspec

from league.blobs import BlobInfo, BlobStore
from league.fold_primitives import takes_effect
from league.integrity.archive import ArchiveManifest
from league.integrity.decision_segments import DecisionSegments
from league.log.base import EventLog, RecordedEvent
from schemas import events as e
from schemas.codec import DECODE_ERRORS, SCHEMA_VERSION
from schemas.config import DecisionsConfig, convert
from schemas.errors import ArtifactError, ConfigError, DecodeError
from schemas.ids import agent_name
from schemas.numbers import Ranges, in_ranges, merge_ranges, to_ranges

KEEP_SNAPSHOTS_EVERY = 10
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class MissingBlob(msgspec.Struct, frozen=True):
    """A blob that a history refers to but the store lacks."""

    name: str
    wanted_by: str


class GarbageReport(msgspec.Struct):
    """Kept, unreferenced and missing blobs of a store."""

    kept: int = 0
    kept_bytes: int = 0
    unreferenced: list[BlobInfo] = []
    """Old enough for removal."""
    young: int = 0
    """Unreferenced blobs so recent that an event may still refer to them."""
    missing: list[MissingBlob] = []
    dropped: list[e.AdaptersDropped] = []
    """Adapters that ``blobs.keep_versions`` drops, by policy; they are among the unreferenced."""
    dropped_decisions: list[e.DecisionsDropped] = []
    """Segments that ``history.decisions`` drops; they are among the unreferenced."""

    @property
    def bytes(self) -> int:
        """Total size of the removable blobs."""
        return sum(stored.bytes for stored in self.unreferenced)


class BlobReferences:
    """Fold of the blobs a league's events refer to; of snapshots, the newest ``keep_snapshots`` and every tenth."""

    def __init__(self, keep_snapshots: int = 1) -> None:
        self.required: dict[str, str] = {}
        """Description of the reference, by blob."""
        self.optional: set[str] = set()
        """Kept when present, but not reported as missing: an earlier collection may have removed them."""
        self.events: dict[str, list[int]] = {}
        """Sequences of the events that refer to a blob, superseded trainer states and snapshots included."""
        self.dropped_now: list[e.AdaptersDropped] = []
        """Events to record before these adapters are deleted; set by ``collect_references``."""
        self.decisions_dropped_now: list[e.DecisionsDropped] = []
        """The same for segments of decisions."""
        self.manifest = ""
        self._keep_snapshots = keep_snapshots
        self._snapshots: list[e.SnapshotTaken] = []
        self._states: dict[str, dict[int, str]] = {}
        self._inherited: dict[str, int] = {}
        """Newest step of each policy when the league branched: the origin may have removed its state by then."""
        self._joined: set[tuple[str, int]] = set()
        self._published: dict[str, dict[int, tuple[str, int, int]]] = {}
        """Adapter, sequence and time of every version, by policy."""
        self._dropped: dict[str, Ranges] = {}
        self._seated: set[str] = set()
        self._keep_versions: int | None = None
        self._records_kept = True
        self._decisions = DecisionSegments()
        self._decision_limits = DecisionsConfig()
        self._opened, self._since = False, 0

    def apply_batch(self, batch: Iterable[RecordedEvent]) -> None:
        """Fold events."""
        for recorded in batch:
            match = None
            # Most events are matches, of which only these fields are decoded.
            if recorded.schema == SCHEMA_VERSION and b'"MatchFinished"' in recorded.payload:
                with contextlib.suppress(*DECODE_ERRORS):
                    match = _record_decoder.decode(recorded.payload)
            if match is not None and match.type == "MatchFinished":
                self._add_match(match, recorded.sequence)
            else:
                self._apply(recorded)

    def _add_match(self, match: "e.MatchFinished | _MatchRecordReference", sequence: int) -> None:
        if self._records_kept:
            self._require(match.record, f"the record of match {match.match_id}", sequence)
        elif match.record:
            self.optional.add(match.record)
        self._seated.update(seat.agent for seat in match.seats)

    def _require(self, name: str, by: str, sequence: int) -> None:
        if name:
            self.required.setdefault(name, by)
            self.events.setdefault(name, []).append(sequence)

    def _apply(self, recorded: RecordedEvent) -> None:
        event = recorded.event
        if event is None:
            # An event of a newer version, or a damaged one: everything in it that looks like a digest is kept.
            self.optional.update(name.decode() for name in _DIGEST.findall(recorded.payload))
        elif isinstance(event, e.LeagueOpened | e.LeagueConfigured):
            self._apply_configuration(recorded.sequence, event)
        elif isinstance(event, e.MatchFinished):
            self._add_match(event, recorded.sequence)
        elif isinstance(event, e.EvaluationRequested):
            self._seated.update((event.agent, *event.opponents))
        elif isinstance(event, e.MatchVoided):
            self.optional.add(event.match.record)
        elif isinstance(event, e.PolicyPublished):
            publication = (event.adapter, recorded.sequence, recorded.time_ns)
            self._published.setdefault(event.policy, {}).setdefault(event.version, publication)
            self.events.setdefault(event.adapter, []).append(recorded.sequence)
        elif isinstance(event, e.AdaptersDropped):
            self._dropped[event.policy] = merge_ranges(self._dropped.get(event.policy, []), event.versions)
        elif isinstance(event, e.CheckpointAdded):
            self._require(event.adapter, event.agent, recorded.sequence)
            self._joined.add((event.policy, event.version))
        elif isinstance(event, e.GradientStepTaken):
            self._states.setdefault(event.policy, {})[event.step] = event.state
            self.events.setdefault(event.state, []).append(recorded.sequence)
        elif isinstance(event, e.DecisionsStored | e.DecisionsDropped):
            self._decisions.apply(recorded, event)
            if isinstance(event, e.DecisionsStored):
                self.events.setdefault(event.artifact, []).append(recorded.sequence)
        elif isinstance(event, e.SnapshotTaken):
            self._snapshots.append(event)
            self.events.setdefault(event.artifact, []).append(recorded.sequence)
        elif isinstance(event, e.LeagueBranched):
            self._inherited = {policy: max(states) for policy, states in self._states.items()}
        elif isinstance(event, e.HistoryArchived):
            self.manifest = event.manifest

    def _apply_configuration(self, sequence: int, event: e.LeagueOpened | e.LeagueConfigured) -> None:
        if not takes_effect(event, opened=self._opened, since=self._since):
            return
        self._opened, self._since = self._opened or isinstance(event, e.LeagueOpened), sequence
        sections = {name: part for name, part in event.config.items() if isinstance(part, dict)}
        self._records_kept = sections.get("history", {}).get("records") != "digest"
        with contextlib.suppress(ConfigError):
            limits = sections.get("history", {}).get("decisions", {})
            self._decision_limits = convert(limits, DecisionsConfig, "history.decisions")
        keep = sections.get("blobs", {}).get("keep_versions")
        self._keep_versions = keep if isinstance(keep, int) and keep > 0 else None
        if event.model.startswith("artifact:"):
            self._require(event.model.removeprefix("artifact:"), "the base model", sequence)

    def required_blobs(self) -> dict[str, str]:
        """Blobs that the events so far require, with descriptions, without the files of the archive."""
        trainers = {
            states[step]: f"the trainer of {policy} after step {step}"
            for policy, states in self._states.items()
            if (step := max(states)) != self._inherited.get(policy)
        }
        adapters = {
            publication[0]: agent_name(policy, version)
            for policy, versions in self._published.items()
            for version, publication in versions.items()
            if not in_ranges(self._dropped.get(policy, []), version)
        }
        decisions = dict.fromkeys(self._decisions.present, "a segment of decisions")
        return {name: by for name, by in (trainers | adapters | decisions | self.required).items() if name}

    def drop_decisions(self, before_ns: int) -> list[e.DecisionsDropped]:
        """Drop the segments of decisions beyond ``history.decisions``; returns the event that records it."""
        dropped = self._decisions.drop(self._decision_limits, before_ns)
        return [] if dropped is None else [dropped]

    def drop_adapters(self, before_ns: int) -> list[e.AdaptersDropped]:
        """Drop the adapters outside ``blobs.keep_versions``; returns the events that record it.

        Kept are versions that joined the league, sat in a match, are to be evaluated or were the newest at a kept
        snapshot, the newest ``keep_versions``, and those published at ``before_ns`` or later.
        """
        keep = self._keep_versions
        removals: list[e.AdaptersDropped] = []
        if keep is None:
            return removals
        for policy, versions in sorted(self._published.items()):
            kept = set(sorted(versions)[-keep:])
            for snapshot in self._kept_snapshots():
                before = [version for version, publication in versions.items() if publication[1] <= snapshot.sequence]
                kept |= {max(before)} if before else set()
            dropped = to_ranges(
                version
                for version, (_, _, time_ns) in versions.items()
                if version not in kept
                and time_ns < before_ns
                and (policy, version) not in self._joined
                and agent_name(policy, version) not in self._seated
                and not in_ranges(self._dropped.get(policy, []), version)
            )
            if dropped:
                removals.append(e.AdaptersDropped(policy=policy, versions=dropped, keep=keep))
                self._dropped[policy] = merge_ranges(self._dropped.get(policy, []), dropped)
        return removals

    def _kept_snapshots(self) -> list[e.SnapshotTaken]:
        """The newest snapshots and every tenth."""
        return [*self._snapshots[::-1][: self._keep_snapshots], *self._snapshots[::KEEP_SNAPSHOTS_EVERY]]

    async def finish(self, artifacts: BlobStore) -> None:
        """Resolve references that depend on later events."""
        self.required = self.required_blobs()
        for policy, states in self._states.items():
            kept = [step for step in states if (policy, step) in self._joined or step == self._inherited.get(policy)]
            self.optional.update(states[step] for step in kept)
        self.optional.update(snapshot.artifact for snapshot in self._kept_snapshots())
        if self.manifest:
            self.required.setdefault(self.manifest, "the newest archive")
            with contextlib.suppress(ArtifactError, DecodeError):
                for description, file in ArchiveManifest.decode(await artifacts.get(self.manifest)).files():
                    self.required.setdefault(file.digest, description)


class _SeatReference(msgspec.Struct):
    agent: str = ""


class _MatchRecordReference(msgspec.Struct):
    type: str
    match_id: str = ""
    record: str = ""
    seats: list[_SeatReference] = []


_record_decoder = msgspec.json.Decoder(_MatchRecordReference)


async def collect_references(
    history: EventLog, artifacts: BlobStore, keep_snapshots: int = 1, drop_before_ns: int = 0
) -> BlobReferences:
    """Collect all references in a league's history, without what ``drop_adapters`` and ``drop_decisions`` drop."""
    references = BlobReferences(keep_snapshots)
    async for batch in history.batches():
        references.apply_batch(batch)
    references.dropped_now = references.drop_adapters(drop_before_ns)
    references.decisions_dropped_now = references.drop_decisions(drop_before_ns)
    await references.finish(artifacts)
    return references


def find_garbage(
    stored: Iterable[BlobInfo], leagues: Iterable[BlobReferences], before_ns: int, missing: bool = True
) -> GarbageReport:
    """Classify stored blobs as kept, unreferenced or, if stored at ``before_ns`` or later, too young to tell.

    The store is listed before the references are collected, of every league that uses it. ``missing`` says whether to
    report missing blobs; a cache need not hold all.
    """
    leagues = list(leagues)
    required = {name: by for league in leagues for name, by in league.required.items()}
    spared = required.keys() | {name for league in leagues for name in league.optional}
    report = GarbageReport()
    there = set()
    for artifact in stored:
        there.add(artifact.name)
        if artifact.name in spared:
            report.kept += 1
            report.kept_bytes += artifact.bytes
        elif artifact.time_ns >= before_ns:
            report.young += 1
        else:
            report.unreferenced.append(artifact)
    if missing:
        report.missing = [MissingBlob(name, by) for name, by in required.items() if name not in there]
    return report
