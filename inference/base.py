"""The contract of an inference backend, and the backends by name."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from arena.constraints.token_walk import Constraint
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError, MemoryShortError, format_choices


class SamplingParameters(msgspec.Struct, frozen=True):
    """Sampling parameters of one request."""

    temperature: float = 1.0
    seed: int = 0
    """Seed of this request alone: its draws do not depend on the rest of the batch."""
    max_tokens: int = 512
    top_p: float = 1.0
    """Nucleus sampling mass: the most likely allowed tokens that together have this probability. Below 1 it changes the
    distribution that is sampled from, so ``Generation.allowed`` then holds the nucleus; a backend without nucleus
    sampling rejects the request."""


class Timing(msgspec.Struct, frozen=True):
    """Durations of one request."""

    queued_s: float
    """Seconds in the queue, until the prefill began."""
    seconds: float
    """Seconds in total."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were cached from another request."""
    first_s: float = 0.0
    """Seconds until the first token; 0 if none was sampled, or if the backend does not report it."""


class BackendStats(msgspec.Struct, frozen=True):
    """Load of a backend, and its totals since it started."""

    queued: int = 0
    running: int = 0
    requests: int = 0
    """Finished or failed."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that came from a cache."""
    sampled_tokens: int = 0
    forced_tokens: int = 0
    seconds: float = 0.0
    """Spent computing."""
    adapters: int = 0
    """Loaded now."""
    slots: int = 0
    """Adapters that one batch can hold; 0 for no limit."""
    swaps: int = 0
    """Adapters that were loaded."""
    passes: int = 0
    """Forward passes; 0 where a backend does not know, as in the next field."""
    cache_bytes: int = 0
    """Memory that holds keys and values."""


class Request(msgspec.Struct, frozen=True):
    """One completion to sample."""

    prompt_ids: Sequence[int]
    adapter: str | None
    """Digest of a loaded adapter; None is the base model."""
    constraint: Constraint | None
    sampling: SamplingParameters


class Generation(msgspec.Struct, frozen=True):
    """One sampled completion. B is the number of choices: positions where more than one token was allowed."""

    completion_ids: list[int]
    branches: list[int]
    logprobs: list[float]
    """B log-probabilities at the request's temperature, renormalised over the allowed tokens."""
    allowed: list[list[int]]
    """B sorted lists of allowed tokens; an empty one stands for the whole vocabulary (no constraint)."""
    finish_reason: str
    """``stop`` when the constraint or the model ended it, ``length`` at ``max_tokens``."""
    timing: Timing | None = None


class InferenceBackend(Protocol):
    """Samples completions for many requests and many adapters at once."""

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Make an adapter known under its digest; loading a known one does nothing.

        Raises:
            ModelError: not an adapter of this base model.
        """

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; no request in flight may use it."""

    def stats(self) -> BackendStats:
        """Load and totals since the start."""

    async def generate(self, request: Request) -> Generation:
        """Sample one completion; concurrent calls are batched.

        Raises:
            ModelError: unknown adapter, a prompt longer than the model, or a constraint that allows nothing.
        """

    async def close(self) -> None:
        """Finish what is in flight and release memory."""


@runtime_checkable
class SleepingBackend(InferenceBackend, Protocol):
    """A backend that can leave its device to another process for a while."""

    async def sleep(self) -> None:
        """Release the device's memory, except for what a process always takes; nothing is in flight."""

    async def wake(self) -> None:
        """Resume, with the same adapters loaded; raises ``ModelError`` where the memory is not there."""


@runtime_checkable
class RemoteBackend(InferenceBackend, Protocol):
    """A backend in other processes, which find adapters by digest and make room for them by themselves."""

    async def prepare(self, digest: str) -> None:
        """Have an adapter loaded before it is sampled from; raises ``ModelError`` where no server can use it."""


@runtime_checkable
class BackgroundLoader(InferenceBackend, Protocol):
    """A backend that loads adapters while its requests, and all else in the event loop, go on."""

    async def load_in_background(self, digest: str, folder: Path) -> None:
        """Load an adapter as ``load_adapter`` does; it can be used once this returns. One call at a time."""


_ALLOCATORS = ("DefaultCPUAllocator", "not enough memory")
"""Parts of the messages of torch's allocators on a CPU when they have no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one for want of memory, for which torch has a class of its own on a GPU only."""
    # Where torch was never imported, no error can be its own.
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError | MemoryShortError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _ALLOCATORS)


@contextlib.contextmanager
def translate_out_of_memory(doing: str) -> Iterator[None]:
    """Translate any error for want of memory to ``MemoryShortError``; ``doing`` is for its message."""
    try:
        yield
    except Exception as error:  # kinds differ by engine; the message decides
        if isinstance(error, MemoryShortError) or not is_out_of_memory(error):
            raise
        raise MemoryShortError(f"inference: no memory for {doing}: {error}") from error


_CONFIGS = {
    "local": ("inference.local", "LocalConfig"),
    "servers": ("inference.remote.load_balancer", "ServersConfig"),
    "vllm": ("inference.vllm.settings", "VllmConfig"),
}
"""Module and name of each backend's ``BackendConfig``.

Imported on first use: torch and other engines are slow to import, and not every process needs them.
"""


class BackendConfig(Protocol):
    """A backend's settings; a msgspec struct that forbids unknown fields."""

    def build(self, folder: Path) -> InferenceBackend:
        """Build the backend for the base model in ``folder``."""


T = TypeVar("T")


def register(name: str, config: type[Any]) -> Callable[[T], T]:
    """Register the ``BackendConfig`` of a backend outside of this package."""

    def add(backend: T) -> T:
        _CONFIGS[name] = (config.__module__, config.__name__)
        return backend

    return add


def backend_names() -> list[str]:
    """List the names of all backends."""
    return sorted(_CONFIGS)


def make_backend(name: str, folder: Path, **settings: Any) -> InferenceBackend:
    """Start the named backend on a base model; settings that are missing have defaults.

    Raises:
        ConfigError: no such backend, or a setting it does not know.
        ModelError: the folder is not a model that the backend can run.
    """
    return backend_config(name, settings).build(Path(folder))


def backend_config(name: str, settings: Mapping[str, Any]) -> BackendConfig:
    """Validate a backend's settings without starting it; raises ``ConfigError``."""
    if name not in _CONFIGS:
        raise ConfigError(f"inference.backend: no backend is called {name!r}; expected {format_choices(_CONFIGS)}")
    module, struct = _CONFIGS[name]
    config: BackendConfig = convert(settings, getattr(importlib.import_module(module), struct), "inference")
    return config


def backend_settings(config: LeagueConfig) -> dict[str, Any]:
    """Collect the backend's settings from a league's configuration."""
    sleeps = config.inference.colocate and config.inference.backend == "vllm"
    return common_settings(config) | ({"enable_sleep_mode": True} if sleeps else {}) | config.inference.options


def common_settings(config: LeagueConfig) -> dict[str, Any]:
    """Collect the settings that apply to every backend."""
    inference = config.inference
    return {
        "device": inference.device,
        "threads": inference.threads,
        "max_rows": inference.max_rows,
        "max_lora_rank": config.max_lora_rank,
    }
