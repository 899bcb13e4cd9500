"""The contract of a blob store."""

import asyncio
import hashlib
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec

from schemas.errors import ArtifactError, DiskError
from schemas.ids import digest

_LARGE = 1024 * 1024
"""Bytes from which work on a blob is done in a thread."""
_NAME = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


class BlobInfo(msgspec.Struct, frozen=True):
    """A blob in a listing."""

    name: str
    bytes: int
    time_ns: int
    """Time of the last ``put``, in nanoseconds since 1970."""
    note: str = ""
    """Description from its writer, by which it is found without an event."""
    is_shared: bool = False
    """Whether any worker that stores blobs may have written it and its note."""


class BlobStore(Protocol):
    """A content-addressed store."""

    async def put(self, data: bytes | Path, note: str = "") -> str:
        """Store bytes, or a file of any size without reading it into memory; return the name, which is their digest.

        Putting them again only renews their time. ArtifactError if the store cannot be written; StoreFullError if no
        space is left, or a disk is read-only.
        """

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

    async def put(self, data: bytes | Path, note: str = "") -> str:
        """Store bytes or a file; return the digest."""
        if isinstance(data, Path):
            name = await asyncio.to_thread(file_digest, data)
        else:
            name = await off_loop(len(data), digest, data)
        await self._upload(name, data, note)
        return name

    async def get(self, name: str) -> bytes:
        """Read a blob and check its digest."""
        _check_name(name)
        data = io.BytesIO()
        await self._fetch(name, data)
        return data.getvalue()

    async def download(self, name: str, path: Path) -> None:
        """Write a blob to a file, whole or not at all."""
        _check_name(name)
        try:
            with path.open("wb") as file:
                await self._fetch(name, file)
        except BaseException as error:  # raised again; an interruption leaves no draft either
            remove_draft(path)
            if isinstance(error, OSError) and (disk := DiskError.of(error, path.parent)):
                raise disk from error
            raise

    @abstractmethod
    async def _upload(self, name: str, data: bytes | Path, note: str) -> None:
        """Store bytes or a file under their digest ``name``."""

    @abstractmethod
    async def _fetch(self, name: str, file: IO[bytes]) -> None:
        """Write a blob to an open file; ArtifactError if it is missing or damaged."""


def is_blob_name(name: str) -> bool:
    """Whether this is a blob's name; events and subjects that name blobs may come from faulty workers."""
    return _NAME.fullmatch(name) is not None


def _check_name(name: str) -> None:
    if not is_blob_name(name):
        raise ArtifactError(f"blob {name[:12]!r} is not in any store; expected a name of 64 hexadecimal digits")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_draft(draft: Path | None) -> None:
    """Remove an unfinished file."""
    if draft is not None:
        draft.unlink(missing_ok=True)


async def off_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Call ``work``; in a thread if it handles so many bytes that it would block the event loop."""
    return await asyncio.to_thread(work, *arguments) if size >= _LARGE else work(*arguments)


def conflicting_blob_error(name: str, digest: str, where: str) -> ArtifactError:
    """Make the error for a file or object that holds other bytes and is never overwritten."""
    return ArtifactError(
        f"{where} holds bytes with the digest {digest[:12]}…; expected blob {name[:12]}…. Blobs are never overwritten: "
        "remove the damaged one, then store it again"
    )


def corrupt_blob_error(name: str, digest: str, where: str) -> ArtifactError:
    """Make the error for bytes that do not match their digest."""
    return ArtifactError(f"blob {name[:12]}… in {where} is damaged: its digest is {digest[:12]}…")
