"""Adapters, models, game records, snapshots and archives: immutable files named by the SHA-256 of their bytes.

They lie in the broker's object store, so that a joining machine needs nothing but the broker's address; each machine
keeps a cache folder. Whatever is read is checked against its name.
"""

import asyncio
import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import msgspec
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import ObjectInfo, ObjectMeta, ObjectMetaOptions
from nats.js.object_store import ObjectStore

from league.log.connection import REQUEST_TIMEOUT_S, broker_errors
from league.log.pull import pull
from schemas.errors import ArtifactError, LeagueError, StoreFullError
from schemas.ids import digest
from schemas.subjects import ARTIFACT_BUCKET

_NAME = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 512 * 1024
_SILENCE_S = 30.0


class Stored(msgspec.Struct, frozen=True):
    """An artifact in a listing."""

    name: str
    bytes: int
    time_ns: int
    """When it was put last, in nanoseconds since 1970."""
    note: str = ""
    """What it was called when it was stored, for people and for finding it without an event."""


class ArtifactStore(Protocol):
    """Where artifacts lie."""

    async def put(self, data: bytes, note: str = "") -> str:
        """Keep ``data``, once; returns its digest, which is its name. Putting it again makes it young again.

        Raises:
            StoreFullError: no space left.
            ArtifactError: it cannot be written.
        """

    async def put_file(self, path: Path, note: str = "") -> str:
        """Keep a file of any size like ``put``, without reading it into memory."""

    async def get(self, name: str) -> bytes:
        """Read an artifact and check it against its name.

        Raises:
            ArtifactError: it is not there, or damaged.
        """

    async def download(self, name: str, path: Path) -> None:
        """Write an artifact to a file like ``get``, without reading it into memory; whole or not at all.

        Raises:
            ArtifactError: it is not there, or damaged.
        """

    async def stored(self) -> list[Stored]:
        """Everything there is, by name."""

    async def delete(self, name: str) -> None:
        """Drop an artifact; dropping what is not there does nothing."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _drop(draft: Path | None) -> None:
    if draft is not None:
        draft.unlink(missing_ok=True)


def _damaged(name: str, found: str, where: str) -> ArtifactError:
    return ArtifactError(f"artifact {name[:12]}… in {where} is damaged: its digest is {found[:12]}…")


class FolderStore:
    """Artifacts as files of a folder, two levels deep. Notes are not kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where an artifact lies or would lie."""
        return self.folder / name[:2] / name

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """A file to write an artifact to; it takes its place when the block ends well, so nobody sees half of one."""
        path, draft = self.path(name), None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, named = tempfile.mkstemp(dir=path.parent)
            os.close(handle)
            draft = Path(named)
            yield draft
            os.replace(draft, path)
        except LeagueError:
            raise
        except OSError as error:
            if error.errno == 28:
                raise StoreFullError(f"{path.parent}: no space left for artifact {name[:12]}…") from error
            raise ArtifactError(f"{path}: cannot be written ({error.strerror or error})") from error
        finally:
            _drop(draft)

    def sound(self, name: str) -> bool:
        """Whether an artifact is there and is what its name says."""
        with contextlib.suppress(OSError):
            return file_digest(self.path(name)) == name
        return False

    async def put(self, data: bytes, note: str = "") -> str:
        """Write ``data`` unless it is there already; a reader never sees half a file."""
        name = digest(data)
        if not self._renewed(name):
            with self.draft(name) as draft:
                draft.write_bytes(data)
        return name

    async def put_file(self, path: Path, note: str = "") -> str:
        """Copy a file unless it is there already."""
        name = await asyncio.to_thread(file_digest, path)
        if not self._renewed(name):
            with self.draft(name) as draft:
                await asyncio.to_thread(shutil.copyfile, path, draft)
        return name

    def _renewed(self, name: str) -> bool:
        if not self.sound(name):
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path(name))
        return True

    async def get(self, name: str) -> bytes:
        """Read an artifact and check it."""
        data = self._read(name)
        if (found := digest(data)) != name:
            raise _damaged(name, found, str(self.folder))
        return data

    def _read(self, name: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            raise ArtifactError(f"artifact {name[:12]}… is not in {self.folder}") from None
        except OSError as error:
            raise ArtifactError(f"artifact {name[:12]}… in {self.folder} cannot be read: {error.strerror}") from None

    async def download(self, name: str, path: Path) -> None:
        """Copy an artifact to ``path`` and check it."""
        if not self.path(name).exists():
            raise ArtifactError(f"artifact {name[:12]}… is not in {self.folder}")
        try:
            await asyncio.to_thread(shutil.copyfile, self.path(name), path)
        except OSError as error:
            raise ArtifactError(f"artifact {name[:12]}… in {self.folder} cannot be read: {error.strerror}") from None
        if (found := await asyncio.to_thread(file_digest, path)) != name:
            _drop(path)
            raise _damaged(name, found, str(self.folder))

    async def stored(self) -> list[Stored]:
        """Everything there is; what a killed writer left behind is listed by its file's name."""
        found = []
        for path in sorted(self.folder.glob("??/*")):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                note = "" if _NAME.fullmatch(path.name) else "left by a writer that was killed"
                found.append(Stored(path.name, about.st_size, about.st_mtime_ns, note))
        return found

    async def delete(self, name: str) -> None:
        """Drop an artifact."""
        self.path(name).unlink(missing_ok=True)


