"""Contract of every HTTP server of the project: a request that cannot be used costs one short answer and no log."""

import asyncio
import contextlib
import gzip
import io
import logging
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog
from aiohttp import web

import inference.http_server
from arena.games import make_game
from inference import make_backend
from inference.http_server import listen, port_of
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.queries.live_league import open_live_league
from league.run import Run
from models import Tokenizer, make_base
from schemas.config import ExperienceConfig, LeagueConfig
from tests.servers import LoadedModels, serve_models
from tests.simulated_history import Simulation
from ui.web.server import RequestGuard
from ui.web.server import make_application as make_pages
from workers.logs import configure_command_logging
from workers.monitoring.exposition import make_application as make_metrics
from workers.runtime import Context, beside

SERVERS = ("web", "inference", "metrics")
ABORTED = 300


class Server(NamedTuple):
    port: int
    good: bytes
    """A request that is answered with 200."""
    path: str
    """Takes a body of JSON, where the server takes bodies at all."""
    largest: int
    """Most bytes of a body."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that the process logs, as the command line sets logging up."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    configure_command_logging()
    yield text
    logging.getLogger().removeHandler(handler)
    structlog.reset_defaults()


@contextlib.asynccontextmanager
async def league_at(folder: Path) -> AsyncIterator[tuple[Run, JetStreamLog]]:
    simulation = Simulation(LeagueConfig(seed=4), seats=3)
    simulation.run(2, 4)
    run = Run(folder, name="league")
    async with run.connect("test") as client:
        log = JetStreamLog(client, "league", "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await log.copy(simulation.history)
        yield run, log


@contextlib.asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[Server]:
    """The real server of a name, over a real league or a real model."""
    if name == "inference":
        base = make_base(folder / "base", make_game("nim", {}).text().vocabulary())
        backend = make_backend("local", base)
        async with serve_models(LoadedModels(backend, Tokenizer(base))) as url:
            yield Server(int(url.rpartition(":")[2]), get("/v1/models"), "/v1/completions", 8 * 1024 * 1024)
        await backend.close()
        return
    async with league_at(folder) as (run, log):
        if name == "web":
            async with (
                open_live_league(run, log) as league,
                beside(league.follow(), league.apply_events()),
                listening(make_pages({"run": league}, RequestGuard("127.0.0.1"))) as port,
            ):
                yield Server(port, get("/api/live"), "/api/sql", 64 * 1024)
            return
        context = Context(run, log.client, log, "metrics")
        async with beside(context.follow()):
            await context.wait_for_sequence(await log.last_sequence())
            async with listening(make_metrics(context, "127.0.0.1")) as port:
                yield Server(port, get("/metrics"), "/metrics", 1024)


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[int]:
    runner = await listen(app, "127.0.0.1", 0, "--listen")
    try:
        yield port_of(runner)
    finally:
        await runner.cleanup()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes, headers: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        + headers
        + f"Content-Length: {size}\r\n\r\n".encode()
        + body
    )


async def status_of(port: int, request: bytes) -> int:
    """The status of the answer; 0 for a connection that is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        async with asyncio.timeout(300):
            line = await reader.readline()
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


