"""Weights in Hugging Face's layout, both ways; models of transformers, with adapters that PEFT itself makes and reads.

The decoder keeps q, k, v in one matrix and gate, up in another (rows one after the other); files keep them apart.
Transformers and PEFT are imported with the first call.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models import MODEL_FILES
from models.adapters import CONFIG_FILE, WEIGHTS_FILE, decode_config
from models.model_config import FUSED, DecoderShape
from schemas.codec import DECODE_ERRORS
from schemas.errors import ConfigError, ModelError
from schemas.files import atomic_folder

NORMS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def part_rows(shape: DecoderShape, name: str) -> list[int]:
    """Rows of each of the files' linears in the fused linear ``name``, a key of ``FUSED``."""
    sizes = shape.linears()
    return [sizes[f"layers.0.{part}"][0] for part in FUSED[name]]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every tensor of a model directory's safetensors files, on the CPU, as stored."""
    return {name: file.get_tensor(name) for file, name in _open_tensors(Path(folder))}


def read_weight_sizes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The sizes of a model directory's tensors by name, from its files' headers."""
    return {name: tuple(file.get_slice(name).get_shape()) for file, name in _open_tensors(Path(folder))}


def _open_tensors(folder: Path) -> Iterator[tuple[Any, str]]:
    """The name of every tensor, with the open file that holds it.

    Raises:
        ModelError: no safetensors (pickled weights are never loaded), a missing shard, or a damaged file.
    """
    index, shards = folder / "model.safetensors.index.json", ["model.safetensors"]
    if index.exists():
        try:
            names = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])["weight_map"].values()
            shards = [Path(name).name for name in sorted(set(names))]
        except (*DECODE_ERRORS, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index}: not an index of safetensors shards ({error!r})") from error
    elif not (folder / shards[0]).exists():
        raise ModelError(f"{folder}: no model.safetensors; weights in other formats are not loaded")
    for path in (folder / shard for shard in shards):
        try:
            with safe_open(path, framework="pt") as file:
                yield from ((file, name) for name in file.keys())  # noqa: SIM118 (not a mapping)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def load_transformers_model(folder: Path, dtype: torch.dtype | str, remote_code: bool = False, **arguments: Any) -> Any:
    """Load a causal language model of any family with transformers, which gets the further arguments.

    The type ``"auto"`` of the weights is the stored one. ``remote_code`` is whether Python code that the model brings
    may run.

    Raises:
        ConfigError: transformers is not installed.
        ModelError: transformers cannot load it; pickled weights are never loaded.
    """
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise ConfigError(
            f"{folder}: only transformers computes this model ({error}); expected it installed"
        ) from error
    disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            trust_remote_code=remote_code,
            use_safetensors=True,
            local_files_only=True,
            **arguments,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:500]
        if "trust_remote_code" in problem:
            problem = "it brings Python code; expected trainer.backend.settings.remote_code = true to run it"
        raise ModelError(f"{folder}: transformers cannot load it: {problem}") from error


def from_hf(shape: DecoderShape, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename and fuse a Hugging Face state dict into the decoder's parameters; raises for one of another shape."""

    def get_tensor(name: str, *size: int) -> Tensor:
        if name not in tensors:
            raise ModelError(f"tensor {name!r} is missing from the weights")
        if tuple(tensors[name].shape) != size:
            raise ModelError(f"tensor {name!r} has shape {tuple(tensors[name].shape)}, the configuration says {size}")
        return tensors[name]

    d, sizes = shape.hidden_size, shape.linears()
    state = {
        "embed": get_tensor("model.embed_tokens.weight", shape.vocab_size, d),
        "norm": get_tensor("model.norm.weight", d),
    }
    if not shape.tied:
        state["head"] = get_tensor("lm_head.weight", shape.vocab_size, d)
    for index in range(shape.layers):
        ours, theirs = f"blocks.{index}.", f"model.layers.{index}."
        for name, parts in FUSED.items():
            outs = {theirs + part: sizes[f"layers.{index}.{part}"] for part in parts}
            state[ours + name] = torch.cat([get_tensor(f"{part}.weight", *size) for part, size in outs.items()])
            if name == "qkv" and shape.qkv_bias:
                biases = [get_tensor(f"{part}.bias", out) for part, (out, _) in outs.items()]
                state[f"{ours}{name}_bias"] = torch.cat(biases)
        for name, file_name in NORMS.items():
            per_head = file_name.startswith("self_attn")
            if shape.qk_norm or not per_head:
                state[ours + name] = get_tensor(f"{theirs}{file_name}.weight", shape.head_dim if per_head else d)
    return state


