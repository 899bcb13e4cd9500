"""Archive of the history: Parquet segments in the blob store, which is also its seal.

A segment holds every event exactly as it was recorded. The manifest lists all segments with the SHA-256 of each file,
and ``HistoryArchived`` names the manifest by its own digest, so that digest, kept elsewhere, vouches for everything
archived so far (``league.integrity.verify``). A manifest continues the one before: without its newest segment it has
that one's digest. Readers take missing or damaged parts from the stream instead.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from league.blobs import BlobStore, CachedBlobStore, find_locations
from league.log.base import EventLog, RecordedEvent
from schemas.codec import DECODE_ERRORS
from schemas.errors import ArtifactError, DecodeError, LogError
from schemas.events import HistoryArchived, SnapshotTaken
from schemas.ids import digest
from schemas.loggers import get_logger
from schemas.subjects import event_type_filter

if TYPE_CHECKING:
    from league.projections.dedup_index import DedupIndex
    from league.projections.segments import SegmentFiles

log = get_logger()
ProgressCallback = Callable[[int], None]
VERSION = 1
"""Version of the manifest's schema and of the segments' content."""
_EVENT_PARTS = {"events_bulky", "events_rest"}
_USUAL_BYTES, _MAX_BULK_BYTES = 4096, 16 * 2**20
"""Bytes of a message that count as none, and of a segment's messages beyond that: DuckDB reads 2,048 rows at a time."""
_STALE_S = 3600.0
_UNUSABLE = "archived segment cannot be used, reading the stream instead"


class ArchiveFile(msgspec.Struct, frozen=True):
    """A blob of the archive."""

    digest: str
    bytes: int


class ArchiveSegment(msgspec.Struct, frozen=True):
    """A closed range of the history as Parquet files."""

    first: int
    last: int
    events: int
    files: dict[str, ArchiveFile]
    """Files by part (``league.projections.segments``)."""
    marks: ArchiveFile
    """The dedup index at ``last``."""

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files.values()) + self.marks.bytes


class ArchiveManifest(msgspec.Struct, frozen=True):
    """All segments, from the first event on."""

    version: int
    league: str
    segments: list[ArchiveSegment]

    def encode(self) -> bytes:
        """The bytes of its blob."""
        return msgspec.json.encode(self)

    def digests(self) -> dict[str, int]:
        """Digest of this manifest and of each one that it continues, with the last sequence of each."""
        prefixes = (
            msgspec.structs.replace(self, segments=self.segments[:end]) for end in range(1, len(self.segments) + 1)
        )
        return {digest(prefix.encode()): prefix.last for prefix in prefixes}

    @property
    def last(self) -> int:
        """Sequence of the last archived event."""
        return self.segments[-1].last if self.segments else 0

    @property
    def is_usable(self) -> bool:
        """Whether this version can read it: whole segments that follow one another from the first event on."""
        starts = [1, *(segment.last + 1 for segment in self.segments)]
        return self.version == VERSION and all(
            segment.first == start <= segment.last and segment.files.keys() >= _EVENT_PARTS
            for segment, start in zip(self.segments, starts, strict=False)
        )

    @classmethod
    def decode(cls, data: bytes) -> "ArchiveManifest":
        """Decode a manifest of any version; DecodeError if the bytes are none."""
        try:
            return msgspec.json.decode(data, type=cls)
        except DECODE_ERRORS as error:
            raise DecodeError(f"not the manifest of an archive: {error}") from error

    def files(self) -> "Iterator[tuple[str, ArchiveFile]]":
        """Iterate over all files, each with a description."""
        for segment in self.segments:
            for part, file in segment.files.items():
                yield f"{part} of the archive, events {segment.first} to {segment.last}", file
            yield f"marks of the archive at {segment.last}", segment.marks


async def newest_manifest(history: EventLog, blobs: BlobStore) -> ArchiveManifest | None:
    """The newest readable manifest; None when there is none."""
    events = [event async for _, event in history.read_events(HistoryArchived)]
    for event in reversed(events):
        try:
            manifest = ArchiveManifest.decode(await blobs.get(event.manifest))
        except (ArtifactError, DecodeError) as error:
            log.warning("manifest skipped", last=event.last, error=str(error))
            continue
        if manifest.is_usable:
            return manifest
    return None


def event_digest(recorded: RecordedEvent) -> bytes:
    """SHA-256 of all that is recorded with an event, unambiguously: numbers and lengths in decimal come first."""
    subject = recorded.subject.encode("utf-8", "surrogatepass")
    producer = recorded.producer.encode("utf-8", "surrogatepass")
    numbers = f"{recorded.sequence} {recorded.time_ns} {recorded.schema}"
    head = f"{numbers} {len(subject)} {len(producer)} {len(recorded.payload)}\n"
    return hashlib.sha256(b"".join((head.encode(), subject, producer, recorded.payload))).digest()


