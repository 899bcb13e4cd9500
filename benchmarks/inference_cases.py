"""What the inference benchmarks sample: models of a given shape, adapters, prompts, and a game's constraint.

Everybody samples the same number of tokens after the same prompts; every run has prompts of its own, so that nobody
knows them from the run before.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import psutil
import torch

from arena.constraints.token_walk import Constraint
from benchmarks.sizes import size
from inference import InferenceBackend, Request, SamplingParameters
from models import BaseShape, find_base, make_base
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape

RANKS = (16, 8, 4)
"""Of the adapters in turn where ranks are mixed."""

ALLOWED_CODES = 12
"""Tokens allowed at each branch of ``OrderConstraint``."""


class InferenceCase(msgspec.Struct, frozen=True):
    """Sizes of one comparison."""

    shape: BaseShape
    vocabulary: int = 160
    rows: int = size(64, 4)
    prompt: int = size(72, 8)
    tokens: int = size(64, 4)
    """New tokens a row."""
    base: str = ""
    """A known model in place of random weights of the shape."""
    distinct: int = 0
    """Different prompts of a run; 0 for one a row."""
    shared: int = 0
    """Tokens that all prompts of a run begin with: a game's rules."""


CASES = {
    "tiny": InferenceCase(BaseShape()),
    "small": InferenceCase(BaseShape(hidden=256, layers=4, heads=4, kv_heads=2, head_dim=64, mlp=768), 512, 64, 72, 16),
    "0.6b": InferenceCase(
        BaseShape(hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072, max_positions=4096),
        *(151_936, 64, 512, 64),
    ),
    "1.7b": InferenceCase(
        BaseShape(hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=6144, max_positions=4096),
        *(151_936, 64, 512, 64),
    ),
    "4b": InferenceCase(
        BaseShape(hidden=2560, layers=36, heads=32, kv_heads=8, head_dim=128, mlp=9728, max_positions=4096),
        *(151_936, 64, 512, 64),
    ),
    "smollm2": InferenceCase(BaseShape(), 49_152, 16, 110, 16, "smollm2-135m-instruct"),
    "kuhn": InferenceCase(BaseShape(), 49_152, 32, 110, 8, "smollm2-135m-instruct", distinct=12, shared=70),
}
"""The demo's model, one of 2.9M parameters, the shapes of Qwen3-0.6B, 1.7B and 4B, and a real model, also at a
game's prompts."""


class OrderConstraint:
    """So many orders, each a forced place and one of twelve codes: the rhythm of a game's completion."""

    def __init__(self, orders: int, inside: bool = False) -> None:
        self._orders = orders
        self._inside = inside

    def allowed(self) -> Sequence[int]:
        """The place, or the codes."""
        if not self._orders:
            return ()
        return range(40, 40 + ALLOWED_CODES) if self._inside else (5 + self._orders % 30,)

    def advance(self, token: int) -> Constraint:
        """The next place."""
        return OrderConstraint(self._orders - self._inside, not self._inside)


def order_constraints(orders: int) -> Iterator[Constraint]:
    """Every place of ``OrderConstraint``; which codes are chosen changes nothing after them."""
    place: Constraint = OrderConstraint(orders)
    while allowed := place.allowed():
        yield place
        place = place.advance(allowed[0])


def adapter_names(count: int) -> list[str]:
    """What the adapters are called."""
    return [f"adapter{index}" for index in range(count)]


def make_models(folder: Path, case: InferenceCase, adapters: int, ranks: Sequence[int] = RANKS[:1]) -> Path:
    """A base model without an end token, so that everybody samples equally many, and its adapters beside it."""
    if case.base:
        base = copy_without_end(find_base(case.base), folder / "base")
    else:
        base = make_base(folder / "base", [f"word{index}" for index in range(case.vocabulary - 3)], case.shape)
    (base / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (base / "generation_config.json").write_text("{}")
    shape = read_shape(base)
    for seed, name in enumerate(adapter_names(adapters)):
        lora = create(shape, LoraConfig(rank=ranks[seed % len(ranks)]), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.02 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        save(lora, folder / name, str(base))
    return folder


def copy_without_end(model: Path, folder: Path) -> Path:
    """The folder of a model, by links; what names end tokens is left out."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to((model / name).resolve())
    return folder


@cache
def make_prompts(case: InferenceCase, run: int) -> list[list[int]]:
    """Prompts of one run."""
    rng = Random(run)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, case.vocabulary) for _ in range(count)]

    rules = tokens(case.shared)
    prompts = [rules + tokens(case.prompt - case.shared) for _ in range(case.distinct or case.rows)]
    return [prompts[row % len(prompts)] for row in range(case.rows)]


def make_requests(case: InferenceCase, names: Sequence[str | None], constrained: bool, run: int) -> list[Request]:
    """A run's requests, adapters in turn."""
    constraint = OrderConstraint(case.tokens // 2) if constrained else None
    return [
        Request(prompt, names[row % len(names)], constraint, SamplingParameters(seed=row, max_tokens=case.tokens))
        for row, prompt in enumerate(make_prompts(case, run))
    ]


class RunTiming(msgspec.Struct, frozen=True):
    """What a run took."""

    tokens: int
    seconds: float
    """By the clock."""
    cpu_s: float
    """Of processors, all processes of who sampled together."""


async def sample_requests(backend: InferenceBackend, requests: Sequence[Request]) -> int:
    """Completion tokens of requests that come together."""
    done = await asyncio.gather(*map(backend.generate, requests))
    return sum(len(generation.completion_ids) for generation in done)


class RunTimer:
    """Measures a run; ``took`` gives what passed since it was made."""

    def __init__(self, children: Sequence[psutil.Process] = ()) -> None:
        """Start; ``children`` compute for this process."""
        self._children = children
        self._began, self._cpu_s = time.perf_counter(), self._total_cpu_s()

    def elapsed(self, tokens: int) -> RunTiming:
        """Time since the beginning, in which so many tokens were sampled."""
        return RunTiming(tokens, time.perf_counter() - self._began, self._total_cpu_s() - self._cpu_s)

    def _total_cpu_s(self) -> float:
        return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in self._children)
