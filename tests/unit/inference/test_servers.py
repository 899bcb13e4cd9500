"""The ``servers`` backend against real server processes: some are killed, some hang, some join; no request is lost."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters, make_backend
from inference.engine import Engine
from inference.remote.load_balancer import ServersConfig
from inference.server.app import InferenceServer
from inference.servers import ServersBackend
from lifecycle.config_checks import check_config
from models import Tokenizer, make_base
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError, ModelError, NoServerError
from tests.servers import LoadedModels, serve_models

SERVER = """
import asyncio, os, sys
from pathlib import Path
from models import Tokenizer
from inference import make_backend
from tests.servers import LoadedModels, serve_models

async def main(base, port):
    backend = make_backend("local", base)
    async with serve_models(LoadedModels(backend, Tokenizer(base)), port=port) as url:
        print(url, flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""
PLANS = ListConstraint([(5, 9, 3), (5, 9, 4, 7, 7), (5, 9, 4, 7, 8), (6, 10), (11, 12, 13, 14), (11, 12, 13, 20)])


class Process:
    """A server in a process of its own, which logs to standard error: nobody would read a pipe."""

    def __init__(self, base: Path, port: int = 0) -> None:
        command = [sys.executable, "-c", SERVER, str(base), str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(37)], seed=1)


@pytest.fixture
def start(base: Path) -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as processes:

        def started(port: int = 0) -> Process:
            process = Process(base, port)
            processes.callback(process.kill)
            return process

        yield started


def request_of(index: int, prompt: int | None = None) -> Request:
    prompt_ids = [3 + ((index if prompt is None else prompt) * 7 + place) % 37 for place in range(5)]
    constraint = (PLANS, None)[index % 2]
    return Request(prompt_ids, None, constraint, SamplingParameters(seed=index, max_tokens=30))


def by_the_local_backend(base: Path, requests: list[Request]) -> list[list[int]]:
    async def run() -> list[Generation]:
        backend = make_backend("local", base)
        done = await asyncio.gather(*map(backend.generate, requests))
        await backend.close()
        return list(done)

    return [generation.completion_ids for generation in asyncio.run(run())]


@contextlib.asynccontextmanager
async def backend_of(*urls: str, known: list[str] | None = None, **config: float) -> AsyncIterator[ServersBackend]:
    backend = ServersBackend(ServersConfig(urls=urls, **config), lambda: known or [])  # type: ignore[arg-type]
    try:
        yield backend
    finally:
        await backend.close()


async def ask(backend: ServersBackend, requests: list[Request], at_once: int) -> list[Generation]:
    room = asyncio.Semaphore(at_once)

    async def one(request: Request) -> Generation:
        async with room:
            return await backend.generate(request)

    return list(await asyncio.gather(*map(one, requests)))


def test_a_server_killed_at_work_loses_no_request(base: Path, start: Callable[..., Process]) -> None:
    first, second = start(), start()
    requests = [request_of(index) for index in range(300)]

    async def run() -> list[Generation]:
        async with backend_of(first.url, second.url) as backend:

            async def kill() -> None:
                # Its answers may all come at once: it is killed while it owes some.
                while backend.stats().requests < 60 or not backend.routes.servers[first.url].running:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                first.kill()

            killing = asyncio.create_task(kill())
            done = await ask(backend, requests, at_once=40)
            await killing
            assert backend.routes.servers[first.url].down
            assert (backend.stats().running, backend.stats().requests) == (0, 300)
            return done

    done = asyncio.run(run())
    assert [generation.completion_ids for generation in done] == by_the_local_backend(base, requests)


