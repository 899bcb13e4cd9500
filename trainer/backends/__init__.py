"""Learner backends: the library that runs the base model and its adapter; one file each beside this contract.

A backend holds a frozen base model and makes adapters on it. Where it holds them in this process, all trainable
parameters of an adapter are one flat vector, ``flat_P``, and ``FlatAdamW`` updates it. Where a server holds
them, the server's optimiser does.
"""

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from models.adapters import decode_config, read_layers
from models.model_config import ModelShape
from schemas.config import LeagueConfig, ModelConfig, Plugin
from schemas.errors import ModelError
from schemas.plugins import Registry
from trainer.advantages.base import CriticConfig
from trainer.batch import Microbatch
from trainer.critic import Critic
from trainer.learner_config import LearnerConfig
from trainer.losses import LossInputs
from trainer.optimizer import OptimizerState
from trainer.ranks import RankComm


class AdapterSpec(NamedTuple):
    """The adapter that a league trains: the settings ``model.lora_*``."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    """The adapted linears, by the last part of their names; empty for all of them."""
    rslora: bool = False
    """Whether the scale is alpha / sqrt(rank) (Kalajdzievski 2023)."""
    layers: tuple[int, ...] = ()
    """The adapted layers, by their indices from 0; empty for all of them."""


def make_adapter_spec(config: ModelConfig) -> AdapterSpec:
    """The adapters that are trained on a configured model."""
    return AdapterSpec(config.lora_rank, config.lora_alpha, config.lora_targets, layers=config.lora_layers)


class AdapterLayout(NamedTuple):
    """Layout that two adapters must share for one's state to fit the other."""

    rank: int
    alpha: float
    sizes: Mapping[str, tuple[int, int]]
    """(out, in) of every adapted linear, by name; the order of the flat vector. Empty where a server holds them."""


class MemoryReport(NamedTuple):
    """Memory of a backend in this process, in bytes."""

    base: int
    """Weights of the base model as they are held: in fewer bits, or this rank's share."""
    adapter: int
    """Trainable weights and their gradient."""
    peak: int
    """Most that was taken at once since the process began: on a GPU by torch, on a CPU by the whole process."""


def report_memory(base: nn.Module | None, flat_P: Tensor | None, device: torch.device) -> MemoryReport:
    """The memory of a base model without its adapters, of an adapter, and of the device that both are on."""
    tensors = () if base is None else (*base.named_parameters(), *base.named_buffers())
    local = (getattr(tensor, "_local_tensor", tensor) for name, tensor in tensors if ".lora_" not in name)
    trained = () if flat_P is None else (flat_P, *([] if flat_P.grad is None else [flat_P.grad]))
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        # In bytes on macOS, in KiB elsewhere.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return MemoryReport(sum(tensor.nbytes for tensor in local), sum(tensor.nbytes for tensor in trained), peak)


class AdapterOptimizer(Protocol):
    """AdamW on one adapter, where the backend holds the weights."""

    weights: tuple[Tensor, ...]
    """The weights in this process: what all ranks must hold alike."""

    @property
    def updates(self) -> int:
        """Updates since the moments were reset."""

    def zero_grad(self) -> None:
        """Drop the gradient."""

    def step(self, rate: float, ranks: RankComm, update: bool = True) -> float:
        """Sum the gradient over the ranks, clip it and update the weights, unless it is not finite or not ``update``.

        Returns the gradient's norm before clipping; 0 where a server does not report it.
        """

    def state(self) -> OptimizerState:
        """Weights and moments; the tensors are those in use."""

    def load(self, state: OptimizerState) -> None:
        """Restore a state."""

    def reset(self) -> None:
        """Start over with the present weights."""


class ForwardPass(Protocol):
    """The model with fixed weights, for all rectangles of one minibatch."""

    def loss_inputs(self, chunk: Microbatch) -> LossInputs:
        """Log-probability and entropy of the rectangle's choices, with gradients where they are enabled."""

    def backward(self) -> None:
        """Complete the gradient, after the backward pass of every rectangle."""


