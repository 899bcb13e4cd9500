"""The ``vllm`` backend: vLLM's ``AsyncLLM`` under our constraints.

vLLM cannot follow a constraint, so the walk is here: at a branch vLLM samples one token of the allowed set, forced
tokens are only read by it, and its prefix cache keeps what was read. Without a constraint one request samples all.

Log-probabilities are vLLM's ``processed_logprobs``: after temperature and allowed set, as they were sampled from.
"""

import asyncio
import math
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from arena.constraints import EVERYTHING, Constraint
from schemas.errors import ModelError
from trainer.adapters import load
from trainer.model.tokenizer import Tokenizer
from trainer.shape import read_shape
from workers.inference.base import Generation, Request, Span, Stats, Timing
from workers.inference.registry import register
from workers.inference.vllm_process import VllmConfig, VllmEngine

NUCLEUS_VOCABULARY = 4096
"""Largest vocabulary of which every token's probability is asked for at every position of a free completion."""


class _Adapter:
    """A loaded adapter: what vLLM calls it, with its copy on disk, and the requests that use it."""

    def __init__(self, lora: Any) -> None:
        self.lora = lora
        self.users = 0
        self.dropped = False


@register("vllm", VllmConfig)
class VllmBackend:
    """Samples from one base model and its adapters with vLLM."""

    def __init__(self, folder: Path, config: VllmConfig | None = None, engine: VllmEngine | None = None) -> None:
        """Start vLLM on a base model.

        Args:
            folder: The base model's directory.
            config: Settings.
            engine: A running engine of that model, which its owner closes; None starts one.

        Raises:
            ModelError: not a model directory, or vLLM cannot start.
        """
        self._config = config or VllmConfig()
        self._shape = read_shape(Path(folder))
        self._eos = Tokenizer(folder).eos
        self._limit = self._config.length(self._shape.max_positions)
        self._owned = engine is None
        self._engine = engine or VllmEngine(Path(folder), self._config)
        self._copies = Path(tempfile.mkdtemp(prefix="league-adapters-"))
        self._adapters: dict[str | None, _Adapter] = {None: _Adapter(None)}
        self._idle = asyncio.Event()
        self._running = 0
        self._counts = Counter[str]()
        self._seconds = 0.0
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Check an adapter, keep a copy of it, and have vLLM read it; see ``InferenceBackend``."""
        if digest in self._adapters:
            return
        from vllm.lora.request import LoRARequest

        # By our own reader first: it says what is wrong, and what vLLM cannot read in a step would end its engine.
        load(folder, self._shape, max_rank=self._config.max_lora_rank)
        number = self._engine.adapter_id()
        copy = Path(shutil.copytree(folder, self._copies / str(number)))
        # vLLM's prefix cache goes by the name.
        lora = LoRARequest(f"{digest}-{number}", number, str(copy))
        try:
            self._engine.load(lora)
        except Exception as error:  # vLLM raises bare errors of many kinds
            shutil.rmtree(copy)
            raise ModelError(f"{folder}: vLLM cannot use the adapter ({type(error).__name__}: {error})") from error
        self._adapters[digest] = _Adapter(lora)
        self._counts["swaps"] += 1

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; requests that run keep it until they end."""
        adapter = self._adapters.pop(digest, None)
        if adapter is not None:
            adapter.dropped = True
            self._release(adapter)

    def stats(self) -> Stats:
        """What it is at; requests that wait inside vLLM count as running."""
        done = self._counts
        return Stats(
            queued=0,
            running=self._running,
            requests=done["requests"],
            prompt_tokens=done["prompt"],
            cached_tokens=done["cached"],
            sampled_tokens=done["sampled"],
            forced_tokens=done["forced"],
            seconds=self._seconds,
            adapters=len(self._adapters) - 1,
            slots=self._config.max_loras,
            swaps=done["swaps"],
        )

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        self._expect_sound(request)
        adapter = self._adapters[request.adapter]
        adapter.users += 1
        self._running += 1
        self._idle.clear()
        began = time.monotonic()
        try:
            walk = _Walk(self._engine, request, adapter.lora, self._shape.vocab_size, self._eos)
            room = min(request.sampling.max_tokens, self._limit - len(request.prompt_ids))
            reason = await (walk.free(room) if request.constraint is None else walk.follow(request.constraint, room))
            return self._generation(request, walk, reason, time.monotonic() - began)
        finally:
            self._seconds += time.monotonic() - began
            self._counts["requests"] += 1
            adapter.users -= 1
            self._release(adapter)
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def close(self) -> None:
        """Wait for what is in flight, then end vLLM's processes if they were started by this backend."""
        self._closed = True
        if self._running:
            await self._idle.wait()
        for digest in [digest for digest in self._adapters if digest is not None]:
            self.drop_adapter(digest)
        shutil.rmtree(self._copies, ignore_errors=True)
        if self._owned:
            await asyncio.to_thread(self._engine.close)

    def _expect_sound(self, request: Request) -> None:
        prompt, sampling, vocabulary = request.prompt_ids, request.sampling, self._shape.vocab_size
        if request.adapter not in self._adapters:
            known = [digest for digest in self._adapters if digest is not None]
            raise ModelError(f"inference: adapter {request.adapter!r} is not loaded; loaded are {known}")
        if not 0 < len(prompt) < self._limit:
            raise ModelError(f"inference: the prompt has {len(prompt)} tokens; the model takes 1 to {self._limit - 1}")
        if not (sampling.temperature > 0 and math.isfinite(sampling.temperature)) or sampling.max_tokens < 1:
            raise ModelError(f"inference: {sampling}; expected a positive temperature and at least one token")
        if not 0 < sampling.top_p <= 1:
            raise ModelError(f"inference: top_p is {sampling.top_p}; expected more than 0 and at most 1")
        if request.constraint is None:
            _expect_told_nucleus(sampling.top_p, vocabulary)
        _expect_known(prompt, vocabulary)
        if request.constraint is not None and not request.constraint.allowed():
            raise ModelError("inference: the request's constraint allows no token at all")

    def _generation(self, request: Request, walk: "_Walk", reason: str, seconds: float) -> Generation:
        self._counts["prompt"] += len(request.prompt_ids)
        self._counts["cached"] += walk.cached
        self._counts["sampled"] += len(walk.branches)
        self._counts["forced"] += len(walk.completion) - len(walk.branches)
        timing = Timing(queued_s=0.0, seconds=seconds, cached_tokens=walk.cached)
        spans = [Span(0, request.adapter)]
        return Generation(walk.completion, walk.branches, walk.logprobs, walk.allowed, reason, spans, timing)

    def _release(self, adapter: _Adapter) -> None:
        """Let vLLM forget a dropped adapter once nothing uses it: it would look for the files in mid-step."""
        if adapter.dropped and not adapter.users and adapter.lora is not None:
            self._engine.drop(adapter.lora)
            shutil.rmtree(adapter.lora.lora_path, ignore_errors=True)
            adapter.lora = None


