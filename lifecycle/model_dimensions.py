"""Dimensions of base models: known ones by hub id, others from their ``config.json``; without torch and downloads."""

import json
from pathlib import Path

import msgspec

from schemas.config import LeagueConfig

FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2


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

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] = ()) -> int:
        """Parameters of a LoRA adapter: ``rank`` rows on either side of each linear, or of each of the ``targets``."""
        linears = {name: size for name, size in self._linears().items() if not targets or name in targets}
        return self.layers * rank * sum(fan_in + fan_out for fan_in, fan_out in linears.values())

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


KNOWN_MODELS = {
    "Qwen/Qwen3-0.6B": ModelDimensions(1024, 28, 16, 8, 3072, 151_936, max_positions=40_960),
    "Qwen/Qwen3-1.7B": ModelDimensions(2048, 28, 16, 8, 6144, 151_936, max_positions=40_960),
    "Qwen/Qwen3-4B": ModelDimensions(2560, 36, 32, 8, 9728, 151_936, max_positions=40_960),
    "Qwen/Qwen3-8B": ModelDimensions(4096, 36, 32, 8, 12_288, 151_936, tied=False, max_positions=40_960),
    "Qwen/Qwen3-14B": ModelDimensions(5120, 40, 40, 8, 17_408, 151_936, tied=False, max_positions=40_960),
    "meta-llama/Llama-3.2-1B-Instruct": ModelDimensions(
        2048, 16, 32, 8, 8192, 128_256, head_dim=64, max_positions=131_072
    ),
    "meta-llama/Llama-3.2-3B-Instruct": ModelDimensions(3072, 28, 24, 8, 8192, 128_256, max_positions=131_072),
    "meta-llama/Llama-3.1-8B-Instruct": ModelDimensions(
        4096, 32, 32, 8, 14_336, 128_256, tied=False, max_positions=131_072
    ),
}
"""Dimensions from the ``config.json`` of each model, by hub id, so that nothing has to be downloaded."""


def known_model(name: str) -> str | None:
    """The hub id of a known model of that size: ``qwen3-1.7b``, ``Qwen/Qwen3-1.7B-Base``; None where there is none."""

    def short(text: str) -> str:
        return text.rpartition("/")[2].lower().removesuffix("-base").removesuffix("-instruct")

    return next((known for known in KNOWN_MODELS if short(known) == short(name)), None)


def model_dimensions(config: LeagueConfig) -> ModelDimensions | None:
    """Dimensions of a league's base model, or None where they are not known without a download."""
    base = config.model.base
    if base == "made":
        # Defaults come from BaseShape, whose module loads torch, which takes a second.
        from models import BaseShape

        shape = msgspec.structs.asdict(BaseShape(**config.model.shape))
        del shape["init_std"]
        # About the size of Diplomacy's vocabulary; most made models have a smaller one.
        return ModelDimensions(vocabulary=1_000, **shape)
    described = Path(base) / "config.json"
    if described.is_file():
        return _read_dimensions(described)
    known = known_model(base)
    return None if known is None else KNOWN_MODELS[known]


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
