"""Adapters on the real vLLM: the canary after each load, the same answers after an eviction, and a merged model."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from inference import Generation, Request, SamplingParameters
from inference.adapter_cache import AdapterCache
from inference.canary import AdapterCanary
from inference.vllm.engine import VllmBackend
from inference.vllm.process import VllmEngine
from inference.vllm.settings import VllmConfig
from models.hf import merge_adapter
from schemas.errors import ModelError
from tests.unit.inference.test_adapter_canary import learnt
from tests.vllm.conftest import VOCABULARY

REQUEST = Request([3, 4, 5], "a", None, SamplingParameters(seed=4, max_tokens=8))


class Misrouted(VllmBackend):
    """A real backend that answers requests for some adapters with others."""

    answers: dict[str | None, str | None] = {}  # noqa: RUF012

    async def generate(self, request: Request) -> Generation:
        served = self.answers.get(request.adapter, request.adapter)
        return await super().generate(msgspec.structs.replace(request, adapter=served))


def make_cache(backend: VllmBackend, adapter: Callable[..., Path], most: int = 8) -> AdapterCache:
    async def fetch(name: str, folder: Path) -> None:
        adapter(ord(name)).rename(folder)

    async def tell(slots: int, reason: str) -> None:
        raise AssertionError(reason)

    canary = AdapterCanary(backend, VOCABULARY)
    return AdapterCache(backend, lambda: most, set, fetch, tell, canary.check)


@pytest.mark.parametrize(("other", "message"), [(None, "as the base model does"), ("a", "as adapter 'a' does")])
def test_the_canary_finds_a_vllm_that_serves_another_adapter(base, engine, adapter, other, message):
    async def body() -> None:
        backend = Misrouted(base, engine=engine)
        cache = make_cache(backend, adapter)
        await cache.ensure(["a"])
        backend.answers = {"b": other}
        with pytest.raises(ModelError, match=message):
            await cache.ensure(["b"])
        backend.answers = {}
        await cache.ensure(["b"])
        assert cache.loaded == ["a", "b"]
        await backend.close()

    asyncio.run(body())


def test_a_version_that_vllm_was_not_given_here_is_found_by_the_learners_record(base, engine, tmp_path):
    async def body() -> None:
        backend = Misrouted(base, engine=engine)
        backend.load_adapter("old", learnt(base, tmp_path / "old", 3))
        cache = make_cache(backend, lambda _: learnt(base, tmp_path / "new", 12))
        backend.answers = {"n": "old"}
        with pytest.raises(ModelError, match=r"'n'.* the learner recorded .*: it serves another version, or"):
            await cache.ensure(["n"])
        backend.answers = {}
        await cache.ensure(["n"])
        assert cache.loaded == ["n"]
        await backend.close()

    asyncio.run(body())


def test_an_adapter_that_vllm_dropped_and_loaded_again_gives_the_same_log_probabilities(base, engine, adapter):
    async def body() -> None:
        backend = VllmBackend(base, engine=engine)
        cache = make_cache(backend, adapter, most=1)
        await cache.ensure(["a"])
        first = await backend.generate(REQUEST)
        await cache.ensure(["b"])
        assert cache.loaded == ["b"]
        await cache.ensure(["a"])
        again = await backend.generate(REQUEST)
        assert again.completion_ids == first.completion_ids
        assert again.logprobs == pytest.approx(first.logprobs, abs=1e-5)
        await backend.close()

    asyncio.run(body())


def test_vllm_loads_a_merged_model_and_it_answers_as_base_and_adapter_do(base, engine, adapter, tmp_path):
    merged = merge_adapter(base, adapter(7), tmp_path / "merged")

    async def sample(folder: Path, running: VllmEngine, adapted: str | None) -> Generation:
        backend = VllmBackend(folder, engine=running)
        if adapted is not None:
            backend.load_adapter(adapted, adapter(7))
        generation = await backend.generate(msgspec.structs.replace(REQUEST, adapter=adapted))
        await backend.close()
        return generation

    expected = asyncio.run(sample(base, engine, "merged"))
    whole = VllmEngine(merged, VllmConfig(max_loras=1, max_cpu_loras=1))
    try:
        found = asyncio.run(sample(merged, whole, None))
    finally:
        whole.close()
    assert found.completion_ids == expected.completion_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
