"""Dimensions of base models, from their ``config.json``."""

import json
from pathlib import Path

import msgspec

from models import find_local_base
from schemas.config import LeagueConfig
from schemas.errors import ModelError

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

    def adapter_parameters(self, rank: int, targets: tuple[str, ...] = (), layers: int = 0) -> int:
        """Parameters of a LoRA adapter: ``rank`` rows on either side of each linear, or of each of the ``targets``.

        It adapts so many ``layers``, all for 0.
        """
        linears = {name: size for name, size in self._linears().items() if not targets or name in targets}
        return (layers or self.layers) * rank * sum(fan_in + fan_out for fan_in, fan_out in linears.values())

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


def model_dimensions(config: LeagueConfig) -> ModelDimensions | None:
    """Dimensions of a league's base model, or None if the model is not on this machine."""
    base = config.model.base
    if base == "made":
        # Defaults come from BaseShape, whose module loads torch, which takes a second.
        from models import BaseShape

        shape = msgspec.structs.asdict(BaseShape(**config.model.shape))
        del shape["init_std"]
        # About the size of Diplomacy's vocabulary; most made models have a smaller one.
        return ModelDimensions(vocabulary=1_000, **shape)
    described = Path(base).expanduser() / "config.json"
    if described.is_file():
        return _read_dimensions(described)
    try:
        folder = find_local_base(base)
    except ModelError:
        return None
    return None if folder is None else _read_dimensions(folder / "config.json")


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
