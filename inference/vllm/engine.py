"""The ``vllm`` backend: vLLM's ``AsyncLLM`` in this process, under our constraints.

Log-probabilities are vLLM's ``processed_logprobs``: after temperature and allowed set, as they were sampled from.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
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


@dataclass
class _LoadedAdapter:
    """An adapter in vLLM: vLLM's request for it, with its copy on disk, and the completions that use it."""

    lora: Any
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
        self._adapters: dict[str | None, _LoadedAdapter] = {None: _LoadedAdapter(None)}
        self._make_slice = (
            partial(slice_constraint, limit=self._config.mask_places) if self._config.mask_places else None
        )
        self._counter = RequestCounter()
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Check an adapter, keep a copy of it, and have vLLM read it; see ``InferenceBackend``."""
        if digest not in self._adapters:
            self._adapters[digest] = self._load(digest, folder)

    async def load_in_background(self, digest: str, folder: Path) -> None:
        """Load an adapter in a thread."""
        if digest not in self._adapters:
            self._adapters[digest] = await asyncio.to_thread(self._load, digest, folder)

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
            sampler = CompletionSampler(partial(self._sample, adapter.lora), request, self._model, self._make_slice)
            return await sampler.run(self._counter)
        finally:
            adapter.users -= 1
            self._release(adapter)

    async def sleep(self) -> None:
        """Release the device: the weights move to the host's memory, keys and values are dropped."""
        await self._run_idle(self._engine.llm.sleep(level=1))

    async def wake(self) -> None:
        """Resume with the weights back on the device."""
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
        shutil.rmtree(self._copies, ignore_errors=True)
        if self._owned:
            await asyncio.to_thread(self._engine.close)

    async def _sample(self, lora: Any, draw: VllmRequest) -> VllmSample:
        """One request to vLLM."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            **draw.sampling_fields(),
            extra_args=draw.mask_argument(),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await asyncio.wrap_future(self._engine.submit(self._engine.complete(draw.ids, params, lora)))
        completion = output.outputs[0]
        logprobs = [{token: its.logprob for token, its in per_token.items()} for per_token in completion.logprobs or ()]
        return VllmSample(completion.token_ids, logprobs, output.num_cached_tokens or 0)

    def _load(self, digest: str, folder: Path) -> _LoadedAdapter:
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
        return _LoadedAdapter(lora)

    def _release(self, adapter: _LoadedAdapter) -> None:
        """Unload a dropped adapter, unless completions use it: vLLM would read its files within a step."""
        if adapter.dropped and not adapter.users:
            self._engine.submit(self._engine.llm.remove_lora(adapter.lora.lora_int_id))
            shutil.rmtree(adapter.lora.lora_path, ignore_errors=True)
