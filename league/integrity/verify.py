"""Verification of a history: its stream against its archive, the archive's files, the ends of both, and the blobs.

The archive is the seal: its manifest has the SHA-256 of each segment's files, and an event has the manifest's. A
segment's events are compared with those of the stream one by one, so what differs is located exactly. Events after the
newest segment rest on the broker's own checksums, by which it hands out no damaged message.

One module: each check adds to one report, and what one finds decides what the next one may conclude.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
from nats.aio.client import Client

from league.blobs import BlobStore, CachedBlobStore, find_locations
from league.integrity.archive import (
    ArchiveManifest,
    ArchiveSegment,
    ProgressCallback,
    event_digest,
    newest_manifest,
    segment_batches,
)
from league.integrity.blob_scrub import ScrubCallback, ScrubReport, scrub_blobs
from league.integrity.garbage import BlobReferences
from league.integrity.recovery import find_manifests
from league.log.base import EventLog, RecordedEvent
from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from schemas.codec import UnknownEventError
from schemas.errors import ArtifactError, DecodeError, LogError, UsageError
from schemas.events import HistoryArchived
from schemas.numbers import Ranges, merge_ranges, range_size, ranges_above
from schemas.subjects import LEAGUE_STREAM


class DamagedEvents(msgspec.Struct, frozen=True):
    """Consecutive events of the stream that are not as they were archived."""

    what: str
    """``differs``, ``missing`` or ``added``."""
    first: int
    last: int
    events: int


class Damage(msgspec.Struct, frozen=True):
    """A range of the history that is damaged."""

    where: str
    """``stream``, ``archive`` or ``copy``."""
    first: int
    last: int
    what: str
    located: list[DamagedEvents] = []


class IntegrityReport(msgspec.Struct):
    """Result of a verification."""

    league: str
    events: int = 0
    """Number of events that the stream hands out."""
    last: int = 0
    segments: int = 0
    archived_to: int = 0
    archive_bytes: int = 0
    manifest: str = ""
    """Digest of the newest manifest: a copy kept elsewhere vouches for everything before ``archived_to``."""
    copy: str = ""
    """Address of the archive's copy; empty without one, or if it was not checked."""
    copied_to: int = 0
    damage: list[Damage] = []
    notes: list[str] = []
    """Remarks that are not damage."""
    blobs: ScrubReport | None = None
    """Check of the blobs; None without one."""
    known: dict[str, int] = {}
    """Sequences that other stores refer to, by the name of the reference: evidence against truncation."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.damage and (self.blobs is None or not self.blobs.faults)


async def verify_history(
    history: EventLog,
    blobs: CachedBlobStore,
    expect: str = "",
    on_progress: ProgressCallback = lambda events: None,
    reads: int = 1,
    *,
    client: Client | None = None,
    scrubbed: ScrubCallback | None = None,
    known: Mapping[str, int] | None = None,
    copy: str = "",
) -> IntegrityReport:
    """Check a history, its archive and its blobs.

    ``expect`` is a manifest's digest that was kept elsewhere, ``known`` the sequences that others report. ``reads`` are
    passes over the stream: any node of a cluster may answer each, and one copy may be damaged. ``scrubbed`` gets the
    progress of the blobs' check; None leaves out that and the archive's copy, which is at ``copy`` or the configured
    address. ``on_progress`` gets the number of events read.
    """
    # In this order: a running league adds events meanwhile.
    contents = None if client is None else await read_contents(client)
    stored, before = await history.stored_count(), await history.last_sequence()
    manifest = await newest_manifest(history, blobs) or ArchiveManifest(0, history.league, [])
    references = BlobReferences()
    check = _HistoryCheck(history, blobs, manifest, references, reads, on_progress)
    report = check.report
    await check.compare_segments()
    await check.read_tail()
    if check.foreign:
        first = check.foreign[0]
        report.notes.append(
            f"{len(check.foreign):,} messages are no events, and readers skip them: the first is {first.sequence:,} on "
            f"{first.subject} ({first.error})"
        )
    await _check_manifests(report, history, manifest, before, expect)
    _check_tail(report, stored, check, contents)
    copied = await _check_copy(report, history, manifest, copy) if scrubbed is not None else {}
    await _check_truncation(report, blobs, {**copied, **(known or {})})
    if scrubbed is not None:
        report.blobs = await scrub_blobs(blobs, references, client, scrubbed)
        if report.blobs.faults:
            # A trainer may have superseded and removed its state meanwhile.
            async for batch in history.batches(check.last + 1):
                references.apply_batch(batch)
            required = references.required_blobs()
            faults = [fault for fault in report.blobs.faults if fault.what == "damaged" or fault.name in required]
            report.blobs.faults = faults
    return report


class _HistoryCheck:
    """One pass over the stream, beside the archive."""

    def __init__(
        self,
        history: EventLog,
        blobs: CachedBlobStore,
        manifest: ArchiveManifest,
        references: BlobReferences,
        reads: int,
        on_progress: ProgressCallback,
    ) -> None:
        self.report = IntegrityReport(history.league, segments=len(manifest.segments), archived_to=manifest.last)
        self.report.archive_bytes = sum(segment.bytes for segment in manifest.segments)
        self.last = manifest.last
        """Last sequence read, at least the end of the archive."""
        self.gaps: Ranges = []
        """Sequences of the tail that were not read: another league's, deleted or lost."""
        self.foreign: list[RecordedEvent] = []
        """Messages on the history's subjects that are no events."""
        self._history, self._blobs, self._manifest = history, blobs, manifest
        self._references, self._reads, self._on_progress = references, reads, on_progress

    async def compare_segments(self) -> None:
        """Check the files of each segment, and compare the stream with its events."""
        for segment in self._manifest.segments:
            with tempfile.TemporaryDirectory(prefix="segment-") as folder:
                files = await _check_files(self.report, self._blobs, "archive", segment, Path(folder))
                archived = await self._read_segment(segment, files)
                for nth in range(self._reads):
                    await self._compare(segment, archived, is_first=nth == 0)

    async def _read_segment(self, segment: ArchiveSegment, files: Mapping[str, Path]) -> dict[int, bytes] | None:
        """Digests of a segment's events by sequence; None if a file with events is damaged."""
        from league.projections.segments import SegmentFiles

        where = ("archive", segment.first, segment.last)
        if not files.keys() >= {part for part in segment.files if part.startswith("events")}:
            self.report.notes.append(f"events {segment.first:,} to {segment.last:,} could not be compared")
            return None
        archived: dict[int, bytes] = {}
        try:
            async for batch in segment_batches(SegmentFiles(segment.first, segment.last, dict(files))):
                archived |= await asyncio.to_thread(_digests, batch)
        except DecodeError as error:
            self.report.damage.append(Damage(*where, str(error)))
            return None
        if len(archived) != segment.events or not all(segment.first <= at <= segment.last for at in archived):
            self.report.damage.append(Damage(*where, f"{len(archived):,} events; the manifest has {segment.events:,}"))
        return archived

    async def _compare(self, segment: ArchiveSegment, archived: dict[int, bytes] | None, is_first: bool) -> None:
        found: dict[int, bytes] = {}
        async for batch in self._history.batches(segment.first, segment.last):
            found |= await asyncio.to_thread(_digests, batch)
            if is_first:
                await self._fold(batch)
        if archived is None:
            return
        located = _locate(archived, found)
        what = f"{len(found):,} events; archived were {len(archived):,}"
        if len(found) == len(archived):
            what = "the events differ from the archived ones"
        damage = Damage("stream", segment.first, segment.last, what, located)
        if located and damage not in self.report.damage:
            self.report.damage.append(damage)

    async def _fold(self, batch: list[RecordedEvent]) -> None:
        await asyncio.to_thread(self._references.apply_batch, batch)
        self.foreign += [each for each in batch if not each.is_event and not isinstance(each.error, UnknownEventError)]
        self.report.events += len(batch)
        self._on_progress(self.report.events)

    async def read_tail(self) -> None:
        """Read the events after the archive."""
        async for batch in self._history.batches(self.last + 1):
            for recorded in batch:
                if recorded.sequence > self.last + 1:
                    self.gaps.append([self.last + 1, recorded.sequence - 1])
                self.last = recorded.sequence
            await self._fold(batch)
        self.report.last = await self._history.last_sequence()


