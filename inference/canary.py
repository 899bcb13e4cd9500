"""A canary after each load of an adapter: it finds a server that ignores the adapter, or serves an old one.

One token is sampled after each of a few fixed prompts, with a fixed seed, under the base model and under every adapter
that this process loads. Their log-probabilities are normalised over the whole vocabulary, so every change of the
weights moves them; one alone would agree by chance among a thousand versions. An adapter that answers exactly as the
base model, or as another adapter, is not the one that is served, unless it has no effect (all its B are zero, as before
the first step of training), has the other's weights, or is so sure of every token that nothing can move.

Every process that holds a model checks what it loads itself, before the first match that uses it: ``local``, ``vllm``
in process, and the league's inference servers. Nothing is recorded, so that no trainer has to compute with a sampler's
numerics, nor is any tolerance between them needed: equal weights give equal numbers on one engine. Beside other
requests in one batch, sums may be rounded otherwise and a fault go unnoticed; no sound adapter is rejected.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

from inference.base import InferenceBackend, Request, SamplingParameters
from schemas.errors import ModelError
from schemas.ids import digest
from schemas.loggers import get_logger

log = get_logger()

_PROMPTS, _PROMPT_TOKENS = 6, 4
_TOLERANCE = 1e-6
"""Difference of log-probabilities up to which they are equal; one small step moves them a thousand times as far."""


_SURE = 1e-3
"""Distance of log-probabilities from 0 up to which they tell nothing."""


class CanaryAnswer(NamedTuple):
    """The sampled token after each prompt with their log-probabilities, and a digest of the weights."""

    tokens: list[int]
    logprobs: list[float]
    weights: str

    def equals(self, other: "CanaryAnswer") -> bool:
        """Whether other weights gave the same tokens with the same log-probabilities, which could have differed."""
        if self.weights == other.weights or self.tokens != other.tokens or max(map(abs, self.logprobs)) < _SURE:
            return False
        return all(abs(a - b) <= _TOLERANCE for a, b in zip(self.logprobs, other.logprobs, strict=True))


class AdapterCanary:
    """Asks one backend for the canary's tokens under each adapter.

    One token a prompt: a second would be computed from kept keys and values, in sums of other lengths each time, which
    on SmolLM2 are 2e-5 apart in float32 and change the tokens in bfloat16.
    """

    def __init__(self, backend: InferenceBackend, vocabulary: int) -> None:
        """``vocabulary`` is the number of tokens, from all over which the prompts' are."""
        self._backend = backend
        places = [vocabulary * (2 * index + 1) // (2 * _PROMPT_TOKENS) for index in range(_PROMPT_TOKENS)]
        self._prompts = [[(place + number) % vocabulary for place in places] for number in range(_PROMPTS)]
        self._answers: dict[str | None, CanaryAnswer] = {}

    async def check(self, adapter: str, folder: Path) -> None:
        """Check an adapter that was loaded from a folder; raises ``ModelError`` if the backend does not serve it."""
        # These import torch, which playing without a local model does not need.
        from models.adapter_checks import has_effect
        from models.adapters import WEIGHTS_FILE

        if not await asyncio.to_thread(has_effect, folder):
            log.info("an adapter without effect was loaded: all its B are zero", adapter=adapter)
            return
        if None not in self._answers:
            self._answers[None] = await self._ask(None, "")
        answer = await self._ask(adapter, digest(await asyncio.to_thread((folder / WEIGHTS_FILE).read_bytes)))
        for other, earlier in self._answers.items():
            if other != adapter and answer.equals(earlier):
                raise ModelError(
                    f"adapter {adapter!r}: after it was loaded, the backend answers as "
                    f"{'the base model' if other is None else f'adapter {other!r}'} does (tokens {answer.tokens} with "
                    f"log-probabilities {', '.join(f'{value:.7g}' for value in answer.logprobs)}); expected another "
                    "answer, since its weights differ"
                )
        self._answers[adapter] = answer

    async def _ask(self, adapter: str | None, weights: str) -> CanaryAnswer:
        sampling = SamplingParameters(seed=0, max_tokens=1)
        # One after the other, since the rows of a batch change each other's rounding.
        found = [await self._backend.generate(Request(prompt, adapter, None, sampling)) for prompt in self._prompts]
        return CanaryAnswer(
            [token for one in found for token in one.completion_ids],
            [logprob for one in found for logprob in one.logprobs],
            weights,
        )
