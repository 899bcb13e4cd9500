"""vLLM that follows a slice of a constraint by itself: in one request, beside others, and safely."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arena.constraints.constraint_slices import ConstraintSlice
from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import ListConstraint
from arena.constraints.vocabulary import read_vocabulary
from inference import Generation, Request, SamplingParameters
from inference.vllm import VllmRequest, VllmSample, max_slice_tokens
from inference.vllm.engine import VllmBackend
from inference.vllm.settings import VllmConfig
from models import Tokenizer
from schemas.errors import ModelError

ORDERS = ListConstraint([(a, b, c, d) for a in (5, 9) for b in (6, 7) for c in (8, 10) for d in (21, 22, 23)])
PROMPT = [3 + i % 30 for i in range(60)]


class Counted(VllmBackend):
    """Notes what vLLM is asked."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.draws: list[VllmRequest] = []

    async def _sample(self, lora: Any, draw: VllmRequest) -> VllmSample:
        self.draws.append(draw)
        return await super()._sample(lora, draw)


def backend(base: Path, engine: Any, places: int) -> Counted:
    return Counted(base, VllmConfig(mask_places=places), engine=engine)


def run(backend: VllmBackend, *requests: Request) -> list[Generation]:
    async def sampled() -> list[Generation]:
        return await asyncio.gather(*map(backend.generate, requests))

    return asyncio.run(sampled())


def request_of(seed: int, **changes: Any) -> Request:
    fields = {"prompt_ids": PROMPT, "adapter": None, "constraint": ORDERS, "sampling": SamplingParameters(0.9, seed)}
    return Request(**(fields | changes))


@pytest.mark.parametrize(("places", "most"), [(100, 1), (4, 3), (0, 4)])
def test_completion_takes_one_request_where_the_slice_holds_it_and_more_where_it_does_not(base, engine, places, most):
    counted = backend(base, engine, places)
    (generation,) = run(counted, request_of(1))
    assert len(generation.branches) == 4
    assert 1 <= len(counted.draws) <= most
    assert (len(counted.draws) == 1) == (places == 100)
    asyncio.run(counted.close())


def test_free_text_up_to_a_tag_and_what_follows_take_few_requests(base, engine):
    vocabulary = read_vocabulary((base / "tokenizer.json").read_bytes(), Tokenizer(base).eos)
    tagged = TaggedConstraints(vocabulary, tag="w7", closing="w8", free_tokens=40)(ORDERS)
    for places, most in ((100, 4), (0, 12)):
        counted = backend(base, engine, places)
        (generation,) = run(counted, request_of(3, constraint=tagged))
        free = sum(not allowed for allowed in generation.allowed)
        assert generation.finish_reason == "stop"
        assert len(counted.draws) <= most < free + 4
        asyncio.run(counted.close())


def test_masked_branching_and_free_requests_share_a_batch_and_give_what_each_gives_alone(base, engine):
    masked, branching = backend(base, engine, 100), backend(base, engine, 0)
    crowd = [
        (branching if seed % 3 == 1 else masked, request_of(seed, constraint=None if seed % 3 == 2 else ORDERS))
        for seed in range(18)
    ]

    async def together() -> list[Generation]:
        return await asyncio.gather(*(one.generate(request) for one, request in crowd))

    for (one, request), generation in zip(crowd, asyncio.run(together()), strict=True):
        (alone,) = run(one, request)
        assert alone.completion_ids == generation.completion_ids
        assert alone.logprobs == pytest.approx(generation.logprobs, abs=1e-5)


def test_same_completion_has_the_same_logprobs_masked_and_branch_by_branch(base, engine):
    masked, branching = backend(base, engine, 100), backend(base, engine, 0)
    told: list[dict[tuple[int, ...], list[float]]] = []
    for one in (masked, branching):
        generations = run(one, *(request_of(seed, sampling=SamplingParameters(1.3, seed)) for seed in range(120)))
        told.append({tuple(each.completion_ids): each.logprobs for each in generations})
    both = told[0].keys() & told[1].keys()
    assert len(both) >= 8
    assert all(told[0][ids] == pytest.approx(told[1][ids], abs=1e-5) for ids in both)


@pytest.mark.parametrize("text", ["nonsense", 7, "gqdleGNlcnB0"])
def test_malformed_slice_is_refused_and_the_engine_goes_on(base, engine, text):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, seed=0, detokenize=False, extra_args={"league_mask": text})
    with pytest.raises(ModelError, match="league_mask is not a slice"):
        engine.submit(engine.complete([3, 4], params, None)).result()
    assert run(backend(base, engine, 100), request_of(1))[0].finish_reason == "stop"


def test_slice_with_tokens_that_the_model_does_not_have_does_not_end_the_engine(base, engine):
    from vllm import SamplingParams

    extra = VllmRequest(
        [3], 2, 0, SamplingParameters(), constraint_slice=ConstraintSlice([[5000, 6000], []], [[1, 1], []]), stops=(9,)
    ).mask_argument()
    params = SamplingParams(max_tokens=2, seed=0, logprobs=0, detokenize=False, extra_args=extra, stop_token_ids=[9])
    output = engine.submit(engine.complete([3, 4], params, None)).result()
    assert list(output.outputs[0].token_ids) == [9]


