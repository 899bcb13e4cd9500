"""``peft``: transformers and PEFT, for every family of causal language models that they know.

The adapter's matrices are PEFT's own parameters; their storage is one flat vector, so that one optimiser, one saved
state and one reduction among ranks serve all backends. Three layouts of a minibatch are exact: right-padded rectangles
without an attention mask, since causal models never see what follows, and rows with an attention function of our own
that splits them into their sequences, or lets these share their beginnings. Each is probed on the loaded model before
anything is trained: what one sequence holds must not change another, as it does where a family's state space layers run
through a packed row.

One module, long as it is: every backend is one file.

Shape suffixes: P parameters of the adapter, B sequence of a rectangle, L position in it, Q choice of a sequence in it,
W choice, D model width, V vocabulary, H query head, G key/value head, K dimension of a head.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import adapters
from models.forward import Packing, attend, attend_packed, make_packing
from models.hf import load_transformers_model, load_with_peft, make_peft_model, name_peft_tensors, read_peft_config
from models.model_config import ModelShape, read_model_shape
from models.prefix_tree import PrefixTree, attend_tree, grow_tree, lay_out
from schemas.errors import ConfigError, ModelError, format_choices
from schemas.plugins import PluginStruct
from trainer.advantages.base import CriticConfig
from trainer.backends import BACKENDS, AdapterLayout, AdapterSpec, MemoryReport, report_memory
from trainer.batch import Microbatch
from trainer.critic import Critic
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import evaluate_choices
from trainer.losses import LossInputs
from trainer.optimizer import FlatAdamW
from trainer.ranks import RankComm

PACKED_ATTENTION = "league_packed"
PROBE_LENGTHS = (7, 12)
POSITION_TOLERANCE, WIDE_TOLERANCE, NARROW_TOLERANCE = 0.1, 1e-3, 2e-2
"""Largest differences, relative to the largest hidden state: of a sequence among others from the same one alone, and
between two sets of others, in float32 and in narrower types. Rounding stays below; wrong positions and leaks do not."""


@BACKENDS.register("peft")
class PeftSettings(PluginStruct, frozen=True):
    """Variants of LoRA, and how the base model is held."""

    dropout: float = 0.0
    """Share of a LoRA input that is dropped in training (``lora_dropout``)."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) (Kalajdzievski 2023)."""
    experts: bool = False
    """Whether empty ``model.lora_targets`` takes in the experts and routers of a mixture of experts."""
    quantization: Literal["none", "8bit", "4bit"] = "none"
    """Hold the base in fewer bits with bitsandbytes (the extra ``quantized``)."""
    sharded: bool = False
    """Spread the base over the ranks (``trainer.ranks``) with FSDP2, a part of each layer on each; the adapter, its
    gradient and its moments are whole on all of them."""
    remote_code: bool = False
    """Whether a model may bring its own Python code, which runs with this process's rights."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"trainer.backend.settings.dropout: {self.dropout}; expected 0 or more, below 1")
        if self.sharded and self.quantization != "none":
            raise ConfigError(
                f"trainer.backend.settings.sharded: true with quantization = {self.quantization!r}; expected one of "
                "the two"
            )

    def load(self, folder: Path, device: str, dtype: torch.dtype) -> "PeftBackend":
        """Load the base model with transformers, into the host's memory if it is sharded."""
        shape = read_model_shape(folder)
        # A base that is to be spread need not fit one device.
        return PeftBackend(_load_model(folder, "cpu" if self.sharded else device, dtype, self), shape, self)


