"""Blobs of a league in two places: small ones in the broker, large ones in the store that its opening names.

The address of the store is fixed when the league is opened. Each league, and each branch of one, has a folder of its
own there, so that collecting the garbage of one league never touches another's blobs.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from nats.aio.client import Client

from league.blobs.base import BlobInfo, BlobStore
from league.blobs.broker import ARCHIVE_AREA, BLOB_AREA, BrokerBlobStore
from league.blobs.bucket import BucketBlobStore
from league.blobs.folder import FolderBlobStore
from league.fold_primitives import takes_effect
from league.log.base import EventLog, RecordedEvent
from league.log.jetstream import JetStreamLog, list_leagues
from schemas.config import BlobsConfig, HistoryConfig, convert
from schemas.errors import ArtifactError, ConfigError
from schemas.events import LeagueBranched, LeagueConfigured, LeagueOpened

T = TypeVar("T")


class BlobLocation(msgspec.Struct, frozen=True):
    """A folder of one league in a store of large blobs."""

    url: str
    folder: str
    endpoint: str = ""
    region: str = ""

    def open(self) -> BlobStore:
        """Open the store; ``folder`` may be empty."""
        if self.url.startswith("s3://"):
            return BucketBlobStore(self.url, self.folder, self.endpoint, self.region)
        return FolderBlobStore(self.path, write_once=True)

    @property
    def path(self) -> Path:
        """The folder, where the store is no bucket."""
        return Path(unquote(urlsplit(self.url).path) if self.url.startswith("file:") else self.url) / self.folder


def copy_location(url: str, folder: str = "") -> BlobLocation:
    """Location of a copy of an archive; a bucket's endpoint and region come from the environment."""
    return BlobLocation(
        url, folder, os.environ.get("AWS_ENDPOINT_URL", ""), os.environ.get("AWS_REGION") or BlobsConfig().region
    )


class BlobLocations:
    """Fold of a league's history: the location of its large blobs and of the archive's copy."""

    def __init__(self, league: str) -> None:
        self.config = BlobsConfig()
        self.copy_to = ""
        """Location of the archive's copy (``history.copy_to``); empty for none."""
        self.url = ""
        """Address of the store of large blobs, by the opening; empty for the broker."""
        self._league = league
        self._folder = ""
        self._opened, self._since = False, 0

    def apply(self, recorded: RecordedEvent) -> None:
        """Fold an event; those that say nothing about locations are ignored."""
        event = recorded.event
        if isinstance(event, LeagueBranched):
            self.branch(event.blobs or self._derive_folder(recorded))
        elif isinstance(event, LeagueOpened | LeagueConfigured):
            if not takes_effect(event, opened=self._opened, since=self._since):
                return
            if not self._opened:
                self._folder = self._derive_folder(recorded)
            try:
                config = convert(event.config.get("blobs", {}), BlobsConfig, "blobs")
                history = convert(event.config.get("history", {}), HistoryConfig, "history")
            except ConfigError:
                # Written by a newer version; the reader of the configuration reports it.
                config, history = self.config, HistoryConfig(copy_to=self.copy_to)
            if not self._opened:
                self.url = config.url
            self._opened, self._since = True, recorded.sequence
            self.config, self.copy_to = config, history.copy_to

    def _derive_folder(self, recorded: RecordedEvent) -> str:
        """A folder name that no other run has, since no two are opened in the same nanosecond."""
        text = f"{recorded.time_ns} ".encode() + recorded.payload
        return f"{self._league}-{hashlib.sha256(text).hexdigest()[:12]}"

    def branch(self, folder: str) -> None:
        """Use another folder, to which all blobs so far are copied."""
        self._folder = folder

    @property
    def current(self) -> BlobLocation | None:
        """Location of large blobs; None for the broker."""
        if not self.url or not self._folder:
            return None
        return BlobLocation(self.url, self._folder, self.config.endpoint, self.config.region)

    def copy_of_archive(self, url: str = "") -> BlobLocation | None:
        """Location of the archive's copy, below ``url`` or the configured place; None without either."""
        return copy_location(url or self.copy_to, self._folder) if url or self.copy_to else None


