"""Inference backends: many requests, many adapters, one batch.

- ``base``           the contract: request, generation, ``InferenceBackend``; errors for want of memory; backends by
                     name: to add one, write a module with its config struct, and name that there
- ``local``          the backend in this process, on torch
- ``engine``         rounds of continuous batching over rows; ``sequence``: one row; ``batch_layout``: rows of one pass
- ``forward``        one pass of rows with different adapters; ``lora_linear``: their weights and products
- ``kv_cache``       keys and values of running rows, and of prompts read before
- ``completion``     a completion in progress, and the checks of its request
- ``sampler``        seeded draws from the allowed tokens
- ``adapter_cache``  the adapters that a process keeps ready
- ``canary``         checks after each load that the backend serves the adapter
- ``chat_template``  conversations as a model was trained on them
- ``statistics``     request counters, rates, latency of weight swaps
- ``servers``        the backend over inference processes elsewhere; ``remote/``: its protocol and client
- ``http_server``    the boundary of every HTTP server of the project: limits, and answers to unusable requests
- ``server/``        the HTTP server of an inference process
- ``vllm/``          vLLM, in this process or on servers of its own
"""

from inference.base import (
    Generation,
    InferenceBackend,
    Request,
    SamplingParameters,
    backend_config,
    backend_names,
    backend_settings,
    make_backend,
)

__all__ = [
    "Generation",
    "InferenceBackend",
    "Request",
    "SamplingParameters",
    "backend_config",
    "backend_names",
    "backend_settings",
    "make_backend",
]