def _digests(batch: Sequence[RecordedEvent]) -> dict[int, bytes]:
    return {recorded.sequence: event_digest(recorded) for recorded in batch}


def _locate(archived: Mapping[int, bytes], found: Mapping[int, bytes]) -> list[DamagedEvents]:
    """Events that differ, are missing or were added, in runs of events that follow one another."""

    def judge(indexed: tuple[int, int]) -> str:
        sequence = indexed[1]
        if sequence not in found:
            return "missing"
        if sequence not in archived:
            return "added"
        return "" if archived[sequence] == found[sequence] else "differs"

    runs = groupby(enumerate(sorted(archived.keys() | found.keys())), judge)
    located = [(what, [sequence for _, sequence in run]) for what, run in runs]
    return [DamagedEvents(what, run[0], run[-1], len(run)) for what, run in located if what]


async def _check_files(
    report: IntegrityReport, blobs: CachedBlobStore, where: str, segment: ArchiveSegment, folder: Path
) -> dict[str, Path]:
    """Check the files of a segment; return the intact ones by part, of which a local copy may stand for the store's."""
    files: dict[str, Path] = {}
    cache = blobs.cache
    for part, file in {**segment.files, "marks": segment.marks}.items():
        is_cached = await asyncio.to_thread(cache.path(file.digest).exists)
        is_intact = is_cached and await asyncio.to_thread(cache.is_intact, file.digest)
        try:
            await blobs.store.download(file.digest, folder / part)
        except ArtifactError as error:
            report.damage.append(Damage(where, segment.first, segment.last, f"{part}: {error}"))
            if is_intact:
                files[part] = cache.path(file.digest)
            continue
        files[part] = folder / part
        if is_cached and not is_intact:
            await blobs.fetch(file.digest)
            what = f"{part} {segment.first} to {segment.last}"
            report.notes.append(f"{what}: this machine's copy was damaged, fetched again")
    return files


