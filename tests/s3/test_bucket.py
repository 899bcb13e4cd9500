"""Blobs in a bucket of a real S3 server (``moto``): written once, errors named, nothing lost by kills.

``make test-s3`` installs the server in an environment of its own, and runs these tests.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from aiohttp import ClientSession, web
from typer.testing import CliRunner

from league.blobs import BrokerBlobStore, BucketBlobStore
from league.run import Run
from lifecycle.machine_checks import Shortcoming, find_shortcomings
from schemas.config import LeagueConfig, convert
from schemas.errors import AccessError, ArtifactError, LogUnavailableError, StoreFullError
from schemas.events import PolicyPublished
from schemas.ids import digest
from ui.cli import app

obstore = pytest.importorskip("obstore")
S3Store = pytest.importorskip("obstore.store").S3Store
ROOT = Path(__file__).parents[2]
SERVER = Path(os.environ.get("LEAGUE_MOTO", ROOT / "build" / "s3" / "bin" / "moto_server"))
pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="no S3 server; `make test-s3` installs one")

LARGE = bytes(range(256)) * 80_000
"""Several parts of a read."""


@contextlib.contextmanager
def s3_server(folder: Path, **environment: str) -> Iterator[str]:
    """The address of a new server with the bucket ``blobs``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen(
            [SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log, env=os.environ | environment
        )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            assert process.poll() is None, (folder / "moto.log").read_text()
            with contextlib.suppress(httpx2.HTTPError):
                assert httpx2.put(f"{address}/blobs").status_code == 200
                break
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def store(server: str, tmp_path: Path) -> BucketBlobStore:
    return BucketBlobStore("s3://blobs/prefix", tmp_path.name, server)


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body, 300)

    asyncio.run(main())


