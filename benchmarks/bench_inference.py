"""How many tokens a second the local engine samples, against vLLM and Hugging Face ``generate`` with PEFT.

One model, the same prompts, one run: 1 to 16 adapters, under a game's constraint (every other token is forced) and
free. All have one thread to compute with; vLLM schedules on another core. Hugging Face takes adapters one after the
other (its usual way) or mixed in one batch (``adapter_names``), and the constraint as ``prefix_allowed_tokens_fn``.

``--device cuda --shape 1.7b`` measures a GPU, without Hugging Face; ``--ranks`` mixes adapters of rank 16, 8 and 4.
"""

import argparse
import asyncio
import gc
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.inference_cases import (
    CASES,
    RANKS,
    InferenceCase,
    RunTimer,
    RunTiming,
    adapter_names,
    make_models,
    make_prompts,
    make_requests,
    order_constraints,
    sample_requests,
)
from benchmarks.sizes import size
from benchmarks.vllm_peer import vllm_peer
from inference.local import LocalBackend, LocalConfig

LINE_UPS = size((1, 2, 4, 8, 16), (1, 2))
LOCAL_ENGINE, VLLM = "local engine", "vLLM"
GENERATE_SEQUENTIAL, GENERATE_MIXED = "generate, adapter by adapter", "generate, mixed adapters"

PEERS = ("vllm", "generate")

Sampler = Callable[[Sequence[str | None], bool, int], RunTiming]
"""Samples for all prompts of a run: adapters in turn, whether constrained, number of the run."""

Rates = dict[str, list[RunTiming]]
"""By who sampled: the least time, by the clock and of processors, with each line-up."""


DType = Literal["float32", "bfloat16", "float16"]


class LocalSampler:
    """The local engine."""

    def __init__(self, folder: Path, case: InferenceCase, adapters: int, device: str, dtype: DType) -> None:
        self._case = case
        self.backend = LocalBackend(folder / "base", LocalConfig(device=device, dtype=dtype))
        for name in adapter_names(adapters):
            self.backend.load_adapter(name, folder / name)

    def sample_run(self, names: Sequence[str | None], constrained: bool, run: int) -> RunTiming:
        """Sample a run."""
        requests, watch = make_requests(self._case, names, constrained, run), RunTimer()
        return watch.elapsed(asyncio.run(sample_requests(self.backend, requests)))