async def find_locations(history: EventLog, last: int | None = None) -> BlobLocations:
    """The locations in a history, by default up to its newest event."""
    kinds = (LeagueOpened, LeagueConfigured, LeagueBranched)
    recorded = [each for kind in kinds async for each in history.read(1, last, only=kind)]
    locations = BlobLocations(history.league)
    for each in sorted(recorded, key=lambda event: event.sequence):
        locations.apply(each)
    return locations


def open_blobs(client: Client, league: str, area: str = BLOB_AREA) -> "TieredBlobStore":
    """The blobs of a league on a broker, large ones included; of all its leagues, read-only, for ``*``."""

    async def find() -> list[BlobLocations]:
        names = await list_leagues(client) if league == "*" else [league]
        return [await find_locations(JetStreamLog(client, name, "blobs")) for name in names]

    return TieredBlobStore(BrokerBlobStore(client, league, area), find, area)


class TieredBlobStore:
    """Blobs in the broker and, from a size on, in another store; reads search both.

    ``find`` reads the locations from the histories: when they are first needed, and again when a blob is missing.
    ``area`` is what is put: an archive stays in the broker, whose permissions vouch for its writer.
    """

    def __init__(
        self, broker: BlobStore, find: Callable[[], Awaitable[Sequence[BlobLocations]]], area: str = BLOB_AREA
    ) -> None:
        self.broker = broker
        self._find = find
        self._area = area
        self._leagues: Sequence[BlobLocations] | None = None
        self._opened: dict[BlobLocation, BlobStore] = {}

    async def put(self, data: bytes | Path, note: str = "") -> str:
        """Store in the broker, or in the other store if it is large."""
        size = await asyncio.to_thread(os.path.getsize, data) if isinstance(data, Path) else len(data)
        store = await self._choose(size)
        return await store.put(data, note)

    async def _choose(self, size: int) -> BlobStore:
        if self._area != ARCHIVE_AREA:
            leagues = await self._locate()
            if len(leagues) == 1 and (place := leagues[0].current) is not None and size >= leagues[0].config.min_bytes:
                return self._open(place)
        return self.broker

    async def _locate(self, again: bool = False) -> Sequence[BlobLocations]:
        if self._leagues is None or again:
            self._leagues = await self._find()
        return self._leagues

    def _open(self, place: BlobLocation) -> BlobStore:
        if place not in self._opened:
            self._opened[place] = place.open()
        return self._opened[place]

    async def get(self, name: str) -> bytes:
        """Read a blob from whichever store has it."""
        return await self._search(lambda store: store.get(name))

    async def download(self, name: str, path: Path) -> None:
        """Write a blob from whichever store has it to a file."""
        await self._search(lambda store: store.download(name, path))

    async def _search(self, read: Callable[[BlobStore], Awaitable[T]]) -> T:
        """Result of ``read`` from the first store with an intact copy; the error names every store's fault."""
        try:
            return await read(self.broker)
        except ArtifactError as error:
            faults = [error]
        tried = set[BlobLocation]()
        for again in (False, True):
            for location in _locations(await self._locate(again)):
                if location not in tried:
                    tried.add(location)
                    try:
                        return await read(self._open(location))
                    except ArtifactError as error:
                        faults.append(error)
        raise faults[0] if len(faults) == 1 else ArtifactError("; ".join(map(str, faults)))

    async def stored(self) -> list[BlobInfo]:
        """List the blobs of all stores; a blob in several has its newest time."""
        blobs = {blob.name: blob for blob in await self.broker.stored()}
        for location in _locations(await self._locate(again=True)):
            for blob in await self._open(location).stored():
                listed = blobs.setdefault(blob.name, blob)
                blobs[blob.name] = msgspec.structs.replace(listed, time_ns=max(listed.time_ns, blob.time_ns))
        return [blobs[name] for name in sorted(blobs)]

    async def delete(self, name: str) -> None:
        """Delete a blob from all stores."""
        await self.broker.delete(name)
        for location in _locations(await self._locate()):
            await self._open(location).delete(name)


def _locations(leagues: Iterable[BlobLocations]) -> list[BlobLocation]:
    return list(dict.fromkeys(league.current for league in leagues if league.current is not None))
