"""What vLLM adds to the contract: adapter slots, the prefix cache, files, failures at the start."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters
from inference.adapter_cache import AdapterCache
from inference.base import SleepingBackend
from inference.vllm import constrained_generation
from inference.vllm.engine import VllmBackend
from inference.vllm.process import translate_error
from inference.vllm.settings import VllmConfig
from models import Tokenizer
from models.decoder import Decoder
from players.policy import make_model_call
from schemas.errors import MemoryShortError, ModelError
from trainer.loss_inputs import recompute_logprobs

VOCABULARY = 40
CHOICE = ListConstraint([(5, 6, 7), (9, 6, 7), (21, 8, 9), (21, 8, 10)])
PROMPT = [3 + i % 30 for i in range(200)]


def request_of(seed: int, adapter: str | None = None, **changes: Any) -> Request:
    fields = {"prompt_ids": PROMPT, "adapter": adapter, "constraint": CHOICE, "sampling": SamplingParameters(0.9, seed)}
    return Request(**(fields | changes))


def run(backend: VllmBackend, *requests: Request) -> list[Generation]:
    async def sampled() -> list[Generation]:
        return await asyncio.gather(*map(backend.generate, requests))

    return asyncio.run(sampled())


def test_more_adapters_than_slots_and_than_memory_keeps_all_serve(base, engine, adapter):
    backend = VllmBackend(base, engine=engine)
    for seed in range(5):
        backend.load_adapter(f"a{seed}", adapter(seed))
    crowd = [request_of(i, f"a{i % 5}") for i in range(20)]
    together = run(backend, *crowd)
    for request, generation in zip(crowd, together, strict=True):
        (alone,) = run(backend, request)
        assert alone.completion_ids == generation.completion_ids
        assert alone.logprobs == pytest.approx(generation.logprobs, abs=1e-5)
    assert len({generation.logprobs[0] for generation in together}) >= 5
    asyncio.run(backend.close())


def test_prompt_read_before_is_not_read_again_and_gives_the_same(base, engine):
    backend = VllmBackend(base, engine=engine)
    prompt = [4 + i % 31 for i in range(300)]
    first, again = (run(backend, request_of(7, prompt_ids=prompt))[0] for _ in range(2))
    assert first.timing.cached_tokens == 0
    assert 200 < again.timing.cached_tokens < 300
    assert again.completion_ids == first.completion_ids
    assert again.logprobs == pytest.approx(first.logprobs, abs=1e-5)
    assert all(0 < each.timing.first_s <= each.timing.seconds for each in (first, again))
    assert backend.stats().cached_tokens == again.timing.cached_tokens
    asyncio.run(backend.close())


def test_same_name_with_other_weights_does_not_meet_what_the_first_left_in_the_cache(base, engine, adapter):
    backend = VllmBackend(base, engine=engine)
    seen = []
    for seed in (11, 12):
        backend.load_adapter("reused", adapter(seed))
        seen.append(run(backend, request_of(1, "reused"))[0].logprobs)
        backend.drop_adapter("reused")
    backend.load_adapter("fresh", adapter(12))
    assert seen[0] != pytest.approx(seen[1], abs=1e-3)
    assert run(backend, request_of(1, "fresh"))[0].logprobs == pytest.approx(seen[1], abs=1e-5)
    asyncio.run(backend.close())


def test_adapters_folder_may_go_once_it_is_loaded_and_it_may_be_dropped_while_it_samples(base, engine, adapter):
    backend = VllmBackend(base, engine=engine)
    backend.load_adapter("gone", adapter(1))
    shutil.rmtree(adapter(1))

    async def dropped() -> list[Generation]:
        free = SamplingParameters(seed=1, max_tokens=60)
        tasks = [asyncio.ensure_future(backend.generate(request_of(i, "gone", sampling=free))) for i in range(4)]
        await asyncio.sleep(0.02)
        backend.drop_adapter("gone")
        return await asyncio.gather(*tasks)

    assert all(generation.completion_ids for generation in asyncio.run(dropped()))
    assert backend.stats().adapters == 0
    assert run(backend, request_of(1))[0].finish_reason == "stop"
    asyncio.run(backend.close())


def test_new_adapter_is_loaded_and_samples_while_others_run(base, engine, adapter):
    backend, folder = VllmBackend(base, engine=engine), adapter(3)

    async def swapped() -> list[Generation]:
        long = SamplingParameters(seed=1, max_tokens=150)
        tasks = [
            asyncio.ensure_future(backend.generate(request_of(i, constraint=None, sampling=long))) for i in range(16)
        ]
        await backend.generate(request_of(0))
        backend.load_adapter("new", folder)
        return [await backend.generate(request_of(1, "new")), *await asyncio.gather(*tasks)]

    new, *others = asyncio.run(swapped())
    (alone,) = run(backend, request_of(1, "new"))
    assert alone.completion_ids == new.completion_ids
    assert all(generation.finish_reason in ("stop", "length") for generation in others)
    asyncio.run(backend.close())


def test_it_sleeps_and_wakes_with_its_adapters_loaded(base, engine, adapter):
    """The whole sequence of calls; on a CPU vLLM pauses, drops its prefix cache and releases no memory."""
    backend = VllmBackend(base, engine=engine)
    assert isinstance(backend, SleepingBackend)
    backend.load_adapter("a1", adapter(1))
    requests = [request_of(seed, name, prompt_ids=PROMPT[:150]) for seed in range(3) for name in (None, "a1")]
    before = run(backend, *requests)

    async def sleep_and_wake() -> None:
        await backend.sleep()
        assert await asyncio.wrap_future(engine.submit(engine.llm.is_sleeping()))
        await backend.wake()
        assert not await asyncio.wrap_future(engine.submit(engine.llm.is_sleeping()))

    for _ in range(2):
        asyncio.run(sleep_and_wake())
        after = run(backend, *requests)
        assert [one.completion_ids for one in after] == [one.completion_ids for one in before]
        assert [one.logprobs for one in after] == [pytest.approx(one.logprobs, abs=1e-5) for one in before]
    asyncio.run(backend.close())


def test_more_prompts_at_once_than_one_pass_reads(base, engine):
    backend = VllmBackend(base, engine=engine)
    crowd = [request_of(i, prompt_ids=[3 + (i * 7 + at * (1 + i % 5)) % 37 for at in range(300)]) for i in range(48)]
    together = run(backend, *crowd)
    for request, generation in list(zip(crowd, together, strict=True))[::12]:
        (alone,) = run(backend, request)
        assert alone.completion_ids == generation.completion_ids
        assert alone.logprobs == pytest.approx(generation.logprobs, abs=1e-5)
    asyncio.run(backend.close())


def test_adapter_of_larger_rank_is_refused(base, engine, adapter):
    backend = VllmBackend(base, engine=engine)
    with pytest.raises(ModelError, match="rank is 24, at most 16"):
        backend.load_adapter("large", adapter(1, rank=24))
    asyncio.run(backend.close())


def test_nucleus_of_a_large_vocabulary_is_taken_among_the_likeliest_tokens_and_reported(base, engine, monkeypatch):
    backend = VllmBackend(base, engine=engine)
    monkeypatch.setattr(constrained_generation, "MAX_NUCLEUS_VOCABULARY", VOCABULARY - 1)
    monkeypatch.setattr(constrained_generation, "NUCLEUS_TOKENS", 6)
    monkeypatch.setattr(constrained_generation, "NUCLEUS_TIES", 3)
    sampling = [SamplingParameters(1.3, seed, 12, top_p) for seed in range(8) for top_p in (0.5, 0.7, 0.99)]
    requests = [request_of(1, constraint=None, sampling=each) for each in sampling]
    generations = run(backend, *requests)
    sizes = [len(allowed) for generation in generations for allowed in generation.allowed]
    assert (min(sizes) < 6, max(sizes)) == (True, 6)
    calls = [make_model_call(PROMPT, each, 0, 1.3) for each in generations]
    learnt, stated = recompute_logprobs(Decoder.load(base), None, calls)
    assert abs(learnt - stated).max() < 1e-5
    assert run(backend, request_of(1, sampling=SamplingParameters(top_p=0.5)))[0].finish_reason == "stop"
    monkeypatch.setattr(constrained_generation, "NUCLEUS_TIES", 0)
    with pytest.raises(ModelError, match=r"top_p is 0\.99, and 6 or more tokens are among the 6 likeliest"):
        run(backend, *requests)
    asyncio.run(backend.close())


def test_free_completion_ends_with_any_end_token_of_the_generation_config(base, engine, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    own, other = Tokenizer(folder).eos, 7
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [own, other]}))
    backend = VllmBackend(folder, engine=engine)
    sampling = [SamplingParameters(1.0, seed, 200) for seed in range(24)]
    for constraint in (None, UntilStopToken((own, other))):
        generations = run(backend, *(request_of(1, constraint=constraint, sampling=each) for each in sampling))
        ended = [each for each in generations if each.finish_reason == "stop"]
        assert {each.completion_ids[-1] for each in ended} == {own, other}
        assert all({own, other}.isdisjoint(each.completion_ids[:-1]) for each in generations)
    asyncio.run(backend.close())


def test_seeds_are_left_out_where_no_request_has_to_be_repeated(base, engine):
    backend = VllmBackend(base, VllmConfig(request_seeds=False), engine=engine)
    free = request_of(1, constraint=None, sampling=SamplingParameters(1.0, 1, 20))
    assert len({tuple(generation.completion_ids) for generation in run(backend, *[free] * 4)}) > 1
    assert (VllmConfig().is_seeded, VllmConfig(device="cuda").is_seeded) == (True, False)
    asyncio.run(backend.close())


def test_event_loop_goes_on_while_an_adapter_is_loaded(base, engine, adapter):
    backend, loading = VllmBackend(base, engine=engine), asyncio.Event()

    async def fetch(digest: str, folder: Path) -> None:
        shutil.copytree(adapter(4), folder)
        loading.set()

    async def load() -> int:
        ticks = 0
        cache = AdapterCache(backend, lambda: 4, set, fetch, AsyncMock())
        task = asyncio.create_task(cache.ensure(["late"]))
        await loading.wait()
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        await task
        return ticks

    # Loaded within the event loop, it would have been there at the first look.
    assert asyncio.run(load()) > 3
    assert run(backend, request_of(1, "late"))[0].completion_ids
    asyncio.run(backend.close())


def test_too_little_memory_at_the_start_is_said_with_the_settings_that_matter(base):
    wanted = r"could not start .*No available memory.* lower max_model_len, max_loras \(8\)"
    with pytest.raises(MemoryShortError, match=wanted):
        VllmBackend(base, VllmConfig(kv_cache_gib=1e-6))


def test_want_of_memory_is_told_apart_from_other_failures():
    for said in ("CUDA out of memory. Tried to allocate 2 GiB", "No available memory for the cache blocks"):
        assert isinstance(translate_error("x", RuntimeError(said)), MemoryShortError)
    assert not isinstance(translate_error("x", RuntimeError("Adapter has no config")), MemoryShortError)
