"""The ``vllm_server`` backend: one or several of vLLM's own servers, under our constraints.

The servers find adapters by digest (``resolver``) when they are first asked for; nothing is loaded from here.
``serve`` says how to start them. Requests are OpenAI's completions, with token ids in and out.

A server is probed before its first request: it has to return log-probabilities of the distribution sampled from, and
the probe tells whether it follows excerpts of constraints (``mask``), which it would otherwise ignore silently.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from arena.constraints.constraint_slices import ConstraintSlice, slice_constraint
from inference.base import BackendStats, Generation, InferenceBackend, Request, SamplingParameters
from inference.remote.client import HttpRequest
from inference.remote.load_balancer import LoadBalancer, RemoteServersConfig, affinity_key
from inference.statistics import RequestCounter
from inference.vllm import VllmRequest, VllmSample
from inference.vllm.constrained_generation import CompletionSampler, ModelLimits, check_vllm_request
from inference.vllm.serve import ZERO_ADAPTER
from inference.vllm.settings import VllmConfig
from models.adapters import check
from models.model_config import read_model_shape
from models.tokenizer import Tokenizer
from schemas.errors import ConfigError, ModelError
from schemas.files import atomic_folder
from schemas.numbers import Count, PositiveInt

LOGPROB_TOLERANCE = 1e-4
"""Tolerance of a log-probability that is 0, since only one token was allowed."""
PROBE_RETRY_S = 5.0
"""After so long a server that did not answer is probed again."""


class VllmServerConfig(RemoteServersConfig, frozen=True):
    """Settings of the ``vllm_server`` backend."""

    urls: tuple[str, ...] = ("http://127.0.0.1:8000",)
    """The servers, all of the same base model."""
    device: str = "cpu"
    """Device of the servers, as in the following fields; nothing is computed here."""
    dtype: str = "auto"
    threads: int = 1
    max_rows: int = 256
    max_model_len: Count = 0
    """Longest prompt and completion together; 0 is the model's own limit."""
    max_loras: PositiveInt = 8
    max_lora_rank: PositiveInt = 16
    """Adapters of a larger rank are refused."""
    adapters: str = ""
    """The folder of the servers' resolvers, into which adapters are copied; empty where those ask the
    league's broker."""
    mask_places: Count = 64
    """Places of a constraint that are sent with a request to servers that run ``mask``; at 0, and to others, each
    branch is a request."""
    request_seeds: bool | None = None
    """As of ``VllmConfig``."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("urls: none; expected one or several like 'http://host:8000'")
        super().__post_init__()

    def build(self, folder: Path) -> InferenceBackend:
        """The backend of the base model in ``folder``."""
        return VllmServerBackend(folder, self)


class VllmServerBackend:
    """Samples from a base model and its adapters by vLLM's servers."""

    def __init__(self, folder: Path, config: VllmServerConfig | None = None) -> None:
        """Read the model's shape and end token; the servers are probed at the first request. Use in one event loop."""
        self._config = config or VllmServerConfig()
        self._shape = read_model_shape(Path(folder))
        own = VllmConfig(
            device=self._config.device,
            max_model_len=self._config.max_model_len,
            request_seeds=self._config.request_seeds,
        )
        limit = own.max_length(self._shape.max_positions)
        self._model = ModelLimits(self._shape.vocab_size, Tokenizer(folder).ends, limit, own.is_seeded)
        self._known: set[str] = set()
        self._counter = RequestCounter()
        self._base_name = ZERO_ADAPTER if own.needs_zero_adapter else None
        """Name under which the base model is requested; None is its own."""
        self._urls = [url.rstrip("/") for url in self._config.urls]
        self._mask_support: dict[str, bool] = {}
        """Whether a server follows excerpts, for each that was probed."""
        self._next_probe_at = 0.0
        self._probe_task: asyncio.Task[None] | None = None
        self._first_answered = asyncio.Event()
        self._balancer = LoadBalancer(self._config, self._config.timeout_s / 10, self._usable_urls)
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Check an adapter, and copy it into the servers' folder, if there is one; see ``InferenceBackend``."""
        if digest in self._known:
            return
        check(folder, self._shape, max_rank=self._config.max_lora_rank)
        if self._config.adapters:
            _copy_atomically(Path(folder), Path(self._config.adapters) / digest)
        self._known.add(digest)
        self._counter.swaps += 1

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter. The servers keep the newest that fit, which other processes may use."""
        self._known.discard(digest)

    async def prepare(self, digest: str) -> None:
        """Have the servers load an adapter, which they find by its digest; see ``RemoteBackend``."""
        await self._supports_masks()
        await self._balancer.broadcast(_make_http_request(digest, VllmRequest([0], 1, 0, SamplingParameters())))
        self._known.add(digest)
        self._counter.swaps += 1

    def stats(self) -> BackendStats:
        """Requests of this process to the servers."""
        return self._counter.stats(adapters=len(self._known), slots=self._config.max_loras)

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        # Servers that use the league's broker also find adapters that were not loaded here.
        if self._config.adapters and request.adapter is not None and request.adapter not in self._known:
            raise ModelError(f"inference: adapter {request.adapter!r} is not loaded; loaded are {sorted(self._known)}")
        check_vllm_request(request, self._model)
        places = self._config.mask_places if await self._supports_masks() else 0
        key = affinity_key(request.adapter, request.prompt_ids, self._config.sticky_tokens)
        excerpt = partial(slice_constraint, limit=places) if places else None

        async def sample(draw: VllmRequest) -> VllmSample:
            posted = _make_http_request(request.adapter or self._base_name, draw)
            return _parse_sample(await self._balancer.send(key, posted), request.adapter)

        return await CompletionSampler(sample, request, self._model, excerpt).run(self._counter)

    async def close(self) -> None:
        """Wait for the requests in flight, then close the connections; the servers go on."""
        self._closed = True
        await self._counter.in_flight.wait_until_idle()
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)
        await self._balancer.close()

    async def _supports_masks(self) -> bool:
        """Probe the servers; returns whether they follow excerpts. Where some do, only those are used."""
        missing = [url for url in self._urls if url not in self._mask_support]
        if missing and self._probe_task is None and (not self._mask_support or time.monotonic() >= self._next_probe_at):
            self._probe_task = asyncio.create_task(self._probe_servers(missing))
        if (probe := self._probe_task) is not None:
            first = asyncio.create_task(self._first_answered.wait())
            try:
                await asyncio.wait((probe, first), return_when=asyncio.FIRST_COMPLETED)
            finally:
                first.cancel()
            if probe.done():
                # Another request may have begun the next probe.
                if self._probe_task is probe:
                    self._probe_task = None
                probe.result()
        return any(self._mask_support.values())

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
        """Note whether a server follows excerpts, and refuse one that reports other log-probabilities than we need."""
        patience_s = PROBE_RETRY_S if len(self._urls) > 1 else self._config.patience_s
        limits = msgspec.structs.replace(self._config, patience_s=patience_s)
        dispatch = LoadBalancer(limits, limits.timeout_s / 10, lambda: [url])

        async def sample(tokens: int, **constraints: Any) -> VllmSample:
            draw = VllmRequest([0], tokens, 0, SamplingParameters(temperature=0.5, seed=0), **constraints)
            return _parse_sample(await dispatch.send(b"", _make_http_request(None, draw)), None)

        last = self._model.vocabulary - 1
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
            pairs = zip(along.tokens, along.logprobs, strict=True)
            self._mask_support[url] = list(along.tokens) == path and all(
                abs(its.get(token, 1)) <= LOGPROB_TOLERANCE for token, its in pairs
            )
            self._first_answered.set()
        finally:
            await dispatch.close()


class _WrongServerError(ModelError):
    """A server whose log-probabilities are not those of the distribution sampled from."""


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


def _copy_atomically(folder: Path, place: Path) -> None:
    """Copy a folder, which appears whole or not at all; one that is there already stays."""
    if place.exists():
        return
    try:
        with atomic_folder(place) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
    except OSError as error:
        if not place.exists():
            raise ModelError(f"{place}: the adapter cannot be put there ({error})") from error
