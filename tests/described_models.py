"""Folders that describe a model of Qwen3's sizes, without its weights: what estimates of memory read."""

import json
from pathlib import Path

_SIZES = {
    "Qwen3-0.6B": (1024, 28, 16, 3072, True),
    "Qwen3-1.7B": (2048, 28, 16, 6144, True),
    "Qwen3-4B": (2560, 36, 32, 9728, True),
    "Qwen3-8B": (4096, 36, 32, 12_288, False),
    "Qwen3-14B": (5120, 40, 40, 17_408, False),
}


def describe_model(folder: Path, name: str) -> str:
    """Write the ``config.json`` of a model below ``folder``; return the path of the model's folder."""
    hidden, layers, heads, mlp, is_tied = _SIZES[name]
    described = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": mlp,
        "vocab_size": 151_936,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    }
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "config.json").write_text(json.dumps(described))
    return str(folder / name)
