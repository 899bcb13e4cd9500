"""One completion under a constraint, sampled by vLLM.

vLLM does not know our constraints. By itself it samples each choice in a request of its own, with the allowed set;
where it runs with ``mask``, a request carries a slice of the constraint, and vLLM samples along it. Forced runs
before a choice are appended without a request. Free text before a tag is sampled in stretches: what lies behind the
tag is discarded, which leaves the distribution of the rest as it was.
"""

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from arena.constraints.constraint_slices import ConstraintSlice, SliceState, free_span_of
from arena.constraints.token_walk import ANY_TOKEN, Constraint
from inference.base import Generation, Request, Timing
from inference.completion import CompletionBuilder, check_request, check_token_ids
from inference.statistics import RequestCounter
from inference.vllm import VllmClient, VllmRequest, VllmSample, max_slice_tokens
from schemas.errors import ModelError

MAX_NUCLEUS_VOCABULARY = 4096
"""Largest vocabulary for which every token's probability is requested at every position of a free completion."""
NUCLEUS_TOKENS = 64
"""Likeliest tokens among which the nucleus of a free completion is taken where the vocabulary is larger. vLLM reports a
distribution by its tokens: so truncated, all of them come back, and can be trained on."""
NUCLEUS_TIES = 64
"""Further tokens that are requested then, since all that are as likely as the last one belong to the nucleus too."""
MAX_STRETCH_TOKENS = 16
"""Tokens of free text sampled by one request, where a constraint may end it at any token."""
MAX_STOP_TOKENS = 128
"""Most stop tokens of one request: the bound of vLLM's second model runner."""
IMPOSSIBLE_LOGPROB = -9000.0
"""Log-probability below which a token could not come: vLLM writes -9999 for minus infinity."""


class ModelLimits(NamedTuple):
    """Limits of the model."""

    vocabulary: int
    ends: tuple[int, ...]
    """Tokens that end a completion without a constraint."""
    limit: int
    """Longest prompt and completion together."""
    seeded: bool = True
    """Whether each request seeds its own generator."""


