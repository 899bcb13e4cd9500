"""The processes that a configuration would start, with an estimate of the memory and disk they take.

The dimensions of a base model come from its ``config.json``.

Estimates come from dimensions and from measurements of small models (``docs/results.md``). Those of a trainer's
process and of whole leagues on a CPU are within a tenth of their measured peaks, of short leagues too, whose broker and
archivist hold little yet; those of GPUs have not been measured. GB are 10^9 bytes.

One module: ``config check`` prints its parts as one sum, and every part depends on the same dimensions.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inference import backend_settings
from models import find_local_base
from schemas.config import LeagueConfig, convert
from schemas.errors import ModelError
from workers.supervisor import make_worker_specs

if TYPE_CHECKING:
    from inference.vllm.settings import VllmConfig

GB = 1e9
FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2

_HOST_GB = {"trainer": 0.33, "rollout": 0.34, "evaluator": 0.33, "inference": 0.35, "archivist": 0.08, "rater": 0.09}
"""Resident memory of a process beside its model, measured; ``_SMALL_GB`` for other roles."""
_ENGINE_GB = {"diplomacy": 0.08}
"""Further memory of a process that plays a game with an engine of its own, measured."""
_SNAPSHOT_GB = 0.14
"""Further memory of the archivist from its first snapshot on, measured."""
_SMALL_GB = 0.1
_PLAYER_GB = 0.15
"""Memory of a player whose model is in inference processes, without a tensor library."""
_VLLM_CPU_GB = 2.0
"""Memory of a process with vLLM on a CPU and of the two that vLLM starts, beside weights, keys and values; measured."""
_TRANSFORMERS_GB = 0.1
"""Further memory of a process that imports transformers and PEFT."""
_SUPERVISOR_GB = 0.4
_BROKER_GB, _BROKER_EVENT_BYTES, _BROKER_MOST_GB = 0.12, 2_000, 0.3
"""Memory of the broker at the start; for each event, whose place it keeps; and at most, as in leagues of a hundred
thousand events; measured."""
_EVENTS_MATCH = 2.2
"""Events for each training match, measured."""
_CUDA_HOST_GB = 3.0
"""Resident memory of a process that computes on a GPU; assumed, not measured."""
_CUDA_CONTEXT_GB = 0.6
"""GPU memory that a process takes before it stores anything there; assumed, not measured."""
_ADAPTER_COPIES = 7
"""Adapter, gradient, AdamW's two moments, and the copy of adapter and moments that a step could go back to."""
_STATE_COPIES = 3
"""Of a trainer's stored state: the adapter and AdamW's two moments."""
_CPU_WEIGHTS, _LOGIT_COPIES = 1.5, 4
"""Memory of a base model on a CPU, with what loading it leaves behind, and of logits, in units of what they hold."""
_KEPT_SHARE, _CPU_BACKWARD, _GPU_BACKWARD = 1.5, 5.3, 2.5
"""Memory of a layer's kept activations, and of its backward pass, in units of ``_activation_memory``.

Fitted to peaks of processes (``python -m benchmarks memory``); that of a GPU's backward pass is assumed, not measured.
"""
_WORKSPACE_GB = 1.5
"""GPU memory of vLLM's activations and captured graphs; assumed, not measured."""
ASLEEP_GB = 1.5
"""GPU memory that vLLM keeps while it sleeps: context, captured graphs; assumed, not measured."""
_MATCH_BYTES = 1_100
"""Size of a training match's events, measured."""
BETWEEN_TURNS = ("trainer: CUDA", "trainer: the adapter")
"""What the trainer leaves on a shared GPU."""


