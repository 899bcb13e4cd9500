"""The ``vllm_server`` backend: one or several of vLLM's own servers, under our constraints.

The servers find adapters by digest (``resolver``) when they are first asked for; nothing is loaded from here.
``serve`` says how to start them.
"""

import asyncio
import shutil
from functools import partial
from pathlib import Path

from arena.constraints.constraint_slices import slice_constraint
from inference.base import BackendStats, Generation, InferenceBackend, Request
from inference.remote.load_balancer import RemoteServersConfig, affinity_key
from inference.statistics import RequestCounter
from inference.vllm.constrained_generation import CompletionSampler, ModelLimits, check_vllm_request
from inference.vllm.http import VllmHttpClient
from inference.vllm.serve import ZERO_ADAPTER
from inference.vllm.settings import VllmConfig
from models.adapters import check
from models.model_config import read_model_shape
from models.tokenizer import Tokenizer
from schemas.errors import ConfigError, ModelError
from schemas.files import atomic_folder
from schemas.numbers import Count, PositiveInt


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
        """Read the model's shape; the servers are probed at the first request.

        The folder is the base model's, for its shape and its end token.

        Raises:
            ModelError: not a model directory.
        """
        self._config = config or VllmServerConfig()
        self._shape = read_model_shape(Path(folder))
        most = self._shape.max_positions
        limit = min(self._config.max_model_len or most, most)
        own = VllmConfig(device=self._config.device, request_seeds=self._config.request_seeds)
        self._model = ModelLimits(self._shape.vocab_size, Tokenizer(folder).ends, limit, own.is_seeded)
        self._known: set[str] = set()
        self._counter = RequestCounter()
        base = ZERO_ADAPTER if own.needs_zero_adapter else None
        self._client = VllmHttpClient(self._config, self._model.vocabulary, base)
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

    async def load_in_background(self, digest: str, folder: Path) -> None:
        """See ``BackgroundLoader``."""
        await asyncio.to_thread(self.load_adapter, digest, folder)

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter. The servers keep the newest that fit, which other processes may use."""
        self._known.discard(digest)

    async def prepare(self, digest: str) -> None:
        """Have the servers load an adapter, which they find by its digest; see ``RemoteBackend``."""
        await self._client.prepare(digest)
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
        places = self._config.mask_places if await self._client.supports_masks() else 0
        key = affinity_key(request.adapter, request.prompt_ids, self._config.sticky_tokens)
        ask = partial(self._client.sample, request.adapter, key)
        excerpt = partial(slice_constraint, limit=places) if places else None
        return await CompletionSampler(ask, request, self._model, excerpt).run(self._counter)

    async def close(self) -> None:
        """Wait for the requests in flight, then close the connections; the servers go on."""
        self._closed = True
        await self._counter.wait_until_idle()
        await self._client.close()


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