def is_bookkeeping(recorded: RecordedEvent) -> bool:
    """Whether an event is an archivist's own: archiving it alone would call for archiving again."""
    return isinstance(recorded.event, HistoryArchived | SnapshotTaken)


async def archive_history(
    history: EventLog,
    blobs: CachedBlobStore,
    every: int,
    *,
    rest: bool = False,
    expected: int | None = None,
    most: int | None = None,
    witness: Mapping[int, bytes] | None = None,
    progress: ProgressCallback = lambda sequence: None,
) -> list[HistoryArchived]:
    """Archive events that are not archived yet, in segments of ``every`` events; ``rest`` archives the remainder too.

    ``expected`` is the sequence of the newest archiving that the caller has seen, by default the newest there is.
    ``most`` limits the number of segments. ``witness`` has the ``event_digest`` of events by sequence, as they
    were when they were first read. ``progress`` is called with the sequence reached.

    Raises:
        LogError: the stream does not hold what ``witness`` has read.
        ConflictError: another archivist appended first.
    """
    if expected is None:
        expected = await history.last_sequence(event_type_filter(history.league, HistoryArchived))
    manifest = await newest_manifest(history, blobs) or ArchiveManifest(VERSION, history.league, [])
    done: list[HistoryArchived] = []
    pending: list[RecordedEvent] = []
    bulk = 0

    async def store() -> None:
        nonlocal manifest, expected, bulk
        _check_witness(pending, manifest.last, witness or {})
        segment = await _archive_segment(blobs, pending, manifest)
        manifest = msgspec.structs.replace(manifest, segments=[*manifest.segments, segment])
        name = await blobs.put(manifest.encode(), f"archive of {history.league} to {segment.last}")
        event = HistoryArchived(first=segment.first, last=segment.last, manifest=name, bytes=segment.bytes)
        expected = await history.append(event, expected=expected)
        done.append(event)
        pending.clear()
        bulk = 0
        log.info("history archived", first=segment.first, last=segment.last, bytes=segment.bytes)

    async for batch in history.batches(manifest.last + 1):
        for recorded in batch:
            pending.append(recorded)
            bulk += max(len(recorded.payload) - _USUAL_BYTES, 0)
            if len(pending) == every or bulk >= _MAX_BULK_BYTES:
                await store()
                if len(done) == most:
                    return done
        progress(batch[-1].sequence)
    if rest and not all(map(is_bookkeeping, pending)):
        await store()
    return done


def _check_witness(events: Sequence[RecordedEvent], after: int, witness: Mapping[int, bytes]) -> None:
    found = {recorded.sequence: event_digest(recorded) for recorded in events}
    last = events[-1].sequence
    wrong = [at for at, witnessed in witness.items() if after < at <= last and found.get(at) != witnessed]
    if wrong:
        raise LogError(
            f"event {min(wrong):,} is not what this archivist read before, {len(wrong):,} such events up to {last:,}; "
            "they are not archived. `league restore` makes a run of the archive and what is intact"
        )


class CopiedArchive(msgspec.Struct, frozen=True):
    """The state of a copy of the archive."""

    where: str
    last: int
    """Sequence of the last event in it."""
    files: int
    """Number of files that were added."""
    bytes: int
    """Size of these."""


async def copy_archive(history: EventLog, blobs: CachedBlobStore, to: str = "") -> CopiedArchive | None:
    """Add to the archive's copy, in ``to`` or the configured place, what it lacks; None without archive or place.

    Each file is written once, the manifest after all others. LeagueError if the place cannot be written, or holds other
    bytes under a digest.
    """
    destination = (await find_locations(history)).copy_of_archive(to)
    manifest = await newest_manifest(history, blobs)
    if destination is None or manifest is None:
        return None
    store = destination.open()
    present = {blob.name for blob in await store.stored()}
    added = {file.digest: file.bytes for _, file in manifest.files() if file.digest not in present}
    for name in added:
        await store.put(await blobs.fetch(name))
    await store.put(manifest.encode())
    where = f"{destination.url}/{destination.folder}"
    log.info("archive copied", to=where, last=manifest.last, files=len(added))
    return CopiedArchive(where, manifest.last, len(added), sum(added.values()))


