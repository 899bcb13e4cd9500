"""Blobs as objects of an S3 bucket, through ``obstore`` (the extra ``s3``).

An object is written once, by a conditional request (``If-None-Match: *``), so of two writers one stores it; it appears
whole or not at all. Credentials come from the environment: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and the
others that AWS's own tools read.
"""

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from league.blobs.base import BlobInfo, StreamedBlobStore, conflicting_blob_error, corrupt_blob_error, is_blob_name
from schemas.errors import AccessError, ArtifactError, LeagueError, LogUnavailableError, StoreFullError, UsageError

_PART_BYTES = 8 * 1024 * 1024
_RENEW_AFTER = timedelta(minutes=10)
"""Age from which an object that is stored again is rewritten: ``league gc`` spares young ones."""
MAX_CONDITIONAL_BYTES = 5 * 1024**3 - 1
"""Largest object that S3 takes in one request, which alone can be conditional."""
_FULL = re.compile(r"status code: 507|QuotaExceeded|StorageFull|InsufficientStorage|EntityTooLarge")
_REFUSED = re.compile(r"status code: 40[13]|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken")
_STATUS_4XX = re.compile(r"status code: 4\d\d")


class BucketBlobStore(StreamedBlobStore):
    """Blobs under ``<prefix>/<folder>/<first two digits>/<digest>`` of a bucket, ``s3://bucket/prefix``, without notes.

    ``endpoint`` is the address of an S3-compatible service, empty for AWS. UsageError if the extra is not installed.
    """

    def __init__(self, url: str, folder: str, endpoint: str = "", region: str = "us-east-1") -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            raise UsageError(
                f"blobs.url: {url} needs the package obstore: pip install 'event-sourced-league[s3]'"
            ) from None
        parts = urlsplit(url)
        prefix = "/".join(part for part in (parts.path.strip("/"), folder) if part)
        self.where = f"s3://{parts.netloc}/{prefix}"
        self._obstore: Any = obstore
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        self._store = S3Store(
            parts.netloc,
            prefix=prefix,
            region=region,
            # A total time limit would bound the size of a blob.
            client_options={"allow_http": endpoint.startswith("http://"), "connect_timeout": "10s", "timeout": "1h"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
            **options,
        )

    async def _upload(self, name: str, data: bytes | Path, note: str) -> None:
        size = await asyncio.to_thread(os.path.getsize, data) if isinstance(data, Path) else len(data)
        with self._translate(name, "storing"):
            try:
                if size > MAX_CONDITIONAL_BYTES:
                    await self._put_in_parts(name, data)
                else:
                    await self._put_once(name, data, "create")
            except self._obstore.exceptions.AlreadyExistsError:
                await self._renew(name, data, size)

    async def _put_once(self, name: str, data: bytes | Path, mode: Any) -> None:
        await self._obstore.put_async(self._store, _key(name), data, mode=mode, use_multipart=False)

    async def _put_in_parts(self, name: str, data: bytes | Path) -> None:
        """Upload an object too large for a conditional request; a writer of the same digest may do so as well."""
        with contextlib.suppress(FileNotFoundError):
            await self._obstore.head_async(self._store, _key(name))
            raise self._obstore.exceptions.AlreadyExistsError(name)
        await self._obstore.put_async(self._store, _key(name), data, use_multipart=True, chunk_size=_PART_BYTES * 8)

    async def _renew(self, name: str, data: bytes | Path, size: int) -> None:
        """Renew an old object's time; ArtifactError if it holds other bytes."""
        meta, digest = await self._read(name)
        if digest != name:
            raise conflicting_blob_error(name, digest, f"{self.where}/{_key(name)}")
        if datetime.now(UTC) - meta["last_modified"] > _RENEW_AFTER and size <= MAX_CONDITIONAL_BYTES:
            # Another writer has just renewed it.
            with contextlib.suppress(self._obstore.exceptions.PreconditionError):
                await self._put_once(name, data, {key: meta[key] for key in ("e_tag", "version") if meta[key]})

    async def _read(self, name: str, write: Any = None) -> tuple[Any, str]:
        """Pass an object's parts to ``write``; return its metadata and the digest of its bytes."""
        result = await self._obstore.get_async(self._store, _key(name))
        sha = hashlib.sha256()
        async for part in result.stream(min_chunk_size=_PART_BYTES):
            data = memoryview(part)
            await asyncio.to_thread(sha.update, data)
            if write is not None:
                await asyncio.to_thread(write, data)
        return result.meta, sha.hexdigest()

    async def _fetch(self, name: str, file: IO[bytes]) -> None:
        with self._translate(name, "fetching"):
            _, digest = await self._read(name, file.write)
        if digest != name:
            raise corrupt_blob_error(name, digest, self.where)

    async def stored(self) -> list[BlobInfo]:
        """List all blobs, with the service's times; objects with other names are left out."""
        blobs = []
        with self._translate("", "listing"):
            async for batch in self._obstore.list(self._store):
                for each in batch:
                    name = each["path"].rpartition("/")[2]
                    if is_blob_name(name) and each["path"] == _key(name):
                        time_ns = int(each["last_modified"].timestamp()) * 10**9
                        blobs.append(BlobInfo(name, each["size"], time_ns, is_shared=True))
        return sorted(blobs, key=lambda blob: blob.name)

    async def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""
        if not is_blob_name(name):
            return
        with self._translate(name, "dropping"), contextlib.suppress(FileNotFoundError):
            await self._obstore.delete_async(self._store, _key(name))

    @contextlib.contextmanager
    def _translate(self, name: str, what: str) -> Iterator[None]:
        """Turn the library's errors into the project's, with the object and the service's first line."""
        subject = f"{what} blob {name[:12]}…" if name else f"{what} blobs"
        try:
            yield
        except LeagueError:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise ArtifactError(f"{subject}: there is no bucket of {self.where}; expected one") from None
            raise ArtifactError(f"blob {name[:12]}… is not in {self.where}") from None
        except (self._obstore.exceptions.BaseError, PermissionError) as error:
            text = str(error)
            code = re.search(r"<Code>(\w+)</Code>", text)
            reason = (f"{code[1]}: " if code else "") + text.partition("<?xml")[0].partition("Debug source")[0]
            summary = re.sub(r"\s+", " ", reason)[:300].strip()
            what = f"{subject} ({summary})"
            if _FULL.search(text):
                raise StoreFullError(f"{self.where}: no space left, {what}") from error
            if _REFUSED.search(text) or isinstance(error, PermissionError):
                raise AccessError(
                    f"{self.where} rejects these credentials, {what}; expected AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY of a user who may list, read, write and delete there"
                ) from error
            if _STATUS_4XX.search(text):
                raise ArtifactError(f"{self.where}: {what}") from error
            raise LogUnavailableError(f"{self.where} cannot be reached, {what}") from error


def _key(name: str) -> str:
    return f"{name[:2]}/{name}"