class _Walk:
    """One completion: what was sampled, and what was forced between."""

    def __init__(self, engine: VllmEngine, request: Request, lora: Any, vocabulary: int, eos: int | None) -> None:
        self.completion: list[int] = []
        self.branches: list[int] = []
        self.logprobs: list[float] = []
        self.allowed: list[list[int]] = []
        self.cached = 0
        """Prompt tokens that vLLM had kept from other requests."""
        self._engine = engine
        self._prompt = list(request.prompt_ids)
        self._sampling = request.sampling
        self._asked = False
        self._draws = Random(request.sampling.seed)
        self._lora = lora
        self._vocabulary = vocabulary
        self._eos = eos

    async def free(self, room: int) -> str:
        """Sample until the model's end token, at most ``room`` tokens; returns why it ended."""
        await self._sample(room, -1, stop_token_ids=[] if self._eos is None else [self._eos])
        return "stop" if self.completion[-1] == self._eos else "length"

    async def follow(self, place: Constraint, room: int) -> str:
        """Walk along the constraint, at most ``room`` tokens; returns why it ended."""
        while allowed := place.allowed():
            if len(self.completion) >= room:
                return "length"
            if allowed is EVERYTHING:
                _expect_told_nucleus(self._sampling.top_p, self._vocabulary)
                await self._sample(1, -1)
            elif len(allowed) == 1:
                _expect_known(allowed, self._vocabulary)
                self.completion.append(allowed[0])
            else:
                _expect_known(allowed, self._vocabulary)
                await self._sample(1, len(allowed), allowed_token_ids=list(allowed))
            place = place.advance(self.completion[-1])
        return "stop"

    async def _sample(self, tokens: int, choices: int, **limits: Any) -> None:
        """Ask vLLM for the next tokens, each from so many choices (-1 for the vocabulary), and record them."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=self._draws.getrandbits(62),
            max_tokens=tokens,
            # Besides the sampled token's own: below a top_p of 1 those of all choices, which tell the nucleus.
            logprobs=choices if self._sampling.top_p < 1 else 0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **limits,
        )
        work = self._engine.complete([*self._prompt, *self.completion], params, self._lora)
        output = await asyncio.wrap_future(self._engine.submit(work))
        if not self._asked:
            self._asked, self.cached = True, min(output.num_cached_tokens or 0, len(self._prompt))
        said = output.outputs[0]
        for token, logprobs in zip(said.token_ids, said.logprobs, strict=True):
            self._record(token, logprobs, limits.get("allowed_token_ids", []))

    def _record(self, token: int, logprobs: Any, allowed: list[int]) -> None:
        """Take a sampled token; it was forced where the nucleus is that token alone."""
        if self._sampling.top_p < 1:
            allowed = sorted(other for other, its in logprobs.items() if its.logprob > -math.inf)
        if len(allowed) != 1:
            self.branches.append(len(self.completion))
            self.logprobs.append(logprobs[token].logprob)
            self.allowed.append(allowed)
        self.completion.append(token)


def _expect_told_nucleus(top_p: float, vocabulary: int) -> None:
    if top_p < 1 and vocabulary > NUCLEUS_VOCABULARY:
        raise ModelError(
            f"inference: top_p is {top_p} where every token may come; vLLM tells the tokens that it leaves only with "
            f"every token's probability, too much for a vocabulary of {vocabulary} (at most {NUCLEUS_VOCABULARY}), and "
            "without them nothing can be trained on the sample"
        )


def _expect_known(tokens: Any, vocabulary: int) -> None:
    lowest, highest = min(tokens), max(tokens)
    if lowest < 0 or highest >= vocabulary:
        odd = lowest if lowest < 0 else highest
        raise ModelError(f"inference: token {odd} is outside the vocabulary of {vocabulary}")