async def _archive_segment(
    blobs: CachedBlobStore, events: Sequence[RecordedEvent], manifest: ArchiveManifest
) -> ArchiveSegment:
    from league.projections.dedup_index import DedupIndex
    from league.projections.segments import write_segment

    first, last = manifest.last + 1, events[-1].sequence
    before = manifest.segments[-1].marks.digest if manifest.segments else ""
    marks = DedupIndex.from_bytes(await blobs.get(before)) if before else DedupIndex()
    folder = await asyncio.to_thread(_make_scratch_folder, blobs.cache.folder)
    try:
        written = await asyncio.to_thread(write_segment, first, last, [events], marks, folder)
        files = {}
        for part, path in written.files.items():
            size = await asyncio.to_thread(os.path.getsize, path)
            files[part] = ArchiveFile(await blobs.put(path, f"{part} {first}-{last}"), size)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    saved = marks.to_bytes()
    file = ArchiveFile(await blobs.put(saved, f"marks at {last}"), len(saved))
    return ArchiveSegment(first, last, len(events), files, file)


def _make_scratch_folder(path: Path) -> Path:
    """Create a scratch folder for a segment; remove stale ones of archivists that were killed."""
    path.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="segment-", dir=path))
    # Ages by the clock of the file system: this machine's may be hours away from it.
    now = made.stat().st_mtime
    for left in path.glob("segment-*"):
        # Another archivist with this cache may be removing its own.
        with contextlib.suppress(FileNotFoundError):
            if now - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
    return made


class AttachableSegments(msgspec.Struct, frozen=True):
    """Verified local segments for a projection to attach."""

    segments: "list[SegmentFiles]"
    marks: "DedupIndex"
    """The dedup index at the end of the last segment."""


async def fetch_attachable(history: EventLog, blobs: CachedBlobStore, after: int) -> AttachableSegments | None:
    """Fetch the segments that continue at ``after``, up to the first that cannot be fetched; None without any."""
    from league.projections.dedup_index import DedupIndex

    manifest = await newest_manifest(history, blobs)
    segments: list[SegmentFiles] = []
    marks: DedupIndex | None = None
    for segment in manifest.segments if manifest is not None else []:
        if segment.first <= after:
            continue
        if segment.first != (segments[-1].last if segments else after) + 1:
            break
        try:
            files = await fetch_segment(blobs, segment)
            marks = DedupIndex.from_bytes(await blobs.get(segment.marks.digest))
        except (ArtifactError, DecodeError) as error:
            log.warning(_UNUSABLE, first=segment.first, last=segment.last, error=str(error))
            break
        segments.append(files)
    return AttachableSegments(segments, marks) if marks is not None and segments else None


async def next_segment_start(history: EventLog, blobs: CachedBlobStore, position: int) -> int | None:
    """Start of the next segment beyond ``position + 1``: events before it come from the stream."""
    manifest = await newest_manifest(history, blobs)
    firsts = [segment.first for segment in manifest.segments] if manifest is not None else []
    return next((first for first in firsts if first > position + 1), None)


async def fetch_segment(blobs: CachedBlobStore, segment: ArchiveSegment, parts: str = "") -> "SegmentFiles":
    """Fetch a segment's parts that begin with ``parts`` into the cache; ArtifactError if one is missing or damaged."""
    from league.projections.segments import SegmentFiles

    files = {part: await blobs.fetch(file.digest) for part, file in segment.files.items() if part.startswith(parts)}
    return SegmentFiles(segment.first, segment.last, files)


async def archived_batches(
    history: EventLog, blobs: CachedBlobStore, first: int = 1, last: int | None = None
) -> AsyncIterator[list[RecordedEvent]]:
    """Like ``EventLog.batches``: the archived part from the archive, the rest from the stream."""
    stop = last if last is not None else await history.last_sequence()
    manifest = await newest_manifest(history, blobs)
    at = first
    for segment in manifest.segments if manifest is not None else []:
        if segment.last < at or segment.first > stop:
            continue
        try:
            async for batch in segment_batches(await fetch_segment(blobs, segment, "events")):
                if selected := [recorded for recorded in batch if at <= recorded.sequence <= stop]:
                    at = selected[-1].sequence + 1
                    yield selected
        except (ArtifactError, DecodeError) as error:
            log.warning(_UNUSABLE, first=segment.first, last=segment.last, error=str(error))
            async for batch in history.batches(at, min(segment.last, stop)):
                yield batch
        at = segment.last + 1
    if at <= stop:
        async for batch in history.batches(at, stop):
            yield batch


async def segment_batches(files: "SegmentFiles") -> AsyncIterator[list[RecordedEvent]]:
    """Yield the events of a segment in order, as they were recorded."""
    from league.projections.segments import read_segment

    batches = read_segment(files)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch
