"""The ``vllm`` backend: vLLM's ``AsyncLLM`` in this process, under our constraints.

Log-probabilities are vLLM's ``processed_logprobs``: after temperature and allowed set, as they were sampled from.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arena.constraints.constraint_slices import slice_constraint
from inference.base import BackendStats, Generation, Request
from inference.completion import check_loaded
from inference.statistics import RequestCounter
from inference.vllm import VllmRequest, VllmSample
from inference.vllm.constrained_generation import CompletionSampler, ModelLimits, check_vllm_request
from inference.vllm.process import VllmEngine, translate_error
from inference.vllm.settings import VllmConfig
from models.adapters import check
from models.model_config import read_model_shape
from models.tokenizer import Tokenizer
from schemas.errors import ModelError

LINGER_S = 60.0
"""How long the files of replaced weights are kept: vLLM answers an aborted request before its engine knows, which may
still read them in a planned step."""


@dataclass
class _LoadedWeights:
    """Weights in vLLM: its request for them, with their copy on disk, and the requests in flight that use them."""

    lora: Any
    digest: str | None
    draws: set[str] = field(default_factory=set)
    over: bool = False


@dataclass
class _AdapterAlias:
    """A name of an adapter: its current weights, and the number of completions that use it."""

    weights: _LoadedWeights
    users: int = 0
    dropped: bool = False


class VllmBackend:
    """Samples from one base model and its adapters with vLLM."""

    def __init__(self, folder: Path, config: VllmConfig | None = None, engine: VllmEngine | None = None) -> None:
        """Start vLLM on a base model, unless an ``engine`` of that model runs, which its owner closes."""
        self._config = config or VllmConfig()
        self._shape = read_model_shape(Path(folder))
        limit = self._config.max_length(self._shape.max_positions)
        self._model = ModelLimits(self._shape.vocab_size, Tokenizer(folder).ends, limit, self._config.is_seeded)
        self._owned = engine is None
        self._engine = engine or VllmEngine(Path(folder), self._config)
        self._copies = Path(tempfile.mkdtemp(prefix="league-adapters-"))
        self._adapters: dict[str | None, _AdapterAlias] = {None: _AdapterAlias(_LoadedWeights(None, None))}
        self._excerpt = partial(slice_constraint, limit=self._config.mask_places) if self._config.mask_places else None
        self._past_weights: list[tuple[float, _LoadedWeights]] = []
        """Replaced weights, with the time of the replacement."""
        self._counter = RequestCounter()
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Check an adapter, keep a copy of it, and have vLLM read it; see ``InferenceBackend``."""
        if digest not in self._adapters:
            self._adapters[digest] = _AdapterAlias(self._load(digest, folder))

    async def load_in_background(self, digest: str, folder: Path) -> None:
        """See ``BackgroundLoader``."""
        if digest not in self._adapters:
            weights = await asyncio.to_thread(self._load, digest, folder)
            self._adapters[digest] = _AdapterAlias(weights)

    def swap_adapter(self, name: str, digest: str, folder: Path) -> None:
        """Replace the weights under a name, also for completions that run: what follows is sampled from the new ones.

        vLLM could load them into the slot of the old ones (``load_inplace``), but it would go on with keys and values
        that the old ones computed, and its log-probabilities would be those of neither. So the new ones get a slot and
        a name of their own, which is the key of vLLM's prefix cache; requests in flight with the old ones are aborted,
        and what they have sampled so far is read again by the new ones.

        Requests use the name that it was first loaded under, spans name the ``digest`` of the new weights.

        Raises:
            ModelError: nothing is loaded under the name, or the new ones cannot be used; then the old ones serve on.
        """
        check_loaded(name, self._adapters)
        adapter = self._adapters[name]
        before, adapter.weights = adapter.weights, self._load(digest, folder)
        # Aborted requests return what they have sampled.
        self._engine.submit(self._engine.llm.abort(sorted(before.draws)))
        self._past_weights.append((time.monotonic(), before))
        while self._past_weights[0][0] < time.monotonic() - LINGER_S:
            self._retire_weights(self._past_weights.pop(0)[1])

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; requests that run keep it until they end."""
        adapter = self._adapters.pop(digest, None)
        if adapter is not None:
            adapter.dropped = True
            self._release(adapter)

    def stats(self) -> BackendStats:
        """Load and totals; requests that wait inside vLLM count as running."""
        return self._counter.stats(adapters=len(self._adapters) - 1, slots=self._config.max_loras)

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        check_loaded(request.adapter, self._adapters)
        check_vllm_request(request, self._model)
        adapter = self._adapters[request.adapter]
        adapter.users += 1
        try:
            sampler = CompletionSampler(partial(self._sample, adapter), request, self._model, self._excerpt)
            return await sampler.run(self._counter)
        finally:
            adapter.users -= 1
            self._release(adapter)

    async def sleep(self) -> None:
        """See ``SleepingBackend``: the weights are kept in the host's memory, keys and values are dropped."""
        await self._run_idle(self._engine.llm.sleep(level=1))

    async def wake(self) -> None:
        """See ``SleepingBackend``."""
        await self._run_idle(self._engine.llm.wake_up())

    async def _run_idle(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.wrap_future(self._engine.submit(work))
        except Exception as error:  # vLLM raises bare errors of many kinds
            raise translate_error("inference: vLLM could not release the GPU, or take it again", error) from error

    async def close(self) -> None:
        """Wait for what is in flight, then end vLLM's processes if they were started by this backend."""
        self._closed = True
        await self._counter.in_flight.wait_until_idle()
        for digest in [digest for digest in self._adapters if digest is not None]:
            self.drop_adapter(digest)
        for _, weights in self._past_weights:
            self._retire_weights(weights)
        shutil.rmtree(self._copies, ignore_errors=True)
        if self._owned:
            await asyncio.to_thread(self._engine.close)

    async def _sample(self, adapter: _AdapterAlias, draw: VllmRequest) -> VllmSample:
        """One request to vLLM, with the current weights."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        weights, name = adapter.weights, f"r{next(self._engine.ids)}"
        weights.draws.add(name)
        try:
            params = SamplingParams(
                **draw.sampling_fields(),
                extra_args=draw.mask_argument(),
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            work = self._engine.complete(draw.ids, params, weights.lora, name)
            output = await asyncio.wrap_future(self._engine.submit(work))
        finally:
            weights.draws.discard(name)
            self._unload_when_idle(weights)
        completion = output.outputs[0]
        logprobs = [{token: its.logprob for token, its in per_token.items()} for per_token in completion.logprobs or ()]
        cut = completion.finish_reason == "abort"
        return VllmSample(completion.token_ids, logprobs, output.num_cached_tokens or 0, weights.digest, cut)

    def _load(self, digest: str, folder: Path) -> _LoadedWeights:
        """Check an adapter and have vLLM read a copy of it."""
        from vllm.lora.request import LoRARequest

        # By our own reader first: its errors are specific, and a file that vLLM cannot read would end its engine.
        check(folder, self._shape, max_rank=self._config.max_lora_rank)
        number = next(self._engine.ids)
        copy = Path(shutil.copytree(folder, self._copies / str(number)))
        # vLLM's prefix cache goes by the name.
        lora = LoRARequest(f"{digest}-{number}", number, str(copy))
        try:
            self._engine.submit(self._engine.llm.add_lora(lora)).result()
        except Exception as error:  # vLLM raises bare errors of many kinds
            shutil.rmtree(copy)
            raise translate_error(f"{folder}: vLLM cannot use the adapter", error) from error
        self._counter.swaps += 1
        return _LoadedWeights(lora, digest)

    def _release(self, adapter: _AdapterAlias) -> None:
        """Retire a dropped adapter's weights once nothing uses them."""
        if adapter.dropped and not adapter.users:
            self._retire_weights(adapter.weights)

    def _retire_weights(self, weights: _LoadedWeights) -> None:
        """Unload weights from vLLM as soon as no request uses them."""
        weights.over = True
        self._unload_when_idle(weights)

    def _unload_when_idle(self, weights: _LoadedWeights) -> None:
        """Unload retired weights, unless requests use them: vLLM would read the files within a step."""
        if weights.over and not weights.draws and weights.lora is not None:
            self._engine.submit(self._engine.llm.remove_lora(weights.lora.lora_int_id))
            shutil.rmtree(weights.lora.lora_path, ignore_errors=True)
            weights.lora = None
