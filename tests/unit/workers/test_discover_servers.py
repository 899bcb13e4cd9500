"""Configured inference servers: inference workers of a league pass, other servers are refused by what they answer."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from inference import make_backend
from models import Tokenizer, make_base
from schemas.config import InferenceConfig, LeagueConfig
from schemas.errors import ConfigError
from tests.servers import LoadedModels, serve_models
from workers.discover_servers import check_servers


@contextlib.asynccontextmanager
async def listing(answer: object, status: int = 200) -> AsyncIterator[str]:
    """A server with this list of models."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def process(folder: Path) -> AsyncIterator[str]:
    """An inference process's server."""
    base = make_base(folder / "base", [f"w{i}" for i in range(37)], seed=1)
    backend = make_backend("local", base)
    async with serve_models(LoadedModels(backend, Tokenizer(base))) as url:
        yield url
    await backend.close()


def of(*urls: str, **settings: object) -> LeagueConfig:
    return LeagueConfig(inference=InferenceConfig(urls=urls, **settings))  # type: ignore[arg-type]


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_inference_workers_pass_and_servers_that_do_not_answer_are_not_judged(tmp_path):
    async def run() -> None:
        async with process(tmp_path) as ours, listing({}, 503) as loading:
            await check_servers(of(ours, ours + "/", loading, nobody()))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({"data": [{"id": "gpt", "owned_by": "vllm"}]}, 200, r"owned by \['vllm'\]; expected an inference worker"),
        ({"data": []}, 200, "200 and no list of models"),
        ("hello", 200, "200 and no list of models"),
        ({"detail": "Not Found"}, 404, "404 and no list of models"),
        ({"error": "Unauthorized"}, 401, "401 and no list of models"),
    ],
)
def test_another_server_is_refused_with_what_it_answers(answer, status, said):
    async def run() -> None:
        async with listing(answer, status) as url:
            with pytest.raises(ConfigError, match=rf"inference.urls: {url}/v1/models answers .*{said}"):
                await check_servers(of(url))

    asyncio.run(run())
