"""A small decoder for the Qwen3, Qwen2 and Llama shapes: the same numbers as transformers, sooner.

``Decoder`` owns the base weights; ``Decoder.weights(lora)`` applies an adapter, once per call, for the pure forward
functions of ``models.forward``. LoRA is merged into small float32 matrices (``W + s B A``) and stays separate for
large or narrow ones; both are exact.

Shape suffixes: T token of a packed batch, B sequence, L position in it, W wanted position of a packed batch, D model
width, O/I output and input of a linear, R rank, V vocabulary, N allowed token of a packed batch.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.adapters import Lora, Matrices
from models.forward import Layer, Linear, Weights, recompute_in_backward
from models.hf import from_hf, part_rows, read_weights, to_hf
from models.model_config import FUSED, DecoderShape, read_shape
from schemas.errors import ModelError

MERGE_LIMIT = 65_536
"""Largest matrix, in elements, into which LoRA is merged by default.

Training on one CPU core, merging was 20 % faster at width 64, even at 128, 10 % slower at 256, 30 % slower at 512.
"""
DENSE_LIMIT = 4096
"""Largest vocabulary for which all logits are computed even where few tokens are allowed."""
PIECE_ELEMENTS = 1 << 24
"""Elements of the output head's widest intermediate held at once by default: 64 MiB of float32."""


class Block(nn.Module):
    """The base parameters of one layer."""

    def __init__(self, shape: DecoderShape, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        d, f, k = shape.hidden_size, shape.intermediate_size, shape.head_dim
        sizes = {
            "qkv": (shape.q_width + 2 * shape.kv_width, d),
            "o": (d, shape.q_width),
            "gate_up": (2 * f, d),
            "down": (d, f),
        }
        for name, (out, into) in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(out, into, device=device, dtype=dtype)))
        bias_Q = torch.zeros(sizes["qkv"][0], device=device, dtype=dtype)
        self.register_parameter("qkv_bias", nn.Parameter(bias_Q) if shape.qkv_bias else None)
        for name, width in (("input_norm", d), ("post_norm", d), ("q_norm", k), ("k_norm", k)):
            used = shape.qk_norm or name in ("input_norm", "post_norm")
            ones = nn.Parameter(torch.ones(width, device=device, dtype=dtype)) if used else None
            self.register_parameter(name, ones)

    def layer(self, prefix: str, lora: Lora | None, pairs: Matrices, merge: bool | None) -> Layer:
        """The block's weights with an adapter applied; ``prefix`` is the block's name: ``layers.0.``."""
        own = dict(self.named_parameters())
        scale = 1.0 if lora is None else lora.scale

        def linear(name: str) -> Linear:
            parts = [pairs.get(prefix + part) for part in FUSED[name]]
            base, rows = Linear(own[name], own.get(f"{name}_bias")), part_rows(self.shape, name)
            return apply_lora(base, parts, rows, scale, merge)

        return Layer(
            input_norm_D=own["input_norm"],
            qkv=linear("qkv"),
            q_norm_K=own.get("q_norm"),
            k_norm_K=own.get("k_norm"),
            o=linear("o"),
            post_norm_D=own["post_norm"],
            gate_up=linear("gate_up"),
            down=linear("down"),
        )


def apply_lora(
    base: Linear,
    parts: Sequence[tuple[Tensor, Tensor] | None],
    rows: Sequence[int],
    scale: float,
    merge: bool | None = None,
) -> Linear:
    """Apply LoRA to a fused linear.

    ``parts`` are A [R, I] and B [O, R] of each stacked part, None where a part has no adapter; ``rows`` the outputs of
    each. ``merge`` forms ``W + scale B A``, or keeps A and B beside W; None chooses by size and type.
    """
    if all(part is None for part in parts):
        return base
    weight = base.weight_OI
    if merge is None:
        merge = weight.dtype == torch.float32 and weight.numel() <= MERGE_LIMIT
    if merge:
        empty = [weight.new_zeros(count, weight.shape[1]) for count in rows]
        deltas = [e if p is None else p[1] @ p[0] for e, p in zip(empty, parts, strict=True)]
        return Linear(torch.add(weight, torch.cat(deltas).to(weight.dtype), alpha=scale), base.bias_O)
    a_RI = torch.cat([part[0] for part in parts if part is not None])
    blocks = [weight.new_zeros(n, 0) if p is None else p[1] for n, p in zip(rows, parts, strict=True)]
    b_OR: Tensor = torch.block_diag(*blocks) * scale  # type: ignore[no-untyped-call]
    return Linear(weight, base.bias_O, a_RI.to(weight.dtype), b_OR.to(weight.dtype))


