"""What a league's configuration bounds in its backend: the rank of adapters, the nucleus, memory."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from arena.games import make_game
from arena.match import BotPlayer, play
from inference import Request, SamplingParameters, backend_settings, make_backend
from inference.base import is_out_of_memory, translate_out_of_memory
from models import Tokenizer, adapters, make_base
from models.adapters import LoraConfig
from models.decoder import Decoder
from models.model_config import read_shape
from players.policy import PolicyPlayer
from players.prompt_builder import make_constrained_prompter
from schemas.config import InferenceConfig, LeagueConfig, ModelConfig
from schemas.errors import MemoryShortError, ModelError
from trainer.loss_inputs import recompute_logprobs


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), make_game("nim", {}).text().vocabulary())


def save_adapter(base: Path, folder: Path, rank: int) -> Path:
    adapters.save(adapters.create(read_shape(base), LoraConfig(rank, 2.0 * rank), seed=1), folder)
    return folder


@pytest.mark.parametrize(("largest", "fits"), [(None, False), (8, False), (16, True)])
def test_a_league_loads_no_adapter_of_a_larger_rank_than_it_says(
    base: Path, tmp_path: Path, largest: int | None, fits: bool
) -> None:
    config = LeagueConfig(model=ModelConfig(lora_rank=4), inference=InferenceConfig(max_lora_rank=largest))
    folder = save_adapter(base, tmp_path / "adapter", 16)
    backend = make_backend("local", base, **backend_settings(config))
    try:
        if fits:
            backend.load_adapter("x", folder)
        else:
            with pytest.raises(ModelError, match=f"rank is 16, at most {largest or 4} is allowed"):
                backend.load_adapter("x", folder)
        assert backend.stats().adapters == int(fits)
    finally:
        asyncio.run(backend.close())


def test_the_backends_own_options_go_before_the_leagues_settings() -> None:
    config = LeagueConfig(inference=InferenceConfig(max_lora_rank=16, options={"max_lora_rank": 32}))
    assert backend_settings(config)["max_lora_rank"] == 32


def test_a_step_from_a_nucleus_is_learned_from_under_the_nucleus(base: Path) -> None:
    nim = make_game("nim", {})

    async def body() -> list[PolicyPlayer]:
        backend = make_backend("local", base)
        prompting, bot = make_constrained_prompter(Tokenizer(base), nim.text()), BotPlayer(nim.bot("random_bot"))
        sampling = SamplingParameters(temperature=1.3, top_p=0.6)
        models = [PolicyPlayer(backend, prompting, lambda: (0, None), sampling) for _ in range(8)]
        for seed, model in enumerate(models):
            await play(nim.new(seed), [model, *[bot] * (len(nim.seats) - 1)], seed)
        await backend.close()
        return models

    decoder, branches = Decoder.load(base), 0
    for model in asyncio.run(body()):
        learnt, stated = recompute_logprobs(decoder, None, model.model_calls)
        branches += len(stated)
        np.testing.assert_allclose(learnt, stated, atol=1e-5)
    assert branches > 10


def test_want_of_memory_is_known_by_what_torch_really_says() -> None:
    with pytest.raises(MemoryShortError, match="no memory for a tensor"), translate_out_of_memory("a tensor"):
        torch.empty(10**15)
    with pytest.raises(RuntimeError, match="shape"), translate_out_of_memory("a tensor"):
        torch.empty(2, 3) @ torch.empty(2, 3)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("of memory"))


def completions(base: Path, count: int, **settings: object) -> list[list[int]]:
    """What so many requests of different lengths come to, asked at once, some again while others run."""

    async def body() -> list[list[int]]:
        backend = make_backend("local", base, **settings)
        nim = make_game("nim", {})
        tokens = len(nim.text().vocabulary())

        async def ask(number: int) -> list[int]:
            await asyncio.sleep(0.002 * (number % 3))
            prompt = [3 + (number * 7 + place) % (tokens - 4) for place in range(1 + 5 * (number % 9))]
            sampling = SamplingParameters(
                seed=number, max_tokens=20 + 9 * (number % 7), top_p=0.9 if number % 4 == 0 else 1.0
            )
            done = await backend.generate(Request(prompt, None, None, sampling))
            assert len(done.completion_ids) == len(done.logprobs)
            return done.completion_ids

        found = await asyncio.gather(*map(ask, range(count)))
        stats = backend.stats()
        assert (stats.requests, stats.queued, stats.running) == (count, 0, 0)
        if settings and not settings["reuse_tokens"]:
            assert 0 < stats.cache_bytes <= settings["cache_bytes"]  # type: ignore[operator]
        await backend.close()
        return found

    return asyncio.run(body())


@pytest.mark.parametrize("reuse_tokens", [0, 256])
def test_requests_that_memory_is_too_short_for_run_in_smaller_batches_and_come_to_the_same(
    base: Path, reuse_tokens: int
) -> None:
    shape = read_shape(base)
    slot = shape.layers * 2 * shape.kv_heads * shape.head_dim * 128 * 4
    alone = completions(base, 40)
    assert completions(base, 40, cache_bytes=5 * slot, reuse_tokens=reuse_tokens) == alone
    assert completions(base, 40, cache_bytes=slot, reuse_tokens=reuse_tokens) == alone


def test_a_request_that_there_is_not_memory_for_fails_alone(base: Path) -> None:
    shape = read_shape(base)
    slot = shape.layers * 2 * shape.kv_heads * shape.head_dim * 64 * 4

    async def body() -> None:
        backend = make_backend("local", base, cache_bytes=slot)
        requests = [
            Request([3] * length, None, None, SamplingParameters(seed=1, max_tokens=8)) for length in (4, 100, 5)
        ]
        short, long, other = await asyncio.gather(*map(backend.generate, requests), return_exceptions=True)
        assert isinstance(long, MemoryShortError)
        assert "1 rows of 128 tokens need more than inference.cache_bytes" in str(long)
        assert all(done.completion_ids for done in (short, other))  # type: ignore[union-attr]
        await backend.close()

    asyncio.run(body())
