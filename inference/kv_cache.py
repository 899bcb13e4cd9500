"""The key/value cache of a batch, and the prefix cache of prompts read before.

The batch's cache has one slot per row, grows on demand, and is kept dense by moving rows into free slots. Positions of
one head lie side by side, as attention reads them.

Shape suffixes: S slot, T position in a slot, N token of a packed batch, G key/value head, M = N * G, K dimension of a
head.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.model_config import DecoderShape
from schemas.errors import MemoryShortError

ALLOCATION_STEP = 64
"""Slots have a multiple of this many positions, so that slightly longer prompts do not mean a new allocation."""


class KvCache:
    """Keys and values of every layer. Unused positions hold finite leftovers and must be masked."""

    def __init__(
        self, shape: DecoderShape, most_slots: int, device: torch.device, dtype: torch.dtype, most_bytes: int = 0
    ) -> None:
        self._most_slots = most_slots
        self._most_bytes = most_bytes
        self._size = (shape.layers, 2)
        self._heads = (shape.kv_heads, shape.head_dim)
        self._kv = self._allocate(torch.zeros(0, device=device, dtype=dtype), 0, 0)

    @property
    def positions(self) -> int:
        """Tokens that fit into one slot now."""
        return self._kv.shape[4]

    @property
    def device(self) -> torch.device:
        """Device of the cache."""
        return self._kv.device

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self._kv.numel() * self._kv.element_size()

    def reserve(self, slots: int, positions: int) -> None:
        """Make room, keeping the contents; slots double up to the limit, so that growth is rare.

        Raises:
            MemoryShortError: the limit would be exceeded.
        """
        capacity = self._kv.shape[2]
        if slots <= capacity and positions <= self.positions:
            return
        positions = max(self.positions, -(-positions // ALLOCATION_STEP) * ALLOCATION_STEP)
        (layers, two), (heads, width) = self._size, self._heads
        slot_bytes = layers * two * heads * positions * width * self._kv.element_size()
        fits = self._most_bytes // slot_bytes if self._most_bytes else self._most_slots
        if slots > fits:
            raise MemoryShortError(
                f"inference: {slots} rows of {positions} tokens need more than inference.cache_bytes, "
                f"{self._most_bytes:,}; expected at most {fits} rows"
            )
        slots = capacity if slots <= capacity else max(slots, min(2 * capacity, self._most_slots, fits))
        grown = self._allocate(self._kv, slots, positions)
        grown[:, :, :capacity, :, : self.positions] = self._kv
        self._kv = grown

    def write_indices(self, slot_N: NDArray[np.int64], position_N: NDArray[np.int64]) -> Tensor:
        """Indices at which ``write`` stores each token's heads [N * G]."""
        heads, _ = self._heads
        place_NG = (slot_N[:, None] * heads + np.arange(heads)) * self.positions + position_N[:, None]
        return torch.from_numpy(place_NG.ravel()).to(self.device)

    def write(self, layer: int, place_M: Tensor, k_NGK: Tensor, v_NGK: Tensor) -> None:
        """Store keys and values at the ``places`` of their tokens."""
        for part, values in zip(self._kv[layer], (k_NGK, v_NGK), strict=True):
            part.flatten(0, 2).index_copy_(0, place_M, values.flatten(0, 1))

    def read(self, layer: int, first: int, last: int, positions: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, T, K] of slots ``first`` to ``last``; views, not copies."""
        k_SGTK, v_SGTK = self._kv[layer, :, first:last, :, :positions]
        return k_SGTK, v_SGTK

    def gather_tokens(self, slot_N: Tensor, position_N: Tensor) -> Tensor:
        """A copy of all layers' keys and values [N, layers, 2, G, K]."""
        return self._kv[:, :, slot_N, :, position_N]

    def scatter_tokens(self, slot_N: Tensor, position_N: Tensor, values: Tensor) -> None:
        """Store what ``gather_tokens`` returned for other places."""
        self._kv[:, :, slot_N, :, position_N] = values

    def clear_slots(self, slots: list[int]) -> None:
        """Clear slots, whose leftovers would not be finite where weights have overflowed."""
        self._kv[:, :, slots] = 0

    def move_slots(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole slots; sources and targets do not overlap."""
        self._kv[:, :, targets] = self._kv[:, :, sources]

    def release(self) -> None:
        """Free the memory."""
        self._kv = self._allocate(self._kv, 0, 0)

    def _allocate(self, like: Tensor, slots: int, positions: int) -> Tensor:
        heads, width = self._heads
        return like.new_zeros(*self._size, slots, heads, positions, width)


BLOCK_TOKENS = 16
MAX_HIDDEN = 2048
"""Prompts whose final hidden state is kept."""

BlockKey = tuple[int, tuple[int, ...]]
"""Number of the block before (for a first block: minus the weights' number), and the tokens."""


class CachedBlock(NamedTuple):
    """A cached block."""

    number: int
    """Unique, from 1."""
    offset: int
    """Offset of its first token in the pool."""


class PrefixMatch(NamedTuple):
    """The cached prefix of a prompt."""

    offsets: list[int]
    """Offsets of its blocks in the pool."""
    missing: BlockKey | None
    """The first block that is not cached; None where only the end of the prompt is left."""


class PrefixCache:
    """Keys and values of prompts read before, so that a prompt with the same prefix is read from its end on.

    They are kept in blocks of consecutive tokens, in a bounded pool. A block is found by the number of the block before
    it and by its own tokens, so that equal prefixes are kept once and different ones are never confused. The first
    block of a prompt follows the number of the weights that read it: keys of other weights are never used. The least
    recently used blocks are replaced, those at the end of a prefix before those at its start.

    The final hidden state after a whole prompt is kept too, and longer, since it is small: the same prompt again needs
    no pass, as in games of few positions and in groups.
    """

    def __init__(self, cache: KvCache, most_tokens: int) -> None:
        self._cache = cache
        self._most_blocks = most_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[BlockKey, CachedBlock] = OrderedDict()
        self._numbers = count(1)
        self._pool_NL2GK: Tensor | None = None
        self._hidden: OrderedDict[tuple[int, bytes], Tensor] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """Whether it has any room."""
        return self._most_blocks > 0

    @property
    def bytes(self) -> int:
        """Memory held."""
        return 0 if self._pool_NL2GK is None else self._pool_NL2GK.numel() * self._pool_NL2GK.element_size()

    def find_prefix(self, weights: int, ids: Sequence[int]) -> PrefixMatch:
        """The longest cached prefix, in whole blocks; the last token is always left to be read."""
        keys: list[BlockKey] = []
        offsets: list[int] = []
        parent, missing = -weights, None
        for start in range(0, (len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS if self.enabled else 0, BLOCK_TOKENS):
            key = (parent, tuple(ids[start : start + BLOCK_TOKENS]))
            block = self._blocks.get(key)
            if block is None:
                missing = key
                break
            keys.append(key)
            offsets.append(block.offset)
            parent = block.number
        self._touch(keys)
        return PrefixMatch(offsets, missing)

    def find_hidden(self, weights: int, ids: Sequence[int]) -> Tensor | None:
        """The final hidden state [D] after the last token of a prompt that was read before, if it is kept."""
        key = weights, array("I", ids).tobytes()
        state_D = self._hidden.get(key)
        if state_D is not None:
            self._hidden.move_to_end(key)
        return state_D

    def store_hidden(self, weights: int, ids: Sequence[int], hidden_D: Tensor) -> None:
        """Keep the final hidden state after the last token of a prompt."""
        self._hidden[weights, array("I", ids).tobytes()] = hidden_D
        while len(self._hidden) > MAX_HIDDEN:
            self._hidden.popitem(last=False)

    def copy_to_slots(self, matches: Iterable[tuple[int, list[int]]]) -> None:
        """Copy cached blocks to the beginning of slots: (slot, offsets) of each."""
        blocks = [(offset, (slot, i * BLOCK_TOKENS)) for slot, offsets in matches for i, offset in enumerate(offsets)]
        if blocks and self._pool_NL2GK is not None:
            sources, targets = zip(*blocks, strict=True)
            values_NL2GK = self._pool_NL2GK.index_select(0, self._pool_indices(sources))
            self._cache.scatter_tokens(*self._cache_indices(targets), values_NL2GK)

    def store_prompts(self, read: Iterable[tuple[int, Sequence[int], int]]) -> None:
        """Cache the whole blocks of prompts in slots: (weights, ids, slot) of each."""
        # By place in the pool: where a block is replaced at once, the later one counts.
        copies: dict[int, tuple[int, int]] = {}
        for weights, ids, slot in read:
            keys: list[BlockKey] = []
            parent = -weights
            for start in range(0, len(ids) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS):
                keys.append((parent, tuple(ids[start : start + BLOCK_TOKENS])))
                block = self._blocks.get(keys[-1])
                if block is None:
                    offset = len(self._blocks) * BLOCK_TOKENS
                    if len(self._blocks) >= self._most_blocks:
                        offset = self._blocks.popitem(last=False)[1].offset
                    block = self._blocks[keys[-1]] = CachedBlock(next(self._numbers), offset)
                    copies[offset] = slot, start
                parent = block.number
            self._touch(keys)
        if copies:
            values_NL2GK = self._cache.gather_tokens(*self._cache_indices(copies.values()))
            pool, needed = self._pool_NL2GK, max(copies) + BLOCK_TOKENS
            if pool is None or len(pool) < needed:
                # Doubled, so that growth is rare.
                capacity = 0 if pool is None else len(pool)
                tokens = min(max(needed, 2 * capacity), self._most_blocks * BLOCK_TOKENS)
                self._pool_NL2GK = values_NL2GK.new_zeros(tokens, *values_NL2GK.shape[1:])
                if pool is not None:
                    self._pool_NL2GK[:capacity] = pool
                pool = self._pool_NL2GK
            pool.index_copy_(0, self._pool_indices(copies), values_NL2GK)

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self._blocks.clear()
        self._hidden.clear()
        self._pool_NL2GK = None

    def _touch(self, keys: Sequence[BlockKey]) -> None:
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def _cache_indices(self, firsts: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Slots and positions of all tokens of blocks, from those of their first tokens."""
        slots, starts = zip(*firsts, strict=True)
        slots_B = torch.tensor(slots, device=self._cache.device)
        return slots_B.repeat_interleave(BLOCK_TOKENS), self._pool_indices(starts)

    def _pool_indices(self, firsts: Iterable[int]) -> Tensor:
        """Places of all tokens of blocks, from those of their first tokens."""
        firsts_B = torch.tensor(list(firsts), device=self._cache.device)
        return (firsts_B.unsqueeze(-1) + torch.arange(BLOCK_TOKENS, device=self._cache.device)).flatten()
