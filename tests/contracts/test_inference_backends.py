"""Every inference backend keeps the contract of ``inference.base``."""

import asyncio
import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import Constraint, ListConstraint, read_choices
from arena.constraints.vocabulary import read_vocabulary
from inference import Generation, InferenceBackend, Request, SamplingParameters, backend_names, make_backend
from inference.base import BackendStats
from inference.remote.load_balancer import ServersConfig
from inference.servers import ServersBackend
from models import Tokenizer, make_base
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder, allowed_logits
from schemas.errors import ConfigError, ModelError
from tests.packed_forward import forward_packed
from tests.servers import LoadedModels, serve_models

VOCABULARY = 40
MASKED = "vllm-masked"
"""vLLM that follows constraints by itself, as far as a slice of so many places goes: not to the end of ``PLANS``."""
MASK_PLACES = 5
SERVERS, PIECEWISE = "servers", "servers-piecewise"
"""A server that is sent whole constraints, and one that is sent three places at a time."""
RANKS = {"a2": 2, "b5": 5, "c16": 16}
PLANS = ListConstraint([(5, 9, 3), (5, 9, 4, 7, 7), (5, 9, 4, 7, 8), (6, 10), (11, 12, 13, 14), (11, 12, 13, 20)])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(VOCABULARY - 3)], seed=1)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of different ranks that change the model a lot."""
    shape, folders = Decoder.load(base).shape, {}
    for seed, (name, rank) in enumerate(RANKS.items()):
        lora = create(shape, LoraConfig(rank=rank), seed=seed)
        with torch.no_grad():
            lora.flat_P.add_(0.2 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        folders[name] = tmp_path_factory.mktemp(name)
        save(lora, folders[name])
    return folders


class Everybody(LoadedModels):
    """Leaves it to the backend which adapters it knows."""

    async def acquire(self, adapter: str, held: contextlib.ExitStack) -> None:
        pass


class OverServers(ServersBackend):
    """The ``servers`` backend, and a server with the local backend in a thread of its own."""

    def __init__(self, base: Path, places: int) -> None:
        self._behind, self._loop = make_backend("local", base), asyncio.new_event_loop()
        self._done, self._thread = asyncio.Event(), threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        started: Future[str] = Future()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(Tokenizer(base), started), self._loop)
        url = started.result(300)
        super().__init__(ServersConfig(places=places), lambda: [url])

    async def _serve(self, tokenizer: Tokenizer, started: "Future[str]") -> None:
        async with serve_models(Everybody(self._behind, tokenizer)) as url:
            started.set_result(url)
            await self._done.wait()
        await self._behind.close()

    def load_adapter(self, digest: str, folder: Path) -> None:
        self._there(lambda: self._behind.load_adapter(digest, folder))
        super().load_adapter(digest, folder)

    def drop_adapter(self, digest: str) -> None:
        self._there(lambda: self._behind.drop_adapter(digest))
        super().drop_adapter(digest)

    def _there(self, do: Callable[[], None]) -> None:
        async def body() -> None:
            do()

        asyncio.run_coroutine_threadsafe(body(), self._loop).result(300)

    async def close(self) -> None:
        await super().close()
        self._loop.call_soon_threadsafe(self._done.set)
        await asyncio.wrap_future(self._serving)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def open_backend(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], InferenceBackend]]:
    """Opens a backend on the base. All of vLLM's share its processes, which take half a minute to start."""
    with contextlib.ExitStack() as engines:

        @functools.cache
        def vllm_engine() -> Any:
            from inference.vllm.process import VllmEngine
            from inference.vllm.settings import VllmConfig

            engine = VllmEngine(base, VllmConfig(mask_places=MASK_PLACES))
            engines.callback(engine.close)
            return engine

        def opened(name: str) -> InferenceBackend:
            if name in (SERVERS, PIECEWISE):
                return OverServers(base, places=3 if name == PIECEWISE else 1000)
            if not name.startswith("vllm"):
                return make_backend(name, base)
            from inference.vllm.engine import VllmBackend
            from inference.vllm.settings import VllmConfig

            config = VllmConfig(mask_places=MASK_PLACES if name == MASKED else 0)
            return VllmBackend(base, config, engine=vllm_engine())

        yield opened