class PeftBackend:
    """A ``LearnerBackend`` on transformers' model; its adapters share the base and are active in turn."""

    def __init__(self, model: Any, shape: ModelShape, settings: PeftSettings) -> None:
        self.model = model
        self.base: nn.Module | None = model
        self.shape = shape
        self.settings = settings
        self.is_sharded = settings.sharded
        self.peft_model: Any = None
        self.head_scale = _probe_head(model)
        self._attention = str(model.config._attn_implementation)
        head = model.get_output_embeddings()
        # Linears that LoRA can adapt; quantised ones derive from ``nn.Linear`` too.
        self._linears = [
            name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
        ]
        self._recomputes = False
        self._made = 0
        self._probed: set[str] = set()

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head_VD.device

    @property
    def head_VD(self) -> Tensor:
        """The output head."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def shard(self, device: str) -> None:
        """Shard the layers and the embedding, unless it is also the output head, by FSDP.

        Adapters are made afterwards, so that FSDP knows nothing of their matrices: those stay plain tensors.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        decoder, head = self.model.get_decoder(), self.model.get_output_embeddings()
        layers = getattr(decoder, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ConfigError(
                f"trainer.backend.settings.sharded: a {self.shape.model_type!r} model has no list of layers; expected "
                "false"
            )
        mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
        head.to(device)
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(decoder, mesh=mesh, ignored_params={head.weight})
        # What is no parameter, such as the frequencies of rotary positions.
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))

    def new_adapter(self, spec: AdapterSpec, seed: int) -> "_PeftAdapter":
        """A fresh adapter; A is drawn as by the native backend, B is zero."""
        import peft

        adapters.check_layers(spec.layers, self.model.config.get_text_config().num_hidden_layers)
        config = peft.LoraConfig(
            r=spec.rank,
            lora_alpha=spec.alpha,
            target_modules=_target_modules(self._linears, spec.targets, self.settings.experts),
            lora_dropout=self.settings.dropout,
            use_rslora=self.settings.rslora or spec.rslora,
            layers_to_transform=list(spec.layers) or None,
            task_type="CAUSAL_LM",
        )
        name = f"adapter-{self._made}"
        self._made += 1
        self.peft_model = make_peft_model(self.peft_model or self.model, config, name)
        return _PeftAdapter(self, name, seed)

    def hidden_states(self, ids_BL: Tensor, packed: Packing | PrefixTree | None = None) -> Tensor:
        """Hidden states [B, L, D] after the final norm."""
        layout = {} if packed is None else {"position_ids": packed.positions_L[None], "packing": packed}
        hidden: Tensor = self.model.get_decoder()(input_ids=ids_BL, use_cache=False, **layout).last_hidden_state
        return hidden

    def use_layout(self, layout: str, recompute: bool) -> None:
        """Prepare the model for minibatches of a layout; raises ``ConfigError`` where the family cannot compute it."""
        # Outside of a learner's step ``auto`` has nothing to choose by.
        layout = "rectangles" if layout == "auto" else layout
        attention = self._attention if layout == "rectangles" else PACKED_ATTENTION
        if self.model.config._attn_implementation != attention:
            if layout != "rectangles":
                _register_packed_attention()
            self.model.set_attn_implementation(attention)
        if recompute != self._recomputes:
            self._recomputes = recompute
            # The name since transformers 5; older versions know the second one only.
            kind = "activation" if hasattr(self.model, "activation_checkpointing_enable") else "gradient"
            if recompute:
                getattr(self.model, f"{kind}_checkpointing_enable")({"use_reentrant": False})
            else:
                getattr(self.model, f"{kind}_checkpointing_disable")()
            for module in self.model.modules():
                if hasattr(module, "gradient_checkpointing"):
                    # Layers recompute in training mode only. Not ``train()``, which would turn on the base's dropout.
                    module.training = recompute
        if layout not in self._probed:
            self._probe_layout(layout)
            self._probed.add(layout)

    @torch.no_grad()
    def _probe_layout(self, layout: str) -> None:
        """Check that a sequence's hidden states depend on that sequence alone, and are those of the model itself."""
        generator = torch.Generator().manual_seed(0)
        before, length = PROBE_LENGTHS
        first, second, other = (
            torch.randint(1, self.shape.vocab_size, (tokens,), generator=generator).to(self.device)
            for tokens in (before, length, before)
        )
        kept = [self._states_beside(beside, second, layout) for beside in (first, other)]
        # By the model's own attention: a family may scale or mask in a way that attention of ours is not told.
        attention = self.model.config._attn_implementation
        if attention != self._attention:
            self.model.set_attn_implementation(self._attention)
        alone = self.hidden_states(second[None])
        if attention != self._attention:
            self.model.set_attn_implementation(attention)
        wide = self.head_VD.dtype == torch.float32
        leak, off = (float((states - kept[0]).abs().max() / alone.abs().max()) for states in (kept[1], alone[0]))
        if leak > (WIDE_TOLERANCE if wide else NARROW_TOLERANCE) or off > POSITION_TOLERANCE:
            raise ConfigError(
                f"trainer.learner.layout: in {layout!r} a sequence of a {self.shape.model_type!r} model is computed "
                f"otherwise than alone; expected {'a causal model' if layout == 'rectangles' else 'rectangles'}"
            )

    def _states_beside(self, beside_L: Tensor, second_L: Tensor, layout: str) -> Tensor:
        """Hidden states [L, D] of the second of two sequences in a layout."""
        if layout == "rectangles":
            return self.hidden_states(torch.cat([second_L, beside_L])[None])[0, : len(second_L)]
        if layout == "packed":
            packed = make_packing([len(beside_L), len(second_L)], self.device)
            return self.hidden_states(torch.cat([beside_L, second_L])[None], packed)[0, len(beside_L) :]
        pair = [ids_L.cpu().numpy() for ids_L in (torch.cat([second_L[:3], beside_L]), second_L)]
        tree = grow_tree(pair)
        row = torch.tensor([pair[sequence][at] for sequence, at in tree.source_L], device=self.device)
        return self.hidden_states(row[None], lay_out(tree, self.device))[0, torch.from_numpy(tree.places[1])]


