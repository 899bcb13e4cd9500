"""The ``local`` backend: torch in this process, on a CPU or a GPU, many adapters in one batch.

It decodes once every other task has had its turn, so that many games submit their requests together, and yields between
rounds. A small model decodes inside the event loop, where a pass costs less than a change of threads; one that is too
large to merge adapters into has a thread, since connections would not survive passes of seconds.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from inference.base import BackendStats, Generation, Request, translate_out_of_memory
from inference.completion import check_loaded, check_request
from inference.engine import Engine
from inference.lora_linear import PreparedWeights, prepare_weights
from inference.sequence import ActiveSequence
from models.adapters import Lora, load
from models.decoder import Decoder
from models.tokenizer import Tokenizer
from schemas.config.base import Table
from schemas.errors import MemoryShortError, ModelError
from schemas.numbers import Count, PositiveInt

MERGE_LIMIT = 65_536
"""Largest matrix, in elements, into which adapters are merged. Above it they are applied beside the base, whose
product all rows then share: as fast with one adapter, faster with eight (measured up to a width of 512), and far less
memory."""
REUSE_TOKENS = 16_384
"""Room for the rules of a game under sixteen adapters, and as much again for what changes."""


class LocalConfig(Table, frozen=True):
    """Settings of the ``local`` backend."""

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: PositiveInt = 1
    """Threads torch computes with in this process; a small model is fastest on one."""
    max_rows: PositiveInt = 256
    """Most rows decoded at once; more wait."""
    max_prefill_tokens: PositiveInt = 8192
    """Most prompt tokens a pass."""
    join_share: float = 0.125
    """New requests join a running batch when they are at least this share of it."""
    reuse_tokens: int | None = None
    """Prompt tokens whose keys and values are cached for prompts of the same adapter with the same prefix; 0 caches
    none. None is ``REUSE_TOKENS`` for models too large to merge adapters into, and 0 for others, which read a prompt
    faster than they copy it."""
    max_lora_rank: int | None = None
    """Largest rank of an adapter that is loaded; None for any."""
    adapter_bytes: Count = 0
    """Memory for the weights of adapters, low-rank matrices and what is merged of them; one that would need more is
    rejected as if there were none left. 0 sets no bound but the machine's."""
    cache_bytes: Count = 0
    """Memory for keys and values of running requests; where more rows would need more, half as many run from then on,
    as when the machine's memory is short. 0 sets no bound but the machine's."""
    max_ready: PositiveInt = 64
    """Adapters kept prepared; others are prepared again when they are requested."""
    turns: PositiveInt = 4
    """Turns of the event loop without a new request before a round starts."""

    def build(self, folder: Path) -> "LocalBackend":
        """The backend of the base model in ``folder``."""
        return LocalBackend(folder, self)


class LoadedAdapter(NamedTuple):
    """A loaded adapter, or the base model."""

    lora: Lora | None
    digest: str | None
    identity: int
    """Number of these very weights, never given to others; 0 is the base."""
    bytes: int = 0
    """Memory of its weights, merged ones included."""