async def abort(to: Server) -> None:
    """Reset a connection while the server waits for the rest of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", to.port)
    writer.write(post(to.path, b"", b"Expect: 100-continue\r\n", length=1_000))
    async with asyncio.timeout(300):
        await reader.readline()
    writer.write(b'{"a')
    await writer.drain()
    writer.transport.abort()


FAULTS: dict[str, Callable[[Server], bytes]] = {
    "not JSON": lambda to: post(to.path, b"{"),
    "not UTF-8": lambda to: post(to.path, b'{"statement": "\xff\xfe", "page": "\xff"}'),
    "a lone surrogate": lambda to: post(to.path, rb'{"statement": "\ud800", "page": "\udfff", "model": "\ud800"}'),
    "nested deeply": lambda to: post(to.path, b"[" * min(to.largest, 50_000)),
    "a number without end": lambda to: post(to.path, b'{"seed": ' + b"9" * 5_000 + b"}"),
    "multipart": lambda to: post(to.path, b"--x\r\nno header", b"Content-Type: multipart/form-data; boundary=x\r\n"),
    "not gzip": lambda to: post(to.path, b"no gzip at all", b"Content-Encoding: gzip\r\n"),
    "cut gzip": lambda to: post(to.path, gzip.compress(b'{"a": ' * 99)[:-12], b"Content-Encoding: gzip\r\n"),
    "not deflate": lambda to: post(to.path, b"\x78\x9c garbage", b"Content-Encoding: deflate\r\n"),
    "cut deflate": lambda to: post(to.path, zlib.compress(b'{"a": ' * 99)[:-8], b"Content-Encoding: deflate\r\n"),
    "not brotli": lambda to: post(to.path, b"no brotli", b"Content-Encoding: br\r\n"),
    "a bomb": lambda to: post(to.path, bomb(to.largest), b"Content-Encoding: gzip\r\n"),
    "a bomb of deflate": lambda to: post(
        to.path, zlib.compress(bytes(9 * to.largest)), b"Content-Encoding: deflate\r\n"
    ),
    "too large": lambda to: post(to.path, b"0" * (to.largest + 1)),
    "said to be too large": lambda to: post(to.path, b"0", length=10**12),
    "a negative length": lambda to: post(to.path, b"0", length=-1),
    "bad chunks": lambda to: post(to.path, b"zz\r\nhello\r\n", b"Transfer-Encoding: chunked\r\n").replace(
        b"Content-Length: 11\r\n", b""
    ),
    "too many headers": lambda to: post(to.path, b"{}", b"".join(b"X-%d: y\r\n" % n for n in range(500))),
    "a long header": lambda to: post(to.path, b"{}", b"X: " + b"y" * 100_000 + b"\r\n"),
    "a long address": lambda to: get("/" + "y" * 100_000),
    "bytes in a cookie": lambda to: post(to.path, b"{", b"Cookie: league-token=\xff\xfe\r\nAuthorization: \xff\r\n"),
    "bytes in the address": lambda to: post(to.path + "?token=%ff%fe\xff&x=%", b"{"),
    "another method": lambda to: post(to.path, b"{}").replace(b"POST", b"BREW"),
    "no such page": lambda to: get("/api/no-such-page\udcff".encode(errors="surrogateescape").decode("latin1")),
    "a foreign name": lambda to: to.good.replace(b"Host: localhost", b"Host: attacker.example"),
    "another site": lambda to: post(to.path, b"{}", b"Origin: https://attacker.example\r\n"),
    "a form": lambda to: post(to.path, b"a=b").replace(b"application/json", b"text/plain"),
    "no HTTP": lambda to: b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03 a handshake of TLS\r\n\r\n",
}


def bomb(largest: int) -> bytes:
    """A small body that is ten times too large once it is decompressed."""
    return gzip.compress(bytes(10 * largest))


@pytest.mark.parametrize("name", SERVERS)
def test_unusable_requests_are_answered_cheaply_and_leave_no_trace_in_the_log(
    name: str, tmp_path: Path, said: io.StringIO
) -> None:
    async def body() -> None:
        async with serving(name, tmp_path) as to:
            assert await status_of(to.port, to.good) == 200
            for _ in range(ABORTED):
                await abort(to)
            assert await status_of(to.port, to.good) == 200
            found = {fault: await status_of(to.port, make(to)) for fault, make in FAULTS.items()}
            assert await status_of(to.port, to.good) == 200
            assert {fault: status for fault, status in found.items() if not 400 <= status < 500} == {}
            assert found["a foreign name"] == 403
            if name != "metrics":
                assert [found[fault] for fault in ("another site", "a form")] == [403, 415]
                assert [found[fault] for fault in ("a bomb", "too large", "said to be too large")] == [413] * 3

    asyncio.run(body())
    assert said.getvalue() == ""


def test_a_body_that_is_too_slow_gets_408_and_headers_that_are_too_slow_end_the_connection(
    tmp_path: Path, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference.http_server, "BODY_PAUSE_S", 0.1)
    monkeypatch.setattr(inference.http_server, "IDLE_TIMEOUT_S", 0.1)

    async def body() -> None:
        for name in ("web", "inference"):
            async with serving(name, tmp_path / name) as to:
                assert await status_of(to.port, post(to.path, b"{", length=1_000)) == 408
                assert await status_of(to.port, b"POST / HTTP/1.1\r\nHost: ") == 0
                assert await status_of(to.port, to.good) == 200

    asyncio.run(body())
    assert said.getvalue() == ""


@pytest.mark.parametrize("error", [RecursionError(), UnicodeEncodeError("utf-8", "session \udcff", 8, 9, "surrogate")])
def test_texts_that_are_not_utf8_and_deep_nesting_are_the_clients_fault(error: Exception, said: io.StringIO) -> None:
    assert inference.http_server.to_refused(error, "/v1/chat/completions", []).status == 400
    assert said.getvalue() == ""


def test_an_error_of_the_server_is_logged_without_the_values_of_variables(said: io.StringIO) -> None:
    async def fail(_: web.Request) -> web.Response:
        secret = "swordfish"
        raise ZeroDivisionError(f"of {len(secret)} letters")

    async def body() -> None:
        app = web.Application(
            middlewares=[
                inference.http_server.error_boundary(
                    [], lambda _, error: web.Response(status=error.status, text=str(error))
                )
            ]
        )
        app.router.add_get("/", fail)
        async with listening(app) as port:
            assert await status_of(port, get("/")) == 500

    asyncio.run(body())
    assert "ZeroDivisionError: of 9 letters" in said.getvalue()
    assert said.getvalue().count("Traceback") == 1
    assert len(said.getvalue()) < 2_000
    assert "swordfish" not in said.getvalue().replace('secret = "swordfish"', "")