@pytest.fixture(
    params=[name for name in [*backend_names(), MASKED, PIECEWISE] if "vllm" not in name or find_spec("vllm")]
)
def start(
    request: pytest.FixtureRequest, open_backend: Callable[[str], InferenceBackend], adapters: dict[str, Path]
) -> Callable[[], InferenceBackend]:
    """A function that starts the backend with all adapters loaded."""

    def started() -> InferenceBackend:
        backend = open_backend(request.param)
        for name, folder in adapters.items():
            backend.load_adapter(name, folder)
        return backend

    return started


def request_of(index: int, **changes: object) -> Request:
    """Requests of various lengths, adapters, temperatures and constraints."""
    sampling = SamplingParameters(temperature=(0.7, 1.0)[index % 2], seed=index, max_tokens=12)
    prompt = [3 + (7 * index + 5 * position) % (VOCABULARY - 3) for position in range(4 + index % 9)]
    fields = {"prompt_ids": prompt, "adapter": [None, *RANKS][index % 4], "constraint": PLANS, "sampling": sampling}
    return Request(**(fields | changes))  # type: ignore[arg-type]


def sample(
    start: Callable[[], InferenceBackend], requests: list[Request], together: bool = True
) -> list[Generation | BaseException]:
    async def run() -> list[Generation | BaseException]:
        backend = start()
        try:
            if together:
                return await asyncio.gather(*map(backend.generate, requests), return_exceptions=True)
            return [await backend.generate(request) for request in requests]
        finally:
            await backend.close()

    return asyncio.run(run())


def sample_or_skip(start: Callable[[], InferenceBackend], requests: list[Request]) -> list[Generation]:
    """The same, where the backend can tell the nucleus it sampled from; else it has to refuse in so many words."""
    done = sample(start, requests)
    if all(isinstance(one, ModelError) and "top_p" in str(one) for one in done):
        pytest.skip("this backend refuses top_p")
    return done


def walk(constraint: Constraint, ids: list[int]) -> Iterator[tuple[int, list[int]]]:
    for token in ids:
        yield token, list(constraint.allowed())
        constraint = constraint.advance(token)
    assert not constraint.allowed()


def test_completions_follow_the_constraint_and_branches_are_where_it_left_a_choice(start):
    for generation in sample(start, [request_of(i) for i in range(24)]):
        steps = list(walk(PLANS, generation.completion_ids))
        assert generation.finish_reason == "stop"
        assert all(token in allowed for token, allowed in steps)
        choices = [index for index, (_, allowed) in enumerate(steps) if len(allowed) > 1]
        assert generation.branches == choices
        assert generation.allowed == [steps[index][1] for index in choices]
        assert len(generation.logprobs) == len(choices)