class LocalBackend:
    """Samples from one base model and its adapters."""

    def __init__(self, folder: Path, config: LocalConfig | None = None) -> None:
        """Load the base model; raises ``ModelError`` where the folder holds none."""
        self._config = config or LocalConfig()
        torch.set_num_threads(self._config.threads)
        self._decoder = Decoder.load(folder, device=self._config.device, dtype=getattr(torch, self._config.dtype))
        self._ends = Tokenizer(folder).ends
        self._merge = max(out * into for out, into in self._decoder.shape.linears().values()) <= MERGE_LIMIT
        self._adapters: dict[str | None, LoadedAdapter] = {None: LoadedAdapter(None, None, 0)}
        self._swaps = 0
        self._ready: OrderedDict[int, PreparedWeights] = OrderedDict()
        base = self._prepare(self._adapters[None]).weights
        self._max_positions = base.shape.max_positions
        limits = self._config.max_rows, self._config.max_prefill_tokens, self._config.join_share
        automatic = 0 if self._merge else REUSE_TOKENS
        reuse_tokens = automatic if self._config.reuse_tokens is None else self._config.reuse_tokens
        self._thread = None if self._merge else ThreadPoolExecutor(1, "inference")
        self._engine = Engine(base, *limits, reuse_tokens, self._config.cache_bytes, self._thread)
        self._arrival_count = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Read an adapter and make it ready; see ``InferenceBackend``."""
        if digest not in self._adapters:
            self._load(digest, folder)

    async def sleep(self) -> None:
        """Nothing: a CPU has nothing to release, and on a GPU this backend is not used."""

    async def wake(self) -> None:
        """Nothing: it never slept."""

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; requests that run keep its weights until they end."""
        dropped = self._adapters.pop(digest, None)
        if dropped is not None:
            self._ready.pop(dropped.identity, None)

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        check_loaded(request.adapter, self._adapters)
        check_request(request, self._max_positions)
        max_tokens = min(request.sampling.max_tokens, self._max_positions - len(request.prompt_ids))
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        weights = self._prepare(self._adapters[request.adapter])
        self._engine.submit(ActiveSequence(request, weights, max_tokens, self._ends, future))
        self._arrival_count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_rounds())
        return await future

    async def close(self) -> None:
        """Finish the requests in flight and free the memory."""
        self._closed = True
        if self._task is not None:
            await self._task
        if self._thread is not None:
            self._thread.shutdown()
        self._engine.release()
        self._ready.clear()
        self._adapters.clear()

    def stats(self) -> BackendStats:
        """Load and totals of the engine, with the adapters other than the base model."""
        return self._engine.stats(adapters=max(len(self._adapters) - 1, 0), swaps=self._swaps)

    def _load(self, digest: str, folder: Path) -> None:
        with translate_out_of_memory(f"adapter {digest!r}"):
            lora = load(folder, self._decoder.shape, self._config.max_lora_rank, self._config.device)
            applied = sum(out * into for out, into in lora.sizes.values()) if self._merge else lora.flat_P.numel()
            own = lora.flat_P.numel() * lora.flat_P.element_size()
            size = own + applied * self._decoder.embed.itemsize
            used = sum(other.bytes for other in self._adapters.values())
            if self._config.adapter_bytes and used + size > self._config.adapter_bytes:
                raise MemoryShortError(
                    f"inference: no memory for adapter {digest!r}: it needs {size:,} bytes beside {used:,}; expected "
                    f"at most inference.adapter_bytes, {self._config.adapter_bytes:,}"
                )
            adapter = LoadedAdapter(lora, digest, self._swaps + 1, size)
            # Before it is known, so that no failure leaves half an adapter.
            self._prepare(adapter)
            self._adapters[digest] = adapter
        self._swaps += 1

    @torch.inference_mode()
    def _prepare(self, adapter: LoadedAdapter) -> PreparedWeights:
        """The adapter's weights, from those used last or made again."""
        ready = self._ready.get(adapter.identity)
        if ready is None:
            weights = self._decoder.weights(adapter.lora, self._merge)
            ready = self._ready[adapter.identity] = prepare_weights(weights, adapter.digest, adapter.identity)
            while len(self._ready) > self._config.max_ready:
                self._ready.popitem(last=False)
        self._ready.move_to_end(adapter.identity)
        return ready

    async def _run_rounds(self) -> None:
        """Run rounds until nothing is left, each once no other task submits a request; new requests start it again."""
        try:
            while self._engine.has_work:
                quiet = 0
                while quiet < self._config.turns:
                    arrived = self._arrival_count
                    await asyncio.sleep(0)
                    quiet = quiet + 1 if arrived == self._arrival_count else 0
                await self._engine.run_round()
        except Exception as error:  # no caller may wait without end for an engine that has stopped
            self._engine.abort(error)
