"""Small base models for a game: complete model directories in Hugging Face's format, from a seed, offline."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tokenizers
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from models.decoder import Decoder
from models.model_config import read_shape
from models.tokenizer import EOS, PAD, SPECIAL, UNK
from schemas.errors import ModelError


class BaseShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a made model: Qwen3 architecture, about 91,000 parameters with a vocabulary of 140."""

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    """Key/value heads; must divide ``heads``."""
    head_dim: int = 32
    mlp: int = 128
    """Inner width of the SwiGLU block."""
    max_positions: int = 2048
    """Longest prompt and completion together, in tokens."""
    tied: bool = True
    """Whether the output head is the embedding matrix."""
    init_std: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    """Standard deviation of the initial weights; None for sqrt(2 / (5 * hidden)): 0.079 for a width of 64, 0.02 for
    1,000 (Nguyen and Salazar, "Transformers without Tears", IWSLT 2019, "SmallInit"). Frozen layers with smaller
    weights tell positions apart too weakly for an adapter to build on."""

    @property
    def weight_std(self) -> float:
        """The configured or derived standard deviation."""
        return math.sqrt(2.0 / (5.0 * self.hidden)) if self.init_std is None else self.init_std


def make_base(folder: Path, vocabulary: Sequence[str], shape: BaseShape | None = None, seed: int = 0) -> Path:
    """Write a model directory that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load; returns the folder.

    Each piece of ``vocabulary`` becomes one token; plain text splits at blanks where no piece holds one. Equal
    arguments give equal files. The weights are random; ``models.behaviour_cloning`` trains them on a game.

    Raises:
        ModelError: the folder is not empty, or the vocabulary repeats a piece or uses a special token's name.
    """
    words = [*SPECIAL, *vocabulary]
    if repeated := sorted(word for word, times in Counter(words).items() if times > 1):
        raise ModelError(f"vocabulary: {repeated} occur more than once; expected distinct pieces besides {SPECIAL}")
    folder = _make_empty_folder(folder)
    tokens = {word: token for token, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(tokens, unk_token=UNK))
    tokenizer.add_special_tokens(list(SPECIAL))
    if not any(" " in word for word in words):
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
    return _write_base(folder, tokenizer, special, shape or BaseShape(), seed, len(words))


def make_text_base(
    folder: Path,
    texts: Sequence[str],
    marks: Sequence[str],
    end: str,
    shape: BaseShape | None = None,
    seed: int = 0,
    vocabulary: int = 768,
) -> Path:
    """Write a model directory like ``make_base``, with a byte-pair tokenizer that can encode any text.

    The tokenizer is trained on ``texts``, up to ``vocabulary`` tokens, the 256 bytes included. ``marks`` are the
    special tokens of the model family's conversation format; ``end`` is the one that ends a reply.
    """
    folder = _make_empty_folder(folder)
    tokens = [PAD, end, *(mark for mark in marks if mark != end)]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    special = {"pad_token": PAD, "eos_token": end, "additional_special_tokens": tokens[2:]}
    return _write_base(folder, tokenizer, special, shape or BaseShape(), seed, tokenizer.get_vocab_size())


def _make_empty_folder(folder: Path) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ModelError(f"{folder}: not empty; a new base model is written to a folder of its own")
    return folder


def _write_base(
    folder: Path, tokenizer: Any, special: Mapping[str, Any], shape: BaseShape, seed: int, vocab_size: int
) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(settings)))
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.tied,
        "initializer_range": shape.weight_std,
        "pad_token_id": SPECIAL.index(PAD),
        "eos_token_id": SPECIAL.index(EOS),
        "bos_token_id": None,
    }
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    write_weights(Decoder.random(read_shape(folder), seed, shape.weight_std), folder)
    return folder


def write_weights(decoder: Decoder, folder: Path) -> None:
    """Write a decoder's weights beside its configuration; the bytes depend on the weights alone."""
    save_file(decoder.to_hf_state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