async def _check_manifests(
    report: IntegrityReport, history: EventLog, manifest: ArchiveManifest, before: int, expect: str
) -> None:
    """Check that the newest manifest continues those that the events up to ``before`` name, and the expected one."""
    digests = manifest.digests()
    report.manifest = next((name for name, last in digests.items() if last == manifest.last), "")
    ends = {last: name for name, last in digests.items()}
    async for sequence, event in history.read_events(HistoryArchived, 1, before):
        if event.last > manifest.last:
            what = f"the manifest {event.manifest[:16]}… of event {sequence:,} cannot be read"
            report.damage.append(Damage("archive", manifest.last + 1, event.last, what))
        elif ends.get(event.last) != event.manifest:
            what = f"the newest manifest does not continue {event.manifest[:16]}… of event {sequence:,}"
            report.damage.append(Damage("archive", event.first, event.last, what))
    if expect and expect not in digests:
        what = f"no manifest has the expected digest {expect[:16]}…: the history was cut, rewritten, or is another one"
        report.damage.append(Damage("stream", 1, report.last, what))
    elif expect:
        report.notes.append(f"the expected manifest ends at event {digests[expect]:,}")
        report.known["the expected manifest"] = digests[expect]


class StreamContents(msgspec.Struct, frozen=True, rename={"first": "first_seq", "last": "last_seq"}):
    """The broker's figures of the stream that holds a history."""

    messages: int = 0
    """Messages that it claims to hold, of all leagues."""
    first: int = 0
    last: int = 0
    """Sequence of its newest message, deleted ones included."""
    deleted: list[int] = []
    """Sequences of messages that were deleted after the first one."""

    @property
    def gaps(self) -> Ranges:
        """Sequences of all deleted messages."""
        before = [[1, self.first - 1]] if self.first > 1 else []
        return merge_ranges(before, [[at, at] for at in self.deleted])


async def read_contents(client: Client) -> StreamContents:
    """Ask the broker for the contents of the history's stream; LogError if it has none, or does not answer."""
    request = msgspec.json.encode({"deleted_details": True})
    with translate_broker_errors(f"reading {LEAGUE_STREAM}"):
        reply = await client.request(f"$JS.API.STREAM.INFO.{LEAGUE_STREAM}", request, timeout=REQUEST_TIMEOUT_S)
    if (state := msgspec.json.decode(reply.data).get("state")) is None:
        raise LogError(f"reading {LEAGUE_STREAM}: the broker answers {reply.data[:200]!r}")
    return msgspec.convert(state, StreamContents)


def _check_tail(report: IntegrityReport, stored: int, check: _HistoryCheck, contents: StreamContents | None) -> None:
    """Find deleted and unreadable messages after the archive."""
    # Only where the stream holds nothing else is a sequence that is not there an event of this league.
    is_alone = contents is not None and contents.messages <= stored
    deleted = contents.gaps if contents is not None else []
    tail = ranges_above(deleted, report.archived_to)
    for first, last in tail:
        what = f"{last - first + 1:,} messages that are not archived were deleted from the stream"
        if is_alone:
            report.damage.append(Damage("stream", first, last, what))
        else:
            report.notes.append(f"sequences {first} to {last}: {what}; they may have been another league's")
    located = [run for damage in report.damage for run in damage.located if run.what == "missing"]
    missing = merge_ranges([[run.first, run.last] for run in located])
    # Deleted messages are not among those that the broker holds; unreadable ones are.
    unreadable = range_size(_without(missing, deleted)) if is_alone else sum(run.events for run in located)
    if (lost := stored - report.events - unreadable) > 0:
        readable = f"the broker holds {stored:,} events but returns {report.events:,}"
        what = f"{readable}: {lost:,} that are not archived are lost"
        end = contents.last if contents is not None else report.last
        gaps = _without([*check.gaps, [check.last + 1, end]], tail) if is_alone else []
        for first, last in gaps or [[report.archived_to + 1, max(report.last, report.archived_to + 1)]]:
            report.damage.append(Damage("stream", first, last, what))


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """Merged ranges less others."""
    left, removed = Ranges(), sorted(others)
    for first, last in ranges:
        start = first
        for begin, end in removed:
            if end >= start and begin <= last:
                left.append([start, begin - 1])
                start = end + 1
        left.append([start, last])
    return merge_ranges(left)


async def _check_truncation(report: IntegrityReport, blobs: CachedBlobStore, known: Mapping[str, int]) -> None:
    """Detect a truncated history: archives and snapshots in the store, and others, record how far it reached."""
    named = re.compile(rf"(archive|snapshot) of {re.escape(report.league)} (?:to|at) ([0-9]{{1,18}})")
    witnesses = dict(known)
    for stored in await blobs.stored():
        # Any worker may store a blob under such a note; archivists alone write where it is not shared.
        if not stored.is_shared and (match := named.fullmatch(stored.note)):
            what = f"the {match[1]} {stored.name}" if int(match[2]) > report.last else f"the newest {match[1]}"
            witnesses[what] = max(int(match[2]), witnesses.get(what, 0))
    for what, reached in witnesses.items():
        if reached > report.last:
            text = f"the history ends at event {report.last:,}; {what} reaches {reached:,}"
            report.damage.append(Damage("stream", report.last + 1, reached, text))
    report.known |= witnesses


async def _check_copy(
    report: IntegrityReport, history: EventLog, manifest: ArchiveManifest, url: str
) -> dict[str, int]:
    """Check the files of the archive's copy; return how far the copy reaches, by its name."""
    location = (await find_locations(history)).copy_of_archive(url)
    if location is None:
        return {}
    report.copy = f"{location.url}/{location.folder}"
    store = location.open()
    try:
        copied = (await find_manifests([store], report.league))[0]
        report.copied_to = copied.last
    except UsageError:
        copied = None
    if report.copied_to < manifest.last:
        what = f"the archive reaches event {manifest.last:,}, its copy {report.copied_to:,}"
        report.damage.append(Damage("copy", report.copied_to + 1, manifest.last, what))
    if copied is None:
        return {}
    for segment in copied.segments:
        for part, file in {**segment.files, "marks": segment.marks}.items():
            if (error := await _try_download(store, file.digest)) is not None:
                report.damage.append(Damage("copy", segment.first, segment.last, f"{part}: {error}"))
    return {"the copy of the archive": copied.last}


async def _try_download(store: BlobStore, name: str) -> str | None:
    """Read a blob; return its error, None if it is intact."""
    with tempfile.TemporaryDirectory(prefix="copy-") as folder:
        try:
            await store.download(name, Path(folder) / name)
        except ArtifactError as error:
            return str(error)
    return None
