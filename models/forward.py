"""The decoder's forward pass, pure in its weights, which ``models.decoder.Decoder.weights(lora)`` returns.

Sequences run as right-padded rectangles of similar length, or packed in rows that hold several. Attention is causal, so
real tokens never see the padding behind them and no mask is needed. In the last layer only the wanted positions are
computed beyond keys and values, and in the first layer queries, keys and values are computed once per vocabulary entry
where that is fewer rows.

Shape suffixes: S sequence of the batch, B sequence of a rectangle or row, L position in it, Q wanted position in it,
D model width, H query head, G key/value head, K dimension of a head, O/I output and input of a linear, R rank,
V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.kernels import rms_norm, rotary, rotary_tables, swiglu
from models.model_config import DecoderShape
from models.prefix_tree import PrefixTree, attend_tree

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Linear:
    """``x W^T + b``, plus ``x A^T B^T`` where an adapter is kept beside the base instead of being merged."""

    weight_OI: Tensor
    bias_O: Tensor | None = None
    a_RI: Tensor | None = None
    b_OR: Tensor | None = None
    """Already multiplied by alpha / rank."""

    def __call__(self, x_I: Tensor) -> Tensor:
        """Map [..., I] to [..., O]."""
        out_O = F.linear(x_I, self.weight_OI, self.bias_O)
        if self.a_RI is None or self.b_OR is None:
            return out_O
        return out_O + F.linear(F.linear(x_I, self.a_RI), self.b_OR)

    def rows(self, start: int, stop: int) -> "Linear":
        """The linear that computes outputs ``start`` to ``stop`` only."""
        part = slice(start, stop)
        bias_O = None if self.bias_O is None else self.bias_O[part]
        b_OR = None if self.b_OR is None else self.b_OR[part]
        return Linear(self.weight_OI[part], bias_O, self.a_RI, b_OR)


@dataclass(frozen=True)
class Layer:
    """The weights of one block. ``qkv`` and ``gate_up`` are fused along their outputs."""

    input_norm_D: Tensor
    qkv: Linear
    q_norm_K: Tensor | None
    k_norm_K: Tensor | None
    o: Linear
    post_norm_D: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """Weights of one forward pass: the base with at most one adapter applied."""

    shape: DecoderShape
    embed_VD: Tensor
    layers: tuple[Layer, ...]
    norm_D: Tensor
    head_VD: Tensor
    frequencies_P: Tensor


class _Seed(torch.autograd.Function):
    """A scalar of 0 whose gradients for its inputs are given ones.

    ``torch.autograd.backward`` takes gradients too, but imports SymPy to compare their shapes: most of half a second in
    every process that trains.
    """

    @staticmethod
    def forward(ctx: Any, grads: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.grads = grads
        return inputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.grads


class DetachedWeights(NamedTuple):
    """Weights detached from the adapter they were computed from, with the means to propagate gradients to it."""

    weights: Weights
    computed: list[Tensor]
    leaves: list[Tensor]

    def backward(self) -> None:
        """Propagate the gradients accumulated in the leaves to what the weights were computed from."""
        pairs = [(c, leaf.grad) for c, leaf in zip(self.computed, self.leaves, strict=True) if leaf.grad is not None]
        if pairs:
            torch.autograd.backward(_Seed.apply([grad for _, grad in pairs], *(c for c, _ in pairs)))  # type: ignore[no-untyped-call]


def detach_weights(weights: Weights) -> DetachedWeights:
    """Share weights among many backward passes, so that they are computed, and differentiated, once.

    Call ``backward`` on the loss of each rectangle, then once on the ``DetachedWeights``.
    """
    detached = DetachedWeights(weights, [], [])
    layers = tuple(
        Layer(*(_detach_leaf(getattr(layer, f.name), detached) for f in fields(layer))) for layer in weights.layers
    )
    return detached._replace(weights=replace(weights, layers=layers))


# Not nested in ``detach_weights``: a function that calls itself is a reference cycle, and would hold all these tensors
# until the collector looks for cycles, which happens ever more rarely as the process holds more of the history.
def _detach_leaf(part: Any, into: DetachedWeights) -> Any:
    if isinstance(part, Linear):
        return Linear(*(_detach_leaf(getattr(part, field.name), into) for field in fields(part)))
    if not isinstance(part, Tensor) or part.is_leaf:
        return part
    into.computed.append(part)
    into.leaves.append(part.detach().requires_grad_(True))
    return into.leaves[-1]


class QkvProjection(NamedTuple):
    """Queries [..., H, K], keys [..., G, K] and values [..., G, K], normalised but not yet rotated."""

    q: Tensor
    k: Tensor
    v: Tensor


def project(shape: DecoderShape, layer: Layer, hidden_D: Tensor) -> QkvProjection:
    """Input norm, fused projection and q/k-norm of [..., D] hidden states."""
    qkv = layer.qkv(rms_norm(hidden_D, layer.input_norm_D, shape.norm_eps))
    heads = qkv.view(*qkv.shape[:-1], -1, shape.head_dim)
    q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=-2)
    if layer.q_norm_K is not None and layer.k_norm_K is not None:
        q = rms_norm(q, layer.q_norm_K, shape.norm_eps)
        k = rms_norm(k, layer.k_norm_K, shape.norm_eps)
    return QkvProjection(q, k, v)


def attend(q_BLHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor, mask_BLL: Tensor | None = None) -> Tensor:
    """Attention output [B, L, H * K]: causal, or where ``mask_BLL`` (True: may look) allows it."""
    groups = q_BLHK.shape[2] // k_BLGK.shape[2]
    if groups > 1:
        k_BLGK, v_BLGK = (x.repeat_interleave(groups, dim=2) for x in (k_BLGK, v_BLGK))
    mask = None if mask_BLL is None else mask_BLL.unsqueeze(1)
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BLGK, v_BLGK))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.transpose(1, 2).flatten(2)


def feed_forward(shape: DecoderShape, layer: Layer, hidden_D: Tensor) -> Tensor:
    """``hidden + down(swiglu(gate_up(norm(hidden))))`` for [..., D]."""
    return hidden_D + layer.down(swiglu(layer.gate_up(rms_norm(hidden_D, layer.post_norm_D, shape.norm_eps))))


def padded_rectangles(lengths: Sequence[int] | Ints, token_budget: int) -> Iterator[Ints]:
    """Bucket sequences by length into rectangles of at most ``token_budget`` cells, or of one sequence.

    Yields the indices [B] of each rectangle's sequences. Deterministic: equal lengths keep their order.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64)
    order_S = np.argsort(lengths_S, kind="stable")[::-1]
    begin = 0
    while begin < len(order_S):
        width = max(int(lengths_S[order_S[begin]]), 1)
        sequences_B = order_S[begin : begin + max(token_budget // width, 1)]
        yield sequences_B
        begin += len(sequences_B)


def packed_rows(lengths: Sequence[int] | Ints, token_budget: int) -> Iterator[Ints]:
    """Fill rows of at most ``token_budget`` tokens, or of one sequence: the longest first, each where it fits.

    Yields the indices [B] of each row's sequences. First-fit decreasing, at most 22 % more rows than needed (Johnson
    1973). Deterministic: equal lengths keep their order.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64)
    filled: list[list[int]] = []
    free: list[int] = []
    for sequence in np.argsort(-lengths_S, kind="stable").tolist():
        length = int(lengths_S[sequence])
        at = next((at for at, left in enumerate(free) if length <= left), len(free))
        if at == len(free):
            filled.append([])
            free.append(token_budget)
        filled[at].append(sequence)
        free[at] -= length
    yield from (np.asarray(sequences, dtype=np.int64) for sequences in filled)


class Packing(NamedTuple):
    """Boundaries of the sequences in a row that holds several, one after the other."""

    lengths: tuple[int, ...]
    ends_S: Tensor
    """0, and the end of each sequence: int32."""
    positions_L: Tensor
    """Position of each token in its own sequence."""


def make_packing(lengths: Sequence[int], device: torch.device) -> Packing:
    """Describe a row of sequences of these lengths."""
    ends_S = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    positions_L = torch.cat([torch.arange(length, device=device) for length in lengths])
    return Packing(tuple(lengths), ends_S, positions_L)


def attend_packed(q_BLHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor, packed: "Packing | PrefixTree") -> Tensor:
    """Attention output [1, L, H * K] of a row of sequences, each causal and isolated from the others."""
    if isinstance(packed, PrefixTree):
        groups = q_BLHK.shape[2] // k_BLGK.shape[2]
        k_BLHK, v_BLHK = (x.repeat_interleave(groups, dim=2) if groups > 1 else x for x in (k_BLGK, v_BLGK))
        return attend_tree(q_BLHK, k_BLHK, v_BLHK, packed)
    if q_BLHK.is_cuda and q_BLHK.dtype in (torch.bfloat16, torch.float16):
        # Imported late: it registers operators that a CPU never needs.
        from torch.nn.attention.varlen import varlen_attn

        longest, ends = max(packed.lengths), packed.ends_S
        q, k, v = q_BLHK[0], k_BLGK[0], v_BLGK[0]
        out = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0), enable_gqa=len(q[0]) > len(k[0]))
        assert isinstance(out, Tensor)
        return out.flatten(1)[None]
    parts = (torch.split(x, list(packed.lengths), dim=1) for x in (q_BLHK, k_BLGK, v_BLGK))
    return torch.cat([attend(*part) for part in zip(*parts, strict=True)], dim=1)


def recompute_in_backward(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """Call a function; where gradients are needed, keep only its arguments and recompute it in the backward pass.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    if not torch.is_grad_enabled():
        return function(*args)
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return result


def forward_rectangle(
    weights: Weights,
    ids_BL: Tensor,
    wanted_BQ: Tensor | None = None,
    packed: Packing | PrefixTree | None = None,
    recompute: bool = False,
) -> Tensor:
    """Final hidden states [B, L, D], after the final norm, of padded sequences, or of one ``packed`` row of several.

    Padding may be any valid id: it follows the real tokens, which never see it. With ``wanted_BQ``, only the hidden
    states [B, Q, D] of these positions are returned. ``recompute`` keeps no activations within layers: the backward
    pass computes them again.
    """
    last = len(weights.layers) - 1
    positions_L = torch.arange(ids_BL.shape[1], device=ids_BL.device) if packed is None else packed.positions_L
    tables = rotary_tables(positions_L, weights.frequencies_P, weights.embed_VD.dtype)
    hidden = F.embedding(ids_BL, weights.embed_VD)
    for index in range(len(weights.layers)):
        args = (weights, index, ids_BL, hidden, tables, wanted_BQ if index == last else None, packed)
        hidden = recompute_in_backward(_layer, *args) if recompute else _layer(*args)
    return rms_norm(hidden, weights.norm_D, weights.shape.norm_eps)


def _layer(
    weights: Weights,
    index: int,
    ids_BL: Tensor,
    hidden_BLD: Tensor,
    tables: tuple[Tensor, Tensor],
    wanted_BQ: Tensor | None,
    packed: Packing | PrefixTree | None,
) -> Tensor:
    """One block: [B, L, D], or [B, Q, D] with ``wanted_BQ``."""
    shape, layer = weights.shape, weights.layers[index]
    if wanted_BQ is not None and packed is None:
        return _selected_layer(shape, layer, hidden_BLD, tables, wanted_BQ)
    if index == 0 and shape.vocab_size < ids_BL.numel():
        # Once per vocabulary entry, and looked up per token.
        parts_VHK = project(shape, layer, weights.embed_VD)
        q, k, v = (F.embedding(ids_BL, part.flatten(1)).view(*ids_BL.shape, *part.shape[1:]) for part in parts_VHK)
    else:
        q, k, v = project(shape, layer, hidden_BLD)
    q, k = rotary(q, *tables), rotary(k, *tables)
    attended = attend(q, k, v) if packed is None else attend_packed(q, k, v, packed)
    if wanted_BQ is not None:
        attended, hidden_BLD = attended[:, wanted_BQ[0]], hidden_BLD[:, wanted_BQ[0]]
    return feed_forward(shape, layer, hidden_BLD + layer.o(attended))


def _selected_layer(
    shape: DecoderShape, layer: Layer, hidden_BLD: Tensor, tables: tuple[Tensor, Tensor], wanted_BQ: Tensor
) -> Tensor:
    """One block with keys and values for all positions, everything else for the wanted ones: [B, Q, D]."""
    width, (cos_LP, sin_LP) = shape.q_width, tables
    normal_BLD = rms_norm(hidden_BLD, layer.input_norm_D, shape.norm_eps)
    rows_BQD = wanted_BQ.unsqueeze(-1).expand(-1, -1, shape.hidden_size)
    q = layer.qkv.rows(0, width)(normal_BLD.gather(1, rows_BQD))
    q = q.view(*wanted_BQ.shape, shape.heads, shape.head_dim)
    kv = layer.qkv.rows(width, width + 2 * shape.kv_width)(normal_BLD)
    k, v = kv.view(*kv.shape[:-1], 2 * shape.kv_heads, shape.head_dim).chunk(2, dim=-2)
    if layer.q_norm_K is not None and layer.k_norm_K is not None:
        q = rms_norm(q, layer.q_norm_K, shape.norm_eps)
        k = rms_norm(k, layer.k_norm_K, shape.norm_eps)
    q = rotary(q, cos_LP[wanted_BQ], sin_LP[wanted_BQ])
    mask_BQL = torch.arange(hidden_BLD.shape[1], device=wanted_BQ.device) <= wanted_BQ.unsqueeze(-1)
    attended = attend(q, rotary(k, *tables), v, mask_BQL)
    return feed_forward(shape, layer, hidden_BLD.gather(1, rows_BQD) + layer.o(attended))
