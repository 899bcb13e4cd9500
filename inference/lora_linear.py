"""Prepared inference weights, and linears of a batch whose rows use different adapters.

Rows of one adapter are contiguous: a *span*. Where adapters are merged into small matrices, a product per span costs
more in calls than in arithmetic, so few rows go through one batched product of the stacked matrices instead; where
unmerged adapters share a large base, the base's product is shared and the adapters', of any ranks, are batched.

Shape suffixes: N row, S span, W rows of the widest span, V vocabulary, I/O input and output of a linear, R the largest
rank of a stack (smaller ones are padded with zeros), Q fused queries, keys and values.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.forward import Linear, Weights, project

TABLE_LIMIT = 4096
"""Largest vocabulary whose first-layer projections are computed once per adapter and looked up per token."""
MAX_STACKED_ROWS = 48
"""Rows per span up to which one batched product is faster than one per span (measured at widths of 64 and 128)."""
MAX_TABLE_ELEMENTS = 1 << 22
"""Elements of all first-layer tables of a set of spans up to which they are stacked too."""
MAX_STACKS = 2
"""Number of adapter combinations whose stacked weights are cached."""

LinearName = Literal["qkv", "o", "gate_up", "down"]
LINEAR_NAMES: tuple[LinearName, ...] = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class PreparedWeights:
    """An adapter's weights (or the base's), prepared for inference."""

    weights: Weights
    table_VQ: Tensor | None
    """First-layer queries, keys and values of every token, fused, before rotation; None for large vocabularies."""
    adapter: str | None = None
    """Digest, for error messages."""
    identity: int = 0
    """Unique number of these weights, never reused; 0 is the base."""
    single: bool = False
    """Whether every linear is one matrix: no unmerged adapter, no bias."""
    matrices: tuple[int, ...] = ()
    """Identities of the matrices of all linears; equal for adapters that share one base."""


class RowSpan(NamedTuple):
    """Rows ``first`` to ``last`` of the batch, which use the weights ``ready``."""

    ready: PreparedWeights
    first: int
    last: int


def prepare_weights(weights: Weights, adapter: str | None = None, identity: int = 0) -> PreparedWeights:
    """Prepare weights, with their first-layer table if the vocabulary is small."""
    table_VQ = None
    if weights.shape.vocab_size <= TABLE_LIMIT:
        parts = project(weights.shape, weights.layers[0], weights.embed_VD)
        table_VQ = torch.cat([part.flatten(-2) for part in parts], dim=-1)
    linears: list[Linear] = [getattr(layer, name) for layer in weights.layers for name in LINEAR_NAMES]
    single = all(linear.a_RI is None and linear.bias_O is None for linear in linears)
    return PreparedWeights(
        weights, table_VQ, adapter, identity, single, tuple(id(linear.weight_OI) for linear in linears)
    )


def apply_per_span(linears: Sequence[tuple[RowSpan, Linear]], x_NI: Tensor) -> Tensor:
    """Apply each span's linear to its rows; unmerged adapters share the base's product."""
    base = linears[0][1]
    if len(linears) == 1:
        return base(x_NI)
    parts = torch.split(x_NI, [span.last - span.first for span, _ in linears])
    if all(span.ready.single for span, _ in linears):
        out_NO = x_NI.new_empty(len(x_NI), len(base.weight_OI))
        for (span, linear), part in zip(linears, parts, strict=True):
            torch.mm(part, linear.weight_OI.t(), out=out_NO[span.first : span.last])
        return out_NO
    if any(linear.weight_OI is not base.weight_OI for _, linear in linears):
        return torch.cat([linear(part) for (_, linear), part in zip(linears, parts, strict=True)])
    out_NO = F.linear(x_NI, base.weight_OI, base.bias_O)
    for (span, linear), part in zip(linears, parts, strict=True):
        if linear.a_RI is not None and linear.b_OR is not None:
            out_NO[span.first : span.last].addmm_(F.linear(part, linear.a_RI), linear.b_OR.t())
    return out_NO


class StackedMergedLinear(NamedTuple):
    """A stacked linear of merged adapters."""

    weight_SIO: Tensor

    def __call__(self, x_SWI: Tensor) -> Tensor:
        """Multiply each span's rows by its own matrix [S, W, O]."""
        return torch.bmm(x_SWI, self.weight_SIO)


class StackedLoraLinear(NamedTuple):
    """A stacked linear of unmerged adapters on one base; a span without an adapter has zeros."""

    base: Linear
    a_SIR: Tensor
    b_SRO: Tensor

    def __call__(self, x_SWI: Tensor) -> Tensor:
        """Add each span's adapter product to the base's product of all rows [S, W, O]."""
        out_SWO = F.linear(x_SWI, self.base.weight_OI, self.base.bias_O)
        return torch.baddbmm(out_SWO, torch.bmm(x_SWI, self.a_SIR), self.b_SRO)


