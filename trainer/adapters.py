"""LoRA adapters: their parameters, and PEFT's format on disk.

All of an adapter's matrices are views of one flat vector. The optimiser, gradient clipping, saving and data-parallel
reduction then each touch one tensor instead of dozens of tiny ones.

Shape suffixes: P parameters of the adapter, R rank, I/O input and output features of a linear.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from schemas.errors import ConfigError, ModelError, one_of
from trainer.archive import pack, unpack
from trainer.hf import FUSED
from trainer.shape import DecoderShape

__all__ = ["TARGETS", "Lora", "LoraConfig", "create", "load", "pack", "save", "unpack"]

TARGETS = tuple(part.rpartition(".")[2] for parts in FUSED.values() for part in parts)
"""Names of the linears an adapter can sit on: PEFT's ``all-linear`` for these models."""

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.model."


class LoraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Low-rank adaptation (Hu et al. 2021): ``W + (alpha / rank) B A``."""

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = TARGETS

    def __post_init__(self) -> None:
        unknown = sorted(set(self.target_modules) - set(TARGETS))
        if unknown or not self.target_modules:
            raise ConfigError(f"lora.target_modules: {unknown or 'empty'}, valid names are {one_of(TARGETS)}")
        if self.rank < 1:
            raise ConfigError(f"lora.rank: {self.rank}, expected at least 1")


class Lora:
    """The trainable weights of one adapter."""

    def __init__(
        self, rank: int, alpha: float, sizes: Mapping[str, tuple[int, int]], flat_P: Tensor, rslora: bool = False
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.sizes = dict(sizes)
        """(out, in) of every adapted linear, by name; the order of the flat vector."""
        self.flat_P = flat_P
        self.rslora = rslora
        """Scale by alpha / sqrt(rank) (Kalajdzievski 2023), as adapters made elsewhere may ask."""

    @property
    def scale(self) -> float:
        """What ``B A`` is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """A [R, I] and B [O, R] of every adapted linear: views that carry gradients back to ``flat_P``."""
        counts = [self.rank * features for out, into in self.sizes.values() for features in (into, out)]
        pieces = iter(torch.split(self.flat_P, counts))
        return {
            name: (next(pieces).view(self.rank, into), next(pieces).view(out, self.rank))
            for name, (out, into) in self.sizes.items()
        }

    def to(self, device: torch.device | str) -> "Lora":
        """A trainable copy on another device."""
        flat_P = self.flat_P.detach().to(device, copy=True).requires_grad_(True)
        return Lora(self.rank, self.alpha, self.sizes, flat_P, self.rslora)


def create(shape: DecoderShape, config: LoraConfig, seed: int, device: torch.device | str = "cpu") -> Lora:
    """A fresh adapter that changes nothing yet: A uniform as PEFT draws it, B zero. Trainable, float32."""
    sizes = {name: size for name, size in shape.linears().items() if name.endswith(config.target_modules)}
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for out, into in sizes.values():
        parts.append((torch.rand(config.rank * into, generator=generator) * 2 - 1) / math.sqrt(into))
        parts.append(torch.zeros(out * config.rank))
    return Lora(config.rank, config.alpha, sizes, torch.cat(parts).to(device).requires_grad_(True))


def save(lora: Lora, folder: Path, base_model: str = "") -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` as PEFT reads them.

    The bytes depend on the weights and ``base_model`` alone, so equal adapters have equal digests.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, pair in lora.matrices().items():
        for letter, matrix in zip("AB", pair, strict=True):
            tensors[f"{PREFIX}{name}.lora_{letter}.weight"] = matrix.detach().cpu().contiguous().clone()
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in lora.sizes}),
        "task_type": "CAUSAL_LM",
        "use_rslora": lora.rslora,
    }
    (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config, order="sorted"), indent=2))


def load(folder: Path, shape: DecoderShape, max_rank: int | None = None, device: torch.device | str = "cpu") -> Lora:
    """Load a PEFT LoRA adapter for a base of ``shape``, trainable and float32.

    Raises:
        ModelError: not a LoRA adapter, weights that are not safetensors, damaged, of another base or with values
            that are not finite, a rank above ``max_rank``, or a LoRA variant the decoder does not compute.
    """
    folder = Path(folder)
    config = _read_config(folder)
    rank, alpha = config["r"], float(config["lora_alpha"])
    if max_rank is not None and rank > max_rank:
        raise ModelError(f"{folder}: the adapter's rank is {rank}, at most {max_rank} is allowed")
    tensors = _read_tensors(folder)
    known = shape.linears()
    names = {name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in tensors}
    if unknown := sorted(names - set(known)):
        raise ModelError(f"{folder}: {unknown[0]!r} is adapted, which is no linear of this base model")
    sizes = {name: size for name, size in known.items() if name in names}
    parts = []
    for name, (out, into) in sizes.items():
        parts.append(_part(folder, tensors, f"{PREFIX}{name}.lora_A.weight", (rank, into)))
        parts.append(_part(folder, tensors, f"{PREFIX}{name}.lora_B.weight", (out, rank)))
    if not parts:
        raise ModelError(f"{folder}: {WEIGHTS_FILE} holds no tensors")
    flat_P = torch.cat(parts).to(device).requires_grad_(True)
    return Lora(rank, alpha, sizes, flat_P, bool(config.get("use_rslora", False)))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{folder}: not an adapter, no readable {CONFIG_FILE} ({error})") from error
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    if not isinstance(config.get("r"), int) or not isinstance(config.get("lora_alpha"), int | float):
        raise ModelError(f"{path}: 'r' and 'lora_alpha' must be numbers")
    plain = {"bias": "none", "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None}
    plain |= {"rank_pattern": {}, "alpha_pattern": {}}
    for key, expected in plain.items():
        if config.get(key, expected) not in (expected, None, [], {}):
            raise ModelError(f"{path}: {key} is {config[key]!r}, supported is {expected!r}")
    return config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.exists():
        raise ModelError(f"{folder}: no {WEIGHTS_FILE}; adapters in other formats are not loaded")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def _part(folder: Path, tensors: Mapping[str, Tensor], name: str, size: tuple[int, int]) -> Tensor:
    if name not in tensors:
        raise ModelError(f"{folder}: tensor {name!r} is missing")
    tensor = tensors[name]
    if tuple(tensor.shape) != size:
        found = f"has shape {tuple(tensor.shape)}, the base model and the adapter's rank need {size}"
        raise ModelError(f"{folder}: tensor {name!r} {found}")
    if not tensor.isfinite().all():
        raise ModelError(f"{folder}: tensor {name!r} holds NaN or infinite values")
    return tensor.float().flatten()
