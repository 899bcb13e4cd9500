"""Artifacts come back as they were stored or not at all, from every kind of store."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from league.blobs import BlobStore, BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import ArtifactError, DiskError
from schemas.ids import digest
from tests.simulation.broker.server import URL
from tests.simulation.standalone import run_with_broker

LARGE = bytes(range(256)) * 8192
"""Several chunks."""


@contextlib.asynccontextmanager
async def folder_store(folder: Path) -> AsyncIterator[BlobStore]:
    yield FolderBlobStore(folder / "store")


@contextlib.asynccontextmanager
async def broker_store(folder: Path) -> AsyncIterator[BlobStore]:
    with EmbeddedServer(folder / "nats") as server:
        client = await connect(server.url, "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield BrokerBlobStore(client, "nim")
        await flush_and_close(client)


@contextlib.asynccontextmanager
async def simulated_store(_: Path) -> AsyncIterator[BlobStore]:
    client = await connect(URL, "test")
    await ensure_streams(client.jetstream(), ExperienceConfig())
    yield BrokerBlobStore(client, "nim")
    await flush_and_close(client)


@contextlib.asynccontextmanager
async def cached_store(folder: Path) -> AsyncIterator[BlobStore]:
    yield CachedBlobStore(FolderBlobStore(folder / "store"), FolderBlobStore(folder / "cache"))


Body = Callable[[BlobStore], Awaitable[None]]


@pytest.fixture(
    params=[(folder_store, 0), (broker_store, 0), (cached_store, 0), (simulated_store, 1), (simulated_store, 3)],
    ids=["folder", "broker", "cached", "simulated", "simulated cluster"],
)
def on_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Body], None]:
    make_store, servers = request.param

    def run(body: Body) -> None:
        async def main(_: object = None) -> None:
            async with make_store(tmp_path) as store:
                await asyncio.wait_for(body(store), 300)

        if servers:
            run_with_broker(main, is_clustered=servers > 1)
        else:
            asyncio.run(main())

    return run


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_what_is_stored_is_read_back(on_store, tmp_path: Path, data: bytes) -> None:
    async def body(store: BlobStore) -> None:
        name = await store.put(data)
        assert name == digest(data)
        assert await store.get(name) == data
        await store.download(name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data

    on_store(body)


def test_a_file_is_stored_under_the_digest_of_its_bytes(on_store, tmp_path: Path) -> None:
    async def body(store: BlobStore) -> None:
        (tmp_path / "file").write_bytes(LARGE)
        name = await store.put(tmp_path / "file")
        assert name == digest(LARGE)
        assert await store.get(name) == LARGE

    on_store(body)


def test_the_listing_says_what_there_is(on_store) -> None:
    async def body(store: BlobStore) -> None:
        assert await store.stored() == []
        names = {await store.put(LARGE): len(LARGE), await store.put(b"small"): 5}
        gone = await store.put(b"gone")
        await store.delete(gone)
        listed = await store.stored()
        assert {stored.name: stored.bytes for stored in listed} == names
        assert all(stored.time_ns > 1_700_000_000 * 10**9 for stored in listed)

    on_store(body)


def test_storing_an_artifact_again_makes_it_young_again(on_store) -> None:
    async def body(store: BlobStore) -> None:
        await store.put(b"data")
        before = (await store.stored())[0].time_ns
        await asyncio.sleep(0.02)
        await store.put(b"data")
        after = await store.stored()
        assert len(after) == 1
        assert after[0].time_ns > before
        assert await store.get(digest(b"data")) == b"data"

    on_store(body)


def test_a_missing_artifact_is_said_to_be_missing(on_store, tmp_path: Path) -> None:
    async def body(store: BlobStore) -> None:
        for attempt in (store.get(digest(b"no")), store.download(digest(b"no"), tmp_path / "copy")):
            with pytest.raises(ArtifactError, match="is not in"):
                await attempt
        await store.delete(digest(b"no"))

    on_store(body)


def test_what_no_blob_can_be_named_is_missing(on_store, tmp_path: Path) -> None:
    async def body(store: BlobStore) -> None:
        await store.put(b"other")
        for name in ("", "*", "\0", "a b\r\nPING", "\udc80", "../x", str(tmp_path / "file"), "A" * 64):
            for attempt in (store.get(name), store.download(name, tmp_path / "copy")):
                with pytest.raises(ArtifactError, match="is not in"):
                    await attempt
            await store.delete(name)
            assert not (tmp_path / "copy").exists()
        assert [blob.name for blob in await store.stored()] == [digest(b"other")]

    on_store(body)


def test_the_broker_keeps_what_an_artifact_was_called(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker_store(tmp_path) as store:
            name = await store.put(b"data", "archive of league to 7")
            assert (await store.stored())[0].note == "archive of league to 7"
            await store.put(b"data")
            assert (await store.stored())[0].note == "archive of league to 7"
            assert await store.get(name) == b"data"

    asyncio.run(body())


def damage(folder: Path, data: bytes) -> None:
    """Flip one bit in the middle of ``data`` where the broker keeps it."""
    for block in folder.rglob("streams/OBJ_ARTIFACTS/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(data)) >= 0:
            stored[at + len(data) // 2] ^= 1
            block.write_bytes(stored)
            return
    raise AssertionError("the broker keeps it elsewhere")


def test_an_artifact_that_is_put_while_it_is_being_put_asks_for_no_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few may purge: a worker that tries is stopped by the broker."""
    asked, purge = [], JetStreamContext.purge_stream

    async def counted(self: JetStreamContext, name: str, *arguments: Any, **options: Any) -> bool:
        asked.append(name)
        return await purge(self, name, *arguments, **options)

    monkeypatch.setattr(JetStreamContext, "purge_stream", counted)

    async def main() -> None:
        async with broker_store(tmp_path) as store:

            async def put_later(game: bytes, seconds: float) -> None:
                await asyncio.sleep(seconds)
                assert await store.put(game) == digest(game)

            for delay in range(60):
                game = f"game {delay}".encode()
                await asyncio.gather(store.put(game), put_later(game, delay / 20_000))
                assert await store.get(digest(game)) == game

    asyncio.run(main())
    assert asked == []