def test_blobs_are_stored_read_listed_and_deleted(store: BucketBlobStore, tmp_path: Path) -> None:
    async def body() -> None:
        (tmp_path / "file").write_bytes(LARGE)
        names = [await store.put(b""), await store.put(b"small"), await store.put(tmp_path / "file")]
        assert names == [digest(b""), digest(b"small"), digest(LARGE)]
        assert [await store.get(name) for name in names] == [b"", b"small", LARGE]
        await store.download(names[2], tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == LARGE
        listed = await store.stored()
        assert {blob.name: blob.bytes for blob in listed} == dict(zip(names, (0, 5, len(LARGE)), strict=True))
        assert all(blob.time_ns > 1_700_000_000 * 10**9 for blob in listed)
        for _ in range(2):
            await store.delete(names[0])
        for attempt in (store.get(names[0]), store.download(names[0], tmp_path / "none")):
            with pytest.raises(ArtifactError, match="is not in s3://blobs/prefix"):
                await attempt
        assert not (tmp_path / "none").exists()
        assert [blob.name for blob in await store.stored()] == sorted(names[1:])

    run(body())


def test_an_object_is_written_once_and_other_bytes_in_its_place_are_an_error(
    store: BucketBlobStore, server: str, tmp_path: Path
) -> None:
    async def body() -> None:
        # Of writers at the same time one stores the object, and all succeed.
        assert set(await asyncio.gather(*(store.put(LARGE) for _ in range(8)))) == {digest(LARGE)}
        name = await store.put(b"adapter")
        other = S3Store("blobs", endpoint=server, region="us-east-1", client_options={"allow_http": True})
        await obstore.put_async(other, f"prefix/{tmp_path.name}/{name[:2]}/{name}", b"other")
        with pytest.raises(ArtifactError, match=f"{digest(b'other')[:12]}….*{name[:12]}…"):
            await store.put(b"adapter")
        with pytest.raises(ArtifactError, match="is damaged"):
            await store.get(name)
        await store.delete(name)
        await store.put(b"adapter")
        assert await store.get(name) == b"adapter"

    run(body())


def test_an_old_object_that_is_stored_again_is_renewed(store: BucketBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("league.blobs.bucket._RENEW_AFTER", timedelta(0))

    async def body() -> None:
        name = await store.put(b"adapter")
        before = (await store.stored())[0].time_ns
        for _ in range(600):
            await store.put(b"adapter")
            if (await store.stored())[0].time_ns > before:
                break
            await asyncio.sleep(0.1)
        assert (await store.stored())[0].time_ns > before
        assert await store.get(name) == b"adapter"

    run(body())


def test_an_object_above_the_limit_of_one_request_goes_in_parts(
    store: BucketBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("league.blobs.bucket.MAX_CONDITIONAL_BYTES", 1024)
    monkeypatch.setattr("league.blobs.bucket._PART_BYTES", 1024 * 1024)

    async def body() -> None:
        for _ in range(2):
            assert await store.get(await store.put(LARGE)) == LARGE

    run(body())


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def proxy(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that answers as ``handler`` does."""
    site = web.Application(client_max_size=2**30)
    site.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (507, "XMinioStorageFull", StoreFullError),
        (403, "QuotaExceeded", StoreFullError),
        (403, "AccessDenied", AccessError),
        (400, "MalformedXML", ArtifactError),
    ],
)
def test_a_refusal_is_an_error_of_its_kind_that_names_the_place(
    tmp_path: Path, status: int, code: str, error: type[Exception]
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text=f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>')

    async def body() -> None:
        async with proxy(refuse) as address:
            store = BucketBlobStore("s3://blobs", "nim", address)
            with pytest.raises(error, match=f"s3://blobs/nim.*{code}"):
                await store.put(b"adapter")

    run(body())


def test_unknown_credentials_are_refused_by_the_server(tmp_path: Path) -> None:
    with s3_server(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="1") as address:

        async def body() -> None:
            store = BucketBlobStore("s3://blobs", "nim", address)
            for attempt in (store.put(b"adapter"), store.get(digest(b"adapter")), store.stored()):
                with pytest.raises(AccessError, match="AWS_ACCESS_KEY_ID"):
                    await attempt

        run(body())


def test_a_missing_bucket_and_a_server_that_is_away_are_named(server: str) -> None:
    async def body() -> None:
        with pytest.raises(ArtifactError, match="no bucket"):
            await BucketBlobStore("s3://none", "nim", server).put(b"adapter")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        with pytest.raises(LogUnavailableError, match="cannot be reached"):
            await BucketBlobStore("s3://blobs", "nim", f"http://127.0.0.1:{port}").put(b"adapter")

    run(body())


def test_a_check_of_the_machine_tries_the_bucket_and_leaves_nothing(server: str) -> None:
    def found(url: str, endpoint: str) -> list[Shortcoming]:
        blobs = {"url": url, "endpoint": endpoint}
        return asyncio.run(find_shortcomings(convert({"blobs": blobs}, LeagueConfig, "")))

    assert not found("s3://blobs/checked", server)
    assert not [*obstore.list(BucketBlobStore("s3://blobs/checked", "", server)._store)]
    (missing,) = found("s3://none", server)
    assert "blobs.url: 's3://none': " in missing.text
    assert "there is no bucket" in missing.text
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (away,) = found("s3://blobs", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert away.passes, "workers wait for it"

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=403, text='<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>')

    async def body() -> None:
        async with proxy(refuse) as address:
            blobs = {"url": "s3://blobs", "endpoint": address}
            (refused,) = await find_shortcomings(convert({"blobs": blobs}, LeagueConfig, ""))
            assert "rejects these credentials" in refused.text
            assert not refused.passes

    run(body())


_UPLOAD = """
import asyncio, sys
from league.blobs import BucketBlobStore
asyncio.run(BucketBlobStore("s3://blobs", "killed", sys.argv[1]).put(b"adapter" * 1_000_000))
"""


def test_a_writer_that_is_killed_in_the_middle_of_an_upload_leaves_nothing(server: str) -> None:
    begun = asyncio.Event()

    async def forward(request: web.Request) -> web.Response:
        parts = bytearray()
        async for part in request.content.iter_chunked(65536):
            parts += part
            begun.set()
            # The rest is not read before the writer is dead.
            await asyncio.sleep(0.05)
        async with ClientSession() as session, session.put(f"{server}{request.path}", data=bytes(parts)) as reply:
            return web.Response(status=reply.status)

    async def body() -> None:
        async with proxy(forward) as address:
            writer = await asyncio.create_subprocess_exec(sys.executable, "-c", _UPLOAD, address, cwd=ROOT)
            await begun.wait()
            writer.send_signal(signal.SIGKILL)
            assert await writer.wait() == -signal.SIGKILL
        store = BucketBlobStore("s3://blobs", "killed", server)
        assert await store.stored() == []
        assert await store.get(await store.put(b"adapter" * 1_000_000)) == b"adapter" * 1_000_000

    run(body())


def test_a_league_keeps_its_large_blobs_in_a_bucket(server: str, tmp_path: Path) -> None:
    settings = (ROOT / "configs" / "nim-tiny.toml").read_text()
    settings += f'\n[blobs]\nurl = "s3://blobs/leagues"\nendpoint = "{server}"\nmin_bytes = 1000\n'
    (tmp_path / "nim.toml").write_text(settings)
    folder, environment = tmp_path / "run", os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ["up", "--config", str(tmp_path / "nim.toml"), "--run", str(folder)]
    subprocess.run([sys.executable, "-m", "ui", *arguments], cwd=ROOT, env=environment, check=True, timeout=600)
    for path in (folder / "artifacts").glob("??/*"):
        path.unlink()

    async def stored() -> tuple[set[str], set[str], set[str]]:
        async with Run(folder).open_log() as log:
            published = {r.event.adapter async for r in log.read(only=PolicyPublished) if r.event is not None}  # type: ignore[union-attr]
            broker = await BrokerBlobStore(log.client, log.league).stored()
            both = await Run(folder).open_blob_store(log.client, log.league).stored()
            return published, {blob.name for blob in broker}, {blob.name for blob in both}

    published, broker, both = asyncio.run(stored())
    assert published
    assert published <= both
    assert not published & broker
    result = CliRunner().invoke(app, ["verify", "--run", str(folder)])
    assert result.exit_code == 0, result.output


def test_a_copy_of_the_archive_in_a_bucket_is_verified_and_enough_to_restore(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    run, copies = tmp_path / "run", "s3://blobs/copies"

    def league(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        return result.exit_code, result.output

    async def history(folder: Path) -> list[tuple[str, bytes]]:
        async with Run(folder).open_log() as log:
            return [(recorded.subject, recorded.payload) async for recorded in log.read()]

    command = ["up", "--config", str(ROOT / "configs" / "nim-tiny.toml"), "--run", str(run)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "ui", *command], cwd=ROOT, env=environment, check=True, timeout=600)
    assert league("config", "set", f"history.copy_to={copies}", "--run", run)[0] == 0
    code, text = league("archive", "--run", run)
    assert (code, "copied up to event" in text) == (0, True), text
    code, text = league("verify", "--run", run)
    assert code == 0, text
    bucket = S3Store("blobs", endpoint=server, region="us-east-1", client_options={"allow_http": True})
    objects = {each["path"]: each["size"] for page in obstore.list(bucket, "copies") for each in page}
    (folder,) = {path.split("/")[1] for path in objects}
    before = asyncio.run(history(run))
    code, text = league(
        "restore", "--from", tmp_path / "none", "--archive", f"{copies}/{folder}", "--run", tmp_path / "new"
    )
    assert code == 0, text
    restored = asyncio.run(history(tmp_path / "new"))
    assert len(restored) > len(before) // 2
    assert restored[:-1] == before[: len(restored) - 1]
    obstore.put(bucket, max(objects, key=lambda path: objects[path]), b"damaged")
    code, text = league("verify", "--run", run)
    assert (code, "DAMAGED in the copy" in text) == (1, True), text
