"""Recovery of a history from its archive and the remains of a damaged stream.

The archive is found without the history: by the notes in the object store, or among the files of a folder. Its files
are checked by the digests in its manifest; events of the stream after it are taken over if they continue it.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from league.blobs import BlobStore, BucketBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.archive import ArchiveManifest, event_digest, fetch_segment, segment_batches
from league.log.base import EventLog, EventReader, RecordedEvent
from schemas.errors import ArtifactError, DecodeError, UsageError
from schemas.events import Event, HistoryArchived
from schemas.subjects import event_type_filter, subject_matches

if TYPE_CHECKING:
    from league.projections.segments import SegmentFiles

_MANIFEST_MOST = 16_000_000
"""Maximum bytes of a manifest; larger files are not read."""
_ARCHIVE_NOTE = re.compile(r"archive of (.+) to [0-9]{1,18}")


class RecoveredHistory(EventReader):
    """The recoverable part of a history, with the reading methods of ``EventLog``."""

    def __init__(self, manifest: ArchiveManifest, segments: "Sequence[SegmentFiles]") -> None:
        self.league = manifest.league
        self.segments = segments
        """The archive, as verified local files."""
        self.manifests = manifest.digests()
        """Digest of the manifest and of those that it continues, with the last sequence of each."""
        self.stream: EventLog | None = None
        """The log with the events after the archive, if there are any (``append_stream``)."""
        self.archived_to = segments[-1].last

    @property
    def as_log(self) -> EventLog:
        """This history as a read-only log."""
        return cast(EventLog, self)

    async def batches(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        """Yield events up to ``last``, by default all: the archive's, then the stream's."""
        stop = last if last is not None else await self.last_sequence()
        subject = None if only is None else event_type_filter(self.league, only)
        for segment in self.segments:
            if segment.last < first or segment.first > stop:
                continue
            async for batch in segment_batches(segment):
                reached = [r for r in batch if first <= r.sequence <= stop]
                if selected := [r for r in reached if subject is None or subject_matches(subject, r.subject)]:
                    yield selected
        if self.stream is not None and stop > self.archived_to:
            async for batch in self.stream.batches(max(first, self.archived_to + 1), stop, only=only):
                yield batch

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event."""
        assert subject is None
        return self.archived_to if self.stream is None else await self.stream.last_sequence()


class DiscardedEvents(msgspec.Struct, frozen=True):
    """Discarded events of the stream."""

    first: int
    last: int
    why: str


async def find_manifests(stores: Sequence[BlobStore], league: str | None) -> list[ArchiveManifest]:
    """Archives of a league, furthest first; UsageError without any, or for None if they are of several leagues."""
    manifests: dict[str, ArchiveManifest] = {}
    for store in stores:
        for stored in await store.stored():
            # Folders and buckets have no notes, so every small file in them is a candidate.
            is_noted = _ARCHIVE_NOTE.fullmatch(stored.note) is not None and not stored.is_shared
            is_candidate = is_noted or isinstance(store, FolderBlobStore | BucketBlobStore)
            if stored.name in manifests or not is_candidate or stored.bytes > _MANIFEST_MOST:
                continue
            with contextlib.suppress(ArtifactError, DecodeError):
                manifest = ArchiveManifest.decode(await store.get(stored.name))
                if manifest.is_usable and manifest.segments and league in (None, manifest.league):
                    manifests[stored.name] = manifest
    names = sorted({manifest.league for manifest in manifests.values()})
    if not names:
        whose = "any league" if league is None else f"league {league!r}"
        raise UsageError(f"no archive of {whose} was found; expected one in the broker's object store or in --archive")
    if len(names) > 1:
        raise UsageError(f"archives of several leagues were found ({', '.join(names)}); say which one with --league")
    return sorted(manifests.values(), key=lambda manifest: (-manifest.last, manifest.encode()))


async def fetch_archive(manifests: Sequence[ArchiveManifest], sources: Sequence[CachedBlobStore]) -> RecoveredHistory:
    """Fetch the archive that reaches furthest without a gap, from sources in their order, which have the same cache.

    ArtifactError if the first segment of every archive is unavailable.
    """
    best: RecoveredHistory | None = None
    why = ""
    for manifest in manifests:
        if best is not None and manifest.last <= best.archived_to:
            break
        segments, why = await _fetch_segments(manifest, sources)
        if segments and (best is None or segments[-1].last > best.archived_to):
            fetched = msgspec.structs.replace(manifest, segments=manifest.segments[: len(segments)])
            best = RecoveredHistory(fetched, segments)
    if best is None:
        raise ArtifactError(f"the archive cannot be read from its first event on: {why}")
    return best


async def _fetch_segments(
    manifest: ArchiveManifest, sources: Sequence[CachedBlobStore]
) -> "tuple[list[SegmentFiles], str]":
    """Fetch segments up to the first unavailable one; also return the reason why that is unavailable."""
    segments: list[SegmentFiles] = []
    for segment in manifest.segments:
        why = "nowhere to look"
        for source in sources:
            try:
                segments.append(await fetch_segment(source, segment, "events"))
                break
            except ArtifactError as error:
                why = str(error)
        else:
            return segments, f"segment {segment.first} to {segment.last}: {why}"
    return segments, ""


async def append_stream(recovered: RecoveredHistory, stream: EventLog) -> DiscardedEvents | None:
    """Append the stream's events after the archive if they continue it; returns the discarded ones, if any.

    A stream that lost its end and was written to again holds other events under sequences of the archive.
    """
    last = await stream.last_sequence()
    if (differs := await _first_difference(recovered, stream)) is not None:
        return DiscardedEvents(differs, last, "events that differ from the archive's, or follow such events")
    if last <= recovered.archived_to:
        return None
    if await _continues_archive(recovered, stream):
        recovered.stream = stream
        return None
    why = "nothing in the stream shows that they continue the archive"
    return DiscardedEvents(recovered.archived_to + 1, last, why)


async def _first_difference(recovered: RecoveredHistory, stream: EventLog) -> int | None:
    """Sequence of the first event in the stream that differs from the archive's."""
    digests = ((r.sequence, event_digest(r)) async for r in stream.read(1, recovered.archived_to))
    with contextlib.suppress(StopAsyncIteration):
        sequence, digest = await anext(digests)
        async for archived in recovered.read(1, recovered.archived_to):
            if sequence < archived.sequence or (sequence == archived.sequence and digest != event_digest(archived)):
                return sequence
            if sequence == archived.sequence:
                sequence, digest = await anext(digests)
    return None


async def _continues_archive(recovered: RecoveredHistory, stream: EventLog) -> bool:
    """Whether the stream also holds the archive's last event, or the event that names the archive's manifest."""
    last = [recorded async for recorded in recovered.read(recovered.archived_to, recovered.archived_to)]
    there = [recorded async for recorded in stream.read(recovered.archived_to, recovered.archived_to)]
    if last and there and event_digest(last[0]) == event_digest(there[0]):
        return True
    named = [event async for _, event in stream.read_events(HistoryArchived, recovered.archived_to + 1)]
    return any(recovered.manifests.get(event.manifest) == recovered.archived_to for event in named)
