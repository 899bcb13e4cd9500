"""A canary after each load of an adapter: it finds a server that ignores the adapter, or serves an old one.

One token is sampled after each of a few fixed prompts, with a fixed seed, under the base model and under every adapter
that this process loads. Their log-probabilities are normalised over the whole vocabulary, so every change of the
weights moves them; one alone would agree by chance among a thousand versions. An adapter that answers exactly as the
base model, or as another adapter, is not the one that is served, unless it has no effect (all its B are zero, as before
the first step of training), has the other's weights, or is so sure of every token that nothing can move.

What a learner in float32 recorded with the adapter (``models.canary``) also finds an old version that this process did
not load, and an adapter applied with a wrong scale. It is compared where the base model's answers show that this
backend computes as that learner does: bfloat16 moves them by 1e-2, as far as several steps, and no two float32 by 1e-5.

Every process that holds a model checks what it loads itself, before the first match that uses it: ``local``, ``vllm``
in process, and the league's inference servers. Beside other requests in one batch, sums may be rounded otherwise and a
fault go unnoticed; no sound adapter is rejected.
"""

import asyncio
import math
from pathlib import Path
from typing import NamedTuple

from arena.constraints.constraint_slices import ConstraintSlice, state_after
from inference.base import InferenceBackend, Request, SamplingParameters
from models.canary import CanaryQuestion, CanaryRecord, canary_prompts, read_record
from schemas.errors import ModelError
from schemas.loggers import get_logger

log = get_logger()

_TOLERANCE = 1e-6
"""Difference of log-probabilities up to which they are equal; one small step moves them a thousand times as far."""


_SURE = 1e-3
"""Distance of log-probabilities from 0 up to which they tell nothing."""

_ALIKE, _APART = 1e-4, 1e-2
"""Distances of probabilities: up to the first, sampler and learner compute alike; from the second on, they have other
weights."""

_OPEN, _FEWEST_OPEN = 0.01, 3
"""A question is open if the base model gives both tokens this probability; with fewer open ones, rounding can hide."""


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
        self._prompts = canary_prompts(vocabulary)
        self._answers: dict[str | None, CanaryAnswer] = {}
        self._is_alike: bool | None = None
        """Whether the backend computes as the learner does; None before the first record."""

    async def check(self, adapter: str, folder: Path) -> None:
        """Check an adapter that was loaded from a folder; raises ``ModelError`` if the backend does not serve it."""
        # These import torch, which playing without a local model does not need.
        from models.adapter_checks import digest_weights, has_effect

        if not await asyncio.to_thread(has_effect, folder):
            log.info("an adapter without effect was loaded: all its B are zero", adapter=adapter)
            return
        if None not in self._answers:
            self._answers[None] = await self._ask(None, "")
        answer = await self._ask(adapter, await asyncio.to_thread(digest_weights, folder))
        for other, earlier in self._answers.items():
            if other != adapter and answer.equals(earlier):
                raise ModelError(
                    f"adapter {adapter!r}: after it was loaded, the backend answers as "
                    f"{'the base model' if other is None else f'adapter {other!r}'} does (tokens {answer.tokens} with "
                    f"log-probabilities {', '.join(f'{value:.7g}' for value in answer.logprobs)}); expected another "
                    "answer, since its weights differ"
                )
        self._answers[adapter] = answer
        if (record := await asyncio.to_thread(read_record, folder)) is not None:
            await self._check_record(adapter, record)

    async def _check_record(self, adapter: str, record: CanaryRecord) -> None:
        """Raise ``ModelError`` if the backend computes as the learner did, but not with the adapter's weights."""
        if self._is_alike is None:
            base = zip(await self._answer(None, record.questions), record.base, strict=True)
            gaps = [abs(served - recorded) for served, recorded in base if _OPEN < recorded < 1 - _OPEN]
            self._is_alike = len(gaps) >= _FEWEST_OPEN and max(gaps) < _ALIKE
        if not self._is_alike:
            return
        served = await self._answer(adapter, record.questions)
        if max(abs(a - b) for a, b in zip(served, record.adapter, strict=True)) > _APART:
            raise ModelError(
                f"adapter {adapter!r}: after it was loaded, the backend answers the canary's questions with the "
                f"probabilities {_listed(served)}; the learner recorded {_listed(record.adapter)} (base model: "
                f"{_listed(record.base)}); expected no more than {_APART:g} between them: it serves another version, "
                "or applies this one with another scale"
            )

    async def _answer(self, adapter: str | None, questions: list[CanaryQuestion]) -> list[float]:
        """Probability of the first allowed token of each question."""
        answers = list[float]()
        for question in questions:
            choice = state_after(ConstraintSlice([question.allowed, []], [[1, 1], []]), [])
            sampling = SamplingParameters(seed=0, max_tokens=1)
            found = await self._backend.generate(Request(question.prompt_ids, adapter, choice, sampling))
            probability = math.exp(found.logprobs[0])
            answers.append(probability if found.completion_ids[0] == question.allowed[0] else 1 - probability)
        return answers

    async def _ask(self, adapter: str | None, weights: str) -> CanaryAnswer:
        sampling = SamplingParameters(seed=0, max_tokens=1)
        # One after the other, since the rows of a batch change each other's rounding.
        found = [await self._backend.generate(Request(prompt, adapter, None, sampling)) for prompt in self._prompts]
        return CanaryAnswer(
            [token for one in found for token in one.completion_ids],
            [logprob for one in found for logprob in one.logprobs],
            weights,
        )


def _listed(probabilities: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in probabilities)
