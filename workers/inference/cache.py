"""The key/value cache of a batch: one slot per row, grown on demand, kept dense by moving rows into holes.

Shape suffixes: S slot, T position in a slot, N token of a packed batch, G key/value head, K dimension of a head.
"""

import torch
from torch import Tensor

from trainer.shape import DecoderShape

GRAIN = 64
"""Slots have a multiple of this many positions, so that slightly longer prompts do not mean a new allocation."""


class Cache:
    """Keys and values of every layer. Unused positions hold finite leftovers and must be masked."""

    def __init__(self, shape: DecoderShape, most_slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self._most_slots = most_slots
        self._size = (shape.layers, 2)
        self._heads = (shape.kv_heads, shape.head_dim)
        self._kv = torch.zeros(*self._size, 0, 0, *self._heads, device=device, dtype=dtype)

    @property
    def slots(self) -> int:
        """Rows that fit now."""
        return self._kv.shape[2]

    @property
    def positions(self) -> int:
        """Tokens that fit into one slot now."""
        return self._kv.shape[3]

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._kv.device

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self._kv.numel() * self._kv.element_size()

    def reserve(self, slots: int, positions: int) -> None:
        """Make room, keeping what is held; slots double up to the most there may be, so that growth is rare."""
        if slots <= self.slots and positions <= self.positions:
            return
        slots = self.slots if slots <= self.slots else max(slots, min(2 * self.slots, self._most_slots))
        positions = max(self.positions, -(-positions // GRAIN) * GRAIN)
        grown = self._kv.new_zeros(*self._size, slots, positions, *self._heads)
        grown[:, :, : self.slots, : self.positions] = self._kv
        self._kv = grown

    def write(self, layer: int, place_N: Tensor, k_NGK: Tensor, v_NGK: Tensor) -> None:
        """Store keys and values at flat places ``slot * positions + position``."""
        for part, values in zip(self._kv[layer], (k_NGK, v_NGK), strict=True):
            part.flatten(0, 1).index_copy_(0, place_N, values)

    def read(self, layer: int, first: int, last: int, positions: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, T, K] of slots ``first`` to ``last``; views, not copies."""
        k_STGK, v_STGK = self._kv[layer, :, first:last, :positions]
        return k_STGK.transpose(1, 2), v_STGK.transpose(1, 2)

    def get(self, place_N: Tensor) -> Tensor:
        """A copy of all layers' keys and values [layers, 2, N, G, K] at flat places."""
        return self._kv.flatten(2, 3).index_select(2, place_N)

    def put(self, place_N: Tensor, values: Tensor) -> None:
        """Store what ``get`` has given at other places."""
        self._kv.flatten(2, 3).index_copy_(2, place_N, values)

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole slots; sources and targets do not overlap."""
        self._kv[:, :, targets] = self._kv[:, :, sources]

    def release(self) -> None:
        """Give the memory back."""
        self._kv = self._kv.new_zeros(*self._size, 0, 0, *self._heads)
