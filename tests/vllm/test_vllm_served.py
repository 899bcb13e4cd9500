"""The ``vllm`` backend in an inference process: our HTTP server over it, asked by the ``servers`` backend."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters
from inference.remote.load_balancer import ServersConfig
from inference.servers import ServersBackend
from inference.vllm.engine import VllmBackend
from models import Tokenizer
from tests.servers import LoadedModels, serve_models

PLANS = ListConstraint([(5, 9, 3), (5, 9, 4, 7, 7), (5, 9, 4, 7, 8), (6, 10), (11, 12, 13, 14), (11, 12, 13, 20)])
PROMPT = [3 + i % 30 for i in range(60)]

Ask = Callable[[str, VllmBackend], Awaitable[None]]


@pytest.fixture
def served(base: Path, engine: Any, adapter: Callable[..., Path]) -> Callable[[Ask], None]:
    async def run(ask: Ask) -> None:
        backend = VllmBackend(base, engine=engine)
        for seed in (1, 2):
            backend.load_adapter(f"a{seed}", adapter(seed))
        async with serve_models(LoadedModels(backend, Tokenizer(base), ["a1", "a2"])) as url:
            await ask(url, backend)
        await backend.close()

    return lambda ask: asyncio.run(run(ask))


def test_what_servers_answer_is_what_vllm_itself_samples(served: Callable[[Ask], None]) -> None:
    requests = [
        Request(PROMPT, (None, "a1", "a2")[seed % 3], (PLANS, None)[seed % 2], SamplingParameters(0.9, seed, 8))
        for seed in range(24)
    ]

    async def ask(url: str, backend: VllmBackend) -> None:
        # Few places, so that some completions take several exchanges.
        for places in (1000, 3):
            client = ServersBackend(ServersConfig(urls=(url,), places=places))
            done: list[Generation] = await asyncio.gather(*map(client.generate, requests))
            own: list[Generation] = await asyncio.gather(*map(backend.generate, requests))
            for request, over_http, here in zip(requests, done, own, strict=True):
                if places > 3 or request.constraint is None:
                    assert over_http.completion_ids == here.completion_ids
                    assert over_http.logprobs == pytest.approx(here.logprobs, abs=1e-4)
                assert over_http.completion_ids
            await client.close()

    served(ask)


def test_openais_clients_are_answered_by_vllm_too(served: Callable[[Ask], None]) -> None:
    async def ask(url: str, backend: VllmBackend) -> None:
        async with aiohttp.ClientSession(url) as client:
            asked = {"model": "a1", "prompt": PROMPT, "max_tokens": 12, "seed": 3, "return_token_ids": True}
            async with client.post("/v1/completions", json=asked | {"allowed_token_ids": [7, 8, 9]}) as answer:
                (choice,) = (await answer.json())["choices"]
            assert len(choice["token_ids"]) == 12
            assert set(choice["token_ids"]) <= {7, 8, 9}
            asked |= {"allowed_token_ids": [7, 8, 9], "stop": "w5 w6", "max_tokens": 200}
            async with client.post("/v1/completions", json=asked) as answer:
                (choice,) = (await answer.json())["choices"]
            assert (choice["stop_reason"], choice["finish_reason"]) == ("w5 w6", "stop")
            assert choice["token_ids"][-2:] == [8, 9]
            async with client.post("/v1/completions", json=asked | {"prompt": [9] * 5000}) as answer:
                assert answer.status == 400
            async with client.get("/stats") as answer:
                stats = await answer.json()
        assert (stats["slots"], stats["adapters"]) == (backend.stats().slots, 2)

    served(ask)