def to_hf(shape: DecoderShape, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``from_hf``: contiguous copies under the names that ``save_pretrained`` writes."""
    out = {"model.embed_tokens.weight": state["embed"], "model.norm.weight": state["norm"]}
    if not shape.tied:
        out["lm_head.weight"] = state["head"]
    for index in range(shape.layers):
        ours, theirs = f"blocks.{index}.", f"model.layers.{index}."
        for name, parts in FUSED.items():
            for suffix, file_suffix in (("", ".weight"), ("_bias", ".bias")):
                if ours + name + suffix in state:
                    pieces = torch.split(state[ours + name + suffix], part_rows(shape, name))
                    out |= {theirs + part + file_suffix: piece for part, piece in zip(parts, pieces, strict=True)}
        out |= {theirs + file + ".weight": state[ours + name] for name, file in NORMS.items() if ours + name in state}
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def merge_adapter(base: Path, adapter: Path, out: Path, remote_code: bool = False) -> Path:
    """Write a base model with an adapter's updates added to its weights, and everything else as in the base's folder.

    Base and adapter may be of any family and variant of LoRA that PEFT merges. Sums are computed in float32 and stored
    in the base's own type: with a bfloat16 base they are rounded, so that logits differ by about as much as bfloat16
    rounds anyway. The folder ``out`` appears whole or not at all, and is returned. ``remote_code`` is whether Python
    code that the base brings may run.

    Raises:
        ConfigError: transformers is not installed.
        ModelError: ``out`` exists already, or base and adapter do not fit each other.
    """
    out, adapter = Path(out), Path(adapter)
    if out.exists():
        raise ModelError(f"{out}: exists already; expected a new folder")
    model, config = load_transformers_model(base, "auto", remote_code), read_peft_config(adapter)
    # The base's folder or name where the adapter was trained, of which PEFT warns that it is another one here.
    config.base_model_name_or_path = None
    wrapped = make_peft_model(model, config)
    load_with_peft(wrapped, adapter)
    try:
        merged = wrapped.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError) as error:
        raise ModelError(f"{adapter}: PEFT cannot merge it: {error}") from error
    with atomic_folder(out) as draft:
        merged.save_pretrained(str(draft))
        for pattern in MODEL_FILES:
            for path in sorted(base.glob(pattern)) if pattern != "*.safetensors" else ():
                # The index names the base's own files of weights.
                if not path.name.endswith(".index.json"):
                    shutil.copy(path, draft / path.name)
    return out


def read_peft_config(folder: Path) -> Any:
    """The configuration of an adapter as an object of PEFT's; raises ``ModelError`` for one that PEFT does not know."""
    import peft

    decode_config(folder)
    try:
        return peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}: not an adapter, no readable {CONFIG_FILE} ({error})") from error


def make_peft_model(model: Any, config: Any, name: str = "default") -> Any:
    """A transformers model with an adapter ``name`` of PEFT's configuration ``config``, or with another one."""
    import peft

    with warnings.catch_warnings():
        # PEFT 0.21 asks transformers 5 in a way that it deprecates.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            if isinstance(model, peft.PeftModel):
                model.add_adapter(name, config)
                return model
            return peft.get_peft_model(model, config, adapter_name=name)
        except (TypeError, ValueError) as error:
            raise ModelError(f"not an adapter of this base model: {' '.join(str(error).split())[:500]}") from error


def name_peft_tensors(model: Any, name: str = "default") -> dict[str, Tensor]:
    """The tensors of an adapter of a ``peft.PeftModel``, by PEFT's names."""
    import peft

    # Otherwise PEFT looks for the base's configuration on the hub, to see whether its embedding has grown.
    tensors: dict[str, Tensor] = peft.get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return tensors


def load_with_peft(model: Any, folder: Path, name: str = "default") -> None:
    """Load a saved adapter into the adapter ``name`` of a ``peft.PeftModel``, which has the same configuration.

    Raises:
        ModelError: weights that are not safetensors, damaged, not finite, or for other linears than the model's.
    """
    import peft

    if not (folder / WEIGHTS_FILE).is_file():
        raise ModelError(f"{folder}: no {WEIGHTS_FILE}; adapters in other formats are not loaded")
    try:
        weights = peft.load_peft_weights(str(folder), device="cpu")
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{folder / WEIGHTS_FILE}: not a readable safetensors file ({error})") from error
    if odd := [key for key, tensor in sorted(weights.items()) if not tensor.isfinite().all()]:
        raise ModelError(f"{folder}: tensor {odd[0]!r} holds NaN or infinite values")
    try:
        result = peft.set_peft_model_state_dict(model, weights, adapter_name=name)
    except RuntimeError as error:
        raise ModelError(f"{folder}: an adapter of another base model: {' '.join(str(error).split())[:500]}") from error
    missing = sorted(name_peft_tensors(model, name).keys() - weights.keys())
    if missing or result.unexpected_keys:
        problem = f"without {missing[0]!r}" if missing else f"with {sorted(result.unexpected_keys)[0]!r}"
        raise ModelError(f"{folder}: an adapter {problem}; expected the linears of this model's adapters")
