"""The client of vLLM's own servers: OpenAI's completions, with token ids in and out.

A server is probed before its first request: it has to return log-probabilities of the distribution sampled from, and
the probe tells whether it follows excerpts of constraints (``mask``), which it would otherwise ignore silently.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from arena.constraints.constraint_slices import ConstraintSlice
from inference.base import SamplingParameters
from inference.remote.client import HttpRequest
from inference.remote.load_balancer import LoadBalancer, RemoteServersConfig
from inference.vllm import VllmRequest, VllmSample
from schemas.errors import ModelError

LOGPROB_TOLERANCE = 1e-4
"""Tolerance of a log-probability that is 0, since only one token was allowed."""

PROBE_RETRY_S = 5.0
"""After so long a server that did not answer is probed again."""


class _Logprobs(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptTokensDetails | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


class VllmHttpClient:
    """Servers of one base model, any of which may answer. Use within one event loop.

    Args:
        config: Their addresses, at least one, and bounds on retries.
        vocabulary: Size of the model's vocabulary.
        base: Name under which the base model is requested; None is its own.
    """

    def __init__(self, config: RemoteServersConfig, vocabulary: int, base: str | None = None) -> None:
        self._base = base
        self._urls = [url.rstrip("/") for url in config.urls]
        self._config = config
        self._vocabulary = vocabulary
        self._mask_support: dict[str, bool] = {}
        """Whether a server follows excerpts, for each that was probed."""
        self._next_probe_at = 0.0
        self._probe_task: asyncio.Task[None] | None = None
        self._first_answered = asyncio.Event()
        self._balancer = LoadBalancer(config, config.timeout_s / 10, self._usable_urls)

    async def supports_masks(self) -> bool:
        """Probe the servers; returns whether they follow excerpts. Where some do, only those are used.

        Raises:
            ModelError: none answers, or one was not started as by ``serve``.
        """
        missing = [url for url in self._urls if url not in self._mask_support]
        if missing and self._probe_task is None and (not self._mask_support or time.monotonic() >= self._next_probe_at):
            self._probe_task = asyncio.create_task(self._probe_servers(missing))
        if (probe := self._probe_task) is not None:
            first = asyncio.create_task(self._first_answered.wait())
            await asyncio.wait((probe, first), return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if probe.done():
                self._probe_task = None
                probe.result()
        return any(self._mask_support.values())

    async def sample(self, model: str | None, key: bytes, draw: VllmRequest) -> VllmSample:
        """One completion of an adapter, by its name; None is the base model. See ``LoadBalancer.send`` for the key.

        Raises:
            ModelError: a server refuses it, or none answers.
        """
        return _parse_sample(await self._balancer.send(key, _make_http_request(model or self._base, draw)), model)

    async def prepare(self, model: str) -> None:
        """Have an adapter loaded by the servers.

        Raises:
            ModelError: it cannot be used, or no server answers.
        """
        await self.supports_masks()
        await self._balancer.broadcast(_make_http_request(model, VllmRequest([0], 1, 0, SamplingParameters())))

    async def close(self) -> None:
        """Close the connections."""
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)
        await self._balancer.close()

    def _usable_urls(self) -> list[str]:
        """The servers that requests go to; a request with an excerpt must not reach one that ignores it."""
        some = any(self._mask_support.values())
        return [url for url, masks in self._mask_support.items() if masks or not some]

    async def _probe_servers(self, urls: Sequence[str]) -> None:
        """Probe servers concurrently; the first answer is enough to go on."""
        seen = await asyncio.gather(*(self._probe_server(url) for url in urls), return_exceptions=True)
        self._next_probe_at = time.monotonic() + PROBE_RETRY_S
        errors = [error for error in seen if isinstance(error, BaseException)]
        wrong = next((error for error in errors if isinstance(error, _WrongServerError)), None)
        if errors and (wrong is not None or not self._mask_support):
            raise wrong or errors[0]

    async def _probe_server(self, url: str) -> None:
        """Note whether a server follows excerpts.

        Raises:
            ModelError: it does not answer, or its log-probabilities are not those of the distribution sampled from.
        """
        patience_s = PROBE_RETRY_S if len(self._urls) > 1 else self._config.patience_s
        limits = msgspec.structs.replace(self._config, patience_s=patience_s)
        dispatch = LoadBalancer(limits, limits.timeout_s / 10, lambda: [url])

        async def sample(tokens: int, **limits: Any) -> VllmSample:
            draw = VllmRequest([0], tokens, 0, SamplingParameters(temperature=0.5, seed=0), **limits)
            return _parse_sample(await dispatch.send(b"", _make_http_request(None, draw)), None)

        last = self._vocabulary - 1
        try:
            alone = await sample(1, allowed=[last])
            if list(alone.tokens) != [last] or abs(alone.logprobs[0].get(last, 1)) > LOGPROB_TOLERANCE:
                raise _WrongServerError(
                    f"inference: {url} sampled {alone} from token {last} alone; expected that token and a "
                    "log-probability of 0. Start vLLM with --logprobs-mode processed_logprobs"
                )
            # A server without the mask would hardly sample these, and never with these log-probabilities.
            chain, path = ConstraintSlice([[last], [0], [last], []], [[1], [2], [3], []]), [last, 0, last]
            along = await sample(len(path), excerpt=chain, stops=(max(last - 1, 0),))
        finally:
            await dispatch.close()
        certain = all(
            abs(its.get(token, 1)) <= LOGPROB_TOLERANCE for token, its in zip(along.tokens, along.logprobs, strict=True)
        )
        self._mask_support[url] = list(along.tokens) == path and certain
        self._first_answered.set()


class _WrongServerError(ModelError):
    """A server whose log-probabilities are not those of the distribution sampled from."""


def _make_http_request(model: str | None, draw: VllmRequest) -> HttpRequest:
    body = {
        "model": model,
        "prompt": draw.ids,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "vllm_xargs": draw.mask_argument(),
    }
    return HttpRequest("/v1/completions", msgspec.json.encode(body | draw.sampling_fields()), "application/json")


def _parse_sample(answer: bytes, model: str | None) -> VllmSample:
    try:
        completion = msgspec.json.decode(answer, type=_Completion)
        # Each token is called ``token_id:17``.
        top = completion.choices[0].logprobs.top_logprobs
        logprobs = [{int(name.removeprefix("token_id:")): its for name, its in at.items()} for at in top]
    except (ValueError, IndexError) as error:
        raise ModelError(f"inference: a server's answer is not one of vLLM's completions ({error})") from error
    details = completion.usage.prompt_tokens_details
    cached = (details.cached_tokens if details else None) or 0
    return VllmSample(completion.choices[0].token_ids, logprobs, cached, model)
