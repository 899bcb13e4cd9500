"""The ``vllm`` backend: vLLM's ``AsyncLLM`` in this process, under our constraints (``vllm_walk``).

Log-probabilities are vLLM's ``processed_logprobs``: after temperature and allowed set, as they were sampled from.
"""

import asyncio
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from arena.excerpts import excerpt_of
from schemas.errors import ModelError
from trainer.adapters import load
from trainer.model.tokenizer import Tokenizer
from trainer.shape import read_shape
from workers.inference.base import Generation, Request, Stats
from workers.inference.registry import register
from workers.inference.vllm_draw import Draw, Drawn
from workers.inference.vllm_process import VllmConfig, VllmEngine
from workers.inference.vllm_tally import Tally
from workers.inference.vllm_walk import Model, Walk, expect_sound


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
        limit = self._config.length(self._shape.max_positions)
        self._model = Model(self._shape.vocab_size, Tokenizer(folder).eos, limit)
        self._owned = engine is None
        self._engine = engine or VllmEngine(Path(folder), self._config)
        self._copies = Path(tempfile.mkdtemp(prefix="league-adapters-"))
        self._adapters: dict[str | None, _Adapter] = {None: _Adapter(None)}
        self._excerpt = partial(excerpt_of, limit=self._config.mask_places) if self._config.mask_places else None
        self._tally = Tally()
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
        self._tally.swaps += 1

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; requests that run keep it until they end."""
        adapter = self._adapters.pop(digest, None)
        if adapter is not None:
            adapter.dropped = True
            self._release(adapter)

    def stats(self) -> Stats:
        """What it is at; requests that wait inside vLLM count as running."""
        return self._tally.stats(adapters=len(self._adapters) - 1, slots=self._config.max_loras)

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        self._expect_loaded(request.adapter)
        expect_sound(request, self._model)
        adapter = self._adapters[request.adapter]
        adapter.users += 1
        try:
            walk = Walk(partial(self._ask, adapter.lora), request, self._model, self._excerpt)
            return await self._tally.run(walk, request)
        finally:
            adapter.users -= 1
            self._release(adapter)

    async def close(self) -> None:
        """Wait for what is in flight, then end vLLM's processes if they were started by this backend."""
        self._closed = True
        await self._tally.idle()
        for digest in [digest for digest in self._adapters if digest is not None]:
            self.drop_adapter(digest)
        shutil.rmtree(self._copies, ignore_errors=True)
        if self._owned:
            await asyncio.to_thread(self._engine.close)

    async def _ask(self, lora: Any, draw: Draw) -> Drawn:
        """One request to vLLM."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            **draw.fields(), extra_args=draw.extra(), detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        output = await asyncio.wrap_future(self._engine.submit(self._engine.complete(draw.ids, params, lora)))
        said = output.outputs[0]
        logprobs = [{token: its.logprob for token, its in told.items()} for told in said.logprobs]
        return Drawn(said.token_ids, logprobs, output.num_cached_tokens or 0)

    def _expect_loaded(self, adapter: str | None) -> None:
        if adapter not in self._adapters:
            known = [digest for digest in self._adapters if digest is not None]
            raise ModelError(f"inference: adapter {adapter!r} is not loaded; loaded are {known}")

    def _release(self, adapter: _Adapter) -> None:
        """Let vLLM forget a dropped adapter once nothing uses it: it would look for the files in mid-step."""
        if adapter.dropped and not adapter.users and adapter.lora is not None:
            self._engine.drop(adapter.lora)
            shutil.rmtree(adapter.lora.lora_path, ignore_errors=True)
            adapter.lora = None