class WeightStack(NamedTuple):
    """Stacked weights of all linears."""

    layers: list[dict[LinearName, StackedMergedLinear | StackedLoraLinear]]
    tables_VQ: Tensor | None
    """First-layer tables concatenated, S * V rows; None where there are none, or they are too large."""


@dataclass(frozen=True)
class PassPlan:
    """Execution plan of the linears in one pass."""

    spans: Sequence[RowSpan]
    stack: WeightStack | None = None
    """Stacked weights; None to run span by span."""
    cells_N: Tensor | None = None
    """Index of each row among S * W cells; None where all spans are equally wide, which needs no reordering."""
    width: int = 0

    def linear(self, index: int, name: LinearName, x_NI: Tensor) -> Tensor:
        """Apply a layer's linear to every row, each with its own weights."""
        if self.stack is None:
            return apply_per_span(
                [(span, getattr(span.ready.weights.layers[index], name)) for span in self.spans], x_NI
            )
        linear, cells = self.stack.layers[index][name], x_NI
        if self.cells_N is not None:
            cells = x_NI.new_zeros(len(self.spans) * self.width, x_NI.shape[1]).index_copy_(0, self.cells_N, x_NI)
        out_NO = linear(cells.view(len(self.spans), self.width, -1)).flatten(0, 1)
        return out_NO if self.cells_N is None else out_NO.index_select(0, self.cells_N)


class WeightStackCache:
    """Cache of the most recently used stacked weights."""

    def __init__(self) -> None:
        self._stacks: OrderedDict[tuple[int, ...], WeightStack] = OrderedDict()
        self._previous_key: tuple[int, ...] = ()

    def make_plans(self, *layouts: Sequence[RowSpan]) -> tuple[PassPlan, ...]:
        """The faster plan for each of a pass's layouts, which share one sequence of weights."""
        line_up = [span.ready for span in layouts[0]]
        # All merged, or all unmerged on one base.
        alike = all(ready.single for ready in line_up) or len({ready.matrices for ready in line_up}) == 1
        stack = self._get_stack(line_up) if alike and len(line_up) > 1 else None
        return tuple(_make_plan(spans, stack) for spans in layouts)

    def _get_stack(self, line_up: Sequence[PreparedWeights]) -> WeightStack | None:
        """The stack, built on second use: one that changes with every pass is not worth building."""
        key = tuple(ready.identity for ready in line_up)
        again, self._previous_key = key == self._previous_key, key
        if key not in self._stacks:
            if not again:
                return None
            self._stacks[key] = stack_weights(line_up)
            while len(self._stacks) > MAX_STACKS:
                self._stacks.popitem(last=False)
        self._stacks.move_to_end(key)
        return self._stacks[key]


def stack_weights(line_up: Sequence[PreparedWeights]) -> WeightStack:
    """Stack all linears of several weights."""
    merged = all(ready.single for ready in line_up)

    def join(linears: Sequence[Linear]) -> StackedMergedLinear | StackedLoraLinear:
        if merged:
            return StackedMergedLinear(torch.stack([linear.weight_OI.t() for linear in linears]))
        return _stack_lora(linears)

    layers: list[dict[LinearName, StackedMergedLinear | StackedLoraLinear]] = [
        {name: join([getattr(layer, name) for layer in layers]) for name in LINEAR_NAMES}
        for layers in zip(*(ready.weights.layers for ready in line_up), strict=True)
    ]
    tables = [ready.table_VQ for ready in line_up if ready.table_VQ is not None]
    small = len(tables) == len(line_up) and sum(table.numel() for table in tables) <= MAX_TABLE_ELEMENTS
    return WeightStack(layers, torch.cat(tables) if small else None)


def _stack_lora(linears: Sequence[Linear]) -> StackedLoraLinear:
    (out, into), like = linears[0].weight_OI.shape, linears[0].weight_OI
    rank = max([0 if linear.a_RI is None else len(linear.a_RI) for linear in linears])
    a_SIR, b_SRO = like.new_zeros(len(linears), into, rank), like.new_zeros(len(linears), rank, out)
    for span, linear in enumerate(linears):
        if linear.a_RI is not None and linear.b_OR is not None:
            a_SIR[span, :, : len(linear.a_RI)] = linear.a_RI.t()
            b_SRO[span, : len(linear.a_RI)] = linear.b_OR.t()
    return StackedLoraLinear(linears[0], a_SIR, b_SRO)


def _make_plan(spans: Sequence[RowSpan], stack: WeightStack | None) -> PassPlan:
    widths = [span.last - span.first for span in spans]
    width, rows = max(widths), sum(widths)
    if stack is None or width > MAX_STACKED_ROWS or width * len(spans) > 2 * rows:
        return PassPlan(spans)
    if width * len(spans) == rows:
        return PassPlan(spans, stack, None, width)
    indices = [index * width + row for index, rows in enumerate(widths) for row in range(rows)]
    return PassPlan(spans, stack, torch.tensor(indices, device=spans[0].ready.weights.embed_VD.device), width)
