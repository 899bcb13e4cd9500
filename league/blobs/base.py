"""The contract of a blob store."""

import asyncio
import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec

from schemas.errors import ArtifactError
from schemas.ids import digest

_LARGE = 1024 * 1024
"""Bytes from which work on a blob is done in a thread."""
T = TypeVar("T")


class BlobInfo(msgspec.Struct, frozen=True):
    """A blob in a listing."""

    name: str
    bytes: int
    time_ns: int
    """When it was last put, in nanoseconds since 1970."""
    note: str = ""
    """Description given when it was stored, for finding it without an event."""
    is_shared: bool = False
    """Whether any worker that stores blobs may have stored it and given the note."""


class BlobStore(Protocol):
    """A content-addressed store."""

    async def put(self, data: bytes, note: str = "") -> str:
        """Store ``data`` and return its name, which is its digest. Putting it again only renews its time.

        ArtifactError if the store cannot be written; StoreFullError if no space is left, or a disk is read-only.
        """

    async def put_file(self, path: Path, note: str = "") -> str:
        """Store a file of any size like ``put``, without reading it into memory."""

    async def get(self, name: str) -> bytes:
        """Read a blob and check it against its name; ArtifactError if it is missing or damaged."""

    async def download(self, name: str, path: Path) -> None:
        """Write a blob to a file like ``get``, without reading it into memory; whole or not at all."""

    async def stored(self) -> list[BlobInfo]:
        """All blobs, sorted by name."""

    async def delete(self, name: str) -> None:
        """Delete a blob; does nothing for a missing one."""


class StreamedBlobStore(ABC):
    """Base of stores that read and write blobs as streams of bytes."""

    async def put(self, data: bytes, note: str = "") -> str:
        """See ``BlobStore.put``."""
        name = await off_loop(len(data), digest, data)
        await self._upload(name, data, note)
        return name

    async def put_file(self, path: Path, note: str = "") -> str:
        """See ``BlobStore.put_file``."""
        name = await asyncio.to_thread(file_digest, path)
        await self._upload(name, path, note)
        return name

    async def get(self, name: str) -> bytes:
        """See ``BlobStore.get``."""
        data = io.BytesIO()
        await self._fetch(name, data)
        return data.getvalue()

    async def download(self, name: str, path: Path) -> None:
        """See ``BlobStore.download``."""
        try:
            with path.open("wb") as file:
                await self._fetch(name, file)
        except BaseException:  # raised again; an interruption leaves no draft either
            remove_draft(path)
            raise

    @abstractmethod
    async def _upload(self, name: str, data: bytes | Path, note: str) -> None:
        """Store bytes, or a file, of the digest ``name``."""

    @abstractmethod
    async def _fetch(self, name: str, file: IO[bytes]) -> None:
        """Write a blob to a file; raises ArtifactError where none of these bytes is there."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_draft(draft: Path | None) -> None:
    """Remove an unfinished file."""
    if draft is not None:
        draft.unlink(missing_ok=True)


async def off_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call ``work``, in a thread where it is about so many bytes that it would hold up the event loop."""
    return await asyncio.to_thread(work, *arguments) if size >= _LARGE else work(*arguments)


def conflicting_blob_error(name: str, digest: str, where: str) -> ArtifactError:
    """The error for a write-once place that holds other bytes."""
    return ArtifactError(
        f"{where} holds other bytes, of the digest {digest[:12]}…; expected those of blob {name[:12]}…, and nothing "
        "overwrites them: remove the damaged one, after which this is stored again"
    )


def corrupt_blob_error(name: str, digest: str, where: str) -> ArtifactError:
    """The error for bytes that do not match their digest."""
    return ArtifactError(f"blob {name[:12]}… in {where} is damaged: its digest is {digest[:12]}…")
