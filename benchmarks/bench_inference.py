"""How many tokens a second the local engine samples, against Hugging Face ``generate`` with PEFT on the same model.

Both sample the same number of tokens after the same 64 prompts, on one thread in float32: once as games do, under a
constraint that forces every other token, once without any. The peer takes adapters one after the other (its usual way)
or mixed in one batch (``adapter_names``); it takes the constraint as ``prefix_allowed_tokens_fn``.
"""

import asyncio
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from arena.constraints import Constraint
from trainer.adapters import LoraConfig, create, save
from trainer.decoder import Decoder
from trainer.model import make_base
from workers.inference import Request, Sampling
from workers.inference.local import LocalBackend

ROWS, PROMPT, TOKENS, VOCABULARY = 64, 72, 64, 160
ADAPTERS = [f"adapter{index}" for index in range(8)]


LINE_UPS = [ADAPTERS[:1], ADAPTERS]
RATIOS = [
    ("games: adapter by adapter", "games: local engine", "games: generate + PEFT, adapter by adapter"),
    ("free: adapter by adapter", "free: local engine", "free: generate + PEFT, adapter by adapter"),
    ("free: mixed adapters", "free: local engine", "free: generate + PEFT, mixed adapters"),
]


class Orders:
    """So many orders, each a forced place and one of twelve codes: the rhythm of a game's completion."""

    def __init__(self, orders: int, inside: bool = False) -> None:
        self._orders = orders
        self._inside = inside

    def allowed(self) -> Sequence[int]:
        """The place, or the codes."""
        if not self._orders:
            return ()
        return range(40, 52) if self._inside else (5 + self._orders % 30,)

    def advance(self, token: int) -> Constraint:
        """The next place."""
        return Orders(self._orders - self._inside, not self._inside)


def order_places() -> Iterator[Constraint]:
    """Every place of ``Orders``; which codes are chosen changes nothing after them."""
    place: Constraint = Orders(TOKENS // 2)
    while allowed := place.allowed():
        yield place
        place = place.advance(allowed[0])


def make_models(folder: Path) -> dict[str, Path]:
    """A base model without an end token, so that everybody samples equally many, and eight adapters."""
    base = make_base(folder / "base", [f"word{index}" for index in range(VOCABULARY - 3)])
    (base / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    shape = Decoder.load(base).shape
    for seed, name in enumerate(ADAPTERS):
        lora = create(shape, LoraConfig(rank=16), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.02 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        save(lora, folder / name, str(base))
    return {name: folder / name for name in ("base", *ADAPTERS)}


@cache
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(3, VOCABULARY) for _ in range(PROMPT)] for _ in range(ROWS)]


class Ours:
    """The local engine."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def run(self, names: Sequence[str], constraint: Constraint | None) -> int:
        """Sample for all prompts, adapters in turn; completion tokens."""
        return asyncio.run(self._run(names, constraint))

    def start(self) -> "Ours":
        """Load everything."""
        self._backend = LocalBackend(self._folders["base"])
        for name in ADAPTERS:
            self._backend.load_adapter(name, self._folders[name])
        return self

    async def _run(self, names: Sequence[str], constraint: Constraint | None) -> int:
        requests = [
            Request(prompt, names[row % len(names)], constraint, Sampling(seed=row, max_tokens=TOKENS))
            for row, prompt in enumerate(prompts())
        ]
        done = await asyncio.gather(*map(self._backend.generate, requests))
        return sum(len(generation.completion_ids) for generation in done)


class Peer:
    """Hugging Face transformers with PEFT."""

    def __init__(self, folders: dict[str, Path]) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folders["base"])
        self._model: Any = PeftModel.from_pretrained(model, folders[ADAPTERS[0]], adapter_name=ADAPTERS[0])
        for name in ADAPTERS[1:]:
            self._model.load_adapter(folders[name], adapter_name=name)
        self._model.eval()

    def one_by_one(self, names: Sequence[str], **options: Any) -> int:
        """A batch for each adapter, one after the other."""
        tokens = 0
        for index, name in enumerate(names):
            self._model.set_adapter(name)
            tokens += self._generate(prompts()[index :: len(names)], **options)
        return tokens

    def orders(self, names: Sequence[str]) -> int:
        """The same under the constraint of ``Orders``."""
        allowed = [list(place.allowed()) for place in order_places()]
        return self.one_by_one(names, prefix_allowed_tokens_fn=lambda _, ids: allowed[len(ids) - PROMPT])

    def mixed(self, names: Sequence[str]) -> int:
        """One batch in which each row names its adapter."""
        return self._generate(prompts(), adapter_names=[names[row % len(names)] for row in range(ROWS)])

    @torch.inference_mode()
    def _generate(self, ids: list[list[int]], **options: Any) -> int:
        out = self._model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.ones(len(ids), PROMPT, dtype=torch.long),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            pad_token_id=0,
            eos_token_id=None,
            **options,
        )
        return int(out[:, PROMPT:].numel())


def rate(sample: Callable[[], int], seconds: float = 1.5) -> float:
    """Completion tokens per second of processor time, which other work on the machine hardly disturbs.

    The best of the runs that begin within ``seconds``, after one that warms up.
    """
    sample()
    best, until = 0.0, time.process_time() + seconds
    while time.process_time() < until:
        start = time.process_time()
        tokens = sample()
        best = max(best, tokens / (time.process_time() - start))
    return best


def main() -> None:
    """Measure everything and print it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = make_models(Path(folder))
        ours, peer = Ours(folders).start(), Peer(folders)
        orders = Orders(TOKENS // 2)
        rates = {
            "games: local engine": [rate(lambda n=n: ours.run(n, orders)) for n in LINE_UPS],
            "games: generate + PEFT, adapter by adapter": [rate(lambda n=n: peer.orders(n)) for n in LINE_UPS],
            "free: local engine": [rate(lambda n=n: ours.run(n, None)) for n in LINE_UPS],
            "free: generate + PEFT, adapter by adapter": [rate(lambda n=n: peer.one_by_one(n)) for n in LINE_UPS],
            "free: generate + PEFT, mixed adapters": [rate(lambda n=n: peer.mixed(n)) for n in LINE_UPS],
        }
    print(f"completion tokens/s, {ROWS} rows, prompts of {PROMPT}, {TOKENS} new tokens, 91k parameters, one thread")
    print(f"{'':44}{'1 adapter':>12}{'8 adapters':>12}")
    for name, (one, eight) in rates.items():
        print(f"{name:44}{one:>12,.0f}{eight:>12,.0f}")
    for name, ours_name, peer_name in RATIOS:
        one, eight = (a / b for a, b in zip(rates[ours_name], rates[peer_name], strict=True))
        print(f"{'ratio, ' + name:44}{one:>11.1f}×{eight:>11.1f}×")


if __name__ == "__main__":
    main()
