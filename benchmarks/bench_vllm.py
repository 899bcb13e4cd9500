"""How many tokens a second the local engine samples, against the ``vllm`` backend on the same model and prompts.

Needs vLLM: ``make .venv-vllm/.installed && .venv-vllm/bin/python -m benchmarks.bench_vllm``. Seconds are the clock's,
since vLLM computes in processes of its own; both have one thread to compute with, vLLM's scheduler another core.
"""

import asyncio
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from arena.constraints import Constraint
from benchmarks.bench_inference import ADAPTERS, ROWS, TOKENS, VOCABULARY, Orders, make_models, prompts
from workers.inference import InferenceBackend, Request, Sampling, make_backend

LINE_UPS: list[Sequence[str | None]] = [[None], ADAPTERS[:1], ADAPTERS]


async def once(backend: InferenceBackend, names: Sequence[str | None], constraint: Constraint | None) -> float:
    """Completion tokens per second over all prompts, adapters in turn."""
    requests = [
        Request(prompt, names[row % len(names)], constraint, Sampling(seed=row, max_tokens=TOKENS))
        for row, prompt in enumerate(prompts())
    ]
    began = time.perf_counter()
    done = await asyncio.gather(*map(backend.generate, requests))
    return sum(len(generation.completion_ids) for generation in done) / (time.perf_counter() - began)


async def measure(backend: InferenceBackend, constraint: Constraint | None) -> list[float]:
    """The better of two runs for each line-up, after one that warms up."""
    return [max([await once(backend, names, constraint) for _ in range(3)][1:]) for names in LINE_UPS]


def started(name: str, folders: dict[str, Path]) -> InferenceBackend:
    """The backend with all adapters, and how long that took."""
    began = time.perf_counter()
    backend = make_backend(name, folders["base"])
    for adapter in ADAPTERS:
        backend.load_adapter(adapter, folders[adapter])
    print(f"{name}: started with {len(ADAPTERS)} adapters in {time.perf_counter() - began:.1f} s")
    return backend


async def compare(local: InferenceBackend, vllm: InferenceBackend) -> None:
    """Measure both and print."""
    header = "".join(f"{'base' if names == [None] else f'{len(names)} adapters':>12}" for names in LINE_UPS)
    print(f"completion tokens/s, {ROWS} rows, {TOKENS} new tokens, vocabulary {VOCABULARY}\n{'':24}{header}")
    for kind, constraint in (("games", Orders(TOKENS // 2)), ("free", None)):
        ours, peer = await measure(local, constraint), await measure(vllm, constraint)
        for name, rates in ((f"{kind}: local", ours), (f"{kind}: vllm", peer)):
            print(f"{name:24}" + "".join(f"{rate:>12,.0f}" for rate in rates))
        print(f"{kind + ': ratio':24}" + "".join(f"{a / b:>11.1f}×" for a, b in zip(ours, peer, strict=True)))
    await local.close()
    await vllm.close()


def main() -> None:
    """Measure everything and print it."""
    if find_spec("vllm") is None:
        print("vllm is not installed: nothing measured")
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = make_models(Path(folder))
        asyncio.run(compare(started("local", folders), started("vllm", folders)))


if __name__ == "__main__":
    main()