def test_logprobs_are_those_of_a_full_forward_renormalised_over_the_allowed(start, base, adapters):
    from models.adapters import load

    decoder = Decoder.load(base)
    loras = {None: None} | {name: load(folder, decoder.shape) for name, folder in adapters.items()}
    requests = [request_of(i) for i in range(24)]
    for request, generation in zip(requests, sample(start, requests), strict=True):
        ids = torch.tensor([*request.prompt_ids, *generation.completion_ids])
        with torch.no_grad():
            hidden_TD = forward_packed(decoder, ids, [len(ids)], loras[request.adapter])
        for branch, allowed, logprob in zip(generation.branches, generation.allowed, generation.logprobs, strict=True):
            row = hidden_TD[len(request.prompt_ids) + branch - 1 :][:1]
            logits = allowed_logits(
                decoder.embed, row, torch.zeros(len(allowed), dtype=torch.long), torch.tensor(allowed)
            )
            expected = torch.log_softmax(logits / request.sampling.temperature, -1)
            index = allowed.index(generation.completion_ids[branch])
            assert logprob == pytest.approx(expected[index].item(), abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft 0.21 on transformers 5.23
def test_logprobs_are_those_of_transformers_and_peft(start, base, adapters):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    requests = [request_of(i) for i in range(8)]
    generations = sample(start, requests)
    for name in [None, *RANKS]:
        model = AutoModelForCausalLM.from_pretrained(base)
        model = model if name is None else PeftModel.from_pretrained(model, adapters[name])
        for request, generation in zip(requests, generations, strict=True):
            if request.adapter != name:
                continue
            with torch.no_grad():
                logits_TV = model(torch.tensor([[*request.prompt_ids, *generation.completion_ids]])).logits[0]
            for branch, allowed, logprob in zip(
                generation.branches, generation.allowed, generation.logprobs, strict=True
            ):
                logits = logits_TV[len(request.prompt_ids) + branch - 1, allowed] / request.sampling.temperature
                index = allowed.index(generation.completion_ids[branch])
                assert logprob == pytest.approx(torch.log_softmax(logits, -1)[index].item(), abs=1e-5)


def test_request_alone_and_in_a_crowd_gives_the_same(start):
    requests = [request_of(i) for i in range(20)]
    alone, crowd = sample(start, requests, together=False), sample(start, requests)
    for one, other in zip(alone, crowd, strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_draws_follow_the_stated_probabilities(start):
    choice = ListConstraint([(5,), (9,), (21,)])
    requests = [
        request_of(1, constraint=choice, sampling=SamplingParameters(temperature=1.5, seed=seed)) for seed in range(600)
    ]
    generations = sample(start, requests)
    stated = {g.completion_ids[0]: math.exp(g.logprobs[0]) for g in generations}
    assert sum(stated.values()) == pytest.approx(1, abs=1e-5)
    for token, probability in stated.items():
        drawn = sum(g.completion_ids == [token] for g in generations) / len(generations)
        assert drawn == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 600))


def test_nucleus_is_the_fewest_likeliest_tokens_and_logprobs_are_renormalised_over_it(start, base, adapters):
    from models.adapters import load

    decoder = Decoder.load(base)
    loras = {None: None} | {name: load(folder, decoder.shape) for name, folder in adapters.items()}
    top_p, cut, whole = 0.6, 0, 0
    requests = [
        request_of(i, sampling=SamplingParameters((0.7, 2.0)[i % 2], i, 6, top_p), constraint=(PLANS, None)[i // 4 % 2])
        for i in range(32)
    ]
    for request, generation in zip(requests, sample_or_skip(start, requests), strict=True):
        ids = torch.tensor([*request.prompt_ids, *generation.completion_ids])
        with torch.no_grad():
            logits_TV = decoder.logits(forward_packed(decoder, ids, [len(ids)], loras[request.adapter]))
        place, at = request.constraint, dict(zip(generation.branches, range(99), strict=False))
        for position, token in enumerate(generation.completion_ids):
            choices = list(place.allowed()) if place else list(range(VOCABULARY))
            place = place and place.advance(token)
            scores = logits_TV[len(request.prompt_ids) + position - 1, choices] / request.sampling.temperature
            ranked = sorted(zip(scores.softmax(-1).tolist(), choices, strict=True), reverse=True)
            kept = next(n for n in range(1, len(ranked) + 1) if sum(p for p, _ in ranked[:n]) >= top_p)
            assert (position in at) == (kept > 1)
            assert token in [other for _, other in ranked[:kept]]
            if position in at:
                assert generation.allowed[at[position]] == sorted(other for _, other in ranked[:kept])
                share = {other: p for p, other in ranked}[token] / sum(p for p, _ in ranked[:kept])
                assert generation.logprobs[at[position]] == pytest.approx(math.log(share), abs=1e-5)
            cut, whole = cut + (kept < len(choices)), whole + (kept == len(choices) > 1)
    assert cut > 20
    assert whole > 0


def test_draws_from_a_nucleus_follow_the_stated_probabilities(start):
    sampling = [SamplingParameters(1.5, seed, top_p=0.7) for seed in range(600)]
    choice = ListConstraint([(5,), (9,), (21,), (30,)])
    generations = sample_or_skip(start, [request_of(1, constraint=choice, sampling=one) for one in sampling])
    stated = {g.completion_ids[0]: math.exp(g.logprobs[0]) for g in generations}
    assert sorted(stated) == generations[0].allowed[0]
    assert 1 < len(stated) < 4
    assert sum(stated.values()) == pytest.approx(1, abs=1e-5)
    for token, probability in stated.items():
        drawn = sum(g.completion_ids == [token] for g in generations) / len(generations)
        assert drawn == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 600))


