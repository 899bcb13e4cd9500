"""What is particular to the local engine: joining, bounds, the ways adapters are applied, figures."""

import asyncio
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from arena.constraints.token_walk import ListConstraint
from inference import Generation, Request, SamplingParameters
from inference import engine as engine_module
from inference import local as local_module
from inference import lora_linear as linears_module
from inference.local import LocalBackend, LocalConfig
from models import BaseShape, Tokenizer, make_base
from models.adapters import LoraConfig, create, load, save
from models.decoder import Decoder
from schemas.config import convert
from schemas.errors import ConfigError, ModelError
from tests.packed_forward import forward_packed

SHAPE = BaseShape(hidden=32, layers=3, heads=4, kv_heads=2, head_dim=16, mlp=48, tied=False, max_positions=64)
ANY = ListConstraint([(a, b, c) for a in (3, 4, 5) for b in (6, 7) for c in (8, 9, 10, 11)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base with fewer key/value heads than query heads, and adapters that cover all or some of its linears."""
    base = make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(17)], SHAPE, seed=2)
    made = {"base": base}
    for seed, targets in enumerate([("q_proj", "down_proj"), ("k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")]):
        lora = create(Decoder.load(base).shape, LoraConfig(rank=3 + seed, target_modules=targets), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.3 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        made[f"a{seed}"] = tmp_path_factory.mktemp(f"a{seed}")
        save(lora, made[f"a{seed}"])
    return made


def start(folders: dict[str, Path], **settings: object) -> LocalBackend:
    backend = LocalBackend(folders["base"], LocalConfig(**settings))  # type: ignore[arg-type]
    for name in ("a0", "a1"):
        backend.load_adapter(name, folders[name])
    return backend


def test_completion_ends_with_any_end_token_of_the_generation_config(folders, tmp_path) -> None:
    base = shutil.copytree(folders["base"], tmp_path / "base")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7, 7]}))
    tokenizer = Tokenizer(base)
    assert (tokenizer.eos, tokenizer.ends) == (1, (1, 7))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 8}))
    assert Tokenizer(base).ends == (1, 8)

    async def run() -> list[Generation]:
        backend = LocalBackend(base)
        sampling = [SamplingParameters(1.0, seed, 40) for seed in range(24)]
        generations = await asyncio.gather(*(backend.generate(Request([3, 4], None, None, each)) for each in sampling))
        await backend.close()
        return generations

    generations = asyncio.run(run())
    assert {each.completion_ids[-1] for each in generations if each.finish_reason == "stop"} == {1, 8}
    assert all({1, 8}.isdisjoint(each.completion_ids[:-1]) for each in generations)


def test_weights_that_overflow_when_they_are_used_fail_their_own_requests(folders, tmp_path) -> None:
    shape = Decoder.load(folders["base"]).shape
    lora = create(shape, LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        lora.flat_P.fill_(1e30)
    save(lora, tmp_path / "huge")

    async def run() -> list[Generation | BaseException]:
        backend = start(folders)
        backend.load_adapter("huge", tmp_path / "huge")
        requests = [
            request_of(1),
            Request([3, 4], "huge", ANY, SamplingParameters()),
            Request([3, 4], "huge", None, SamplingParameters()),
        ]
        return await asyncio.gather(*map(backend.generate, requests), return_exceptions=True)

    sound, *bad = asyncio.run(run())
    assert isinstance(sound, Generation)
    for error in bad:
        assert isinstance(error, ModelError)
        assert "log-probability of nan from adapter 'huge'" in str(error)


def test_row_after_one_whose_weights_overflowed_reads_nothing_of_it(folders, expected, tmp_path) -> None:
    lora = create(Decoder.load(folders["base"]).shape, LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        lora.flat_P.fill_(1e30)
    save(lora, tmp_path / "huge")

    async def run() -> list[Generation]:
        backend = start(folders, max_rows=2)
        backend.load_adapter("huge", tmp_path / "huge")
        huge = Request([3] * 40, "huge", ANY, SamplingParameters())
        failed = await asyncio.gather(*map(backend.generate, [huge, huge]), return_exceptions=True)
        assert all(isinstance(error, ModelError) for error in failed)
        # Beside a longer row, attention passes over what lies behind a shorter one.
        long = Request([3] * 30, None, ANY, SamplingParameters())
        pairs = [await asyncio.gather(*map(backend.generate, [long, request_of(index)])) for index in range(4)]
        return [short for _, short in pairs]

    same(asyncio.run(run()), expected[:4])


def request_of(index: int) -> Request:
    prompt = [3 + (index * 5 + position) % 14 for position in range(2 + index * 7 % 11)]
    return Request(prompt, [None, "a0", "a1"][index % 3], ANY, SamplingParameters(seed=index))


def sample(backend: LocalBackend, indices: Sequence[int]) -> list[Generation]:
    async def run() -> list[Generation]:
        return await asyncio.gather(*(backend.generate(request_of(index)) for index in indices))

    return asyncio.run(run())


def same(ours: Sequence[Generation], theirs: Sequence[Generation]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> list[Generation]:
    return sample(start(folders), range(30))


def test_logprobs_hold_with_grouped_heads_and_partial_adapters(folders, expected):
    decoder = Decoder.load(folders["base"])
    loras = {None: None} | {name: load(folders[name], decoder.shape) for name in ("a0", "a1")}
    for index, generation in enumerate(expected):
        request = request_of(index)
        ids = torch.tensor([*request.prompt_ids, *generation.completion_ids])
        with torch.no_grad():
            logits_TV = decoder.logits(forward_packed(decoder, ids, [len(ids)], loras[request.adapter]))
        for branch, allowed, logprob in zip(generation.branches, generation.allowed, generation.logprobs, strict=True):
            row = logits_TV[len(request.prompt_ids) + branch - 1, allowed].log_softmax(-1)
            assert logprob == pytest.approx(row[allowed.index(generation.completion_ids[branch])].item(), abs=1e-5)


@pytest.mark.parametrize("merge_limit", [0, 1 << 30])
@pytest.mark.parametrize("table_limit", [0, 1 << 30])
def test_merged_or_beside_looked_up_or_computed_is_the_same(folders, expected, monkeypatch, merge_limit, table_limit):
    monkeypatch.setattr(local_module, "MERGE_LIMIT", merge_limit)
    monkeypatch.setattr(linears_module, "TABLE_LIMIT", table_limit)
    same(sample(start(folders), range(30)), expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_rows": 3},
        {"max_prefill_tokens": 8},
        {"max_ready": 1},
        {"join_share": 2.0},
        {"reuse_tokens": 1000},
        {"reuse_tokens": 32, "max_rows": 3},
    ],
)
def test_bounds_change_nothing_but_speed(folders, expected, settings):
    same(sample(start(folders, **settings), range(30)), expected)


@pytest.mark.parametrize("merge_limit", [0, 1 << 30])
def test_half_precision_is_near(folders, expected, monkeypatch, merge_limit):
    monkeypatch.setattr(local_module, "MERGE_LIMIT", merge_limit)
    near = sample(start(folders, dtype="bfloat16"), range(30))
    firsts = [
        (one.logprobs[0], other.logprobs[0])
        for one, other in zip(near, expected, strict=True)
        if one.completion_ids[0] == other.completion_ids[0]
    ]
    assert len(firsts) > 25
    assert max(abs(one - other) for one, other in firsts) < 0.1


def test_cache_is_bounded_by_max_rows(folders):
    backend = start(folders, max_rows=4)
    for crowd in (3, 4, 30):
        sample(backend, range(crowd))
    per_slot = 2 * SHAPE.layers * 64 * SHAPE.kv_heads * SHAPE.head_dim * 4
    assert backend.stats().cache_bytes <= 4 * per_slot


def test_requests_that_come_while_a_batch_runs_join_it(folders, expected):
    async def run() -> list[Generation]:
        backend = start(folders)
        results: list[Generation] = []

        async def player(first: int) -> None:
            results.extend([await backend.generate(request_of(index)) for index in range(first, 30, 3)])

        await asyncio.gather(*map(player, range(3)))
        assert backend.stats().passes < 30 * 3
        return results

    done = {tuple(g.logprobs): g for g in asyncio.run(run())}
    assert sorted(g.completion_ids for g in done.values()) == sorted(g.completion_ids for g in expected)


def test_lone_latecomer_is_not_starved_by_a_busy_batch(folders):
    async def run() -> bool:
        backend = start(folders, join_share=100.0)
        stop = asyncio.Event()

        async def busy(index: int) -> None:
            while not stop.is_set():
                await backend.generate(request_of(index))

        crowd = [asyncio.ensure_future(busy(index)) for index in range(8)]
        await asyncio.sleep(0.01)
        await asyncio.wait_for(backend.generate(request_of(9)), 300)
        stop.set()
        await asyncio.gather(*crowd)
        return True

    assert asyncio.run(run())


def test_event_loop_gets_its_turn_between_rounds(folders):
    async def run() -> int:
        backend, turns, done = start(folders), 0, False

        async def beside() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(beside())
        await backend.generate(request_of(0))
        done = True
        await other
        return turns

    assert asyncio.run(run()) >= 3


def test_event_loop_runs_on_while_a_large_model_computes(folders, expected, monkeypatch):
    """A pass waits for the loop here, which would never come to it if both shared a thread."""
    monkeypatch.setattr(local_module, "MERGE_LIMIT", 0)
    backend, sound, went_on = start(folders), engine_module.ForwardPass.__call__, threading.Event()

    def waiting(*arguments: object) -> torch.Tensor:
        assert went_on.wait(60)
        went_on.clear()
        return sound(*arguments)  # type: ignore[arg-type]

    async def run() -> list[Generation]:
        async def beside() -> None:
            while True:
                went_on.set()
                await asyncio.sleep(0.001)

        other = asyncio.ensure_future(beside())
        done = await asyncio.gather(*(backend.generate(request_of(index)) for index in range(30)))
        other.cancel()
        await backend.close()
        return done

    monkeypatch.setattr(engine_module.ForwardPass, "__call__", waiting)
    same(asyncio.run(run()), expected)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("inference")]


def test_pass_that_fails_fails_its_requests_and_the_engine_goes_on(folders, expected, monkeypatch):
    backend = start(folders)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module.ForwardPass, "__call__", broken)
        with pytest.raises(ModelError, match="out of memory"):
            sample(backend, [0])
    same(sample(backend, range(30)), expected)


def test_nobody_waits_on_an_engine_that_stopped(folders, expected, monkeypatch):
    backend = start(folders)

    def broken(_: object) -> None:
        raise RuntimeError("a fault of the engine itself")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "_remove_finished", broken)
        with pytest.raises(ModelError, match="a fault of the engine itself"):
            sample(backend, [0, 1])
    same(sample(backend, range(30)), expected)


def test_stats_add_up(folders):
    backend = start(folders)
    generations = sample(backend, range(10))
    stats = backend.stats()
    assert (stats.requests, stats.adapters) == (10, 2)
    assert stats.prompt_tokens == sum(len(request_of(i).prompt_ids) for i in range(10))
    assert stats.sampled_tokens == sum(len(g.branches) for g in generations) == 30
    assert stats.forced_tokens == 0
    assert stats.passes == 3
    assert stats.seconds > 0


def test_close_waits_for_what_is_in_flight(folders, expected):
    async def run() -> list[Generation]:
        backend = start(folders)
        tasks = [asyncio.ensure_future(backend.generate(request_of(index))) for index in range(30)]
        await asyncio.sleep(0)
        await backend.close()
        return [task.result() for task in tasks]

    same(asyncio.run(run()), expected)


def test_prompt_and_completion_never_outgrow_the_model(folders):
    async def run() -> Generation:
        return await start(folders).generate(Request([3] * 60, None, None, SamplingParameters(seed=1)))

    generation = asyncio.run(run())
    assert len(generation.completion_ids) <= 4


def test_settings_are_checked(folders):
    for settings, message in [({"dtype": "float8"}, "'float8'"), ({"max_rows": 0}, "max_rows")]:
        with pytest.raises(ConfigError, match=message):
            convert(settings, LocalConfig, "inference")
