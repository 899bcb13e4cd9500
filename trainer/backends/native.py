"""``native``: the decoder of ``models``, for Qwen3, Qwen2 and Llama on a CPU; and the choice that ``auto`` makes.

Processor time of a step on one thread, PEFT divided by native (``python -m benchmarks backends``): 1.6 at hidden size
64, 1.2 to 1.3 at 256 and at 512 with 4 layers, 1.12 to 1.17 at 512 to 2048 with 8 layers, 1.04 to 1.1 at 512 and 1024
with 16. What the native decoder saves is in the first and the last layer, so depth matters as much as width.

Shape suffixes: P parameters of the adapter.
"""

from pathlib import Path

import msgspec
import torch
from torch import nn

from models import adapters
from models.adapters import TARGETS, Lora, LoraConfig
from models.decoder import Decoder
from models.forward import detach_weights
from models.model_config import ModelShape, unsupported_reason
from schemas.config import LeagueConfig, Plugin, TrainerConfig
from schemas.errors import ConfigError, ModelError
from schemas.plugins import PluginStruct
from trainer.advantages.base import ADVANTAGES, CriticConfig, UsesCritic
from trainer.backends import BACKENDS, AdapterLayout, AdapterSpec, LearnerBackend, MemoryReport, report_memory
from trainer.batch import Microbatch
from trainer.critic import Critic
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import compute_loss_inputs
from trainer.losses import LossInputs
from trainer.optimizer import FlatAdamW
from trainer.ranks import RankComm


class NativeAdapter:
    """A ``TrainableAdapter`` on a ``Decoder``."""

    is_sharded = is_remote = False

    def __init__(self, decoder: Decoder, lora: Lora) -> None:
        self.decoder = decoder
        self.lora = lora
        self.flat_P = lora.flat_P
        """All trainable parameters, float32, in the order of ``layout``."""
        self.layout = AdapterLayout(lora.rank, lora.alpha, lora.sizes)
        self.shape: ModelShape = decoder.shape
        self.dtype = decoder.embed.dtype

    @property
    def device(self) -> torch.device:
        """Device of the decoder, which is never offloaded."""
        return self.decoder.device

    def begin(self, config: LearnerConfig, enabled: bool = True, dropout_seed: int | None = None) -> "_NativePass":
        """Start a pass; the adapter is applied once for the whole minibatch, without dropout."""
        return _NativePass(self.decoder, self.lora if enabled else None, config)

    def make_optimizer(self, config: LearnerConfig) -> FlatAdamW:
        """AdamW over all matrices as one vector."""
        return FlatAdamW(self.flat_P, config.grad_clip, config.weight_decay)

    def supports_layout(self, layout: str) -> bool:
        """True: the decoder computes every layout."""
        return True

    def make_critic(self, config: CriticConfig, seed: int, cells: int, ranks: RankComm) -> Critic:
        """A critic on the same decoder."""
        return Critic(self.decoder, config, seed, cells, ranks)

    def memory(self) -> MemoryReport:
        """Memory of decoder and adapter in this process."""
        return report_memory(self.decoder, self.flat_P, self.device)

    def save(self, folder: Path, base_model: str) -> None:
        """Save in PEFT's format; equal weights give equal bytes."""
        adapters.save(self.lora, folder, base_model)

    def load(self, folder: Path) -> None:
        """Load a saved adapter's weights; ``ModelError`` for another rank, alpha or set of linears."""
        lora, own = adapters.load(folder, self.decoder.shape, device=self.decoder.device), self.lora
        if (lora.rank, lora.alpha, lora.sizes, lora.rslora) != (own.rank, own.alpha, own.sizes, own.rslora):
            raise ModelError(
                f"{folder}: an adapter of rank {lora.rank}, alpha {lora.alpha:g} on {len(lora.sizes)} linears; "
                f"expected rank {own.rank}, alpha {own.alpha:g} on {len(own.sizes)}"
            )
        with torch.no_grad():
            own.flat_P.copy_(lora.flat_P)


class _NativePass:
    """A ``ForwardPass`` whose weights are computed, and differentiated, once for all rectangles."""

    def __init__(self, decoder: Decoder, lora: Lora | None, config: LearnerConfig) -> None:
        weights = decoder.weights(lora)
        self._shared = detach_weights(weights) if torch.is_grad_enabled() else None
        self._weights = weights if self._shared is None else self._shared.weights
        self._config = config

    def loss_inputs(self, chunk: Microbatch) -> LossInputs:
        return compute_loss_inputs(self._weights, chunk, self._config.recompute_layers, self._config.logit_elements)

    def backward(self) -> None:
        if self._shared is not None:
            self._shared.backward()


class NativeBackend:
    """A ``LearnerBackend`` on a ``Decoder``."""

    is_sharded = False

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.base: nn.Module | None = decoder
        self.shape: ModelShape = decoder.shape

    def shard(self, device: str) -> None:
        """Raise ``ConfigError``: every rank holds the whole base."""
        raise ConfigError("trainer.backend: 'native' holds the whole base on every rank; expected 'peft'")

    def new_adapter(self, spec: AdapterSpec, seed: int) -> NativeAdapter:
        """A fresh adapter, A drawn by the seed, B zero."""
        config = LoraConfig(spec.rank, spec.alpha, spec.targets or TARGETS, spec.layers)
        lora = adapters.create(self.decoder.shape, config, seed, self.decoder.device)
        lora.rslora = spec.rslora
        return NativeAdapter(self.decoder, lora)


@BACKENDS.register("native")
class NativeSettings(PluginStruct, frozen=True):
    """No settings."""

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> NativeBackend:
        """Load the base model into a ``Decoder``."""
        return NativeBackend(Decoder.load(folder, device, dtype))


def choose_backend(folder: Path, device: str, *, is_made: bool = False, has_critic: bool = False) -> tuple[str, str]:
    """Name the backend for the model in a folder, and the reason.

    ``native`` computes models that were made here, Llama-type models on a CPU, and critics; ``peft`` everything else.
    """
    reason = unsupported_reason(folder)
    if reason is not None:
        return "peft", f"the native decoder does not compute it: {reason}"
    if has_critic:
        return "native", "the advantage estimator's critic runs on the native decoder"
    if is_made:
        return "native", "the base model was made here"
    if device == "cpu":
        return "native", "on a CPU the native decoder is faster"
    return "peft", "on a GPU transformers computes every model that was not made here"


def resolve_backend(config: LeagueConfig, folder: Path) -> tuple[TrainerConfig, str]:
    """Make the backend definite, the same for every rank, and give the reason; empty if the backend is configured."""
    trainer = config.trainer
    if trainer.backend.name != "auto":
        return trainer, ""
    has_critic = isinstance(ADVANTAGES.build(trainer.advantage), UsesCritic)
    is_made = config.model.base == "made"
    name, reason = choose_backend(folder, trainer.device, is_made=is_made, has_critic=has_critic)
    return msgspec.structs.replace(trainer, backend=Plugin(name=name)), reason


@BACKENDS.register("auto")
class AutoSettings(PluginStruct, frozen=True):
    """No settings: the chosen backend has its defaults."""

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> LearnerBackend:
        """Load the base model by the backend that is chosen for its architecture and the device."""
        name, _ = choose_backend(folder, device)
        return BACKENDS.build(Plugin(name=name)).load(folder, device, dtype)