def test_a_server_that_joins_takes_its_share_and_one_that_comes_back_is_asked_again(
    start: Callable[..., Process],
) -> None:
    first, known = start(), list[str]()
    known.append(first.url)

    async def run() -> None:
        async with backend_of(known=known) as backend:
            await ask(backend, [request_of(index) for index in range(40)], at_once=8)
            second = await asyncio.to_thread(start)
            known.append(second.url)
            await ask(backend, [request_of(index) for index in range(80)], at_once=8)
            joined = backend.routes.servers[second.url]
            # Half of those that are under way at once, however slow it is.
            assert joined.sent >= 4
            second.kill()
            await ask(backend, [request_of(index) for index in range(40)], at_once=8)
            assert joined.down
            await asyncio.to_thread(start, second.port)
            async with asyncio.timeout(300):
                while joined.down:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            before = joined.sent
            await ask(backend, [request_of(index) for index in range(80)], at_once=8)
            assert joined.sent >= before + 4
            assert known == [first.url, second.url]

    asyncio.run(run())


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def here(base: Path, count: int = 2) -> AsyncIterator[list[str]]:
    """Servers in this event loop."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(serve_models(LoadedModels(make_backend("local", base), Tokenizer(base))))
            for _ in range(count)
        ]


def test_prompts_that_begin_alike_go_to_the_same_server_while_it_is_well(base: Path) -> None:
    async def run() -> None:
        async with here(base, 3) as urls, backend_of(*urls, sticky_tokens=3) as backend:
            used = []
            # So many that no server is without a prompt by chance: their ports are drawn.
            for prompt in range(60):
                before = {url: server.sent for url, server in backend.routes.servers.items()}
                for index in range(2):
                    await backend.generate(request_of(index, prompt))
                servers = backend.routes.servers.values()
                used.append([server.url for server in servers if server.sent > before.get(server.url, 0)])
            assert all(len(urls) == 1 for urls in used)
            assert len({urls[0] for urls in used}) == 3

    asyncio.run(run())


@contextlib.asynccontextmanager
async def odd_server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/generate", handler)
    app.router.add_post("/generate/many", handler)
    app.router.add_post("/v1/load_lora_adapter", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def hanging(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def cut_off(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def broken(_: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "out of order"}}, status=500)


async def draining(_: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "the server is draining"}}, status=503)


@pytest.mark.parametrize("handler", [hanging, cut_off, broken, draining])
def test_what_one_server_does_not_answer_is_asked_of_another(base: Path, handler: Handler) -> None:
    requests = [request_of(index) for index in range(20)]

    async def run() -> list[Generation]:
        async with here(base, 1) as urls, odd_server(handler) as odd, backend_of(odd, *urls, timeout_s=3) as backend:
            done = await ask(backend, requests, at_once=10)
            assert backend.routes.servers[odd].sent > 0
            return done

    done = asyncio.run(run())
    assert [generation.completion_ids for generation in done] == by_the_local_backend(base, requests)


def test_what_an_engine_breaks_over_is_asked_of_another_server(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, sound = [request_of(index) for index in range(40)], Engine._run_pass
    broken, passes = list[Engine](), Counter[int]()

    def breaks_down(self: Engine, first: int, last: int, reuse: bool) -> object:
        passes[id(self)] += 1
        if self in broken or (not broken and passes[id(self)] == 6):
            broken[:] = [self]
            raise RuntimeError("a kernel failed")
        return sound(self, first, last, reuse)

    async def run() -> list[Generation]:
        async with here(base, 2) as urls, backend_of(*urls) as backend:
            done = await ask(backend, requests, at_once=10)
            assert not any(server.down for server in backend.routes.servers.values())
            return done

    alone = by_the_local_backend(base, requests)
    monkeypatch.setattr(Engine, "_run_pass", breaks_down)
    done = asyncio.run(run())
    assert len(broken) == 1
    assert [generation.completion_ids for generation in done] == alone


def test_a_server_that_hangs_is_found_before_the_timeout(base: Path, start: Callable[..., Process]) -> None:
    first, second = start(), start()
    requests = [request_of(index) for index in range(120)]

    async def run() -> list[Generation]:
        async with backend_of(first.url, second.url, silence_s=2.0) as backend:

            async def hang() -> None:
                while backend.stats().requests < 30 or not backend.routes.servers[first.url].running:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                first.signal(signal.SIGSTOP)

            hanging = asyncio.create_task(hang())
            async with asyncio.timeout(300):
                done = await ask(backend, requests, at_once=40)
            await hanging
            server = backend.routes.servers[first.url]
            assert server.down
            first.signal(signal.SIGCONT)
            async with asyncio.timeout(300):
                while server.down:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            return done

    done = asyncio.run(run())
    assert [generation.completion_ids for generation in done] == by_the_local_backend(base, requests)


def test_a_server_that_is_slow_but_says_that_it_lives_keeps_its_requests() -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(3.0)
        return web.json_response({"error": {"message": "after all"}}, status=400)

    async def run() -> None:
        async with odd_server(slow) as odd, backend_of(odd, silence_s=1.0) as backend:
            with pytest.raises(ModelError, match="after all"):
                await backend.generate(request_of(0))
            assert backend.routes.servers[odd].sent == 1

    asyncio.run(run())


def test_calls_made_at_once_go_together_and_one_alone_by_itself(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    dispatched = InferenceServer._dispatch

    async def noting(self: InferenceServer, route: tuple[str, str], request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return await dispatched(self, route, request)

    monkeypatch.setattr(InferenceServer, "_dispatch", noting)

    async def run() -> None:
        async with here(base, 1) as urls, backend_of(*urls) as backend:
            await backend.generate(request_of(0))
            assert paths == ["/generate"]
            await ask(backend, [request_of(index) for index in range(0, 60, 2)], at_once=30)
            assert paths == ["/generate", "/generate/many"]
            await ask(backend, [request_of(index) for index in range(0, 400, 2)], at_once=200)
            assert paths[2:6] == ["/generate/many"] * 4

    asyncio.run(run())


def test_a_request_that_nobody_waits_for_any_more_is_not_sampled_to_its_end(base: Path) -> None:
    async def run() -> None:
        server = InferenceServer()
        await server.start()
        local = make_backend("local", base)
        server.serve(LoadedModels(local, Tokenizer(base)))
        async with backend_of(f"http://127.0.0.1:{server.port}") as backend:
            endless = [
                Request([5, 6], None, UntilStopToken((), (7, 8)), SamplingParameters(seed=seed, max_tokens=1900))
                for seed in range(3)
            ]
            tasks = [asyncio.create_task(backend.generate(request)) for request in endless]
            async with asyncio.timeout(300):
                while local.stats().running < 3:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                for task in tasks:
                    task.cancel()
                while local.stats().running or server.admission.completions.count:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert local.stats().sampled_tokens < 3 * 1900
            assert (await backend.generate(request_of(0))).completion_ids
        await server.stop()

    asyncio.run(run())


def test_a_server_with_room_for_one_serves_all_in_the_end(base: Path) -> None:
    async def run() -> None:
        server = InferenceServer(most=1)
        await server.start()
        server.serve(LoadedModels(make_backend("local", base), Tokenizer(base)))
        async with backend_of(f"http://127.0.0.1:{server.port}") as backend:
            assert len(await ask(backend, [request_of(index) for index in range(4)], at_once=4)) == 4
        assert server.admission.refused > 0
        await server.stop()

    asyncio.run(run())


def test_tries_that_a_server_worked_on_are_bounded(base: Path) -> None:
    async def run() -> None:
        async with odd_server(broken) as odd, backend_of(odd, tries=3) as backend:
            with pytest.raises(NoServerError, match=r"3 tries failed.*out of order"):
                await backend.generate(request_of(0))
            assert backend.routes.servers[odd].sent == 3

    asyncio.run(run())


def test_with_no_server_a_request_waits_so_long_and_no_longer() -> None:
    async def run() -> None:
        async with backend_of("http://127.0.0.1:9", patience_s=0.6) as backend:
            began = time.monotonic()
            with pytest.raises(NoServerError, match=r"no server to ask for 0.6 s, of http://127.0.0.1:9"):
                await backend.generate(request_of(0))
            assert time.monotonic() - began > 0.5

    asyncio.run(run())


def test_a_request_that_waits_is_served_by_the_first_server_that_joins(base: Path) -> None:
    async def run() -> None:
        known: list[str] = []
        async with here(base, 1) as urls, backend_of(known=known) as backend:
            waiting = asyncio.create_task(backend.generate(request_of(0)))
            while not backend.stats().queued:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            assert (backend.stats().queued, backend.stats().running) == (1, 0)
            known += urls
            assert (await waiting).completion_ids

    asyncio.run(run())


def test_an_answer_that_is_no_reply_is_said_to_be_one(base: Path) -> None:
    async def garbage(_: web.Request) -> web.Response:
        return web.Response(body=b"\xc1 nonsense")

    async def run() -> None:
        async with odd_server(garbage) as odd, backend_of(odd) as backend:
            with pytest.raises(ModelError, match="is no reply"):
                await backend.generate(request_of(0))

    asyncio.run(run())


def test_a_server_that_knows_no_such_request_is_named(base: Path) -> None:
    async def stranger(_: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    async def run() -> None:
        async with odd_server(stranger) as odd, backend_of(odd) as backend:
            with pytest.raises(ModelError, match=f"{odd}/generate(/many)? answers 404 .*expected an inference process"):
                await backend.generate(request_of(0))

    asyncio.run(run())


def test_an_adapter_is_offered_to_all_servers_and_what_one_finds_wrong_is_told(base: Path) -> None:
    told: list[bytes] = []

    async def loads(request: web.Request) -> web.Response:
        told.append(await request.read())
        return web.Response()

    async def refuses(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "adapter of rank 99"}}, status=400)

    async def run() -> None:
        async with odd_server(loads) as one, odd_server(loads) as other, backend_of(one, other) as backend:
            await backend.prepare("d1")
            async with asyncio.timeout(300):
                while len(told) < 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert (backend.stats().adapters, backend.stats().swaps) == (1, 1)
        async with odd_server(refuses) as odd, backend_of(odd) as backend:
            with pytest.raises(ModelError, match="rank 99"):
                await backend.prepare("d2")
        async with odd_server(draining) as odd, backend_of(odd, patience_s=0.3) as backend:
            with pytest.raises(NoServerError, match="draining"):
                await backend.prepare("d3")

    asyncio.run(run())
    assert told == [b'{"lora_name":"d1"}'] * 2


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"tries": 0}, {"places": -1}, {"urls": ("host:80",)}])
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        convert(wrong, ServersConfig, "inference")


@pytest.mark.parametrize(("wrong", "says"), [({"urls": ["host:80"]}, "urls"), ({"patience_s": 0.0}, "patience_s")])
def test_a_league_with_odd_servers_is_refused_before_it_opens(wrong: dict[str, object], says: str) -> None:
    config = convert({"name": "nim", "game": {"name": "nim"}, "inference": wrong}, LeagueConfig, "")
    with pytest.raises(ConfigError, match=f"inference.{says}"):
        check_config(config)