class TrainableAdapter(Protocol):
    """One adapter on a frozen base."""

    is_remote: bool
    """Whether a rectangle is a request to a server: then a whole minibatch is one packed row."""
    is_sharded: bool
    """Whether the ranks exchange weights of the base in every pass, so that all have to run equally many."""
    layout: AdapterLayout
    shape: ModelShape
    dtype: torch.dtype
    """Type of the base model's weights."""

    @property
    def device(self) -> torch.device:
        """Device of base model and adapter; another one while the base is offloaded."""

    def begin(self, config: LearnerConfig, enabled: bool = True, dropout_seed: int | None = None) -> ForwardPass:
        """Start a pass over a minibatch, by the base model alone where not ``enabled``, without dropout by default."""

    def make_optimizer(self, config: LearnerConfig) -> AdapterOptimizer:
        """The optimiser of this adapter's weights, without moments yet."""

    def supports_layout(self, layout: str) -> bool:
        """Whether the model computes minibatches of a layout without one sequence changing another."""

    def make_critic(self, config: CriticConfig, seed: int, cells: int, ranks: RankComm) -> Critic:
        """A critic on the same base; raises ``ConfigError`` where the backend has none."""

    def memory(self) -> MemoryReport:
        """Memory of base model and adapter in this process."""

    def save(self, folder: Path, base_model: str) -> None:
        """Save in PEFT's format; equal weights give equal bytes."""

    def load(self, folder: Path) -> None:
        """Load the weights of a saved adapter; raises ``ModelError`` for one of another layout, or none."""


class LearnerBackend(Protocol):
    """A frozen base model that adapters are trained on."""

    shape: ModelShape
    base: nn.Module | None
    """The frozen base model; None where a server holds it."""
    is_sharded: bool
    """Whether several ranks hold a part of the base each."""

    def shard(self, device: str) -> None:
        """Keep this rank's part of the base, on its device; raises ``ConfigError`` where the backend cannot.

        All ranks are connected, and no adapter exists yet.
        """

    def new_adapter(self, spec: AdapterSpec, seed: int) -> TrainableAdapter:
        """A fresh adapter, which changes nothing yet; raises ``ConfigError`` where the base has no such linears."""


class OffloadedBase:
    """A frozen base model in the host's memory, without adapters yet, and its copy on a device while that computes."""

    def __init__(self, module: nn.Module, device: str) -> None:
        self._device = torch.device(device)
        self._tensors = [*module.parameters(), *module.buffers()]
        pins = self._device.type == "cuda"
        self._host = [tensor.data.pin_memory() if pins else tensor.data for tensor in self._tensors]

    def load(self) -> None:
        """Copy the weights to the device."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host.to(self._device, non_blocking=True)

    def offload(self) -> None:
        """Release the device's memory; adapters and their moments stay there."""
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class BackendLoader(Protocol):
    """Loader of a backend's base model; what a plugin's settings build."""

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> LearnerBackend:
        """Load the base model in a Hugging Face model directory; raises ``ModelError`` for one it cannot train."""


@runtime_checkable
class ChecksLeague(Protocol):
    """A ``BackendLoader`` that cannot train every league."""

    def check_league(self, config: LeagueConfig, free_text: bool) -> None:
        """Raise ``ConfigError``, which names the key, unless the backend can train a league, ``free_text`` or not."""


BACKENDS: Registry[BackendLoader] = Registry("trainer.backend", "trainer.backends")


def load_backend(backend: Plugin, folder: Path, device: str, dtype: str) -> LearnerBackend:
    """Load a base model with the configured backend.

    Raises:
        ConfigError: no such backend or setting, or an extra is missing.
        ModelError: the backend cannot train this model.
    """
    return BACKENDS.build(backend).load(folder, device, getattr(torch, dtype))


def read_adapter_spec(folder: Path) -> AdapterSpec:
    """Rank, alpha and linears of a saved adapter.

    Raises:
        ModelError: no adapter in the folder.
    """
    fields = decode_config(folder)
    try:
        targets = fields["target_modules"]
        if isinstance(targets, str) and targets != "all-linear":
            raise TypeError(f"target_modules is the pattern {targets!r}, expected names")
        names = () if targets == "all-linear" else tuple(targets)
        scaled = bool(fields.get("use_rslora"))
        return AdapterSpec(int(fields["r"]), float(fields["lora_alpha"]), names, scaled, read_layers(fields))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: no readable configuration of an adapter ({error})") from error
