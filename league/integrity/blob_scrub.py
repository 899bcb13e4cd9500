"""Scrub of a history's blobs: every blob that an event refers to is there, with the digest that is its name.

A bucket of the broker is read as one stream, in the order in which it was written, and hashed in threads meanwhile:
reading blob by blob takes several round trips each. What that pass does not find intact, and blobs of other stores, are
then read one by one through the store, whose error names the fault.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import msgspec
from nats.aio.client import Client

from league.blobs import BlobStore, BrokerBlobStore, CachedBlobStore, TieredBlobStore
from league.blobs.broker import BlobEntry
from league.integrity.garbage import BlobReferences
from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from league.log.pull import PulledMessage, pull_messages
from schemas.codec import DECODE_ERRORS
from schemas.errors import ArtifactError, LogError
from schemas.subjects import BLOB_BUCKET

ScrubCallback = Callable[[int, int], None]
"""Called with the bytes read so far and those expected."""
_LANES = max(1, min(4, os.cpu_count() or 1))
_PARALLEL = 8
_SILENCE_S = 15.0
"""Longest wait for a message of the bucket; the last one may be deleted while it is read."""


class BlobFault(msgspec.Struct, frozen=True):
    """A blob that is missing or damaged."""

    name: str
    what: str
    """``missing`` or ``damaged``."""
    found: str
    """The store's error."""
    wanted_by: str
    """Description of the first reference to it."""
    events: list[int]
    """Sequences of the events that refer to it."""
    cached: bool
    """Whether this machine's cache holds an intact copy."""


class ScrubReport(msgspec.Struct):
    """Result of a scrub."""

    checked: int = 0
    """Blobs found intact."""
    bytes: int = 0
    """Bytes of these."""
    faults: list[BlobFault] = []

    def count(self, what: str) -> int:
        """Number of blobs that are ``missing`` or ``damaged``."""
        return sum(fault.what == what for fault in self.faults)


async def scrub_blobs(
    blobs: CachedBlobStore,
    references: BlobReferences,
    client: Client | None = None,
    on_progress: ScrubCallback = lambda done, total: None,
) -> ScrubReport:
    """Check the blobs that a history refers to, of those that may have been removed only what is present.

    The cache is only asked whether it could replace a fault. ``client`` is connected to the broker that holds the
    store; without one, blobs are read one by one.
    """
    required = references.required_blobs()
    stored = {blob.name: blob.bytes for blob in await blobs.stored()}
    names = required.keys() | ((references.optional | references.events.keys()) & stored.keys())
    total = sum(stored.get(name, 0) for name in names)
    intact: dict[str, int] = {}
    if client is not None and isinstance(blobs.store, BrokerBlobStore | TieredBlobStore):
        intact = await _read_bucket(client, names, total, on_progress)
    report = ScrubReport(len(intact), sum(intact.values()))
    rest = sorted(names - intact.keys())
    done = report.bytes
    for start in range(0, len(rest), _PARALLEL):
        batch = rest[start : start + _PARALLEL]
        for name, fault in zip(batch, await asyncio.gather(*(_read_blob(blobs.store, n) for n in batch)), strict=True):
            if fault is None:
                report.checked += 1
                report.bytes += stored.get(name, 0)
            else:
                what = "damaged" if name in stored else "missing"
                cached = await asyncio.to_thread(blobs.cache.is_intact, name)
                by, events = required.get(name, "an event"), references.events.get(name, [])
                report.faults.append(BlobFault(name, what, fault, by, events, cached))
            done += stored.get(name, 0)
            on_progress(done, total)
    return report


async def _read_blob(store: BlobStore, name: str) -> str | None:
    """Read one blob through the store; returns its error, None for an intact blob."""
    try:
        with tempfile.TemporaryDirectory(prefix="scrub-") as folder:
            await store.download(name, Path(folder) / name)
    except ArtifactError as error:
        return str(error)
    return None


class _Upload:
    """Hash of one upload's chunks, in order."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.bytes = 0
        self._sha = hashlib.sha256()

    def update(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            self._sha.update(chunk)
            self.bytes += len(chunk)

    @property
    def is_intact(self) -> bool:
        return self.bytes == self.size and self._sha.hexdigest() == self.name


async def _read_bucket(
    client: Client, names: Collection[str], total: int, on_progress: ScrubCallback
) -> dict[str, int]:
    """Read the broker's bucket as a stream; returns the sizes of the blobs found intact."""
    uploads: dict[str, _Upload] = {}
    async for batch in _bucket_messages(client, "M"):
        for pulled in batch:
            with contextlib.suppress(*DECODE_ERRORS):
                entry = msgspec.json.decode(pulled.msg.data, type=BlobEntry)
                if entry.name in names:
                    uploads[entry.subject] = _Upload(entry.name, entry.size)
    # The chunks of an upload are hashed in one thread, in order, while the next ones are read.
    lanes = [ThreadPoolExecutor(1, "scrub") for _ in range(_LANES)]
    loop = asyncio.get_running_loop()
    hashing: list[asyncio.Future[None]] = []
    done = 0
    try:
        async for batch in _bucket_messages(client, "C"):
            chunks: dict[str, list[bytes]] = {}
            for pulled in batch:
                if pulled.msg.subject in uploads:
                    chunks.setdefault(pulled.msg.subject, []).append(pulled.msg.data)
            await asyncio.gather(*hashing)
            on_progress(done, total)
            hashing = [
                loop.run_in_executor(lanes[crc32(subject.encode()) % len(lanes)], uploads[subject].update, parts)
                for subject, parts in chunks.items()
            ]
            done += sum(len(part) for parts in chunks.values() for part in parts)
        await asyncio.gather(*hashing)
        on_progress(done, total)
    finally:
        for lane in lanes:
            lane.shutdown()
    return {upload.name: upload.size for upload in uploads.values() if upload.is_intact}


async def _bucket_messages(client: Client, kind: str) -> AsyncIterator[list[PulledMessage]]:
    """Messages of the bucket's entries (``M``) or chunks (``C``).

    Ends early where the broker falls silent, or the credentials do not permit to read the bucket as a whole: what is
    missing then is read one by one.
    """
    stream, subject = f"OBJ_{BLOB_BUCKET}", f"$O.{BLOB_BUCKET}.{kind}.>"
    with contextlib.suppress(LogError, TimeoutError, StopAsyncIteration):
        with translate_broker_errors(f"reading {stream}"):
            last = (await client.jetstream(timeout=REQUEST_TIMEOUT_S).get_last_msg(stream, subject)).seq or 0
        messages = pull_messages(client, stream, subject, 1, last)
        while True:
            async with asyncio.timeout(_SILENCE_S):
                batch = await anext(messages)
            yield batch