class _PeftAdapter:
    """A ``TrainableAdapter`` of PEFT."""

    is_remote = False

    def __init__(self, backend: PeftBackend, name: str, seed: int) -> None:
        self.backend = backend
        self.name = name
        self.shape = backend.shape
        # In the model's order, by the names that the native decoder uses where it has them.
        modules: dict[str, Any] = {
            path.removeprefix("model."): module
            for path, module in backend.model.named_modules()
            if hasattr(module, "lora_A") and name in module.lora_A
        }
        self._modules = list(modules.values())
        self._parameters = [
            matrices[name].weight for module in self._modules for matrices in (module.lora_A, module.lora_B)
        ]
        config = backend.peft_model.peft_config[name]
        sizes = {short: (int(module.out_features), int(module.in_features)) for short, module in modules.items()}
        self.layout = AdapterLayout(int(config.r), float(config.lora_alpha), sizes)
        _initialise(self._modules, name, seed)
        self.flat_P = torch.cat([p.detach().float().flatten() for p in self._parameters]).requires_grad_(True)
        for parameter, view in self._views(self.flat_P.detach()):
            parameter.data = view
        self.device = self.flat_P.device
        self.dtype = backend.head_VD.dtype
        self.is_sharded = backend.is_sharded

    def begin(self, config: LearnerConfig, enabled: bool = True, dropout_seed: int | None = None) -> "_PeftPass":
        self.backend.peft_model.set_adapter(self.name)
        self._set_dropout(None)
        self.backend.use_layout(config.layout, config.recompute_layers and torch.is_grad_enabled())
        self._set_dropout(dropout_seed)
        if torch.is_grad_enabled():
            # Backward passes add to the parameters' gradients in place: those are views of the flat vector's.
            if self.flat_P.grad is None:
                self.flat_P.grad = torch.zeros_like(self.flat_P)
            for parameter, view in self._views(self.flat_P.grad):
                parameter.grad = view
        return _PeftPass(self.backend, config, enabled)

    def supports_layout(self, layout: str) -> bool:
        try:
            self.backend.use_layout(layout, recompute=False)
        except ConfigError:
            return False
        return True

    def make_optimizer(self, config: LearnerConfig) -> FlatAdamW:
        return FlatAdamW(self.flat_P, config.grad_clip, config.weight_decay)

    def make_critic(self, config: CriticConfig, seed: int, cells: int, ranks: RankComm) -> Critic:
        raise ConfigError(
            "trainer.advantage: an estimator with a critic; expected one without, or trainer.backend = 'native', "
            "whose decoder the critic runs on"
        )

    def memory(self) -> MemoryReport:
        return report_memory(self.backend.model, self.flat_P, self.device)

    def save(self, folder: Path, base_model: str) -> None:
        tensors = name_peft_tensors(self.backend.peft_model, self.name)
        config = self.backend.peft_model.peft_config[self.name].to_dict()
        config |= {"base_model_name_or_path": base_model, "inference_mode": True}
        # ``save_pretrained`` writes sets of names in another order in every process: equal adapters had other digests.
        adapters.write(folder, {name: tensor.float() for name, tensor in tensors.items()}, config)

    def load(self, folder: Path) -> None:
        config, own = read_peft_config(Path(folder)), self.backend.peft_model.peft_config[self.name]
        for key in ("peft_type", "r", "lora_alpha", "use_rslora"):
            if getattr(config, key, None) != getattr(own, key):
                raise ModelError(f"{folder}: {key} is {getattr(config, key, None)!r}; expected {getattr(own, key)!r}")
        load_with_peft(self.backend.peft_model, Path(folder), self.name)

    def _set_dropout(self, seed: int | None) -> None:
        has_dropout = seed is not None and self.backend.settings.dropout > 0
        for module in self._modules:
            module.lora_dropout[self.name].train(has_dropout)
        if has_dropout and seed is not None:
            torch.manual_seed(seed)

    def _views(self, flat_P: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """PEFT's parameters, and their parts of a flat vector in their shapes."""
        pieces = torch.split(flat_P, [parameter.numel() for parameter in self._parameters])
        return (
            (parameter, piece.view(parameter.shape)) for parameter, piece in zip(self._parameters, pieces, strict=True)
        )


class _PeftPass:
    """A ``ForwardPass`` through transformers' own modules."""

    def __init__(self, backend: PeftBackend, config: LearnerConfig, enabled: bool) -> None:
        self._backend = backend
        self._config = config
        self._enabled = enabled

    def loss_inputs(self, chunk: Microbatch) -> LossInputs:
        """Log-probability and entropy of the choices; the output head is applied to their hidden states only."""
        backend = self._backend
        with contextlib.nullcontext() if self._enabled else backend.peft_model.disable_adapter():
            hidden_BLD = backend.hidden_states(chunk.ids_BL, chunk.packed)
        index_BQ = chunk.wanted_BQ.unsqueeze(-1).expand(-1, -1, hidden_BLD.shape[-1])
        hidden_WD = hidden_BLD.gather(1, index_BQ).flatten(0, 1).index_select(0, chunk.cell_W)
        if backend.head_scale != 1.0:
            hidden_WD = hidden_WD * backend.head_scale
        return evaluate_choices(backend.head_VD, hidden_WD, chunk, self._config.logit_elements)

    def backward(self) -> None:
        """Nothing: the rectangles' own backward passes have completed the gradient."""


def _load_model(folder: Path, device: str, dtype: torch.dtype, settings: PeftSettings) -> Any:
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"trainer.backend: 'peft' needs peft ({error}); expected it installed") from error
    if settings.quantization == "none":
        model = load_transformers_model(folder, dtype, settings.remote_code).to(device)
    else:
        quantization = _quantization(settings.quantization, dtype)
        model = load_transformers_model(
            folder, dtype, settings.remote_code, quantization_config=quantization, device_map=device
        )
    model = model.eval().requires_grad_(False)
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            # Otherwise bitsandbytes takes it for inference on some CPUs, and no gradient passes through.
            module.training = True
    return model


