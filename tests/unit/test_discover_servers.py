"""What a league makes of the servers that it is told of: vLLM's own or inference processes, and never both."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from inference import make_backend
from inference.remote import ServerType, detect_server_types
from lifecycle.config_checks import check_config
from models import Tokenizer, make_base
from schemas.config import InferenceConfig, LeagueConfig
from schemas.errors import ConfigError
from tests.servers import LoadedModels, serve_models
from workers.discover_servers import check_servers, make_vllm_servers_config

VLLM_MODELS = {"object": "list", "data": [{"id": "base", "owned_by": "vllm"}, {"id": "an adapter", "owned_by": "vllm"}]}


@contextlib.asynccontextmanager
async def listing(answer: object, status: int = 200) -> AsyncIterator[str]:
    """A server that answers so what its models are; vLLM's own takes half a minute to start (``tests/vllm``)."""

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


def test_servers_say_whose_they_are_and_who_does_not_answer_is_not_judged(tmp_path):
    async def run() -> None:
        async with process(tmp_path) as ours, listing(VLLM_MODELS) as theirs, listing({}, 503) as loading:
            away = nobody()
            assert await detect_server_types([ours, theirs + "/", loading, away]) == {
                ours: ServerType.LEAGUE,
                theirs + "/": ServerType.VLLM,
                loading: None,
                away: None,
            }
            for urls in ([ours, away], [theirs, loading], [away]):
                await check_servers(of(*urls))

    asyncio.run(run())


def test_mixed_servers_are_refused_and_both_are_named(tmp_path):
    async def run() -> None:
        async with process(tmp_path) as ours, listing(VLLM_MODELS) as theirs:
            with pytest.raises(ConfigError) as raised:
                await check_servers(of(ours, theirs))
            assert f"{ours} is an inference process of a league and {theirs} is a server of vLLM's" in str(raised.value)
            with pytest.raises(ConfigError, match=f"{theirs} is a server of vLLM's own, but inference.servers is 2"):
                await check_servers(of(theirs, servers=2))
            with pytest.raises(ConfigError, match=rf"{ours} is an inference.*inference.backend is 'vllm_server'"):
                await check_servers(of(ours, backend="vllm_server"))
            await check_servers(of(ours, servers=2))
            await check_servers(of(theirs, backend="vllm_server"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({"data": [{"id": "gpt", "owned_by": "somebody"}]}, 200, r"owned by \['somebody'\]"),
        ({"data": []}, 200, "200 and no list of models"),
        ("hello", 200, "200 and no list of models"),
        ({"detail": "Not Found"}, 404, "404 and no list of models"),
        ({"error": "Unauthorized"}, 401, "401 and no list of models"),
    ],
)
def test_a_server_of_nobody_that_is_known_is_refused_with_what_it_says(answer, status, said):
    async def run() -> None:
        async with listing(answer, status) as url:
            with pytest.raises(ConfigError, match=rf"inference.urls: {url}/v1/models answers .*{said}"):
                await check_servers(of(url))

    asyncio.run(run())


def test_options_of_another_backend_do_not_count_for_vllms_servers_and_its_own_do():
    url = "http://host:8000"
    local = of(url, options={"reuse_tokens": 100}, request_timeout_s=7.0, max_lora_rank=32)
    check_config(local)
    settings = make_vllm_servers_config(local)
    assert (settings.urls, settings.timeout_s, settings.max_lora_rank) == ((url,), 7.0, 32)
    own = of(url, backend="vllm_server", options={"mask_places": 9, "urls": ["http://other:1"]})
    check_config(own)
    assert (make_vllm_servers_config(own).urls, make_vllm_servers_config(own).mask_places) == ((url,), 9)
    with pytest.raises(ConfigError, match="mask_place"):
        check_config(of(url, backend="vllm_server", options={"mask_place": 9}))
