"""Reading of archived history. The archive is disposable: missing or damaged parts are read from the stream instead."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from league.blobs import CachedBlobStore
from league.integrity.archive import ArchiveSegment, newest_manifest
from league.log.base import EventLog, RecordedEvent
from schemas.errors import ArtifactError, DecodeError
from schemas.loggers import get_logger

if TYPE_CHECKING:
    from league.projections.dedup_index import DedupIndex
    from league.projections.segments import SegmentFiles

log = get_logger()
_UNUSABLE = "archived segment cannot be used, reading the stream instead"


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
            files = await fetch_segment(blobs, segment, "events")
        except ArtifactError as error:
            log.warning(_UNUSABLE, first=segment.first, last=segment.last, error=str(error))
            async for batch in history.batches(at, min(segment.last, stop)):
                yield batch
        else:
            async for batch in segment_batches(files):
                if selected := [recorded for recorded in batch if at <= recorded.sequence <= stop]:
                    yield selected
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