class BrokerStore:
    """Artifacts in the JetStream object store."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def put(self, data: bytes, note: str = "") -> str:
        """Upload ``data`` unless it is there already."""
        name = digest(data)
        await self._put(name, io.BytesIO(data), note)
        return name

    async def put_file(self, path: Path, note: str = "") -> str:
        """Upload a file unless it is there already."""
        name = await asyncio.to_thread(file_digest, path)
        with path.open("rb") as file:
            await self._put(name, file, note)
        return name

    async def _put(self, name: str, data: IO[bytes], note: str) -> None:
        with broker_errors(f"storing artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            about = ObjectMeta(name, note or None, options=ObjectMetaOptions(max_chunk_size=_CHUNK_BYTES))
            try:
                known = await bucket.get_info(name)
            except nats.js.errors.NotFoundError:
                await bucket.put(name, data, about)
                return
            # Young again: whoever puts it is about to record an event that refers to it, and `league gc` spares the
            # young. Without this an old one that nothing refers to yet could be dropped in between.
            await bucket.update_meta(name, ObjectMeta(name, note or known.description))

    async def get(self, name: str) -> bytes:
        """Download an artifact and check it."""
        data = b"".join([chunk async for chunk in self._chunks(name)])
        if (found := digest(data)) != name:
            raise _damaged(name, found, "the broker's object store")
        return data

    async def download(self, name: str, path: Path) -> None:
        """Write an artifact to ``path``, chunk by chunk, and check it."""
        sha = hashlib.sha256()
        try:
            with path.open("wb") as file:
                async for chunk in self._chunks(name):
                    sha.update(chunk)
                    file.write(chunk)
            if sha.hexdigest() != name:
                raise _damaged(name, sha.hexdigest(), "the broker's object store")
        except BaseException:
            _drop(path)
            raise

    async def _chunks(self, name: str) -> AsyncIterator[bytes]:
        """What the broker holds of an artifact. Its client library would wait for ever for a chunk that is lost."""
        with broker_errors(f"fetching artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            info = await self._info(bucket, name)
            if not info.size:
                return
            subject = f"$O.{ARTIFACT_BUCKET}.C.{info.nuid}"
            last = await self._last(subject)
            if not last:
                raise ArtifactError(f"artifact {name[:12]}… in the broker's object store has lost its last chunk")
            chunks = pull(self._client, f"OBJ_{ARTIFACT_BUCKET}", subject, 1, last)
            while True:
                try:
                    async with asyncio.timeout(_SILENCE_S):
                        pulled = await anext(chunks)
                except StopAsyncIteration:
                    return
                for part in pulled:
                    yield part.msg.data

    async def _info(self, bucket: ObjectStore, name: str) -> ObjectInfo:
        try:
            return await bucket.get_info(name)
        except nats.js.errors.NotFoundError:
            raise ArtifactError(f"artifact {name[:12]}… is not in the broker's object store") from None
        except nats.js.errors.BadObjectMetaError:
            raise ArtifactError(f"artifact {name[:12]}… in the broker's object store: its entry is damaged") from None

    async def _last(self, subject: str) -> int:
        """Sequence of the newest message on a subject of the store; 0 when there is none that can be read."""
        try:
            return (await self._js.get_last_msg(f"OBJ_{ARTIFACT_BUCKET}", subject)).seq or 0
        except nats.js.errors.NotFoundError:
            return 0

    async def stored(self) -> list[Stored]:
        """Everything there is; the time is the broker's."""
        found, subject = [], f"$O.{ARTIFACT_BUCKET}.M.>"
        with broker_errors("listing artifacts"):
            last = await self._last(subject)
            if not last:
                return []
            async for batch in pull(self._client, f"OBJ_{ARTIFACT_BUCKET}", subject, 1, last):
                for pulled in batch:
                    entry = _entry(pulled.msg.data)
                    if entry is not None and not entry.deleted:
                        found.append(Stored(entry.name, entry.size or 0, pulled.time_ns, entry.description or ""))
        return sorted(found, key=lambda stored: stored.name)

    async def delete(self, name: str) -> None:
        """Drop an artifact that nothing refers to any more; dropping what is not there does nothing."""
        with broker_errors(f"dropping artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await bucket.delete(name)


class _Entry(msgspec.Struct):
    """What the object store notes about an object."""

    name: str
    size: int | None = None
    deleted: bool | None = None
    description: str | None = None


def _entry(data: bytes) -> _Entry | None:
    try:
        return msgspec.json.decode(data, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class CachedStore:
    """A store with a folder in front of it; a damaged cache entry is fetched again."""

    def __init__(self, store: ArtifactStore, cache: FolderStore) -> None:
        self.store = store
        self.cache = cache

    async def put(self, data: bytes, note: str = "") -> str:
        """Keep ``data`` in both."""
        await self.cache.put(data)
        return await self.store.put(data, note)

    async def put_file(self, path: Path, note: str = "") -> str:
        """Keep a file in both."""
        await self.cache.put_file(path)
        return await self.store.put_file(path, note)

    async def get(self, name: str) -> bytes:
        """From the folder if it is there and sound, else from the store."""
        try:
            return await self.cache.get(name)
        except ArtifactError:
            data = await self.store.get(name)
            await self.cache.put(data)
            return data

    async def fetch(self, name: str) -> Path:
        """A checked local file of an artifact; it is the cache's, so readers leave it as it is.

        Raises:
            ArtifactError: it is neither in the folder nor in the store, sound.
        """
        if not await asyncio.to_thread(self.cache.sound, name):
            with self.cache.draft(name) as draft:
                await self.store.download(name, draft)
        return self.cache.path(name)

    async def download(self, name: str, path: Path) -> None:
        """Write a checked artifact to ``path``."""
        await asyncio.to_thread(shutil.copyfile, await self.fetch(name), path)

    async def stored(self) -> list[Stored]:
        """Everything in the store; the cache's own listing is ``cache.stored``."""
        return await self.store.stored()

    async def delete(self, name: str) -> None:
        """Drop an artifact from both."""
        await self.cache.delete(name)
        await self.store.delete(name)
