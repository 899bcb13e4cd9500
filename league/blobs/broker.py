"""Blobs in the broker's object store.

An entry of a blob is a message on ``$O.<bucket>.M.<league>.<area>.<writer>.<digest>``, its bytes are messages on
``$O.<bucket>.C.<league>.<area>.<writer>.<digest>.<upload>``. Subjects name the writer, so permissions let no worker
publish for another. Storing needs no roll-up, purge or overwrite: it adds an entry, which names the messages that hold
the bytes. Readers take the newest entry whose bytes match the digest and skip all others.
"""

import asyncio
import contextlib
import hashlib
import io
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.blobs.base import BlobInfo, StreamedBlobStore, corrupt_blob_error, is_blob_name
from league.log.access import user_name
from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from league.log.pull import PulledMessage, present_messages
from schemas.codec import DECODE_ERRORS
from schemas.errors import AccessError, ArtifactError, LogUnavailableError, MissingStreamError
from schemas.numbers import Count
from schemas.subjects import BLOB_BUCKET, STATE_BUCKET, blob_subject

BLOB_AREA, ARCHIVE_AREA, STATE_AREA = "blob", "archive", "state"
"""Who may write: every worker that stores blobs, archivists only, trainers only."""
_CHUNK_BYTES = 512 * 1024
_CHUNK_TIMEOUT_S = 30.0
_CHUNKS = re.compile(r"(?:[\w-]+\.){3}(?P<name>[0-9a-f]{64})\.[\w-]+", re.ASCII)
"""Ends of the subjects of chunks: entries were written by others."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


class BlobEntry(msgspec.Struct):
    """An entry: a stored copy of a blob."""

    name: str
    size: Count = 0
    chunks: Count = 0
    first: Count = 1
    """Sequence of the message with its first chunk."""
    last: Count | None = None
    """Sequence of the message with its last chunk; None for an empty blob."""
    subject: str = ""
    """Subject of its chunks."""
    description: str | None = None


class _Copy(msgspec.Struct, frozen=True):
    """An entry and its place."""

    entry: BlobEntry
    bucket: str
    area: str
    writer: str
    time_ns: int

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f"the broker's object store, stored by {self.writer}"


class BrokerBlobStore(StreamedBlobStore):
    """Blobs of a league, ``*`` for reading those of all, in JetStream streams; the connection's name is the writer's.

    ``area`` is where blobs are put: ``BLOB_AREA``, ``ARCHIVE_AREA`` or ``STATE_AREA``. Reads search all of them.
    """

    def __init__(self, client: Client, league: str, area: str = BLOB_AREA) -> None:
        self._client = client
        self._league = league
        self._area = area
        self._bucket = STATE_BUCKET if area == STATE_AREA else BLOB_BUCKET
        self._writer = _NOT_IN_A_NAME.sub("_", user_name(client)) or "_"
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._put_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def _upload(self, name: str, data: bytes | Path, note: str) -> None:
        if self._league == "*":
            raise ArtifactError(f"blob {name[:12]}…: this store reads all leagues; expected one league to write to")
        # One upload of a blob at a time.
        lock = self._put_locks.setdefault(name, asyncio.Lock())
        async with lock:
            with translate_broker_errors(f"storing blob {name[:12]}…"):
                entry = await self._find_own(name)
                if entry is None:
                    chunks = f"{self._subject('C', name, self._writer, self._area)}.{secrets.token_hex(8)}"
                    entry = BlobEntry(name, subject=chunks)
                    with data.open("rb") if isinstance(data, Path) else io.BytesIO(data) as file:
                        while chunk := file.read(_CHUNK_BYTES):
                            entry.last = (await self._js.publish(entry.subject, chunk)).seq
                            entry.first = entry.last if not entry.chunks else entry.first
                            entry.chunks += 1
                            entry.size += len(chunk)
                # An old copy gets a new entry, which renews its time: `league gc` spares young blobs, and could
                # otherwise delete this one before the event that refers to it is recorded.
                entry.description = note or entry.description
                await self._js.publish(self._subject("M", name, self._writer, self._area), msgspec.json.encode(entry))

    async def _find_own(self, name: str) -> BlobEntry | None:
        """An intact copy in the bucket that is written to."""
        # Most blobs are new, and this request costs the broker less than a consumer.
        subject = self._subject("M", name)
        if not (await self._js.stream_info(f"OBJ_{self._bucket}", subjects_filter=subject)).state.subjects:
            return None
        try:
            return (await self._read(name, None, [self._bucket])).entry
        except ArtifactError:
            return None

    def _subject(self, part: str, name: str, writer: str = "*", area: str = "*", bucket: str = "") -> str:
        return blob_subject(bucket or self._bucket, part, self._league, area, writer, name)

    async def _fetch(self, name: str, file: IO[bytes]) -> None:
        await self._read(name, file)

    async def _read(self, name: str, file: IO[bytes] | None, buckets: list[str] | None = None) -> _Copy:
        """Write the newest copy whose bytes match the digest to a file, and return it; else raise what is wrong."""
        problem = ArtifactError(f"blob {name[:12]}… is not in the broker's object store")
        async with contextlib.aclosing(self._copies(name, buckets or [BLOB_BUCKET, STATE_BUCKET])) as copies:
            async for copy in copies:
                sha = hashlib.sha256()
                if file is not None:
                    file.seek(0)
                    file.truncate()
                try:
                    async for chunk in self._chunks(copy):
                        sha.update(chunk)
                        if file is not None:
                            file.write(chunk)
                except ArtifactError as error:
                    problem = error
                    continue
                except AccessError as error:
                    # An entry may refer to another league's chunks, which these credentials do not reach.
                    problem = ArtifactError(f"blob {name[:12]}… in {copy.where}: {error}")
                    continue
                if sha.hexdigest() == name:
                    return copy
                problem = corrupt_blob_error(name, sha.hexdigest(), copy.where)
        raise problem

    async def _copies(self, name: str, buckets: list[str]) -> AsyncGenerator[_Copy, None]:
        """Entries of a blob, newest first."""
        for bucket in buckets:
            for copy in reversed(await self._list(bucket, self._subject("M", name, bucket=bucket))):
                yield copy

    async def _list(self, bucket: str, subject: str) -> list[_Copy]:
        """Entries on a subject, oldest first; undecodable ones are left out."""
        entries = []
        with contextlib.suppress(MissingStreamError):
            async for batch in present_messages(self._client, f"OBJ_{bucket}", subject):
                entries += [copy for each in batch if (copy := _decode_entry(bucket, each)) is not None]
        return entries

    async def _chunks(self, copy: _Copy) -> AsyncIterator[bytes]:
        """The chunks of a copy, in order; ArtifactError if the entry refers to others or one is missing."""
        entry, count = copy.entry, 0
        subject = entry.subject
        rest = subject.removeprefix(f"$O.{copy.bucket}.C.")
        match = _CHUNKS.fullmatch(rest)
        if rest == subject or match is None or match["name"] != entry.name:
            raise ArtifactError(f"blob {entry.name[:12]}… in {copy.where}: its entry is damaged")
        chunks = present_messages(self._client, f"OBJ_{copy.bucket}", subject, entry.first)
        if entry.size:
            async with contextlib.aclosing(chunks):
                # A reader can make the broker store a chunk again: messages after the last one are not part of it.
                while count < entry.chunks and (batch := await self._next_batch(chunks)):
                    for each in batch:
                        if count < entry.chunks and (entry.last is None or each.sequence <= entry.last):
                            count += 1
                            yield each.msg.data
        if count != entry.chunks:
            raise ArtifactError(
                f"blob {entry.name[:12]}… in {copy.where} is damaged: {count} of its {entry.chunks} chunks were found"
            )

    async def _next_batch(self, chunks: AsyncIterator[list[PulledMessage]]) -> list[PulledMessage]:
        try:
            async with asyncio.timeout(_CHUNK_TIMEOUT_S):
                return await anext(chunks, [])
        except TimeoutError:
            raise LogUnavailableError("fetching a blob: the broker did not answer") from None

    async def stored(self) -> list[BlobInfo]:
        """List all blobs, with the broker's times."""
        blobs: dict[str, BlobInfo] = {}
        listed: list[_Copy] = []
        for bucket in (BLOB_BUCKET, STATE_BUCKET):
            listed += await self._list(bucket, self._subject("M", "*", bucket=bucket))
        for copy in listed:
            entry, known = copy.entry, blobs.get(copy.entry.name)
            if known is not None and copy.area == BLOB_AREA and not known.is_shared:
                # An entry that any worker may write must not describe an archive.
                blobs[entry.name] = msgspec.structs.replace(known, time_ns=max(copy.time_ns, known.time_ns))
            else:
                blobs[entry.name] = BlobInfo(
                    entry.name, entry.size, copy.time_ns, entry.description or "", copy.area == BLOB_AREA
                )
        return [blobs[name] for name in sorted(blobs)]

    async def delete(self, name: str) -> None:
        """Delete all copies of a blob; of the workers only trainers may, and only in the area of states."""
        if not is_blob_name(name):
            return
        with translate_broker_errors(f"dropping blob {name[:12]}…"):
            for bucket in {self._bucket, STATE_BUCKET}:
                entries, chunks = (self._subject(part, name, bucket=bucket) for part in "MC")
                for subject in (entries, f"{chunks}.*"):
                    with contextlib.suppress(nats.js.errors.NotFoundError):
                        await self._js.purge_stream(f"OBJ_{bucket}", subject=subject)


def _decode_entry(bucket: str, pulled: PulledMessage) -> _Copy | None:
    """The entry in a message; None without one. Its subject gives name, area and writer.

    Permissions guard the subject, except its last token, the name: a broker takes ``*`` for one, too.
    """
    tokens = pulled.msg.subject.split(".")
    try:
        entry = msgspec.json.decode(pulled.msg.data, type=BlobEntry)
    except DECODE_ERRORS:
        return None
    # Clients can direct answers of the broker to these subjects; some have a name, none has a subject.
    if len(tokens) != 7 or not entry.subject:
        return None
    _, _, _, _, area, writer, entry.name = tokens
    return _Copy(entry, bucket, area, writer, pulled.time_ns) if is_blob_name(entry.name) else None