class ModelDimensions(msgspec.Struct, frozen=True):
    """Dimensions of a decoder of Llama's or Qwen's kind."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    head_dim: int = 128
    tied: bool = True
    """Whether the output head is the embedding matrix."""
    max_positions: int = 0
    """Longest sequence, in tokens; 0 where it is not known."""

    @property
    def parameters(self) -> int:
        """Parameters of the base model, without norms, which are a ten-thousandth of them."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * sum(fan_in * fan_out for fan_in, fan_out in self._linears().values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BFLOAT16_BYTES

    @property
    def largest_linear(self) -> int:
        """Parameters of a layer's largest matrix."""
        return max(fan_in * fan_out for fan_in, fan_out in self._linears().values())

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] = (), layers: int = 0) -> int:
        """Parameters of a LoRA adapter: ``rank`` rows on either side of each linear, or of each of the ``targets``.

        It adapts so many ``layers``, all for 0.
        """
        linears = {name: size for name, size in self._linears().items() if not targets or name in targets}
        return (layers or self.layers) * rank * sum(fan_in + fan_out for fan_in, fan_out in linears.values())

    def _linears(self) -> dict[str, tuple[int, int]]:
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, wide),
            "k_proj": (self.hidden, narrow),
            "v_proj": (self.hidden, narrow),
            "o_proj": (wide, self.hidden),
            "gate_proj": (self.hidden, self.mlp),
            "up_proj": (self.hidden, self.mlp),
            "down_proj": (self.mlp, self.hidden),
        }


def model_dimensions(config: LeagueConfig) -> ModelDimensions | None:
    """Dimensions of a league's base model, or None if the model is not on this machine."""
    base = config.model.base
    if base == "made":
        # Defaults come from BaseShape, whose module loads torch, which takes a second.
        from models import BaseShape

        shape = msgspec.structs.asdict(BaseShape(**config.model.shape))
        del shape["init_std"]
        # About the size of Diplomacy's vocabulary; most made models have a smaller one.
        return ModelDimensions(vocabulary=1_000, **shape)
    described = Path(base).expanduser() / "config.json"
    if described.is_file():
        return _read_dimensions(described)
    try:
        folder = find_local_base(base)
    except ModelError:
        return None
    return None if folder is None else _read_dimensions(folder / "config.json")


def _read_dimensions(file: Path) -> ModelDimensions | None:
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        heads = fields["num_attention_heads"]
        return ModelDimensions(
            hidden=fields["hidden_size"],
            layers=fields["num_hidden_layers"],
            heads=heads,
            kv_heads=fields.get("num_key_value_heads", heads),
            mlp=fields["intermediate_size"],
            vocabulary=fields["vocab_size"],
            head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
            tied=fields.get("tie_word_embeddings", False),
            max_positions=fields.get("max_position_embeddings", 0),
        )
    except (OSError, ValueError, TypeError, KeyError):
        # Opening the league reports what is wrong with the model; here only its size is unknown.
        return None


class MemoryItem(msgspec.Struct, frozen=True):
    """Memory of one process, or of one part of it."""

    what: str
    gb: float
    explanation: str = ""
    turn: str = ""
    """Role in whose turn a shared GPU holds it (``inference.colocate``); empty for all the time."""


class DeviceEstimate(msgspec.Struct, frozen=True):
    """Memory that processes would take on one GPU."""

    name: str
    parts: list[MemoryItem]
    size_gb: float | None
    """Memory of the GPU; None where it is not known."""

    @property
    def taken_gb(self) -> float:
        """Sum of all parts, or, where two processes take turns, of those in the larger turn."""
        turns = {part.turn for part in self.parts} - {""} or {""}
        return max(sum(part.gb for part in self.parts if part.turn in ("", turn)) for turn in turns)

    @property
    def fits(self) -> bool:
        """Whether the parts fit; True where the GPU's memory is not known."""
        return self.size_gb is None or (self.taken_gb <= self.size_gb)

    @property
    def problems(self) -> list[str]:
        """Reasons why they do not."""
        return [] if self.fits else [f"{self.name}: {self.taken_gb:.1f} GB needed; {self.size_gb:.1f} GB found"]


class Estimate(msgspec.Struct, frozen=True):
    """Processes that ``league up`` would start on this machine, and the resources that they take."""

    workers: dict[str, int]
    memory_gb: float
    """Memory of all processes together."""
    devices: list[DeviceEstimate]
    disk_gb_step: float | None
    """Disk space per gradient step: the adapter that it publishes and its part of the states that are kept, both twice,
    and its matches' events; game records are not included. None where the model's size is not known."""
    disk_gb: float | None
    """Disk space up to the end of training; None where the number of steps is not known."""
    model_parameters: int | None