def _quantization(bits: str, dtype: torch.dtype) -> Any:
    try:
        import bitsandbytes  # noqa: F401
        from transformers import BitsAndBytesConfig
    except ImportError as error:
        raise ConfigError(
            f"trainer.backend.settings.quantization: {bits!r} needs bitsandbytes; expected it installed "
            "(the extra 'quantized')"
        ) from error
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=True
    )


@torch.no_grad()
def _probe_head(model: Any) -> float:
    """Factor between the output head's product and the model's logits: 1 for most families."""
    head, decoder = model.get_output_embeddings(), model.get_decoder()
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{model.config.model_type}: an output head with a bias, or none; expected one matrix")
    ids = torch.arange(1, 6, device=head.weight.device)[None]
    plain = F.linear(decoder(input_ids=ids, use_cache=False).last_hidden_state, head.weight).double()
    logits = model(input_ids=ids, use_cache=False).logits.double()
    scale = float((plain * logits).sum() / (plain * plain).sum())
    if float((logits - scale * plain).abs().max()) > 2e-2 * float(logits.abs().max()):
        raise ModelError(f"{model.config.model_type}: the family bounds or shifts its logits; expected a linear head")
    return 1.0 if abs(scale - 1) < 1e-2 else scale


def _target_modules(linears: Sequence[str], targets: Sequence[str], experts: bool) -> list[str]:
    """Names for PEFT's ``target_modules``: as configured, or every linear."""
    leaves = sorted({name.rpartition(".")[2] for name in linears})
    if targets:
        unknown = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in linears)]
        if unknown:
            raise ConfigError(f"model.lora_targets: {unknown[0]!r}; this model has {format_choices(leaves)}")
        return list(targets)
    kept = [name for name in linears if experts or not _is_expert(name)]
    names = {name.rpartition(".")[2] for name in kept} - {name.rpartition(".")[2] for name in {*linears} - {*kept}}
    return sorted(names) + sorted(name for name in kept if name.rpartition(".")[2] not in names)


