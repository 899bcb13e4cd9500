"""Adapters, models and game records: immutable files named by the SHA-256 of their bytes.

They lie in the broker's object store, so that a joining machine needs nothing but the broker's address; each machine
keeps a cache folder. Whatever is read is checked against its name.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Protocol

import nats.js.errors
from nats.aio.client import Client

from league.log.connection import REQUEST_TIMEOUT_S, broker_errors
from schemas.errors import ArtifactError, StoreFullError
from schemas.ids import digest
from schemas.subjects import ARTIFACT_BUCKET


def _checked(name: str, data: bytes, where: str) -> bytes:
    if (found := digest(data)) != name:
        raise ArtifactError(f"artifact {name[:12]}… in {where} is damaged: its digest is {found[:12]}…")
    return data


class ArtifactStore(Protocol):
    """Where artifacts lie."""

    async def put(self, data: bytes) -> str:
        """Keep ``data``, once; returns its digest, which is its name.

        Raises:
            StoreFullError: no space left.
            ArtifactError: it cannot be written.
        """

    async def get(self, name: str) -> bytes:
        """Read an artifact and check it against its name.

        Raises:
            ArtifactError: it is not there, or damaged.
        """

    async def delete(self, name: str) -> None:
        """Drop an artifact; dropping what is not there does nothing."""


class FolderStore:
    """Artifacts as files of a folder, two levels deep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where an artifact lies or would lie."""
        return self.folder / name[:2] / name

    async def put(self, data: bytes) -> str:
        """Write ``data`` unless it is there already; a reader never sees half a file."""
        name = digest(data)
        path = self.path(name)
        try:
            if path.exists() and digest(path.read_bytes()) == name:
                return name
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        except OSError as error:
            if error.errno == 28:
                raise StoreFullError(f"{path.parent}: no space left for an artifact of {len(data):,} bytes") from error
            raise ArtifactError(f"{path}: cannot be written ({error.strerror})") from error
        return name

    async def get(self, name: str) -> bytes:
        """Read an artifact and check it."""
        try:
            return _checked(name, self.path(name).read_bytes(), str(self.folder))
        except FileNotFoundError:
            raise ArtifactError(f"artifact {name[:12]}… is not in {self.folder}") from None

    async def delete(self, name: str) -> None:
        """Drop an artifact."""
        self.path(name).unlink(missing_ok=True)


class BrokerStore:
    """Artifacts in the JetStream object store."""

    def __init__(self, client: Client) -> None:
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def put(self, data: bytes) -> str:
        """Upload ``data`` unless it is there already."""
        name = digest(data)
        with broker_errors(f"storing artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            try:
                await bucket.get_info(name)
            except nats.js.errors.NotFoundError:
                await bucket.put(name, data)
        return name

    async def get(self, name: str) -> bytes:
        """Download an artifact and check it."""
        with broker_errors(f"fetching artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            try:
                found = await bucket.get(name)
            except nats.js.errors.NotFoundError:
                raise ArtifactError(f"artifact {name[:12]}… is not in the broker's object store") from None
        return _checked(name, found.data or b"", "the broker's object store")

    async def delete(self, name: str) -> None:
        """Drop an artifact that nothing refers to any more; dropping what is not there does nothing."""
        with broker_errors(f"dropping artifact {name[:12]}…"):
            bucket = await self._js.object_store(ARTIFACT_BUCKET)
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await bucket.delete(name)


class CachedStore:
    """A store with a folder in front of it; a damaged cache entry is fetched again."""

    def __init__(self, store: ArtifactStore, cache: FolderStore) -> None:
        self.store = store
        self.cache = cache

    async def put(self, data: bytes) -> str:
        """Keep ``data`` in both."""
        await self.cache.put(data)
        return await self.store.put(data)

    async def get(self, name: str) -> bytes:
        """From the folder if it is there and sound, else from the store."""
        try:
            return await self.cache.get(name)
        except ArtifactError:
            data = await self.store.get(name)
            await self.cache.put(data)
            return data

    async def delete(self, name: str) -> None:
        """Drop an artifact from both."""
        await self.cache.delete(name)
        await self.store.delete(name)