def estimate_resources(config: LeagueConfig, gpu_gb: float | None = None) -> Estimate:
    """Estimate the resources of a whole configuration (see ``check_config``), with ``gpu_gb`` of memory per GPU."""
    sizes = model_dimensions(config)
    roles = Counter(process.role for process in make_worker_specs(config))
    steps = config.stop.steps
    step = None
    if sizes is not None:
        # Stored on the broker and in the cache; of versions that join the league also the trainer's state.
        kept = 1 + _STATE_COPIES / config.schedule.recent_every
        adapter = 2 * _adapter_parameters(config, sizes) * FLOAT32_BYTES * kept
        step = len(config.trained_policies) * (adapter + config.trainer.rollouts_per_step * _MATCH_BYTES) / GB
    return Estimate(
        workers=dict(roles),
        # The supervisor has played for the base model to learn from, and keeps twice the engine's memory.
        memory_gb=_SUPERVISOR_GB
        + 2 * _ENGINE_GB.get(config.game.name, 0.0)
        + min(_BROKER_GB + _BROKER_EVENT_BYTES * _events(config) / GB, _BROKER_MOST_GB)
        + sum(count * _host_gb(config, role, sizes) for role, count in roles.items()),
        devices=list(_device_estimates(config, roles, sizes, gpu_gb)),
        disk_gb_step=step,
        disk_gb=None if step is None or steps is None else step * steps,
        model_parameters=None if sizes is None else sizes.parameters,
    )


def _events(config: LeagueConfig) -> float:
    """Events that the history will have; infinite where the number of steps is not known."""
    matches = len(config.trained_policies) * config.trainer.rollouts_per_step
    return float("inf") if config.stop.steps is None else _EVENTS_MATCH * config.stop.steps * matches


def _playing_roles(config: LeagueConfig) -> tuple[str, ...]:
    """Roles whose processes hold the model that plays."""
    if config.inference.servers:
        return ("inference",)
    return () if config.inference.urls else ("rollout", "evaluator")


def _host_gb(config: LeagueConfig, role: str, sizes: ModelDimensions | None) -> float:
    own = _HOST_GB.get(role, _SMALL_GB)
    if role == "archivist" and _events(config) > config.history.snapshot_events:
        own += _SNAPSHOT_GB
    if role == "trainer":
        return sum(part.gb for part in trainer_host_memory(config))
    if role in ("rollout", "evaluator"):
        own += _ENGINE_GB.get(config.game.name, 0.0)
    if role not in _playing_roles(config):
        return own - _HOST_GB[role] + _PLAYER_GB if role in ("rollout", "evaluator") else own
    if config.inference.device != "cpu":
        return own + _CUDA_HOST_GB + (_base_gb(sizes, "bfloat16") if config.inference.colocate else 0.0)
    if config.inference.backend == "vllm":
        engine = _vllm_config(config)
        adapters = 0 if sizes is None else (engine.max_loras + 1) * sizes.adapter_parameters(config.max_lora_rank)
        cache = (engine.kv_cache_gib or 1.0) * 2**30 / GB
        return _VLLM_CPU_GB + cache + _base_gb(sizes, "float32") + adapters * FLOAT32_BYTES / GB
    return own + _base_gb(sizes, "float32") + _prompts_gb(config, sizes)


def _prompts_gb(config: LeagueConfig, sizes: ModelDimensions | None) -> float:
    """Keys and values that the local engine caches, and about as many of calls under way, in float32."""
    if sizes is None:
        return 0.0
    # Imported here, as with BaseShape above, because of torch.
    from inference.local import MERGE_LIMIT, REUSE_TOKENS

    tokens = backend_settings(config).get("reuse_tokens")
    if tokens is None:
        tokens = REUSE_TOKENS if sizes.largest_linear > MERGE_LIMIT else 0
    float32 = FLOAT32_BYTES / BFLOAT16_BYTES
    return float(2 * tokens * sizes.kv_bytes_per_token * float32 / GB)