def test_generations_have_their_time(start):
    for generation in sample(start, [request_of(i) for i in range(8)]):
        assert 0 <= generation.timing.queued_s <= generation.timing.seconds


def test_stats_count_what_was_done(start):
    async def run() -> tuple[BackendStats, BackendStats, list[Generation]]:
        backend = start()
        before = backend.stats()
        done = await asyncio.gather(*(backend.generate(request_of(i)) for i in range(8)))
        after = backend.stats()
        await backend.close()
        return before, after, done

    before, after, done = asyncio.run(run())
    assert (before.requests, before.adapters, before.swaps) == (0, 3, 3)
    assert (after.queued, after.running, after.requests) == (0, 0, 8)
    assert after.prompt_tokens == sum(len(request_of(i).prompt_ids) for i in range(8))
    assert after.sampled_tokens == sum(len(g.branches) for g in done)
    assert after.forced_tokens == sum(len(g.completion_ids) - len(g.branches) for g in done)
    assert after.seconds > 0


def test_adapters_differ_from_the_base_and_from_each_other(start):
    requests = [request_of(3, adapter=name) for name in [None, *RANKS]]
    assert len({generation.logprobs[0] for generation in sample(start, requests)}) == 4


def test_fully_forced_completion_has_no_branches(start):
    (generation,) = sample(start, [request_of(0, constraint=ListConstraint([(5, 6, 7)]))])
    assert (generation.completion_ids, generation.branches, generation.logprobs) == ([5, 6, 7], [], [])


def test_without_a_constraint_the_whole_vocabulary_is_allowed(start):
    generations = sample(start, [request_of(i, constraint=None) for i in range(8)])
    for generation in generations:
        ended = generation.completion_ids[-1] == 1
        assert ended or len(generation.completion_ids) == 12
        assert generation.finish_reason == ("stop" if ended else "length")
        assert generation.branches == list(range(len(generation.completion_ids)))
        assert generation.allowed == [[]] * len(generation.branches)


def test_free_text_before_a_tag_is_sampled_from_the_whole_vocabulary(start, base):
    vocabulary = read_vocabulary((base / "tokenizer.json").read_bytes(), Tokenizer(base).eos)
    place = TaggedConstraints(vocabulary, tag="w7", closing="w8", free_tokens=5)(PLANS)
    generations = sample(
        start, [request_of(i, constraint=place, sampling=SamplingParameters(seed=i)) for i in range(12)]
    )
    for generation in generations:
        assert generation.finish_reason == "stop"
        assert read_choices(place, generation.completion_ids) == (generation.branches, generation.allowed)
        assert all(math.isfinite(logprob) and logprob < 0 for logprob in generation.logprobs)
    assert sum(not tokens for generation in generations for tokens in generation.allowed) > 12


def test_max_tokens_counts_forced_tokens_too(start):
    (generation,) = sample(
        start, [request_of(0, constraint=ListConstraint([(5, 6, 7, 8)]), sampling=SamplingParameters(max_tokens=3))]
    )
    assert (generation.completion_ids, generation.finish_reason) == ([5, 6, 7], "length")


