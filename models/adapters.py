"""LoRA adapters: their parameters, and PEFT's format on disk, without importing PEFT (``hf`` does).

All of an adapter's matrices are views of one flat vector. The optimiser, gradient clipping, saving and data-parallel
reduction then each touch one tensor instead of dozens of tiny ones.

Shape suffixes: P parameters of the adapter, R rank, I/O input and output features of a linear.

One file, since loading has to reject whatever saving cannot have written, and both name the same tensors.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.model_config import FUSED, DecoderShape, ModelShape
from schemas.codec import DECODE_ERRORS
from schemas.errors import ConfigError, ModelError, format_choices

TARGETS = tuple(part.rpartition(".")[2] for parts in FUSED.values() for part in parts)
"""Names of the linears that an adapter can target: PEFT's ``all-linear`` for these models."""

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.model."
TENSOR = re.compile(re.escape(PREFIX) + r"(?P<linear>.+)\.lora_[AB]\.weight")

LORA_TENSOR = re.compile(r"(?P<linear>base_model\.model\..+)\.lora_(?P<letter>[AB])\.weight")

Matrices = Mapping[str, tuple[Tensor, Tensor]]
"""A [R, I] and B [O, R] of every adapted linear, by the beginning of the tensors' names."""

ATTENTION_INPUTS = ("q_proj.weight", "qkv_proj.weight", "query_key_value.weight")
"""Ends of the names of an attention's input linear, over the families."""

DTYPES = ("BF16", "F16", "F32", "F64")
"""Supported weight types, in safetensors' names; integers and eight-bit types need scales that LoRA does not have."""

PICKLE_MAGIC = (b"\x80", b"PK\x03\x04")
"""First bytes of pickles, and of the archives that torch makes of them."""

MAX_ALPHA = 1e6

REQUIRED_DEFAULTS: Mapping[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "use_bdlora": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
}
"""PEFT's settings that turn LoRA into more than ``W + scale B A`` of one rank, with the values that do not."""


class LoraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Low-rank adaptation (Hu et al. 2021): ``W + (alpha / rank) B A``."""

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = TARGETS
    layers: tuple[int, ...] = ()
    """Indices of the adapted layers, from 0; empty for all."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.target_modules) - set(TARGETS))
        if unknown or not self.target_modules:
            raise ConfigError(f"model.lora_targets: {unknown or 'empty'}, valid names are {format_choices(TARGETS)}")
        if self.rank < 1:
            raise ConfigError(f"model.lora_rank: {self.rank}, expected at least 1")


@dataclass(eq=False)
class Lora:
    """The trainable weights of one adapter."""

    rank: int
    alpha: float
    sizes: Mapping[str, tuple[int, int]]
    """(out, in) of every adapted linear, by name; the order of the flat vector."""
    flat_P: Tensor
    rslora: bool = False
    """Whether the scale is alpha / sqrt(rank) (Kalajdzievski 2023), as imported adapters may require."""
    targets: tuple[str, ...] = ()
    """PEFT's ``target_modules``: the adapted linears, by the last part of their names where that is unambiguous."""
    layers: tuple[int, ...] = ()
    """PEFT's ``layers_to_transform``: indices of the adapted layers; empty for all."""

    def __post_init__(self) -> None:
        self.targets = self.targets or _leaf_names(self.sizes)

    @property
    def scale(self) -> float:
        """Factor of ``B A``."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def matrices(self) -> dict[str, tuple[Tensor, Tensor]]:
        """A [R, I] and B [O, R] of every adapted linear: views that carry gradients back to ``flat_P``."""
        counts = [self.rank * features for out, into in self.sizes.values() for features in (into, out)]
        pieces = iter(torch.split(self.flat_P, counts))
        return {
            name: (next(pieces).view(self.rank, into), next(pieces).view(out, self.rank))
            for name, (out, into) in self.sizes.items()
        }


def create(shape: DecoderShape, config: LoraConfig, seed: int, device: torch.device | str = "cpu") -> Lora:
    """A fresh adapter that changes nothing yet: A uniform as in PEFT, B zero. Trainable, float32."""
    check_layers(config.layers, shape.layers)
    linears = shape.linears()
    names = [name for name in _in_layers(linears, config.layers) if name.endswith(config.target_modules)]
    sizes = {name: linears[name] for name in names}
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for out, into in sizes.values():
        parts.append((torch.rand(config.rank * into, generator=generator) * 2 - 1) / math.sqrt(into))
        parts.append(torch.zeros(out * config.rank))
    flat_P = torch.cat(parts).to(device).requires_grad_(True)
    return Lora(config.rank, config.alpha, sizes, flat_P, layers=config.layers)


def check_layers(layers: Iterable[int], count: int) -> None:
    """Raise ``ConfigError`` for an index of a layer that a model of ``count`` layers does not have."""
    if unknown := [layer for layer in layers if not 0 <= layer < count]:
        raise ConfigError(f"model.lora_layers: {unknown[0]}; this model has layers 0 to {count - 1}")


def save(lora: Lora, folder: Path, base_model: str = "") -> None:
    """Write an adapter in PEFT's format; the bytes depend on the weights and ``base_model`` alone."""
    tensors = name_tensors({f"{PREFIX}{name}": pair for name, pair in lora.matrices().items()})
    write(folder, tensors, make_config(lora.rank, lora.alpha, lora.targets, base_model, lora.rslora, lora.layers))