class Decoder(nn.Module):
    """Base weights of a supported causal language model.

    Parameters are frozen after ``load``; ``requires_grad_(True)`` turns full-parameter training on.
    """

    def __init__(
        self, shape: DecoderShape, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.shape = shape
        size = (shape.vocab_size, shape.hidden_size)
        self.embed = nn.Parameter(torch.empty(*size, device=device, dtype=dtype))
        self.blocks = nn.ModuleList(Block(shape, device, dtype) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size, device=device, dtype=dtype))
        self.head = None if shape.tied else nn.Parameter(torch.empty(*size, device=device, dtype=dtype))
        frequencies_P = torch.tensor(shape.inverse_frequencies(), dtype=torch.float32, device=device)
        self.frequencies_P: Tensor
        self.register_buffer("frequencies_P", frequencies_P, persistent=False)

    @classmethod
    def random(cls, shape: DecoderShape, seed: int, std: float = 0.02) -> "Decoder":
        """A trainable float32 model on the CPU: matrices normal with ``std``, norms 1, biases 0."""
        decoder = cls(shape)
        generator = torch.Generator().manual_seed(seed)
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=std, generator=generator)
        return decoder

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> "Decoder":
        """Load a Hugging Face model directory (``config.json`` and safetensors), frozen.

        Raises:
            ModelError: an unsupported architecture, or weights that are missing, damaged or of another shape.
        """
        shape = read_shape(folder)
        try:
            state = from_hf(shape, read_weights(folder))
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from error
        decoder = cls(shape, device, dtype)
        decoder.load_state_dict(state)
        return decoder.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embed.device

    def to_hf_state_dict(self) -> dict[str, Tensor]:
        """Copies of the weights under Hugging Face's names."""
        return to_hf(self.shape, dict(self.named_parameters()))

    def weights(self, lora: Lora | None = None, merge: bool | None = None) -> Weights:
        """Weights of a forward pass, with an adapter applied; None is the base model alone.

        Gradients flow to the adapter's matrices, and to the base where it requires them. ``merge`` is that of
        ``apply_lora``; sampling may prefer True at any size.
        """
        pairs: Matrices = {} if lora is None else lora.matrices()
        layers = []
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            layers.append(block.layer(f"layers.{index}.", lora, pairs, merge))
        head = self.embed if self.head is None else self.head
        return Weights(self.shape, self.embed, tuple(layers), self.norm, head, self.frequencies_P)

    def logits(self, hidden_WD: Tensor) -> Tensor:
        """Logits [W, V] of final hidden states."""
        return F.linear(hidden_WD, self.embed if self.head is None else self.head)


def allowed_logits(
    head_VD: Tensor, hidden_WD: Tensor, row_N: Tensor, token_N: Tensor, elements: int = PIECE_ELEMENTS
) -> Tensor:
    """Logits [N] of chosen tokens only, float32 or wider: of ``token_N`` at the rows ``row_N`` of ``hidden_WD``.

    Of a large vocabulary, ``elements`` of hidden states and head are gathered at once; the backward pass gathers them
    again.
    """
    vocabulary, width = head_VD.shape
    if vocabulary <= DENSE_LIMIT:
        logits_N = F.linear(hidden_WD, head_VD).flatten().index_select(0, row_N * vocabulary + token_N)
        return logits_N.to(torch.promote_types(logits_N.dtype, torch.float32))
    size = max(elements // width, 1)
    if len(row_N) <= size:
        return _lookup_logits(head_VD, hidden_WD, row_N, token_N)
    pieces = zip(torch.split(row_N, size), torch.split(token_N, size), strict=True)
    return torch.cat(
        [recompute_in_backward(_lookup_logits, head_VD, hidden_WD, rows, tokens) for rows, tokens in pieces]
    )


def _lookup_logits(head_VD: Tensor, hidden_WD: Tensor, row_N: Tensor, token_N: Tensor) -> Tensor:
    # Products of narrow types are exact in float32, as inside a matrix product; rounding each would not be.
    wide = torch.promote_types(hidden_WD.dtype, torch.float32)
    return (hidden_WD.index_select(0, row_N).to(wide) * head_VD.index_select(0, token_N).to(wide)).sum(-1)


def allowed_distribution(
    logits_N: Tensor, row_N: Tensor, chosen_W: Tensor, temperature_W: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every choice, over its allowed tokens only, in nats: each [W].

    The lists stay ragged, so no masked entry exists whose ``-inf * 0`` would make the entropy NaN. ``row_N`` is the
    choice that each of the tokens belongs to, ascending; ``chosen_W`` each choice's sampled token, as an index of them.
    """
    scaled_N = logits_N / temperature_W[row_N]
    zeros_W = scaled_N.new_zeros(len(temperature_W))
    top_W = zeros_W.scatter_reduce(0, row_N, scaled_N.detach(), "amax", include_self=False)
    centred_N = scaled_N - top_W[row_N]
    logprob_N = centred_N - zeros_W.index_add(0, row_N, centred_N.exp()).log()[row_N]
    entropy_W = -zeros_W.index_add(0, row_N, logprob_N.exp() * logprob_N)
    return logprob_N[chosen_W], entropy_W


def full_distribution(logits_UV: Tensor, chosen_U: Tensor, temperature_U: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of choices over the whole vocabulary, in nats: each [U]."""
    logprob_UV = (logits_UV / temperature_U[:, None]).log_softmax(-1)
    return logprob_UV.gather(1, chosen_U[:, None])[:, 0], -(logprob_UV.exp() * logprob_UV).sum(-1)
