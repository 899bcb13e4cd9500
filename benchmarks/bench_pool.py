"""The cost of sessions of the opponent pool: processor time of a request beside the same request without a session.

Server and clients share this process, so the difference between two kinds of requests is the server's own share. All
sessions are open at the same time, each with a connection of its own that is open before; the league's only agent is
the base model, so that a reply costs the same with and without a session.
"""

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import uvloop

from benchmarks.sizes import size
from league.log.server import EmbeddedServer
from league.run import Run
from lifecycle.open import open_league
from schemas.config import LeagueConfig, convert
from workers.inference_server import serve
from workers.runtime import Context, beside

SESSIONS, TURNS = size(1_000, 4), size(4, 2)
CONFIG = {
    "name": "pool",
    "game": {"name": "rock_paper_scissors"},
    "agents": {"base_model": {"kind": "base", "baseline": True}},
    "model": {"cloning": {"sequences": 16}},
}
CHAT = {"messages": [{"role": "user", "content": "rock"}], "max_tokens": 1}

Send = Callable[[httpx2.AsyncClient, int], Awaitable[httpx2.Response]]


async def measure(what: str, clients: list[httpx2.AsyncClient], send: Send, each: int) -> float:
    """Print and return milliseconds of processor time per request: ``each`` of every session, one after the other."""
    latencies: list[float] = []

    async def one(number: int, client: httpx2.AsyncClient) -> None:
        for _ in range(each):
            began = time.perf_counter()
            answer = await send(client, number)
            answer.raise_for_status()
            latencies.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(number, client) for number, client in enumerate(clients)))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    cost = cpu / len(latencies) * 1e3
    print(
        f"{what:28} {cost:7.3f} ms of processor time a request, {len(latencies) / wall:8,.0f} requests/s, "
        f"median latency {median(latencies):.3f} s",
        flush=True,
    )
    return cost


def post(path: str, body: Callable[[int], dict[str, Any]]) -> Send:
    """Requests of sessions by number."""
    return lambda client, number: client.post(path, json=body(number))


async def run_benchmark(folder: Path) -> None:
    """Measure plain chat requests, those of sessions, and results."""
    run = Run(folder)
    async with run.connect("bench") as client:
        await open_league(run, client, convert(CONFIG, LeagueConfig, ""), lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    async with run.open_log("bench") as history:
        context = Context(run, history.client, history, "bench")
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            server = asyncio.create_task(serve(context, port))
            await wait_for_server(url, server)
            await measure_all(url)
            context.stop()
            await server


async def wait_for_server(url: str, server: "asyncio.Task[None]") -> None:
    """Wait until the server has loaded its model."""
    async with httpx2.AsyncClient(base_url=url) as client:
        while not server.done():
            with contextlib.suppress(httpx2.HTTPError):
                if (await client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
    await server


async def measure_all(url: str) -> None:
    """Print the cost of every kind of request, and of the session in it."""
    chat = "/v1/chat/completions"
    print(f"{SESSIONS:,} sessions at once, {TURNS} requests each")
    in_session = post(chat, lambda n: CHAT | {"model": "league/uniform", "league_session": f"{n}"})
    result = post("/v1/league/results", lambda n: {"session": f"{n}", "scores": [1.0, -1.0]})
    async with contextlib.AsyncExitStack() as stack:
        # one client each: a pool of httpx's looks at all of its connections for every request
        connect = partial(httpx2.AsyncClient, base_url=url, timeout=600, verify=False)
        clients = [await stack.enter_async_context(connect()) for _ in range(SESSIONS)]
        await measure("request that connects", clients, lambda client, _: client.get("/health"), 1)
        bare = await measure("request without a body", clients, lambda client, _: client.get("/health"), TURNS)
        plain = await measure("chat", clients, post(chat, lambda _: CHAT | {"model": "base_model"}), TURNS)
        first = await measure("chat that opens a session", clients, in_session, 1)
        later = await measure("chat of an open session", clients, in_session, TURNS)
        ends = await measure("result", clients, result, 1)
    print(
        f"a session costs {first - plain:.3f} ms when it opens, {later - plain:.3f} ms in every further request, "
        f"{ends - bare:.3f} ms when it ends"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, EmbeddedServer(Path(name) / "nats"):
        uvloop.run(run_benchmark(Path(name)))
