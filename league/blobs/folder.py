"""Blobs in a folder, and a cache folder in front of another store."""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from league.blobs.base import (
    BlobInfo,
    BlobStore,
    StreamedBlobStore,
    conflicting_blob_error,
    corrupt_blob_error,
    file_digest,
    is_blob_name,
    off_loop,
    remove_draft,
)
from schemas.errors import AccessError, ArtifactError, DiskError, LeagueError
from schemas.files import fsync_path
from schemas.loggers import get_logger

log = get_logger()
_FILE_NAME = re.compile(r"[0-9a-z_-]+")
"""Name of a blob's file or of a draft; no other one may lead out of the folder."""
_CHUNK_BYTES = 1024 * 1024


class FolderBlobStore(StreamedBlobStore):
    """Blobs as files of a folder, two levels deep, without notes; the folder is made when the first one is stored.

    With ``write_once``, for a store that others share, files are on the disk before a call returns, and none is ever
    replaced, not even a damaged one. Otherwise a damaged file is replaced, as fits a cache.
    """

    def __init__(self, folder: Path, write_once: bool = False) -> None:
        self.folder = folder
        self._write_once = write_once

    def path(self, name: str) -> Path:
        """Path of a blob, whether it exists or not; ArtifactError for an impossible name."""
        if not _FILE_NAME.fullmatch(name):
            raise ArtifactError(f"blob {name[:12]!r} is not in {self.folder}; expected a name of 64 hexadecimal digits")
        return self.folder / name[:2] / name

    @contextmanager
    def write_atomically(self, name: str) -> Iterator[Path]:
        """Yield a draft file that becomes the blob's file when the block succeeds, so readers see only whole files."""
        path = self.path(name)
        draft = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # If this process is killed, the draft is listed and deleted under this name.
            handle, named = tempfile.mkstemp(prefix=f"{name[:2]}-", dir=path.parent)
            os.close(handle)
            draft = Path(named)
            yield draft
            if self._write_once:
                draft.chmod(0o444)
                fsync_path(draft)
                try:
                    os.link(draft, path)
                except FileExistsError:
                    self._check_same(path.name)
                # The folder may be new.
                fsync_path(path.parent)
                fsync_path(self.folder)
            else:
                os.replace(draft, path)
        except LeagueError:
            raise
        except OSError as error:
            if disk := DiskError.of(error, path.parent):
                raise disk from error
            if isinstance(error, PermissionError) and self._write_once:
                raise AccessError(f"{path.parent}: blob {name[:12]}… cannot be written (permission denied)") from error
            raise ArtifactError(f"{path}: cannot be written ({error.strerror or error})") from error
        finally:
            remove_draft(draft)

    def _check_same(self, name: str) -> None:
        """Raise ArtifactError if the file that has a blob's name holds other bytes."""
        if (found := file_digest(self.path(name))) != name:
            raise conflicting_blob_error(name, found, str(self.path(name)))

    def is_intact(self, name: str) -> bool:
        """Whether a blob exists and matches its digest."""
        with contextlib.suppress(OSError):
            return file_digest(self.path(name)) == name
        return False

    async def _upload(self, name: str, data: bytes | Path, note: str) -> None:
        if isinstance(data, Path):
            await asyncio.to_thread(self._put, name, data)
        else:
            await off_loop(len(data), self._put, name, data)

    def _put(self, name: str, data: bytes | Path) -> None:
        if self.is_intact(name):
            with contextlib.suppress(OSError):
                os.utime(self.path(name))
            return
        if self._write_once and self.path(name).exists():
            self._check_same(name)
        with self.write_atomically(name) as draft:
            if isinstance(data, Path):
                shutil.copyfile(data, draft)
            else:
                draft.write_bytes(data)

    async def _fetch(self, name: str, file: IO[bytes]) -> None:
        path = self.path(name)
        try:
            with path.open("rb") as own:
                found = await off_loop(os.fstat(own.fileno()).st_size, _copy_hashed, own, file)
        except (FileNotFoundError, NotADirectoryError):
            raise ArtifactError(f"blob {name[:12]}… is not in {self.folder}") from None
        except OSError as error:
            if DiskError.of(error):
                raise  # the target's disk, not the blob, is at fault
            raise ArtifactError(f"blob {name[:12]}… in {self.folder} cannot be read: {error.strerror}") from None
        if found != name:
            raise corrupt_blob_error(name, found, str(self.folder))

    async def stored(self) -> list[BlobInfo]:
        """List all blobs, and by file name the drafts that killed writers left behind."""
        blobs = []
        for path in sorted(self.folder.glob("??/*")):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                note = "" if is_blob_name(path.name) else "left by a writer that was killed"
                blobs.append(BlobInfo(path.name, about.st_size, about.st_mtime_ns, note))
        return blobs

    async def delete(self, name: str) -> None:
        """Delete a blob or draft, if it exists."""
        with contextlib.suppress(ArtifactError):
            self.path(name).unlink(missing_ok=True)


def _copy_hashed(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy a file; return the SHA-256 of its bytes in hex."""
    sha = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        sha.update(chunk)
        target.write(chunk)
    return sha.hexdigest()


class CachedBlobStore:
    """A store with a cache folder in front of it; a damaged cache entry is fetched again."""

    def __init__(self, store: BlobStore, cache: FolderBlobStore) -> None:
        self.store = store
        self.cache = cache

    async def put(self, data: bytes | Path, note: str = "") -> str:
        """Store ``data`` in both."""
        await self._keep(data)
        return await self.store.put(data, note)

    async def get(self, name: str) -> bytes:
        """Read from the cache if it holds an intact copy, else from the store."""
        try:
            return await self.cache.get(name)
        except ArtifactError:
            data = await self.store.get(name)
            await self._keep(data)
            return data

    async def _keep(self, data: bytes | Path) -> None:
        """Store in the cache. A cache that cannot be written is not an error; a full disk is."""
        try:
            await self.cache.put(data)
        except ArtifactError as error:
            log.warning("a blob is not cached", error=str(error))

    async def fetch(self, name: str) -> Path:
        """Path of a blob in the cache, checked; ArtifactError if no copy is intact."""
        if not await asyncio.to_thread(self.cache.is_intact, name):
            with self.cache.write_atomically(name) as draft:
                await self.store.download(name, draft)
        return self.cache.path(name)

    async def download(self, name: str, path: Path) -> None:
        """Write a checked blob to ``path``."""
        await self.fetch(name)
        await self.cache.download(name, path)

    async def stored(self) -> list[BlobInfo]:
        """All blobs of the store; ``cache.stored`` lists the cache."""
        return await self.store.stored()

    async def delete(self, name: str) -> None:
        """Delete a blob from both."""
        await self.cache.delete(name)
        await self.store.delete(name)
