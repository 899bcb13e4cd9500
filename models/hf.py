"""Weights in Hugging Face's layout: reading a model directory, and the names of its tensors both ways.

The decoder keeps q, k, v in one matrix and gate, up in another (rows one after the other); files keep them apart.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.model_config import DecoderShape
from schemas.errors import ConfigError, ModelError

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The decoder's fused linears, each with the files' linears that it stacks."""

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
    """Read every tensor of a model directory's safetensors files, on the CPU, as stored.

    Raises:
        ModelError: no safetensors (pickled weights are never loaded), a missing shard, or a damaged file.
    """
    return {name: file.get_tensor(name) for file, name in _open_tensors(Path(folder))}


def read_weight_sizes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The sizes of a model directory's tensors by name, from its files' headers.

    Raises:
        ModelError: no safetensors, a missing shard, or a damaged file.
    """
    return {name: tuple(file.get_slice(name).get_shape()) for file, name in _open_tensors(Path(folder))}


def _open_tensors(folder: Path) -> Iterator[tuple[Any, str]]:
    """The name of every tensor, with the open file that holds it."""
    index, shards = folder / "model.safetensors.index.json", ["model.safetensors"]
    if index.exists():
        try:
            names = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])["weight_map"].values()
        except (msgspec.DecodeError, KeyError, AttributeError) as error:
            raise ModelError(f"{index}: not an index of safetensors shards ({error!r})") from error
        shards = [Path(name).name for name in sorted(set(names))]
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
    """Rename and fuse a Hugging Face state dict into the decoder's parameters.

    Raises:
        ModelError: a tensor is missing or has another shape than the configuration says.
    """

    def get_tensor(name: str, *size: int) -> Tensor:
        if name not in tensors:
            raise ModelError(f"tensor {name!r} is missing from the weights")
        if tuple(tensors[name].shape) != size:
            raise ModelError(f"tensor {name!r} has shape {tuple(tensors[name].shape)}, the configuration says {size}")
        return tensors[name]

    d, sizes = shape.hidden_size, shape.linears()
    biased = {"qkv": shape.qkv_bias, "o": shape.o_bias, "gate_up": shape.mlp_bias, "down": shape.mlp_bias}
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
            if biased[name]:
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