def trainer_host_memory(config: LeagueConfig) -> list[MemoryItem]:
    """Resident memory of a trainer's processes, of all ranks."""
    sizes, trainer = model_dimensions(config), config.trainer
    process = _HOST_GB["trainer"] + (_TRANSFORMERS_GB if trainer.backend.name == "peft" else 0.0)
    parts = [MemoryItem("trainer: process", process, "Python, torch and the broker's client")]
    if trainer.backend.name == "tinker":
        # The model is on the server.
        return parts
    if trainer.device != "cpu":
        parts.append(MemoryItem("trainer: CUDA", _CUDA_HOST_GB, "libraries"))
        if config.inference.colocate:
            parts.append(MemoryItem("trainer: the base model", _base_gb(sizes, trainer.dtype), "between two turns"))
    elif sizes is not None:
        parts += trainer_memory(config, sizes)
    return [msgspec.structs.replace(part, gb=part.gb * trainer.ranks) for part in parts]


def _base_gb(sizes: ModelDimensions | None, dtype: str) -> float:
    width = FLOAT32_BYTES if dtype == "float32" else BFLOAT16_BYTES
    return 0.0 if sizes is None else sizes.parameters * width / GB


def _device_estimates(
    config: LeagueConfig, roles: Counter[str], sizes: ModelDimensions | None, gpu_gb: float | None
) -> Iterator[DeviceEstimate]:
    inference, trainer = config.inference, config.trainer
    is_engine = inference.backend.startswith("vllm") and inference.device != "cpu"
    engines = _vllm_config(config).tensor_parallel_size if is_engine else 1
    playing = _gpus(inference.device, engines)
    parts: dict[str, list[MemoryItem]] = {}
    for role in _playing_roles(config) if inference.device != "cpu" else ():
        for device in playing:
            parts.setdefault(device, []).extend([*_playing_memory(config, role, sizes, gpu_gb)] * roles[role])
    if trainer.device != "cpu":
        for device in _gpus(trainer.device, trainer.ranks if trainer.device == "cuda" else 1):
            items = trainer_device_memory(config, sizes)
            parts.setdefault(device, []).extend(items * (roles["trainer"] if trainer.ranks == 1 else 1))
    for name, items in sorted(parts.items()):
        if inference.colocate:
            turns = ["" if part.what in BETWEEN_TURNS else part.what.partition(":")[0] for part in items]
            items = [msgspec.structs.replace(part, turn=turn) for part, turn in zip(items, turns, strict=True)]
            items.append(MemoryItem("inference: vLLM asleep", ASLEEP_GB, "context and captured graphs", turn="trainer"))
        yield DeviceEstimate(name, items, gpu_gb)


def _gpus(device: str, count: int) -> list[str]:
    """Names of the GPUs of a process that computes on ``count`` of them, from the first one on, or on one."""
    return [f"cuda:{rank}" for rank in range(count)] if count > 1 or device == "cuda" else [device]


def _playing_memory(
    config: LeagueConfig, role: str, sizes: ModelDimensions | None, gpu_gb: float | None
) -> Iterator[MemoryItem]:
    if not config.inference.backend.startswith("vllm"):
        if sizes is not None:
            text = f"{_parameters_text(sizes)} in bfloat16; keys and values come to it"
            yield MemoryItem(f"{role}: the base model", _base_gb(sizes, "bfloat16"), text)
        return
    engine = _vllm_config(config)
    if gpu_gb is None:
        return
    share, ranks, loras = engine.gpu_memory_utilization, engine.tensor_parallel_size, engine.max_loras
    text = f"{share:g} of the GPU" if ranks == 1 else f"{share:g} of each of {ranks} GPUs, all together"
    if sizes is not None:
        weights, adapters, left = _engine_parts(sizes, loras, config.max_lora_rank, ranks * share * gpu_gb)
        left -= (ranks - 1) * _WORKSPACE_GB
        text += (
            f": {weights:.1f} weights ({_parameters_text(sizes)} in bfloat16), {adapters:.1f} for {loras} adapters of "
            f"rank {config.max_lora_rank}, {ranks * _WORKSPACE_GB:g} to work with, {max(left, 0.0):.1f} for keys and "
            f"values of {max(int(left * GB / sizes.kv_bytes_per_token), 0):,} tokens at {sizes.kv_bytes_per_token:,} "
            "bytes"
        )
    yield MemoryItem(f"{role}: vLLM", share * gpu_gb, text)