def _is_expert(name: str) -> bool:
    parts = name.split(".")
    return "experts" in parts or parts[-1] in ("gate", "router")


@torch.no_grad()
def _initialise(modules: Sequence[Any], name: str, seed: int) -> None:
    """Draw A as ``models.adapters.create`` does; B stays zero."""
    generator = torch.Generator().manual_seed(seed)
    for module in modules:
        a_RI = module.lora_A[name].weight
        drawn = (torch.rand(a_RI.numel(), generator=generator) * 2 - 1) / module.in_features**0.5
        a_RI.copy_(drawn.view(a_RI.shape))


@cache
def _register_packed_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED_ATTENTION, _packed_attention)
    # The attention function needs none: it computes each sequence by itself.
    AttentionMaskInterface.register(PACKED_ATTENTION, lambda *_, **__: None)


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packing: Packing | PrefixTree | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' interface [1, L, H, K] over a row of sequences, each causal and by itself.

    Queries are [1, H, L, K], keys and values [1, G, L, K].
    """
    if packing is None or kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ConfigError(
            "trainer.learner.layout: the attention of this family cannot be packed; expected 'rectangles'"
        )
    q_BLHK, k_BLGK, v_BLGK = (x.transpose(1, 2) for x in (query, key, value))
    if scaling is not None:
        # ``attend_packed`` divides by the root of the head's dimension.
        q_BLHK = q_BLHK * (scaling * query.shape[-1] ** 0.5)
    if isinstance(packing, PrefixTree) and sliding_window is not None:
        groups = q_BLHK.shape[2] // k_BLGK.shape[2]
        k, v = (x.repeat_interleave(groups, dim=2) for x in (k_BLGK, v_BLGK))
        return attend_tree(q_BLHK, k, v, packing, sliding_window).view(*q_BLHK.shape[:3], -1), None
    if isinstance(packing, PrefixTree) or sliding_window is None or max(packing.lengths) <= sliding_window:
        return attend_packed(q_BLHK, k_BLGK, v_BLGK, packing).view(*q_BLHK.shape[:3], -1), None
    attended = []
    for q, k, v in zip(*(torch.split(x, list(packing.lengths), 1) for x in (q_BLHK, k_BLGK, v_BLGK)), strict=True):
        index_L = torch.arange(q.shape[1], device=q.device)
        back_LL = index_L[:, None] - index_L
        attended.append(attend(q, k, v, ((back_LL >= 0) & (back_LL < sliding_window))[None]))
    return torch.cat(attended, 1).view(*q_BLHK.shape[:3], -1), None
