"""Prompts that begin like one read before: the same completions from fewer tokens read, never from other weights."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters
from inference import local as local_module
from inference.kv_cache import BLOCK_TOKENS
from inference.local import LocalBackend, LocalConfig
from models import BaseShape, make_base
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder

SHAPE = BaseShape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=48, max_positions=256)
ANY = ListConstraint([(a, b, c) for a in (3, 4, 5) for b in (6, 7) for c in (8, 9, 10, 11)])
SYSTEM = [3 + Random(5).randrange(14) for _ in range(3 * BLOCK_TOKENS + 5)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(17)], SHAPE, seed=2)
    made = {"base": base}
    for seed in range(2):
        lora = create(Decoder.load(base).shape, LoraConfig(rank=4), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.3 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        made[f"a{seed}"] = tmp_path_factory.mktemp(f"a{seed}")
        save(lora, made[f"a{seed}"])
    return made


def start(folders: dict[str, Path], **settings: int) -> LocalBackend:
    backend = LocalBackend(folders["base"], LocalConfig(**settings))
    for name in ("a0", "a1"):
        backend.load_adapter(name, folders[name])
    return backend


def game_of(index: int, adapter: str | None) -> Request:
    """Every prompt begins with the same system text; every third one goes on alike."""
    rng = Random(index % 3)
    rest = [3 + rng.randrange(14) for _ in range(index % 3 * 20)]
    return Request([*SYSTEM, *rest, 3 + index % 14], adapter, ANY, SamplingParameters(seed=index))


REQUESTS = [game_of(index, (None, "a0", "a1")[index // 3 % 3]) for index in range(36)]


def sample(backend: LocalBackend, requests: Sequence[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        return await asyncio.gather(*map(backend.generate, requests))

    return asyncio.run(run())


def same(ours: Sequence[Generation], theirs: Sequence[Generation]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> list[Generation]:
    backend = start(folders)
    done = sample(backend, REQUESTS)
    assert backend.stats().cached_tokens == 0
    return done


@pytest.mark.parametrize("settings", [{}, {"max_rows": 5}, {"max_prefill_tokens": 90}])
@pytest.mark.parametrize("reuse_tokens", [BLOCK_TOKENS, 5 * BLOCK_TOKENS, 10_000])
def test_completions_are_the_same_whatever_is_kept(folders, expected, settings, reuse_tokens):
    backend = start(folders, reuse_tokens=reuse_tokens, **settings)
    for _ in range(3):
        same(sample(backend, REQUESTS), expected)
    per_token = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * 4
    assert start(folders, **settings).stats().cache_bytes == 0
    slots = settings.get("max_rows", 2 * 36) * 128
    assert backend.stats().cache_bytes <= per_token * (slots + reuse_tokens)


def test_prompts_of_one_crowd_read_their_common_beginning_once(folders):
    backend = start(folders, reuse_tokens=10_000)
    requests = [Request([*SYSTEM, 3 + index], "a0", ANY, SamplingParameters(seed=index)) for index in range(12)]
    done = sample(backend, requests)
    assert [g.timing.cached_tokens for g in done] == [0] + 11 * [3 * BLOCK_TOKENS]
    assert backend.stats().cached_tokens == 11 * 3 * BLOCK_TOKENS


def test_kept_beginnings_serve_later_prompts_of_the_same_adapter_only(folders):
    backend = start(folders, reuse_tokens=10_000)
    cached = [
        sample(backend, [Request([*SYSTEM, 3], name, ANY, SamplingParameters())])[0].timing.cached_tokens
        for name in ("a0", "a0", "a1", None, "a1", None)
    ]
    assert cached == [0, 3 * BLOCK_TOKENS, 0, 0, 3 * BLOCK_TOKENS, 3 * BLOCK_TOKENS]


def test_prompt_that_was_read_before_gets_its_next_token_without_a_pass(folders):
    backend = start(folders, reuse_tokens=10_000)
    prompt = SYSTEM[: 2 * BLOCK_TOKENS]
    seed = SamplingParameters(seed=0)
    first, other = (sample(backend, [Request(prompt, name, ANY, seed)])[0] for name in ("a0", "a1"))
    assert first.logprobs != other.logprobs
    passes = backend.stats().passes
    one = SamplingParameters(seed=0, max_tokens=1)
    again = sample(backend, 5 * [Request(prompt, "a0", ANY, one)] + [Request(prompt, "a1", ANY, one)])
    assert backend.stats().passes == passes
    assert [g.timing.cached_tokens for g in again] == 6 * [len(prompt)]
    for generation, before in zip(again, 5 * [first] + [other], strict=True):
        assert generation.completion_ids == before.completion_ids[:1]
        assert generation.logprobs == pytest.approx(before.logprobs[:1], abs=1e-6)
    # The rest of a longer completion is read after the cached blocks.
    same(sample(backend, [Request(prompt, "a0", ANY, seed)]), [first])


def test_prompts_whose_blocks_made_room_need_no_pass_either(folders):
    backend = start(folders, reuse_tokens=2 * BLOCK_TOKENS)
    one = SamplingParameters(seed=0, max_tokens=1)
    requests = [Request([*SYSTEM[: 2 * BLOCK_TOKENS], 3 + kind], "a0", ANY, one) for kind in range(3)]
    requests += [Request([5 + kind, *SYSTEM[: 2 * BLOCK_TOKENS]], "a1", ANY, one) for kind in range(3)]
    first = sample(backend, requests)
    passes = backend.stats().passes
    same(sample(backend, requests), first)
    assert backend.stats().passes == passes


def test_equal_prompts_that_arrive_together_are_read_once(folders):
    backend = start(folders, reuse_tokens=10_000)
    # The three kinds begin alike, but for too short a time to wait for each other.
    kinds = [[*SYSTEM[:BLOCK_TOKENS], *(3 * BLOCK_TOKENS * [5 + kind]), 3] for kind in range(3)]
    one = SamplingParameters(seed=0, max_tokens=1)
    done = sample(backend, [Request(kinds[index % 3], "a0", ANY, one) for index in range(24)])
    assert [g.timing.cached_tokens for g in done].count(len(kinds[0])) == 21


def test_what_was_used_longest_ago_makes_room(folders):
    backend = start(folders, reuse_tokens=4 * BLOCK_TOKENS)
    prompts = [[3 + kind] * (2 * BLOCK_TOKENS) + [9] for kind in range(3)]
    cached = [
        sample(backend, [Request(prompts[kind], None, ANY, SamplingParameters())])[0].timing.cached_tokens
        for kind in (0, 1, 0, 2, 0, 1)
    ]
    assert cached == [0, 0, 2 * BLOCK_TOKENS, 0, 2 * BLOCK_TOKENS, 0]


def test_reload_under_one_name_never_serves_keys_of_the_old_weights(folders, expected):
    backend = start(folders, reuse_tokens=10_000)
    same(sample(backend, REQUESTS), expected)
    for name, other in (("a0", "a1"), ("a1", "a0")):
        backend.drop_adapter(name)
        backend.load_adapter(name, folders[other])
    swapped = [
        Request(r.prompt_ids, {"a0": "a1", "a1": "a0", None: None}[r.adapter], r.constraint, r.sampling)
        for r in REQUESTS
    ]
    same(sample(backend, swapped), expected)


def test_models_that_adapters_ride_beside_keep_prefixes_unless_told_not_to(folders, monkeypatch):
    def cached(**settings: int) -> int:
        backend = start(folders, **settings)
        for _ in range(2):
            sample(backend, [game_of(0, "a0")])
        return backend.stats().cached_tokens

    assert cached() == 0
    monkeypatch.setattr(local_module, "MERGE_LIMIT", 0)
    assert cached() > BLOCK_TOKENS
    assert cached(reuse_tokens=0) == 0