class HuggingFaceSampler:
    """Hugging Face transformers with PEFT."""

    def __init__(self, folder: Path, case: InferenceCase, adapters: int, dtype: DType) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        first, *others = adapter_names(adapters)
        # Without a type it takes that of the files, and many CPUs compute bfloat16 far slower than float32.
        model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, dtype))
        self._case = case
        self._model: Any = PeftModel.from_pretrained(model, folder / first, adapter_name=first)
        for name in others:
            self._model.load_adapter(folder / name, adapter_name=name)
        self._model.eval()
        self._allowed = [list(place.allowed()) for place in order_constraints(case.tokens // 2)]

    def sample_sequential(self, names: Sequence[str | None], constrained: bool, run: int) -> RunTiming:
        """A batch for each adapter, one after the other."""
        watch, tokens = RunTimer(), 0
        for index, name in enumerate(names):
            self._model.set_adapter(name)
            tokens += self._generate(make_prompts(self._case, run)[index :: len(names)], constrained)
        return watch.elapsed(tokens)

    def sample_mixed(self, names: Sequence[str | None], constrained: bool, run: int) -> RunTiming:
        """One batch in which each row names its adapter."""
        watch, owners = RunTimer(), [names[row % len(names)] for row in range(self._case.rows)]
        return watch.elapsed(self._generate(make_prompts(self._case, run), constrained, adapter_names=owners))

    @torch.inference_mode()
    def _generate(self, ids: list[list[int]], constrained: bool, **options: Any) -> int:
        if constrained:
            options["prefix_allowed_tokens_fn"] = lambda _, ids: self._allowed[len(ids) - self._case.prompt]
        out = self._model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.ones(len(ids), self._case.prompt, dtype=torch.long),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=self._case.tokens,
            min_new_tokens=self._case.tokens,
            pad_token_id=0,
            eos_token_id=None,
            **options,
        )
        return int(out[:, self._case.prompt :].numel())


def compare(samplers: dict[str, Sampler], line_ups: Sequence[int], constrained: bool, repeats: int) -> Rates:
    """The best of some runs of everybody with each line-up, taken in turn, after one that warms up."""
    best: Rates = {who: [] for who in samplers}
    for place, count in enumerate(line_ups):
        took: dict[str, list[RunTiming]] = {who: [] for who in samplers}
        for repeat in range(1 + repeats):
            run = (2 * place + constrained) * (1 + repeats) + repeat
            for who, sampler in samplers.items():
                took[who].append(sampler(adapter_names(count), constrained, run))
        for who, runs in took.items():
            seconds, cpu_s = min(one.seconds for one in runs[1:]), min(one.cpu_s for one in runs[1:])
            best[who].append(RunTiming(runs[0].tokens, seconds, cpu_s))
    return best


def print_table(title: str, best: Rates, line_ups: Sequence[int]) -> None:
    """A table with how many times as fast ours is as each peer."""
    print(f"\n{title:40}" + "".join(f"{count:>11}" for count in line_ups) + "  adapters")
    ours = best[LOCAL_ENGINE]
    for who, theirs in best.items():
        print_row(f"{who}, tokens/s", [f"{one.tokens / one.seconds:,.0f}" for one in theirs])
        if who != LOCAL_ENGINE:
            pairs = list(zip(ours, theirs, strict=True))
            print_row("  ratio, by the clock", [f"{b.seconds / a.seconds:.1f}×" for a, b in pairs])
            print_row("  ratio, by processor time", [f"{b.cpu_s / a.cpu_s:.1f}×" for a, b in pairs])
    print_row(f"{LOCAL_ENGINE}, as fast as with {line_ups[0]}", [f"{ours[0].cpu_s / one.cpu_s:.2f}×" for one in ours])


def print_row(name: str, cells: Sequence[str]) -> None:
    """A line of the table."""
    print(f"  {name:38}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks inference")
    parser.add_argument("--shape", choices=CASES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None, help="default: float32 on a CPU, else bfloat16")
    parser.add_argument("--ranks", action="store_true", help="adapters of rank 16, 8 and 4 in turn, not all of 16")
    parser.add_argument("--adapters", type=int, nargs="+", default=LINE_UPS, help="line-ups to measure")
    parser.add_argument("--repeats", type=int, default=size(3, 1))
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=PEERS, help="none without a name behind it")
    return parser.parse_args()


def main() -> None:
    """Measure everything and print it."""
    options = parse_options()
    case, adapters, on_cpu = CASES[options.shape], max(options.adapters), options.device == "cpu"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = make_models(Path(name), case, adapters, RANKS if options.ranks else RANKS[:1])
        dtype: DType = options.dtype or ("float32" if on_cpu else "bfloat16")
        ours = LocalSampler(folder, case, adapters, options.device, dtype)
        samplers: dict[str, Sampler] = {LOCAL_ENGINE: ours.sample_run}
        with vllm_peer(folder if "vllm" in options.peers else None, options.shape, adapters, options.device) as vllm:
            if vllm:
                samplers[VLLM] = vllm.sample_run
            if on_cpu and "generate" in options.peers:
                peer = HuggingFaceSampler(folder, case, adapters, dtype)
                samplers |= {GENERATE_SEQUENTIAL: peer.sample_sequential, GENERATE_MIXED: peer.sample_mixed}
            gc.freeze()  # as the league's workers do
            gc.set_threshold(50_000, 20, 20)
            print(
                f"{options.shape}, {dtype} on {options.device}: {case.rows} rows, prompts of {case.prompt}, "
                f"{case.tokens} new tokens each, vocabulary {case.vocabulary}"
            )
            rates = {}
            for constrained, title in ((True, "a game's constraint"), (False, "free")):
                rates[constrained] = compare(samplers, options.adapters, constrained, options.repeats)
                print_table(title, rates[constrained], options.adapters)
            pairs = zip(rates[True][LOCAL_ENGINE], rates[False][LOCAL_ENGINE], strict=True)
            print_row(
                f"{LOCAL_ENGINE}, constrained : free", [f"{free.cpu_s / game.cpu_s:.2f}×" for game, free in pairs]
            )
            print(f"{LOCAL_ENGINE}: {ours.backend.stats().cache_bytes / 2**20:.1f} MiB of keys and values")


if __name__ == "__main__":
    main()
