"""Forward pass over a batch with several adapters and a key/value cache.

Tokens of all rows are packed, with the rows of one adapter contiguous: a *span*. Norms, rotations and attention run
over the whole batch; only linears run span by span, which costs about as much as one product of the same size.
Attention runs in a rectangle of slots and chunk columns. The last layer computes keys and values for all tokens and
everything else only for each row's last token, the only one whose logits are sampled.

Shape suffixes: R row (in the order of the spans), S slot of the rectangle, C column of a row's chunk, N packed token,
T position in the cache, D model width, H query head, G key/value head, K head dimension, P = K/2, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.batch_layout import BatchLayout
from inference.kv_cache import KvCache
from inference.lora_linear import PassPlan, WeightStackCache
from models.forward import Weights
from models.kernels import rms_norm, rotary_tables
from models.model_config import DecoderShape

FEW_COLUMNS = 4
"""Columns up to which batched products beat torch's attention kernel (float32, one thread, widths of 64 to 256)."""


class ForwardPass:
    """Forward pass of chunks through one base model, with rotary tables cached for all positions."""

    def __init__(self, base: Weights, cache: KvCache) -> None:
        self._base = base
        self._shape = base.shape
        self._cache = cache
        self._stacks = WeightStackCache()
        weights = base.embed_VD
        self._narrow = weights.device.type == "cpu" and weights.dtype == torch.float32
        """Whether few columns use batched products; scores of narrower types would lose too much precision."""
        heads, kv_heads = base.shape.heads, base.shape.kv_heads
        self._qk_norms = [
            None
            if layer.q_norm_K is None or layer.k_norm_K is None
            else torch.cat([layer.q_norm_K.expand(heads, -1), layer.k_norm_K.expand(kv_heads, -1)])
            for layer in base.layers
        ]
        """Weights [H + G, K] of the norm over query and key heads, by layer."""
        self._tables = self._compute_tables(0)

    def __call__(self, chunk: BatchLayout) -> Tensor:
        """Write the chunk's keys and values; return final hidden states [R, D] of each row's last token."""
        plan, last_plan = self._stacks.make_plans(chunk.spans, chunk.last_spans)
        if self._tables[0].shape[0] < chunk.length:
            self._tables = self._compute_tables(2 * chunk.length)
        tables = tuple(table.index_select(0, chunk.positions_N) for table in self._tables)
        mask = _attention_mask(chunk, self._shape, few=self._narrow and chunk.columns <= FEW_COLUMNS)
        hidden_ND = F.embedding(chunk.ids_N, self._base.embed_VD)
        last = len(self._base.layers) - 1
        for index in range(last):
            q_NHK = self._project(index, chunk, plan, hidden_ND, tables)
            attended = self._attend(index, chunk, q_NHK, mask)
            hidden_ND = self._finish_layer(index, plan, hidden_ND, attended)
        q_NHK = self._project(last, chunk, plan, hidden_ND, tables)
        if chunk.columns == 1:
            hidden_RD = self._finish_layer(last, plan, hidden_ND, self._attend(last, chunk, q_NHK, mask))
        else:
            attended_RD = self._attend_last(last, chunk, q_NHK.index_select(0, chunk.last_R))
            hidden_RD = self._finish_layer(last, last_plan, hidden_ND.index_select(0, chunk.last_R), attended_RD)
        return _fused_rms_norm(hidden_RD, self._base.norm_D, self._shape.norm_eps)

    def _project(
        self, index: int, chunk: BatchLayout, plan: PassPlan, hidden_ND: Tensor, tables: tuple[Tensor, ...]
    ) -> Tensor:
        """Queries [N, H, K] and cache keys and values. Queries and keys are normed and rotated together."""
        shape = self._shape
        looked_up = index == 0 and chunk.spans[0].ready.table_VQ is not None
        if looked_up:
            qkv_NQ = _lookup_projections(chunk, plan)
        else:
            normal_ND = _fused_rms_norm(hidden_ND, self._base.layers[index].input_norm_D, shape.norm_eps)
            qkv_NQ = plan.linear(index, "qkv", normal_ND)
        heads = qkv_NQ.view(len(qkv_NQ), -1, shape.head_dim)
        rotated = shape.heads + shape.kv_heads
        qk_NHK, v_NGK = heads[:, :rotated], heads[:, rotated:]
        norm_HK = self._qk_norms[index]
        if norm_HK is not None and not looked_up:
            qk_NHK = _fused_rms_norm(qk_NHK, norm_HK, shape.norm_eps)
        qk_NHK = _rotate(qk_NHK, *tables)
        self._cache.write(index, chunk.places_M, qk_NHK[:, shape.heads :], v_NGK)
        return qk_NHK[:, : shape.heads]

    def _attend_last(self, index: int, chunk: BatchLayout, q_RHK: Tensor) -> Tensor:
        """Attention output [R, H * K] of each row's last token."""
        k_SGTK, v_SGTK = self._cache.read(index, chunk.first_slot, chunk.first_slot + chunk.slots, chunk.length)
        q_SHK = q_RHK if chunk.in_order else torch.empty_like(q_RHK).index_copy_(0, chunk.slots_R, q_RHK)
        visible_SCT = _visible_positions(chunk.ends_S.unsqueeze(-1) - 1, chunk.length)
        mask = _bias(visible_SCT, self._shape) if self._narrow else visible_SCT.unsqueeze(1)
        out_SHCK = _attention(q_SHK.unsqueeze(2), k_SGTK, v_SGTK, mask)
        out_SD = out_SHCK.flatten(1)
        return out_SD if chunk.in_order else out_SD.index_select(0, chunk.slots_R)

    def _attend(self, index: int, chunk: BatchLayout, q_NHK: Tensor, mask: Tensor | None) -> Tensor:
        """Attention output [N, H * K] of every token."""
        k_SGTK, v_SGTK = self._cache.read(index, chunk.first_slot, chunk.first_slot + chunk.slots, chunk.length)
        packed = chunk.in_order and len(q_NHK) == chunk.slots * chunk.columns
        q_cells = q_NHK
        if not packed:
            shape = chunk.slots * chunk.columns, *q_NHK.shape[1:]
            q_cells = q_NHK.new_zeros(shape).index_copy_(0, chunk.cells_N, q_NHK)
        q_SHCK = q_cells.view(chunk.slots, chunk.columns, *q_NHK.shape[1:]).transpose(1, 2)
        out_SHCK = _attention(q_SHCK, k_SGTK, v_SGTK, mask)
        out_cells = out_SHCK.transpose(1, 2).flatten(2).flatten(0, 1)
        return out_cells if packed else out_cells.index_select(0, chunk.cells_N)

    def _finish_layer(self, index: int, plan: PassPlan, hidden_ND: Tensor, attended_ND: Tensor) -> Tensor:
        hidden_ND = hidden_ND + plan.linear(index, "o", attended_ND)
        normal_ND = _fused_rms_norm(hidden_ND, self._base.layers[index].post_norm_D, self._shape.norm_eps)
        return hidden_ND + plan.linear(index, "down", _swiglu(plan.linear(index, "gate_up", normal_ND)))

    def _compute_tables(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines, and the signed sines that ``_rotate`` adds, [T, 1, K]."""
        weights = self._base.embed_VD
        positions = torch.arange(length, device=weights.device)
        cos_TP, sin_TP = rotary_tables(positions, self._base.frequencies_P, weights.dtype)
        return torch.cat([cos_TP, cos_TP], -1).unsqueeze(1), torch.cat([-sin_TP, sin_TP], -1).unsqueeze(1)


def _fused_rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """``rms_norm`` by torch's own kernel, twice as fast; it casts narrower types later than Hugging Face models do."""
    if x_D.dtype != torch.float32:
        return rms_norm(x_D, weight_D, eps)
    if weight_D.dim() > 1:
        return F.rms_norm(x_D, x_D.shape[-1:], None, eps) * weight_D
    return F.rms_norm(x_D, x_D.shape[-1:], weight_D, eps)


def _rotate(x_NHK: Tensor, cos_N1K: Tensor, sin_N1K: Tensor) -> Tensor:
    """``models.kernels.rotary`` in three operations, bit-identical: halves are swapped, the sines carry the signs."""
    return torch.addcmul(x_NHK * cos_N1K, x_NHK.roll(x_NHK.shape[-1] // 2, -1), sin_N1K)


def _swiglu(gate_up: Tensor) -> Tensor:
    """``models.kernels.swiglu`` without support for gradients."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def _lookup_projections(chunk: BatchLayout, plan: PassPlan) -> Tensor:
    """First-layer projections [N, Q], each span's from its own table."""
    if plan.stack is not None and plan.stack.tables_VQ is not None:
        size = len(plan.stack.tables_VQ) // len(plan.spans)
        return plan.stack.tables_VQ.index_select(0, torch.add(chunk.ids_N, chunk.owners_N, alpha=size))
    first_VQ = chunk.spans[0].ready.table_VQ
    assert first_VQ is not None
    out_NQ = first_VQ.new_empty(len(chunk.ids_N), first_VQ.shape[1])
    for span in chunk.spans:
        if span.ready.table_VQ is not None:
            torch.index_select(
                span.ready.table_VQ, 0, chunk.ids_N[span.first : span.last], out=out_NQ[span.first : span.last]
            )
    return out_NQ


def _attention_mask(chunk: BatchLayout, shape: DecoderShape, few: bool) -> Tensor | None:
    """Mask of a chunk in the form that ``_attention`` takes."""
    if chunk.fresh and not few:
        return None
    columns = torch.arange(chunk.columns, device=chunk.ids_N.device)
    visible_SCT = _visible_positions(chunk.cached_S.unsqueeze(-1) + columns, chunk.length)
    return _bias(visible_SCT, shape) if few else visible_SCT.unsqueeze(1)


def _visible_positions(last_SC: Tensor, length: int) -> Tensor:
    """Whether a position is at or before the last visible one of a column [S, C, T]."""
    return torch.arange(length, device=last_SC.device) <= last_SC.unsqueeze(-1)


def _bias(visible_SCT: Tensor, shape: DecoderShape) -> Tensor:
    """Additive mask, 0 or minus infinity, repeated for every head [S * G, H / G * C, T]."""
    bias_SCT = torch.where(visible_SCT, 0.0, -torch.inf)
    repeated = bias_SCT[:, None, None].expand(-1, shape.kv_heads, shape.heads // shape.kv_heads, -1, -1)
    return repeated.flatten(2, 3).flatten(0, 1)


def _attention(q_SHCK: Tensor, k_SGTK: Tensor, v_SGTK: Tensor, mask: Tensor | None) -> Tensor:
    """Attention output [S, H, C, K].

    The mask is a ``_bias``, for which two batched products are faster than torch's kernel; or the visible positions of
    each column [S, 1, C, T]; or None for plain causality.
    """
    if mask is not None and mask.is_floating_point():
        q = q_SHCK.reshape(len(mask), -1, q_SHCK.shape[-1])
        scores = torch.baddbmm(mask, q, k_SGTK.flatten(0, 1).transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        return torch.bmm(scores.softmax(-1), v_SGTK.flatten(0, 1)).view(q_SHCK.shape)
    grouped = q_SHCK.shape[1] != k_SGTK.shape[1]
    return F.scaled_dot_product_attention(
        q_SHCK, k_SGTK, v_SGTK, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )
