"""Complete audit of a history: stream, seals, archive, references, blobs, and signs of truncation."""

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from nats.aio.client import Client

from league.blobs import CachedBlobStore, find_locations
from league.integrity.archive import ArchiveSegment, newest_manifest, segment_batches
from league.integrity.blob_scrub import ScrubCallback, ScrubReport, scrub_blobs
from league.integrity.garbage import BlobReferences
from league.integrity.recovery import find_manifests
from league.integrity.references import ReferenceChecker, ReferenceReport
from league.integrity.verification import (
    Damage,
    ProgressCallback,
    SealChain,
    SealChecker,
    StreamContents,
    check_stream,
    read_chain,
    read_contents,
)
from league.log.base import EventLog
from schemas.errors import ArtifactError, DecodeError, ExitCode, UsageError
from schemas.events import HistoryArchived
from schemas.numbers import Ranges, merge_ranges, range_size, ranges_above


class IntegrityReport(msgspec.Struct):
    """The result of an audit."""

    league: str
    events: int
    """Number of readable events."""
    last: int
    seals: int
    sealed_to: int
    seal: str
    """Digest of the newest seal: a copy kept elsewhere vouches for everything before it."""
    unsealed: int
    """Events after the newest seal."""
    segments: int = 0
    archived_to: int = 0
    archive_bytes: int = 0
    copy: str = ""
    """Where the copy of the archive is; empty without one, or if it was not checked."""
    copied_to: int = 0
    damage: list[Damage] = []
    notes: list[str] = []
    """Remarks that are not damage."""
    references: ReferenceReport = msgspec.field(default_factory=ReferenceReport)
    blobs: ScrubReport | None = None
    """None if they were not checked."""
    known: dict[str, int] = {}
    """Sequences that other stores refer to, by the name of the reference: evidence against truncation."""

    @property
    def outcome(self) -> ExitCode:
        """The gravest finding."""
        if self.damage:
            return ExitCode.DAMAGED
        if self.references.inconsistent:
            return ExitCode.INCONSISTENT
        if (self.blobs is not None and self.blobs.faults) or (self.copy and self.copied_to < self.archived_to):
            return ExitCode.BLOBS
        return ExitCode.SUCCESS if self.seals else ExitCode.NOT_SEALED


async def audit_integrity(
    history: EventLog,
    artifacts: CachedBlobStore,
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

    ``expect`` is a seal's digest that was kept elsewhere, ``known`` the sequences that others say the history reached.
    ``reads`` are passes over the stream: any node of a cluster may answer each, and one copy may be damaged.
    ``scrubbed`` gets the progress of the blobs' check; None leaves out that and the archive's copy, which is at
    ``copy`` or the configured place. ``on_progress`` gets the number of events read, the archive's included.
    """
    # In this order: meanwhile a running league adds events.
    contents = None if client is None else await read_contents(client)
    held = await history.stored_count()
    chain = await read_chain(history)
    references, blobs = ReferenceChecker(history.league), BlobReferences()
    folds = [references.apply_batch, blobs.apply_batch]
    checker = await check_stream(history, chain, on_progress, folds)
    last = await history.last_sequence()
    report = IntegrityReport(
        history.league, checker.events, last, len(chain.ranges), chain.last, chain.digest, checker.unsealed
    )
    report.references = references.finish()
    report.damage += chain.damage + checker.damage
    _check_unsealed(report, held, checker, contents)
    for _ in range(reads - 1):
        again = await check_stream(history, chain)
        report.damage += [damage for damage in again.damage if damage not in report.damage]
    _check_expected_seal(report, chain, expect)
    copied = await _check_copy(report, history, artifacts, chain, copy) if scrubbed is not None else {}
    await _check_truncation(report, artifacts, {**copied, **(known or {})})
    await _check_archive(report, history, artifacts, chain, on_progress)
    if scrubbed is not None:
        report.blobs = await scrub_blobs(artifacts, blobs, client, scrubbed)
        if report.blobs.faults:
            # A trainer may have superseded and removed its state meanwhile.
            async for batch in history.batches(checker.last + 1):
                blobs.apply_batch(batch)
            required = blobs.required_blobs()
            faults = [fault for fault in report.blobs.faults if fault.what == "damaged" or fault.name in required]
            report.blobs.faults = faults
    return report


def _check_unsealed(report: IntegrityReport, held: int, checker: SealChecker, contents: StreamContents | None) -> None:
    """Find deleted and unreadable messages after the newest seal."""
    located = sum(loc.events for damage in checker.damage for loc in damage.located if loc.what == "missing")
    if contents is None:
        deleted, is_alone = Ranges(), False
    else:
        # Only where the stream holds nothing else is a sequence that is not there an event of this league.
        deleted, is_alone = contents.gaps, contents.messages <= held
    tail = ranges_above(deleted, report.sealed_to)
    for first, last in tail:
        what = f"{last - first + 1:,} messages that no seal covers were deleted from the stream"
        if is_alone:
            report.damage.append(Damage("stream", first, last, what))
        else:
            report.notes.append(f"sequences {first} to {last}: {what}; they may have been another league's")
    lost = held - checker.events - max(located - (range_size(deleted) - range_size(tail) if is_alone else 0), 0)
    if lost > 0:
        readable = f"the broker holds {held:,} events and hands out {checker.events:,}"
        what = f"{readable}: {lost:,} that are not sealed are lost"
        end = contents.last if contents is not None else report.last
        gaps = _without([*checker.gaps, [checker.last + 1, end]], tail) if is_alone else []
        for first, last in gaps or [[report.sealed_to + 1, max(report.last, report.sealed_to + 1)]]:
            report.damage.append(Damage("stream", first, last, what))


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """Merged ranges less others."""
    left, cut = Ranges(), sorted(others)
    for first, last in ranges:
        at = first
        for begin, end in cut:
            if end >= at and begin <= last:
                left.append([at, begin - 1])
                at = end + 1
        left.append([at, last])
    return merge_ranges(left)


def _check_expected_seal(report: IntegrityReport, chain: SealChain, expect: str) -> None:
    if not expect:
        return
    kept = next((closed for closed in chain.ranges if closed.expected == expect), None)
    if kept is None:
        what = f"no seal has the expected digest {expect[:16]}…: the history was cut, rewritten, or is another one"
        report.damage.append(Damage("stream", 1, report.last, what))
    else:
        report.notes.append(f"the expected seal ends at event {kept.last:,}")
        report.known["the expected seal"] = kept.last


async def _check_truncation(report: IntegrityReport, artifacts: CachedBlobStore, known: Mapping[str, int]) -> None:
    """Detect a truncated history: archives and snapshots in the store, and others, record how far it reached."""
    named = re.compile(rf"(archive|snapshot) of {re.escape(report.league)} (?:to|at) ([0-9]{{1,18}})")
    witnesses = dict(known)
    for stored in await artifacts.stored():
        # Any worker may store a blob under such a note; archivists alone write where it is not shared.
        if not stored.is_shared and (match := named.fullmatch(stored.note)):
            what = f"the {match[1]} {stored.name}" if int(match[2]) > report.last else f"the newest {match[1]}"
            witnesses[what] = max(int(match[2]), witnesses.get(what, 0))
    for what, reached in witnesses.items():
        if reached > report.last:
            text = f"the history ends at event {report.last:,}; {what} reaches {reached:,}"
            report.damage.append(Damage("stream", report.last + 1, reached, text))
    report.known |= witnesses


async def _check_archive(
    report: IntegrityReport, history: EventLog, blobs: CachedBlobStore, chain: SealChain, on_progress: ProgressCallback
) -> None:
    manifest = await newest_manifest(history, blobs)
    announced = await history.newest(HistoryArchived)
    if announced is not None and isinstance(announced.event, HistoryArchived):
        reached = manifest.last if manifest is not None else 0
        if reached < announced.event.last:
            what = f"the manifest {announced.event.manifest[:16]}… cannot be read"
            report.damage.append(Damage("archive", reached + 1, announced.event.last, what))
    if manifest is not None:
        report.segments, report.archived_to = len(manifest.segments), manifest.last
        report.archive_bytes = sum(segment.bytes for segment in manifest.segments)
        read = report.events
        for segment in manifest.segments:
            await _check_segment(report, blobs, chain, "archive", segment)
            read += segment.events
            on_progress(read)


async def _check_copy(
    report: IntegrityReport, history: EventLog, artifacts: CachedBlobStore, chain: SealChain, url: str
) -> dict[str, int]:
    """Check the copy of the archive against the history's seals; returns how far the copy reaches, by its name."""
    place = (await find_locations(history)).copy_of_archive(url)
    if place is None:
        return {}
    report.copy = f"{place.url}/{place.folder}"
    store = place.open()
    try:
        manifest = (await find_manifests([store], report.league))[0]
    except UsageError:
        return {}
    report.copied_to = manifest.last
    blobs = CachedBlobStore(store, artifacts.cache)
    for segment in manifest.segments:
        await _check_segment(report, blobs, chain, "copy", segment)
    return {"the copy of the archive": manifest.last}


async def _check_segment(
    report: IntegrityReport, blobs: CachedBlobStore, chain: SealChain, where: str, segment: ArchiveSegment
) -> None:
    """Check a segment of the archive, or of its copy, against the history's seals; ``where`` is that of ``Damage``."""
    from league.projections.segments import SegmentFiles

    cache = blobs.cache
    place = (segment.first, segment.last)
    events: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="segment-") as folder:
        for part, file in {**segment.files, "marks": segment.marks}.items():
            path = Path(folder) / part
            try:
                await blobs.store.download(file.digest, path)
            except ArtifactError as error:
                report.damage.append(Damage(where, *place, f"{part}: {error}"))
                continue
            if part.startswith("events"):
                events[part] = path
            # The store's own copy is intact, so a damaged local one can be repaired.
            is_cached = await asyncio.to_thread(cache.path(file.digest).exists)
            if is_cached and not await asyncio.to_thread(cache.is_intact, file.digest):
                await blobs.fetch(file.digest)
                what = f"{part} {segment.first} to {segment.last}"
                report.notes.append(f"{what}: this machine's copy was damaged, fetched again")
        if len(events) < sum(part.startswith("events") for part in segment.files):
            return
        ranges = [c for c in chain.ranges if segment.first <= c.first and c.last <= segment.last]
        checker = SealChecker(ranges, where)
        try:
            async for batch in segment_batches(SegmentFiles(*place, events)):
                checker.apply_batch(batch)
        except DecodeError as error:
            report.damage.append(Damage(where, *place, str(error)))
            return
    report.damage += checker.finish()
    if not ranges or (ranges[-1].last, ranges[-1].expected) != (segment.last, segment.seal):
        what = f"the segment was made under another seal, {segment.seal[:16]}…, than the history's"
        report.damage.append(Damage(where, *place, what))
