"""The shape of a supported decoder, read from a Hugging Face ``config.json``; families differ in a few switches."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from schemas.codec import DECODE_ERRORS
from schemas.errors import ModelError, format_choices
from schemas.numbers import NonNegativeFloat, PositiveFloat, PositiveInt

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "llama3")

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The decoder's fused linears, each with the files' linears that it stacks."""


class RopeScaling(msgspec.Struct, frozen=True):
    """Scaling of rotary frequencies for long contexts; names as in Hugging Face's ``rope_parameters``."""

    rope_type: str = "default"
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: PositiveInt = 8192

    def scale(self, frequency: float) -> float:
        """Scale a frequency; Llama 3.1 stretches slow waves, keeps fast ones, and interpolates between."""
        if self.rope_type == "default":
            return frequency
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * frequency / self.factor + keep * frequency


_Size = Annotated[int, Meta(ge=1, le=10**8)]
"""Far more than any model has: a file that states more is damaged, or made to fill the memory."""


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes of any causal language model; a ``DecoderShape`` where the native decoder computes it."""

    model_type: str
    """The family, in transformers' name."""
    vocab_size: _Size
    hidden_size: _Size
    max_positions: _Size = 32_768
    """Longest sequence, in tokens."""


class DecoderShape(ModelShape, frozen=True, kw_only=True):
    """Everything about a decoder except its weights."""

    intermediate_size: _Size
    layers: Annotated[int, Meta(ge=1, le=10_000)]
    heads: _Size
    kv_heads: _Size
    """Key/value heads; each serves ``heads // kv_heads`` query heads."""
    head_dim: Annotated[int, Meta(ge=1, le=2**16)]
    norm_eps: NonNegativeFloat = 1e-6
    rope_theta: PositiveFloat = 10_000.0
    rope: RopeScaling = RopeScaling()
    tied: bool = False
    """Whether the output head is the embedding matrix."""
    qk_norm: bool = False
    """Whether RMSNorm is applied to each query and key head (Qwen3)."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases (Qwen2)."""

    @property
    def q_width(self) -> int:
        """Rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(out, in) features of every linear that LoRA can target, by name (``layers.0.self_attn.q_proj``)."""
        d, f = self.hidden_size, self.intermediate_size
        one_layer = {
            "self_attn.q_proj": (self.q_width, d),
            "self_attn.k_proj": (self.kv_width, d),
            "self_attn.v_proj": (self.kv_width, d),
            "self_attn.o_proj": (d, self.q_width),
            "mlp.gate_proj": (f, d),
            "mlp.up_proj": (f, d),
            "mlp.down_proj": (d, f),
        }
        return {f"layers.{i}.{name}": size for i in range(self.layers) for name, size in one_layer.items()}

    def inverse_frequencies(self) -> list[float]:
        """Rotary frequencies in radians per position, one per pair of head dimensions (RoFormer, eq. 15)."""
        half = self.head_dim // 2
        return [self.rope.scale(self.rope_theta ** (-i / half)) for i in range(half)]


def read_shape(folder: Path) -> DecoderShape:
    """Read a model directory's ``config.json``; raises as ``shape_from_config``, or where there is none."""
    with _open_config(folder) as config:
        return shape_from_config(config)


def read_model_shape(folder: Path) -> ModelShape:
    """Read the sizes of any causal language model: a ``DecoderShape`` where the native decoder computes it.

    Raises:
        ModelError: no readable config, or one without the sizes of a language model.
    """
    try:
        return read_shape(folder)
    except ModelError:
        with _open_config(folder) as config:
            # Models for text and images keep the language model's sizes in a table of their own.
            text = config.get("text_config") or config
            sizes = {name: text[name] for name in ("vocab_size", "hidden_size")}
            fields = {"model_type": config["model_type"], **sizes, "max_positions": _max_positions(text)}
            return msgspec.convert(fields, ModelShape)


def _max_positions(config: dict[str, Any]) -> int:
    """Positions that all libraries compute alike.

    With longrope (Phi-3 and Phi-4) these are the original ones: beyond them, transformers scales long sequences only,
    vLLM all of them.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    most: int = config.get("max_position_embeddings", 32_768)
    if rope.get("rope_type", rope.get("type")) not in ("longrope", "su"):
        return most
    original: int = rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    return min(most, original)


def unsupported_reason(folder: Path) -> str | None:
    """The reason why the native decoder does not compute a model; None if it does."""
    try:
        read_shape(folder)
    except ModelError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _open_config(folder: Path) -> Iterator[dict[str, Any]]:
    """The content of ``config.json``, for a block whose errors name the file."""
    path = Path(folder) / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *DECODE_ERRORS) as error:
        raise ModelError(f"{path}: no readable model configuration ({error})") from error
    try:
        yield config
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: configuration is incomplete or ill-typed: {error!r}") from error


def shape_from_config(config: dict[str, Any]) -> DecoderShape:
    """Translate the content of a ``config.json``, of transformers 4 or 5, into a ``DecoderShape``.

    Raises:
        ModelError: an architecture, activation, rope or attention kind this decoder does not compute.
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ModelError(f"model_type is {kind!r}, supported are {format_choices(MODEL_TYPES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act is {config['hidden_act']!r}, supported is 'silu'")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelError(f"{key} is {config[key]!r}, supported is False")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise ModelError("sliding-window attention is not supported, only full attention")
    # Transformers 5 writes ``rope_parameters``, 4 wrote ``rope_theta`` and ``rope_scaling``.
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    if rope["rope_type"] not in ROPE_TYPES:
        raise ModelError(f"rope type is {rope['rope_type']!r}, supported are {format_choices(ROPE_TYPES)}")
    theta = float(rope.pop("rope_theta", config.get("rope_theta", 10_000.0)))
    heads = config["num_attention_heads"]
    fields = {
        "model_type": kind,
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope": rope,
        "max_positions": config.get("max_position_embeddings", 32_768),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qk_norm": kind == "qwen3",
        "qkv_bias": kind == "qwen2",
    }
    shape = msgspec.convert(fields, DecoderShape)
    # Numbers that are fine one by one may divide by zero, or overflow, together.
    shape.inverse_frequencies()
    return shape