def _vllm_config(config: LeagueConfig) -> "VllmConfig":
    """Settings of vLLM, without those of a server's client."""
    from inference.vllm.settings import VllmConfig

    fields = VllmConfig.__struct_fields__
    settings = {name: value for name, value in backend_settings(config).items() if name in fields}
    return convert(settings, VllmConfig, "inference")


def _engine_parts(sizes: ModelDimensions, loras: int, rank: int, gb: float) -> tuple[float, float, float]:
    """GB of weights, of adapters, and what an engine with ``gb`` has left for keys and values."""
    weights = sizes.parameters * BFLOAT16_BYTES / GB
    adapters = loras * sizes.adapter_parameters(rank) * BFLOAT16_BYTES / GB
    return weights, adapters, gb - weights - adapters - _WORKSPACE_GB


def trainer_device_memory(config: LeagueConfig, sizes: ModelDimensions | None) -> list[MemoryItem]:
    """Memory of one rank of the trainer on a GPU."""
    items = [MemoryItem("trainer: CUDA", _CUDA_CONTEXT_GB, "before anything is stored")]
    return items if sizes is None else items + trainer_memory(config, sizes)


def _adapter_parameters(config: LeagueConfig, sizes: ModelDimensions) -> int:
    model = config.model
    return sizes.adapter_parameters(model.lora_rank, model.lora_targets, len(model.lora_layers))


def trainer_memory(config: LeagueConfig, sizes: ModelDimensions) -> list[MemoryItem]:
    """Memory of one rank of the trainer on its device: base model, adapter, activations and logits."""
    from trainer.learner_config import resolve_learner

    trainer, learner = config.trainer, resolve_learner(config)
    width = FLOAT32_BYTES if trainer.dtype == "float32" else BFLOAT16_BYTES
    adapter = _adapter_parameters(config, sizes)
    shards = trainer.ranks if trainer.backend.settings.get("sharded") else 1
    logits = min(learner.logit_elements, learner.rectangle_tokens * sizes.vocabulary)
    return [
        MemoryItem(
            "trainer: the base model",
            sizes.parameters * width / GB / shards * (_CPU_WEIGHTS if trainer.device == "cpu" else 1.0),
            f"{_parameters_text(sizes)} in {trainer.dtype}" + (f", on {shards} ranks" if shards > 1 else ""),
        ),
        MemoryItem(
            "trainer: the adapter",
            _ADAPTER_COPIES * adapter * FLOAT32_BYTES / GB,
            f"{adapter / 1e6:.0f} million, gradient, two moments and their copy before a step, in float32",
        ),
        _activation_memory(learner.rectangle_tokens, learner.recompute_layers, sizes, width, trainer.device),
        MemoryItem(
            "trainer: logits",
            _LOGIT_COPIES * logits * FLOAT32_BYTES / GB,
            "learner.logit_elements at most, with gradients, in float32",
        ),
    ]


def _activation_memory(tokens: int, recomputes: bool, sizes: ModelDimensions, width: int, device: str) -> MemoryItem:
    """Memory of one rectangle: every layer's input, and the inner activations of one layer or of all."""
    inside = 8 * sizes.hidden + 4 * sizes.mlp + 2 * (sizes.heads + sizes.kv_heads) * sizes.head_dim
    kept_layers = 1 if recomputes else sizes.layers
    insides = _KEPT_SHARE * kept_layers + (_CPU_BACKWARD if device == "cpu" else _GPU_BACKWARD)
    gb = tokens * width * (sizes.layers * sizes.hidden + insides * inside) / GB
    text = "inputs of all layers and the inside of one" if recomputes else "inputs and insides of all layers"
    return MemoryItem("trainer: activations", gb, f"{tokens:,} tokens at once, {text}, and a backward pass of one")


def _parameters_text(sizes: ModelDimensions) -> str:
    count = sizes.parameters
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