class CompletionSampler:
    """Assembles one completion from vLLM's samples and the forced tokens between.

    The request has passed ``check_vllm_request``. ``make_slice`` makes the slice at a place of the constraint, for a
    vLLM that follows slices; None requests every choice by itself.
    """

    def __init__(
        self,
        ask: VllmClient,
        request: Request,
        model: ModelLimits,
        make_slice: Callable[[Constraint], ConstraintSlice] | None = None,
    ) -> None:
        self._completion = CompletionBuilder()
        self._cached: int | None = None
        """Prompt tokens that vLLM had cached from other requests; None before the first answer."""
        self._first_at = 0.0
        """When vLLM's first tokens came, by ``time.monotonic``; several at once where it samples along a slice."""
        self._client = ask
        self._request = request
        self._prompt = list(request.prompt_ids)
        self._sampling = request.sampling
        self._max_tokens = min(request.sampling.max_tokens, model.limit - len(request.prompt_ids))
        self._rng = Random(request.sampling.seed)
        self._model = model
        self._make_slice = make_slice

    async def run(self, counter: RequestCounter) -> Generation:
        """Sample the completion, and count it; raises ``ModelError`` where vLLM fails, or lacks what training needs."""
        constraint = self._request.constraint
        with counter.track() as began:
            reason = await (self._sample_free() if constraint is None else self._sample_constrained(constraint))
            timing = Timing(0.0, time.monotonic() - began, self._cached or 0, max(self._first_at - began, 0.0))
        generation = self._completion.finish(reason, timing)
        counter.add(self._request, generation)
        return generation

    async def _sample_free(self) -> str:
        while len(self._completion) < self._max_tokens:
            left = self._max_tokens - len(self._completion)
            drawn = await self._draw(left, self._model.vocabulary, stops=self._model.ends)
            for token, logprobs in zip(drawn.tokens, drawn.logprobs, strict=True):
                self._record(token, logprobs, [])
            if drawn.tokens[-1] in self._model.ends:
                return "stop"
        return "length"

    async def _sample_constrained(self, place: Constraint) -> str:
        while allowed := place.allowed():
            span = free_span_of(place) if allowed is ANY_TOKEN else None
            if len(self._completion) >= self._max_tokens:
                return "length"
            if len(allowed) == 1:
                place, _, _ = self._completion.follow_forced(place, self._max_tokens, self._model.vocabulary)
            elif span is not None and 0 < len(span.breaks) <= MAX_STOP_TOKENS:
                # What ends the span ends the request: nothing is sampled behind it.
                place = await self._sample_free_stretch(place, span.room, tuple(span.breaks))
            elif self._make_slice is not None:
                place = await self._sample_slice(place, self._make_slice(place))
            elif allowed is ANY_TOKEN:
                place = await self._sample_free_stretch(place, MAX_STRETCH_TOKENS)
            else:
                check_token_ids(allowed[0], allowed[-1], self._model.vocabulary)
                drawn = await self._draw(1, len(allowed), allowed=list(allowed))
                self._record(drawn.tokens[0], drawn.logprobs[0], list(allowed))
                place = place.advance(drawn.tokens[0])
        return "stop"

    async def _sample_free_stretch(self, place: Constraint, most: int, stops: tuple[int, ...] = ()) -> Constraint:
        """Sample a stretch of free text, and discard what is behind its end, which did not follow the constraint."""
        span = free_span_of(place)
        tokens = min(most, self._max_tokens - len(self._completion), most if span is None else span.room)
        drawn = await self._draw(tokens, self._model.vocabulary, stops=stops)
        for token, logprobs in zip(drawn.tokens, drawn.logprobs, strict=True):
            if place.allowed() is not ANY_TOKEN:
                break
            self._record(token, logprobs, [])
            place = place.advance(token)
        return place

    async def _sample_slice(self, place: Constraint, constraint_slice: ConstraintSlice) -> Constraint:
        """Sample all tokens up to the end of the slice."""
        named = [token for tokens in constraint_slice.allowed for token in tokens]
        check_token_ids(min(named, default=0), max(named, default=0), self._model.vocabulary)
        widest = self._model.vocabulary if constraint_slice.free_span else max(map(len, constraint_slice.allowed))
        stop = self._model.ends[0] if self._model.ends else self._model.vocabulary - 1
        tokens = min(max_slice_tokens(constraint_slice) or self._max_tokens, self._max_tokens - len(self._completion))
        drawn = await self._draw(tokens, widest, constraint_slice=constraint_slice, stops=(stop,))
        at = SliceState(constraint_slice)
        for token, logprobs in zip(drawn.tokens, drawn.logprobs, strict=True):
            allowed = at.allowed()
            if not allowed:
                break
            at, place = at.advance(token), place.advance(token)
            self._record(token, logprobs, list(allowed))
        return place

    def _nucleus_limits(self, choices: int) -> dict[str, int]:
        """Log-probabilities to request for a nucleus of so many allowed tokens, and its truncation."""
        if self._sampling.top_p == 1:
            return {}
        if choices < self._model.vocabulary:
            return {"logprobs": choices}
        if choices <= MAX_NUCLEUS_VOCABULARY:
            return {"logprobs": -1}
        return {"logprobs": min(NUCLEUS_TOKENS + NUCLEUS_TIES, choices), "top_k": NUCLEUS_TOKENS}

    async def _draw(self, tokens: int, choices: int, **limits: Any) -> VllmSample:
        """Send a request in which at most ``choices`` tokens are allowed at any place."""
        ids = [*self._prompt, *self._completion.completion_ids]
        seed = self._rng.getrandbits(62) if self._model.seeded else None
        limits |= self._nucleus_limits(choices)
        drawn = await self._client(VllmRequest(ids, tokens, seed, self._sampling, **limits))
        complete = all(token in logprobs for token, logprobs in zip(drawn.tokens, drawn.logprobs, strict=True))
        if not complete or not drawn.tokens:
            raise ModelError("inference: vLLM answered without tokens, or without the log-probabilities of its tokens")
        if not self._first_at:
            self._first_at = time.monotonic()
        if self._cached is None:
            self._cached = min(drawn.cached, len(self._prompt))
        return drawn

    def _record(self, token: int, logprobs: Mapping[int, float], allowed: list[int]) -> None:
        """Append a sampled token; it was forced where the nucleus is that token alone."""
        if self._sampling.top_p < 1 and len(allowed) != 1:
            is_truncated = not allowed and self._model.vocabulary > MAX_NUCLEUS_VOCABULARY
            allowed = sorted(other for other, logprob in logprobs.items() if logprob > IMPOSSIBLE_LOGPROB)
            if is_truncated and len(allowed) >= NUCLEUS_TOKENS + NUCLEUS_TIES:
                raise ModelError(
                    f"inference: top_p is {self._sampling.top_p}, and {len(allowed)} or more tokens are among the "
                    f"{NUCLEUS_TOKENS} likeliest, since many are equally likely: the nucleus cannot be reported"
                )
        self._completion.append(token, logprobs[token], list(allowed))


def check_vllm_request(request: Request, model: ModelLimits) -> None:
    """Raise ``ModelError`` for what vLLM would reject with less clear messages, or not at all."""
    check_request(request, model.limit)
    check_token_ids(min(request.prompt_ids), max(request.prompt_ids), model.vocabulary)