def test_engine_that_schedules_steps_ahead_samples_along_masks_what_the_other_engine_samples(base, engine, monkeypatch):
    """vLLM's own asynchronous scheduler, which it turns off on a CPU and which works there all the same."""
    from vllm.platforms.cpu import CpuPlatform

    from inference.vllm.process import VllmEngine

    synchronous = CpuPlatform.check_and_update_config

    def schedule_ahead(config: Any) -> None:
        synchronous(config)
        config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(schedule_ahead))
    ahead = VllmEngine(base, VllmConfig(max_loras=2, max_cpu_loras=2, mask_places=16))
    monkeypatch.undo()
    try:
        schedulers = [each.llm.vllm_config.scheduler_config.get_scheduler_cls() for each in (engine, ahead)]
        assert [each.__name__ for each in schedulers] == ["Scheduler", "AsyncScheduler"]
        crowd = [request_of(seed, constraint=None if seed % 3 == 2 else ORDERS) for seed in range(18)]
        expected, found = (run(backend(base, each, 100), *crowd) for each in (engine, ahead))
        for one, other in zip(expected, found, strict=True):
            assert other.completion_ids == one.completion_ids
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)
    finally:
        ahead.close()


def test_tokens_of_a_step_that_was_planned_before_they_were_known_are_read_when_it_samples():
    """vLLM's own batch under asynchronous scheduling, which lists -1 until the tokens have been copied."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    from inference.vllm.mask import SliceMask

    size, cpu = 12, torch.device("cpu")
    config: Any = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: size))
    mask = SliceMask(config, cpu, False)
    batch = InputBatch(4, 64, 64, cpu, size, [16], [4], LogitsProcessors([mask]), True)
    # After 1 comes 3, after 2 comes 4; then the end.
    chain = ConstraintSlice([[1, 2], [3], [4], []], [[1, 2], [3], [3], []])
    outputs: dict[str, list[int]] = {}
    for name in ("masked", "free", "late"):
        draw = VllmRequest([5], 9, 0, SamplingParameters(), constraint_slice=chain, stops=(11,))
        extra = None if name == "free" else draw.mask_argument()
        params = SamplingParams(max_tokens=9, seed=0, extra_args=extra)
        state = CachedRequestState(name, [5], [], params, None, ([0],), 0, [])
        outputs[name] = state.output_token_ids
        batch.add_request(state)
    generator, sampled = torch.Generator().manual_seed(0), dict[str, list[int]]()
    for step in range(4):
        if step == 2:
            batch.remove_request("free")
            batch.condense()
        batch.refresh_metadata()
        assert all(not ids or ids[-1] == -1 for name, ids in outputs.items() if name in batch.req_id_to_index)
        batch.update_async_output_token_ids()
        logits = mask.apply(torch.randn((batch.num_reqs, size), generator=generator))
        tokens = logits.argmax(dim=1, keepdim=True)
        for row, name in enumerate(batch.req_ids):
            sampled.setdefault(name, []).append(int(tokens[row, 0]))
            outputs[name].append(-1)
        batch.prev_req_id_to_index = dict(batch.req_id_to_index)
        batch.set_async_sampled_token_ids(tokens, SimpleNamespace(synchronize=lambda: None))
    for name in ("masked", "late"):
        first = sampled[name][0]
        assert sampled[name] == [first, {1: 3, 2: 4}[first], 11, 11]
        assert outputs[name][:-1] == sampled[name][:-1]


def test_rows_are_masked_in_one_write_and_tokens_that_the_model_lacks_are_left_out():
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

    from inference.vllm.mask import SliceMask

    size = 50_000
    config: Any = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: size))
    mask = SliceMask(config, torch.device("cpu"), False)
    wide = list(range(0, size + 5_000, 2))
    slices = [
        ConstraintSlice([wide], [[]]),
        None,
        ConstraintSlice([[3, 7, size]], [[]]),
        ConstraintSlice([[size]], [[]]),
    ]
    added = []
    for row, constraint_slice in enumerate(slices):
        extra = VllmRequest(
            [5], 1, 0, SamplingParameters(), constraint_slice=constraint_slice, stops=(9,)
        ).mask_argument()
        added.append((row, SamplingParams(max_tokens=1, seed=0, extra_args=extra), [5], []))
    mask.update_state(BatchUpdate(batch_size=4, removed=[], added=added, moved=[]))
    logits = torch.randn((4, size))
    masked = mask.apply(logits.clone())
    for row, expected in ((0, wide[: size // 2]), (1, list(range(size))), (2, [3, 7]), (3, [9])):
        assert torch.isfinite(masked[row]).nonzero().flatten().tolist() == expected
        assert torch.equal(masked[row][expected], logits[row][expected])


def test_longest_way_through_a_slice_is_known_where_nothing_leads_back():
    assert max_slice_tokens(ConstraintSlice([[1, 2], [3], []], [[1, 2], [2], []])) == 2
    assert max_slice_tokens(ConstraintSlice([[1, 2]], [[-1, -1]])) == 1
    assert max_slice_tokens(ConstraintSlice([[1, 2], [3]], [[1, -1], [0]])) is None
