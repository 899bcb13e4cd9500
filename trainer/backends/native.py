"""``native``: the decoder of ``models``, for Qwen3, Qwen2 and Llama; the fastest for small models on a CPU."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from models import adapters
from models.adapters import TARGETS, Lora, LoraConfig
from models.decoder import Decoder
from models.forward import detach_weights
from models.model_config import DecoderShape
from schemas.errors import ConfigError, ModelError
from trainer.advantages.base import CriticConfig
from trainer.backends import BACKENDS, AdapterLayout, AdapterSpec, MemoryReport, report_memory
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
        self.layout = AdapterLayout(lora.rank, lora.alpha, lora.sizes)
        self.shape: DecoderShape = decoder.shape

    @property
    def flat_P(self) -> Tensor:
        """All trainable parameters, float32, in the order of ``layout``."""
        return self.lora.flat_P

    @property
    def device(self) -> torch.device:
        """See ``TrainableAdapter.device``."""
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        """See ``TrainableAdapter.dtype``."""
        return self.decoder.embed.dtype

    def begin(self, config: LearnerConfig, enabled: bool = True, dropout_seed: int | None = None) -> "NativePass":
        """See ``TrainableAdapter.begin``; the adapter is applied once for the whole minibatch, without dropout."""
        return NativePass(self.decoder, self.lora if enabled else None, config)

    def make_optimizer(self, config: LearnerConfig) -> FlatAdamW:
        """See ``TrainableAdapter.make_optimizer``."""
        return FlatAdamW(self.lora.flat_P, config)

    def make_critic(self, config: CriticConfig, seed: int, cells: int, ranks: RankComm) -> Critic:
        """See ``TrainableAdapter.make_critic``."""
        return Critic(self.decoder, config, seed, cells, ranks)

    def memory(self) -> MemoryReport:
        """See ``TrainableAdapter.memory``."""
        return report_memory(self.decoder, self.flat_P, self.device)

    def save(self, folder: Path, base_model: str) -> None:
        """See ``TrainableAdapter.save``."""
        adapters.save(self.lora, folder, base_model)

    def load(self, folder: Path) -> None:
        """See ``TrainableAdapter.load``."""
        lora, own = adapters.load(folder, self.decoder.shape, device=self.decoder.device), self.lora
        if (lora.rank, lora.alpha, lora.sizes, lora.rslora) != (own.rank, own.alpha, own.sizes, own.rslora):
            raise ModelError(
                f"{folder}: an adapter of rank {lora.rank}, alpha {lora.alpha:g} on {len(lora.sizes)} linears; "
                f"expected rank {own.rank}, alpha {own.alpha:g} on {len(own.sizes)}"
            )
        with torch.no_grad():
            own.flat_P.copy_(lora.flat_P)


class NativePass:
    """A ``ForwardPass`` whose weights are computed, and differentiated, once for all rectangles."""

    def __init__(self, decoder: Decoder, lora: Lora | None, config: LearnerConfig) -> None:
        weights = decoder.weights(lora)
        self._shared = detach_weights(weights) if torch.is_grad_enabled() else None
        self._weights = weights if self._shared is None else self._shared.weights
        self._config = config

    def loss_inputs(self, chunk: Microbatch) -> LossInputs:
        """See ``ForwardPass.loss_inputs``."""
        return compute_loss_inputs(self._weights, chunk, self._config.recompute_layers, self._config.logit_elements)

    def backward(self) -> None:
        """See ``ForwardPass.backward``."""
        if self._shared is not None:
            self._shared.backward()


class NativeBackend:
    """A ``LearnerBackend`` on a ``Decoder``."""

    is_sharded = False

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.shape: DecoderShape = decoder.shape

    @property
    def base(self) -> Decoder:
        """See ``LearnerBackend.base``."""
        return self.decoder

    def shard(self, device: str) -> None:
        """See ``LearnerBackend.shard``."""
        raise ConfigError("trainer.backend: 'native' holds the whole base on every rank; expected 'peft'")

    def new_adapter(self, spec: AdapterSpec, seed: int) -> NativeAdapter:
        """See ``LearnerBackend.new_adapter``."""
        config = LoraConfig(spec.rank, spec.alpha, spec.targets or TARGETS)
        lora = adapters.create(self.shape, config, seed, self.decoder.device)
        lora.rslora = spec.rslora
        return NativeAdapter(self.decoder, lora)


@BACKENDS.register("native")
class NativeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings of its own."""

    def build(self) -> "NativeSettings":
        """Return the loader."""
        return self

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> NativeBackend:
        """See ``BackendLoader.load``."""
        return NativeBackend(Decoder.load(folder, device, dtype))
