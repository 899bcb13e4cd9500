"""Layout of a forward pass: packed tokens of many sequences, and the index of each in caches and attention.

Shape suffixes: R row (in the order of the spans), S slot of the rectangle, C column of a row's chunk, N packed token,
G key/value head, M = N * G.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kv_cache import KvCache
from inference.lora_linear import PreparedWeights, RowSpan
from inference.sequence import ActiveSequence


class BatchLayout(NamedTuple):
    """Inputs of one pass; index tensors are on the device."""

    ids_N: Tensor
    positions_N: Tensor
    owners_N: Tensor
    """Index of each token's span."""
    places_M: Tensor
    """Destinations of keys and values: ``KvCache.write_indices``."""
    cells_N: Tensor
    """Destinations of queries in the rectangle: ``(slot - first slot) * C + column``."""
    last_R: Tensor
    """Index of each row's last token."""
    slots_R: Tensor
    """Each row's slot, counted from the first slot."""
    spans: list[RowSpan]
    """Spans, counted in tokens."""
    last_spans: list[RowSpan]
    """Spans, counted in rows."""
    first_slot: int
    slots: int
    columns: int
    length: int
    """Number of cached positions visible to attention, including this chunk's."""
    fresh: bool
    """Whether the cache was empty before this pass."""
    in_order: bool
    """Whether rows are in slot order."""
    cached_S: Tensor
    """Tokens cached before this pass, by slot."""
    ends_S: Tensor
    """Tokens cached after this pass, by slot."""


def make_layout(
    ids: Sequence[int],
    counts: NDArray[np.int64],
    cached: NDArray[np.int64],
    slots: NDArray[np.int64],
    owners: Sequence[tuple[PreparedWeights, int]],
    cache: KvCache,
) -> BatchLayout:
    """Lay out a pass over rows whose slots are consecutive numbers, in any order; the cache has room for them.

    Of each row, ``counts`` tokens, at least one, are in this pass, and ``cached`` ones in the cache. ``ids`` are those
    of all rows, concatenated; ``owners`` weights with the number of consecutive rows that use them.
    """
    first_slot, columns = int(slots.min()), int(counts.max())
    ends = np.cumsum(counts)
    spans, last_spans, row, token = [], [], 0, 0
    for ready, rows in owners:
        end = int(ends[row + rows - 1])
        spans.append(RowSpan(ready, token, end))
        last_spans.append(RowSpan(ready, row, row + rows))
        row, token = row + rows, end
    column_N = np.arange(len(ids)) - np.repeat(ends - counts, counts)
    position_N = column_N + np.repeat(cached, counts)
    slot_N = np.repeat(slots, counts)
    by_slot = np.argsort(slots)

    def there(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(cache.device)

    return BatchLayout(
        ids_N=torch.tensor(ids, device=cache.device),
        positions_N=there(position_N),
        owners_N=there(np.repeat(np.arange(len(spans)), [span.last - span.first for span in spans])),
        places_M=cache.write_indices(slot_N, position_N),
        cells_N=there((slot_N - first_slot) * columns + column_N),
        last_R=there(ends - 1),
        slots_R=there(slots - first_slot),
        spans=spans,
        last_spans=last_spans,
        first_slot=first_slot,
        slots=len(slots),
        columns=columns,
        length=int((cached + counts).max()),
        fresh=not cached.any(),
        in_order=bool((np.diff(slots) > 0).all()),
        cached_S=there(cached[by_slot]),
        ends_S=there((cached + counts)[by_slot]),
    )


class RowOrder(NamedTuple):
    """Rows of a pass, and their order."""

    slots: list[tuple[ActiveSequence, int]]
    """Rows and the identities of their weights, from slot ``first_slot`` on."""
    first_slot: int
    rows: list[ActiveSequence]
    """Rows grouped by adapter."""
    slot_R: NDArray[np.int64]
    owners: list[tuple[PreparedWeights, int]]
    """Weights, with the number of rows that use them."""


class LayoutPlanner:
    """Planner of layouts. Most passes differ from the previous one in positions only, and only those are recomputed."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._row_order: RowOrder | None = None
        self._layout: BatchLayout | None = None
        self._counts: list[int] = []
        self._ends: list[int] = []
        self._positions = 0

    def __call__(self, running: Sequence[ActiveSequence], first_slot: int) -> tuple[BatchLayout, list[ActiveSequence]]:
        """Lay out the pending tokens of rows in slots from ``first_slot`` on and count them as cached.

        Returns the layout, and the rows in its order.
        """
        before, line_up = self._row_order, self._order_rows(running, first_slot)
        rows = line_up.rows
        counts, cached = [len(row.pending) for row in rows], [row.cached for row in rows]
        ends = [count + start for count, start in zip(counts, cached, strict=True)]
        self._cache.reserve(first_slot + len(rows), max(ends))
        ids = [token for row in rows for token in row.consume_pending()]
        goes_on = line_up is before and counts == self._counts and cached == self._ends
        last = self._layout
        if goes_on and last is not None and self._cache.positions == self._positions:
            # Equally many tokens in each row: the same rows and counts, advanced.
            step = last.columns
            chunk = last._replace(
                ids_N=torch.tensor(ids, device=last.ids_N.device),
                positions_N=last.positions_N + step,
                places_M=last.places_M + step,
                length=last.length + step,
                fresh=False,
                cached_S=last.ends_S,
                ends_S=last.ends_S + step,
            )
        else:
            chunk = make_layout(ids, np.array(counts), np.array(cached), line_up.slot_R, line_up.owners, self._cache)
        # Rows with different numbers of tokens advance by different amounts.
        self._layout = chunk if min(counts) == chunk.columns else None
        self._row_order = line_up
        self._counts = counts
        self._ends = ends
        self._positions = self._cache.positions
        return chunk, rows

    def clear(self) -> None:
        """Release all rows and weights."""
        self._row_order = self._layout = None

    def _order_rows(self, running: Sequence[ActiveSequence], first_slot: int) -> RowOrder:
        """Group rows by adapter; reuse the previous pass's order if it is unchanged."""
        slots = [(row, row.ready.identity) for row in running]
        before = self._row_order
        if before is not None and before.first_slot == first_slot and before.slots == slots:
            return before
        order = sorted(range(len(running)), key=lambda place: running[place].ready.identity)
        rows = [running[place] for place in order]
        groups = (list(same) for _, same in groupby((row.ready for row in rows), key=attrgetter("identity")))
        owners = [(same[0], len(same)) for same in groups]
        return RowOrder(slots, first_slot, rows, first_slot + np.array(order), owners)
