"""Weights replaced under a name while requests run: the rest is sampled by the new ones, and spans can be replayed."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters
from inference.vllm.engine import VllmBackend
from inference.vllm.settings import VllmConfig
from models.adapters import load
from models.decoder import Decoder
from schemas.errors import ModelError
from tests.packed_forward import forward_packed

PLANS = ListConstraint(
    [tuple(plan) for plan in product((3, 4), (5, 6), (9,), (5, 6), (7, 8), (9, 10), (3, 4), (5, 6), (7, 8))]
)
PROMPT = [3 + i % 30 for i in range(70)]


def swapped(
    base: Path, engine: Any, before: Path, after: Path, places: int, requests: list[Request]
) -> list[Generation]:
    """Generations of which some are under way when "main" is replaced."""

    async def run() -> list[Generation]:
        backend = VllmBackend(base, VllmConfig(mask_places=places), engine)
        for name in ("main", "other"):
            backend.load_adapter(name, before)
        tasks = [asyncio.ensure_future(backend.generate(request)) for request in requests]
        # They have begun once a later one has sampled.
        await backend.generate(Request(PROMPT, "main", None, SamplingParameters(seed=98, max_tokens=3)))
        backend.swap_adapter("main", "new", after)
        first = await backend.generate(Request(PROMPT, "main", PLANS, SamplingParameters(seed=99, max_tokens=1)))
        assert [span.adapter for span in first.spans] == ["new"]
        generations = await asyncio.gather(*tasks)
        await backend.close()
        return generations

    return asyncio.run(run())


@pytest.mark.parametrize("places", [0, 5, 200])
@pytest.mark.parametrize("free", [False, True], ids=["constrained", "free"])
def test_what_follows_a_swap_is_sampled_by_the_new_weights_and_each_token_by_those_its_span_names(
    base, engine, adapter, places, free
):
    sampled = [SamplingParameters(1.0, i, 150 if free else 60) for i in range(12)]
    requests = [
        Request([3 + i, *PROMPT], ("main", "other", None)[i % 3], None if free else PLANS, sampling)
        for i, sampling in enumerate(sampled)
    ]
    decoder = Decoder.load(base)
    weights = {None: None, "main": load(adapter(1), decoder.shape), "other": load(adapter(1), decoder.shape)}
    weights["new"] = load(adapter(2), decoder.shape)
    # A busy machine may let all requests end before this process replaces the weights.
    for _ in range(10):
        generations = swapped(base, engine, adapter(1), adapter(2), places, requests)
        for request, generation in zip(requests, generations, strict=True):
            check_spans(decoder, weights, request, generation)
        if not free or any(len(generation.spans) == 2 for generation in generations):
            return
    pytest.fail("no request was under way when the weights were replaced")


def check_spans(decoder: Decoder, weights: dict[str | None, Any], request: Request, generation: Generation) -> None:
    """Check every log-probability against a forward pass of the weights that its span names."""
    assert request.adapter == "main" or [span.adapter for span in generation.spans] == [request.adapter]
    assert generation.spans[0].first == 0
    ids = torch.tensor([*request.prompt_ids, *generation.completion_ids])
    logits = {}
    for span in generation.spans:
        with torch.no_grad():
            hidden_TD = forward_packed(decoder, ids, [len(ids)], weights[span.adapter])
            logits[span.adapter] = decoder.logits(hidden_TD)
    for branch, allowed, logprob in zip(generation.branches, generation.allowed, generation.logprobs, strict=True):
        sampler = [span.adapter for span in generation.spans if span.first <= branch][-1]
        row = logits[sampler][len(request.prompt_ids) + branch - 1].log_softmax(-1)
        among = row[allowed].logsumexp(-1) if allowed else 0.0
        assert logprob == pytest.approx(float(row[generation.completion_ids[branch]] - among), abs=2e-5)


def test_swap_that_fails_leaves_the_old_weights_serving(base, engine, adapter, tmp_path):
    backend = VllmBackend(base, engine=engine)
    backend.load_adapter("main", adapter(1))
    with pytest.raises(ModelError, match="'nobody' is not loaded"):
        backend.swap_adapter("nobody", "new", adapter(2))
    with pytest.raises(ModelError, match="adapter_config"):
        backend.swap_adapter("main", "torn", tmp_path / "nothing")
    generation = asyncio.run(backend.generate(Request(PROMPT, "main", PLANS, SamplingParameters(seed=1))))
    assert [span.adapter for span in generation.spans] == ["main"]
    asyncio.run(backend.close())