@pytest.mark.parametrize("part", [0, 3], ids=["first chunk", "last chunk"])
def test_an_object_that_the_broker_cannot_read_any_more_is_reported_and_not_waited_for(
    tmp_path: Path, part: int
) -> None:
    data = b"".join(bytes([n]) * 512 * 1024 for n in range(4))

    async def body() -> None:
        async with broker_store(tmp_path) as store:
            name = await store.put(data)
        damage(tmp_path, bytes([part]) * 512 * 1024)
        async with broker_store(tmp_path) as store:
            async with asyncio.timeout(300):
                for attempt in (store.get(name), store.download(name, tmp_path / "copy")):
                    with pytest.raises(ArtifactError, match=r"damaged|lost"):
                        await attempt
            assert not (tmp_path / "copy").exists()

    asyncio.run(body())


def test_a_damaged_file_of_the_cache_is_fetched_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with cached_store(tmp_path) as store:
            assert isinstance(store, CachedBlobStore)
            name = await store.put(LARGE)
            for bad in (LARGE[:-1], b"x" + LARGE[1:]):
                store.cache.path(name).write_bytes(bad)
                assert (await store.fetch(name)).read_bytes() == LARGE
            store.cache.path(name).unlink()
            store.store.path(name).write_bytes(LARGE[:-1])  # type: ignore[attr-defined]
            with pytest.raises(ArtifactError, match="damaged"):
                await store.fetch(name)
            assert await store.cache.stored() == []

    asyncio.run(body())


def test_a_file_whose_name_a_worker_made_up_stays_where_it_is(tmp_path: Path) -> None:
    """A worker may end the subject of an entry as it likes, and a broker takes a wildcard for a name, too."""
    victim = tmp_path / "victim"
    victim.write_text("of the operator")

    async def body() -> None:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "test")
            await ensure_streams(client.jetstream(), ExperienceConfig())
            store = CachedBlobStore(BrokerBlobStore(client, "nim"), FolderBlobStore(tmp_path / "cache"))
            name = await store.put(b"state")
            for made_up in ("*", ">", str(victim)):
                entry = b'{"name":"x","subject":"$O.ARTIFACTS.C.nim.blob.rollout.x.y"}'
                await client.jetstream().publish(f"$O.ARTIFACTS.M.nim.blob.rollout.{made_up}", entry)
                await store.delete(made_up)
            assert [blob.name for blob in await store.stored()] == [name]
            assert await store.store.get(name) == b"state"
            await flush_and_close(client)

    asyncio.run(body())
    assert victim.exists()


def test_a_cache_that_cannot_be_written_hides_no_blob(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the cache's folder should be")
    store = CachedBlobStore(FolderBlobStore(tmp_path / "store"), FolderBlobStore(tmp_path / "file"))

    async def run() -> None:
        assert await store.get(await store.put(b"state")) == b"state"

    asyncio.run(run())


def test_a_restarted_broker_still_has_the_stream_of_heartbeats(tmp_path: Path) -> None:
    async def body() -> None:
        for attempt in range(2):
            with EmbeddedServer(tmp_path / "nats") as server:
                client = await connect(server.url, "test")
                if attempt == 0:
                    await ensure_streams(client.jetstream(), ExperienceConfig())
                assert (await client.jetstream().publish("metrics.nim.a", b"{}")).stream == "METRICS"
                await flush_and_close(client)

    asyncio.run(asyncio.wait_for(body(), 300))


@pytest.mark.parametrize(
    "entry",
    [{"first": 2**70}, {"chunks": -1}, {"subject": "$O.ARTIFACTS.C.nim.blob.rogue.NAME.x y"}, {"deep": "DEEP"}],
    ids=["place", "count", "space", "deep"],
)
def test_an_entry_that_a_worker_made_up_hides_no_intact_copy(tmp_path: Path, entry: dict[str, Any]) -> None:
    async def body() -> None:
        async with broker_store(tmp_path) as store:
            assert isinstance(store, BrokerBlobStore)
            name = await store.put(b"whole")
            subject = f"$O.ARTIFACTS.C.nim.blob.rogue.{name}.x"
            made_up = {"name": name, "size": 5, "chunks": 1, "subject": subject, **entry}
            data = json.dumps(made_up).replace("NAME", name).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
            await store._js.publish(f"$O.ARTIFACTS.M.nim.blob.rogue.{name}", data.encode())
            assert await store.get(name) == b"whole"
            assert [blob.name for blob in await store.stored()] == [name]

    asyncio.run(body())


@pytest.mark.parametrize("make_store", [folder_store, cached_store], ids=["folder", "cached"])
def test_a_full_disk_is_no_fault_of_the_blob_that_is_written_to_it(make_store: Any, tmp_path: Path) -> None:
    async def body() -> None:
        async with make_store(tmp_path) as store:
            name = await store.put(LARGE)
            full = tmp_path / "draft"
            full.symlink_to("/dev/full")
            with pytest.raises(DiskError, match=str(tmp_path)):
                await store.download(name, full)
            assert not full.is_symlink()

    asyncio.run(body())