def make_config(
    rank: int,
    alpha: float,
    targets: Iterable[str],
    base_model: str = "",
    rslora: bool = False,
    layers: Sequence[int] = (),
) -> dict[str, Any]:
    """PEFT's configuration of plain LoRA, without the keys that PEFT's class fills with its defaults.

    Not made by ``peft.LoraConfig``, whose import takes 3 s and 170 MB in every trainer; that it equals what that class
    makes, and ``write``'s files those of ``save_pretrained``, is tested.
    """
    return ({"layers_to_transform": sorted(layers)} if layers else {}) | {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(targets),
        "task_type": "CAUSAL_LM",
        "use_rslora": rslora,
    }


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | bytes) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` in PEFT's format: the only place that does.

    Equal arguments give equal bytes in every process: PEFT itself writes its sets of names in their random order.
    A configuration in bytes, which is another adapter's file, is written as it is.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
    save_file(stored, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    if not isinstance(config, bytes):
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        config = msgspec.json.format(msgspec.json.encode(plain, order="sorted"), indent=2)
    (folder / CONFIG_FILE).write_bytes(config)


def load(folder: Path, shape: DecoderShape, max_rank: int | None = None, device: torch.device | str = "cpu") -> Lora:
    """Load a PEFT LoRA adapter for a base of ``shape``, trainable and float32.

    Names, types and shapes are checked in the file's header, before any weight is read.

    Raises:
        ModelError: not a LoRA adapter, weights that are not safetensors, damaged, of another base, of another type
            than floating point or with values that are not finite; a configuration that disagrees with the weights,
            a rank above ``max_rank``, or a LoRA variant the decoder does not compute.
    """
    folder = Path(folder)
    config = read_config(folder, max_rank)
    rank, alpha = config["r"], float(config["lora_alpha"])
    with _open_weights(folder) as file:
        sizes = _find_linears(folder, file.keys(), shape)
        _check_targets(folder / CONFIG_FILE, config, sizes, shape)
        parts = []
        for name, (out, into) in sizes.items():
            parts.append(_read_tensor(folder, file, f"{PREFIX}{name}.lora_A.weight", (rank, into)))
            parts.append(_read_tensor(folder, file, f"{PREFIX}{name}.lora_B.weight", (out, rank)))
    flat_P = torch.cat(parts).to(device).requires_grad_(True)
    leaves, layers = _leaf_names(sizes), read_layers(config)
    whole = len(sizes) == sum(name.endswith(leaves) for name in _in_layers(shape.linears(), layers))
    targets = leaves if whole else tuple(sizes)
    return Lora(rank, alpha, sizes, flat_P, config.get("use_rslora", False), targets, layers if whole else ())


def read_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers that an adapter's configuration names, ascending; empty for all."""
    layers = config.get("layers_to_transform")
    return tuple(sorted(layers)) if isinstance(layers, list) else () if layers is None else (layers,)


def _in_layers(linears: Iterable[str], layers: Sequence[int]) -> list[str]:
    # ``layers.3.self_attn.q_proj``
    return [name for name in linears if not layers or int(name.split(".")[1]) in layers]


def check(folder: Path, shape: ModelShape, max_rank: int | None = None) -> None:
    """Check a PEFT LoRA adapter for a base of ``shape`` that other libraries load; raises as ``load``.

    Where only transformers knows the model's linears, names and sizes are left to the library that loads the adapter.
    """
    if isinstance(shape, DecoderShape):
        load(folder, shape, max_rank)
    else:
        read_matrices(folder, max_rank)


def read_matrices(folder: Path, max_rank: int | None = None) -> Matrices:
    """Read the matrices of an adapter in PEFT's format, float32, whatever library wrote it; raises as ``load``."""
    folder = Path(folder)
    rank, matrices = int(read_config(folder, max_rank)["r"]), {}
    with _open_weights(folder) as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            match, size = LORA_TENSOR.fullmatch(name), tuple(file.get_slice(name).get_shape())
            if match is None or len(size) != 2:
                raise ModelError(f"{folder}: tensor {name!r} is no LoRA weight, expected names ending in lora_A.weight")
            expected = (rank, size[1]) if match["letter"] == "A" else (size[0], rank)
            matrices[match["linear"], match["letter"]] = _read_tensor(folder, file, name, expected).view(expected)
    for linear, letter in matrices:
        if (linear, other := "AB".replace(letter, "")) not in matrices:
            raise ModelError(f"{folder}: tensor '{linear}.lora_{other}.weight' is missing")
    return {linear: (matrices[linear, "A"], matrices[linear, "B"]) for linear in sorted({name for name, _ in matrices})}


def name_tensors(matrices: Matrices) -> dict[str, Tensor]:
    """The matrices by PEFT's names of their tensors."""
    return {
        f"{linear}.lora_{letter}.weight": matrix
        for linear, pair in matrices.items()
        for letter, matrix in zip("AB", pair, strict=True)
    }


def write_zero_adapter(base: Path, folder: Path) -> None:
    """Write an adapter of rank 1 that adds nothing to a base model, on the input linears of its attention."""
    matrices: dict[str, tuple[Tensor, Tensor]] = {}
    for path in sorted(Path(base).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                if name.endswith(ATTENTION_INPUTS) and len(size := file.get_slice(name).get_shape()) == 2:
                    linear = f"base_model.model.{name.removesuffix('.weight')}"
                    matrices[linear] = torch.zeros(1, size[1]), torch.zeros(size[0], 1)
    if not matrices:
        raise ModelError(
            f"{base}: no weight named like {format_choices(ATTENTION_INPUTS)}; expected a language model's"
        )
    targets = {name.rpartition(".")[2] for name in matrices}
    write(folder, name_tensors(matrices), make_config(1, 1.0, targets))


def decode_config(folder: Path) -> dict[str, Any]:
    """The configuration of an adapter in PEFT's format, of any kind; raises ``ModelError`` where there is none."""
    try:
        return msgspec.json.decode((Path(folder) / CONFIG_FILE).read_bytes(), type=dict[str, Any])
    except (OSError, *DECODE_ERRORS) as error:
        raise ModelError(f"{folder}: not an adapter, no readable {CONFIG_FILE} ({error})") from error


def read_config(folder: Path, max_rank: int | None = None) -> dict[str, Any]:
    """Read the configuration of a LoRA adapter in PEFT's format.

    Raises:
        ModelError: unreadable, of something else than LoRA as ``load`` supports it, or of a rank above ``max_rank``.
    """
    path, config = folder / CONFIG_FILE, decode_config(folder)
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path}: peft_type is {config.get('peft_type')!r}, expected 'LORA'")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ModelError(f"{path}: 'r' is {rank!r}, expected a whole number of at least 1")
    if type(alpha) not in (int, float) or not -MAX_ALPHA <= alpha <= MAX_ALPHA:
        raise ModelError(f"{path}: 'lora_alpha' is {alpha!r}, expected a number up to {MAX_ALPHA:g}")
    if not isinstance(config.get("use_rslora", False), bool):
        raise ModelError(f"{path}: use_rslora is {config['use_rslora']!r}, expected true or false")
    for key, expected in REQUIRED_DEFAULTS.items():
        if config.get(key, expected) not in (expected, None, [], {}):
            raise ModelError(f"{path}: {key} is {config[key]!r}, supported is {expected!r}")
    # Other methods subtract from the base's own weights, so that the same A and B mean another model.
    if config.get("init_lora_weights", True) not in (True, False, None, "gaussian", "eva"):
        initial = config["init_lora_weights"]
        raise ModelError(f"{path}: init_lora_weights is {initial!r}, which goes with a changed base; supported is true")
    if max_rank is not None and rank > max_rank:
        raise ModelError(f"{folder}: the adapter's rank is {rank}, at most {max_rank} is allowed")
    return config


@contextlib.contextmanager
def _open_weights(folder: Path) -> Iterator[Any]:
    """Open the weights' file; every failure to read it is a ``ModelError``."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        names = format_choices(each.name for each in folder.iterdir())
        raise ModelError(f"{folder}: no {WEIGHTS_FILE}, found {names}; adapters in other formats are not loaded")
    magic = b""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        with safe_open(path, framework="pt") as weights:
            yield weights
    except (OSError, SafetensorError) as error:
        pickled = "; it looks like a pickle, which is never loaded" if magic.startswith(PICKLE_MAGIC) else ""
        raise ModelError(f"{path}: not a readable safetensors file ({error}){pickled}") from error


def _find_linears(folder: Path, tensors: Sequence[str], shape: DecoderShape) -> dict[str, tuple[int, int]]:
    """Sizes of the linears that tensors of these names belong to, in the model's order."""
    known = shape.linears()
    names = set()
    for tensor in tensors:
        match = TENSOR.fullmatch(tensor)
        if match is None:
            like = f"{PREFIX}layers.0.self_attn.q_proj.lora_A.weight"
            raise ModelError(f"{folder}: tensor {tensor!r} is no LoRA weight, expected names like {like!r}")
        if match["linear"] not in known:
            raise ModelError(f"{folder}: {match['linear']!r} is adapted, which is no linear of this base model")
        names.add(match["linear"])
    if not names:
        raise ModelError(f"{folder}: {WEIGHTS_FILE} holds no tensors")
    return {name: size for name, size in known.items() if name in names}


def _check_targets(path: Path, config: Mapping[str, Any], sizes: Mapping[str, Any], shape: DecoderShape) -> None:
    """Reject a configuration that names other linears than there are weights for, as a shallower base's does.

    A pattern in place of names, which only PEFT itself can read, is not checked.
    """
    targets = config.get("target_modules")
    if targets is None or config.get("exclude_modules") or (isinstance(targets, str) and targets != "all-linear"):
        return
    targets = list(TARGETS) if targets == "all-linear" else targets
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ModelError(f"{path}: target_modules is {targets!r}, expected a list of names")
    known = _in_layers(shape.linears(), read_layers(config))
    named = {target: {name for name in known if f".{name}".endswith(f".{target}")} for target in targets}
    if unknown := [target for target, names in named.items() if not names]:
        raise ModelError(f"{path}: target_modules names {unknown[0]!r}, expected {format_choices(TARGETS)}")
    linears = set().union(*named.values())
    if missing := [name for name in known if name in linears and name not in sizes]:
        raise ModelError(f"{path}: target_modules covers {missing[0]!r}, for which {WEIGHTS_FILE} holds no tensors")
    if extra := [name for name in sizes if name not in linears]:
        raise ModelError(f"{path}: target_modules is {targets}, but {WEIGHTS_FILE} adapts {extra[0]!r} too")


def _leaf_names(sizes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in sizes}))


def _read_tensor(folder: Path, file: Any, name: str, size: tuple[int, ...]) -> Tensor:
    if name not in file.keys():  # noqa: SIM118 (not a mapping)
        raise ModelError(f"{folder}: tensor {name!r} is missing")
    stored = file.get_slice(name)
    if stored.get_dtype() not in DTYPES:
        raise ModelError(
            f"{folder}: tensor {name!r} is of type {stored.get_dtype()}, expected {format_choices(DTYPES)}"
        )
    if tuple(stored.get_shape()) != size:
        problem = f"has shape {tuple(stored.get_shape())}, the base model and the adapter's rank need {size}"
        raise ModelError(f"{folder}: tensor {name!r} {problem}")
    tensor: Tensor = file.get_tensor(name).float()
    if not tensor.isfinite().all():
        raise ModelError(f"{folder}: tensor {name!r} holds NaN or infinite values")
    return tensor.flatten()