class Faulty:
    """A constraint that fails once a token was sampled."""

    def allowed(self) -> list[int]:
        return [4, 5]

    def advance(self, token: int) -> Constraint:
        raise ModelError("constraint: broken on purpose")


BAD = {
    "unknown adapter": ({"adapter": "nobody"}, "'nobody' is not loaded"),
    "prompt longer than the model": ({"prompt_ids": [3] * 5000}, "5000 tokens"),
    "empty prompt": ({"prompt_ids": []}, "0 tokens"),
    "constraint that allows nothing": ({"constraint": ListConstraint([])}, "allows no token"),
    "constraint that fails later": ({"constraint": Faulty()}, "broken on purpose"),
    "token outside the vocabulary": ({"prompt_ids": [3, VOCABULARY]}, "outside the vocabulary"),
    "allowed token outside the vocabulary": (
        {"constraint": ListConstraint([(4,), (VOCABULARY,)])},
        "outside the vocabulary",
    ),
    "nothing in the nucleus": ({"sampling": SamplingParameters(top_p=0.0)}, "top_p"),
    "temperature zero": ({"sampling": SamplingParameters(temperature=0.0)}, "positive temperature"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_request_fails_alone(start, fault):
    changes, message = BAD[fault]
    good = [request_of(i) for i in range(6)]
    *others, bad = sample(start, [*good, request_of(1, **changes)])
    assert isinstance(bad, ModelError)
    assert message in str(bad)
    assert [g.completion_ids for g in others] == [g.completion_ids for g in sample(start, good)]


def test_cancelled_request_leaves_the_others_alone(start):
    async def run() -> tuple[list[Generation], Generation]:
        backend = start()
        tasks = [asyncio.ensure_future(backend.generate(request_of(i))) for i in range(6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        done = await asyncio.gather(*tasks[1:])
        again = await backend.generate(request_of(0))
        await backend.close()
        return done, again

    done, again = asyncio.run(run())
    expected = sample(start, [request_of(i) for i in range(6)])
    assert [g.completion_ids for g in [again, *done]] == [g.completion_ids for g in expected]


def test_adapters_come_and_go_while_requests_run(start, adapters):
    async def run() -> tuple[list[Generation], Generation]:
        backend = start()
        tasks = [asyncio.ensure_future(backend.generate(request_of(i))) for i in range(9)]
        await asyncio.sleep(0)
        backend.load_adapter("late", adapters["b5"])
        backend.load_adapter("late", adapters["b5"])
        late = await backend.generate(request_of(2, adapter="late"))
        done = await asyncio.gather(*tasks)
        backend.drop_adapter("late")
        with pytest.raises(ModelError, match="not loaded"):
            await backend.generate(request_of(2, adapter="late"))
        await backend.close()
        return done, late

    done, late = asyncio.run(run())
    assert late.completion_ids == done[2].completion_ids
    assert [g.completion_ids for g in done] == [
        g.completion_ids for g in sample(start, [request_of(i) for i in range(9)])
    ]


def test_corrupt_adapter_is_refused_and_stays_unknown(start, adapters, tmp_path):
    for path in adapters["a2"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:200])
    backend = start()
    with pytest.raises(ModelError, match=str(tmp_path)):
        backend.load_adapter("torn", tmp_path)
    asyncio.run(backend.close())


def test_closed_backend_refuses(start):
    async def run() -> None:
        backend = start()
        await backend.close()
        await backend.generate(request_of(0))

    with pytest.raises(ModelError, match="closed"):
        asyncio.run(run())


def test_unknown_backends_settings_and_folders_are_named(base, tmp_path):
    with pytest.raises(ConfigError, match=r"no backend is called 'loca'.*'local'"):
        make_backend("loca", base)
    with pytest.raises(ModelError, match=str(tmp_path)):
        make_backend("local", tmp_path)
    with pytest.raises(ConfigError, match="max_row"):
        make_backend("local", base, max_row=3)
