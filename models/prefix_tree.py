"""Rows in which sequences share the tokens of their common beginnings, so that each is computed once.

The sequences of a row are a tree of tokens, stored depth first: a token's ancestors are its sequence's tokens before
it. A token attends to its ancestors and itself, at the position of its depth: what it would see in a separate row.
Equal prompts, and the rules and history that the turns of a game share, thus cost their tokens once.

Shape suffixes: L token of the row, G token of a group, P token of the path before the group, S token of either, N key
of all groups, C block of tokens, T token of a block, H query head, K dimension of a head.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

GROUP_TOKENS = 256
"""Tokens that attend at once, to their common path and, where it is theirs, to each other."""

FLEX_BLOCK = 128
"""Tokens of a block of FlexAttention's masks."""


class TokenTree(NamedTuple):
    """Sequences as a tree: the row's tokens, and each sequence's places among them."""

    source_L: list[tuple[int, int]]
    """A sequence, and a position in it, that has the token."""
    places: list[Ints]
    """Places in the row of every sequence's tokens, in the order of the sequences."""
    runs: list[tuple[int, int, Ints]]
    """Stretches of the row that follow each other without a branch: start, stop, and the path before them."""


class TreeGroup(NamedTuple):
    """A stretch of the row whose tokens have a path in common."""

    start: int
    stop: int
    keys_S: Tensor
    """Places of the common path and of the stretch."""
    mask_GS: Tensor | None
    """Whether each token attends to each of these; None where the stretch is causal and has no path."""


class PrefixTree(NamedTuple):
    """Layout of a row of sequences that share their beginnings."""

    positions_L: Tensor
    """Depth of each token, which is its position in every sequence that has it."""
    exits_L: Tensor
    """The first place behind each token's descendants."""
    groups: tuple[TreeGroup, ...]
    block_masks: dict[int | None, Any]
    """FlexAttention's masks by window, each made when first used."""


def grow_tree(sequences: Sequence[Ints]) -> TokenTree:
    """Merge sequences that are in lexicographic order (``shared_order``)."""
    source_L: list[tuple[int, int]] = []
    places: list[Ints] = []
    runs: list[tuple[int, int, Ints]] = []
    before, path = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for number, ids in enumerate(sequences):
        shared = common_length(before, ids)
        start = len(source_L)
        source_L.extend((number, at) for at in range(shared, len(ids)))
        if len(ids) > shared:
            runs.append((start, len(source_L), path[:shared]))
        path = np.concatenate([path[:shared], np.arange(start, len(source_L))])
        places.append(path)
        before = ids
    return TokenTree(source_L, places, runs)


def common_length(one: Ints, other: Ints) -> int:
    """The number of tokens that two sequences begin with in common."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def shared_order(sequences: Sequence[Ints]) -> list[int]:
    """The lexicographic order of sequences; equal ones keep their order."""
    return sorted(range(len(sequences)), key=lambda index: sequences[index].tolist())


def tree_rows(sequences: Sequence[Ints], token_budget: int) -> Iterator[Ints]:
    """Divide sequences into rows of at most ``token_budget`` tokens of their tree, or of one sequence.

    Yields the indices of each row's sequences in lexicographic order, as ``grow_tree`` expects them.
    """
    row: list[int] = []
    tokens, before = 0, np.zeros(0, np.int64)
    for index in shared_order(sequences):
        ids = sequences[index]
        added = len(ids) - (common_length(before, ids) if row else 0)
        if row and tokens + added > token_budget:
            yield np.asarray(row, dtype=np.int64)
            row, tokens, added = [], 0, len(ids)
        row.append(index)
        tokens, before = tokens + added, ids
    if row:
        yield np.asarray(row, dtype=np.int64)


def tree_share(sequences: Sequence[Ints]) -> float:
    """Tokens of the sequences' tree as a share of their own: 1 where nothing is shared."""
    total = sum(map(len, sequences))
    ordered = [sequences[index] for index in shared_order(sequences)]
    return 1.0 - sum(common_length(one, other) for one, other in pairwise(ordered)) / max(total, 1)


def lay_out(tree: TokenTree, device: torch.device) -> PrefixTree:
    """Describe a tree for the attention of a forward pass."""
    size = len(tree.source_L)
    positions = np.fromiter((at for _, at in tree.source_L), np.int64, size)
    exits = np.arange(1, size + 1)
    for start, stop, path in tree.runs:
        # Of a run and all of its ancestors, the last descendant so far is the run's last token.
        exits[start:stop] = stop
        exits[path] = stop
    exits_L = torch.from_numpy(exits).to(device)
    groups = tuple(_make_group(start, stop, path, exits_L, device) for start, stop, path in _grouped(tree.runs))
    return PrefixTree(torch.from_numpy(positions).to(device), exits_L, groups, {})


def _grouped(runs: Sequence[tuple[int, int, Ints]]) -> Iterator[tuple[int, int, Ints]]:
    """Join neighbouring runs that go on from the same path, up to ``GROUP_TOKENS``."""
    group: tuple[int, int, Ints] | None = None
    for start, stop, path in runs:
        if group is not None:
            begin, _, common = group
            goes_on = len(path) >= len(common) and bool((path[: len(common)] == common).all())
            # What lies between the common path and the run must be in the group.
            inside = goes_on and (len(path) == len(common) or path[len(common)] >= begin)
            if inside and stop - begin <= GROUP_TOKENS:
                group = (begin, stop, common)
                continue
            yield group
        group = (start, stop, path)
    if group is not None:
        yield group


def _make_group(start: int, stop: int, path: Ints, exits_L: Tensor, device: torch.device) -> TreeGroup:
    place_G = torch.arange(start, stop, device=device)
    keys_S = torch.cat([torch.from_numpy(path).to(device), place_G])
    is_run = bool((exits_L[start:stop] >= stop).all())
    if is_run and not len(path):
        return TreeGroup(start, stop, keys_S, None)
    own_GG = (place_G <= place_G[:, None]) & (place_G[:, None] < exits_L[start:stop])
    before_GP = torch.ones(stop - start, len(path), dtype=torch.bool, device=device)
    return TreeGroup(start, stop, keys_S, torch.cat([before_GP, own_GG], dim=1))


def attend_tree(q_BLHK: Tensor, k_BLHK: Tensor, v_BLHK: Tensor, tree: PrefixTree, window: int | None = None) -> Tensor:
    """Attention output [1, L, H * K] of a row in which each token attends to its ancestors and itself.

    Keys and values have as many heads as queries. ``window`` limits attention to so many tokens, the own one included.
    """
    if q_BLHK.is_cuda:
        return _attend_flex(q_BLHK, k_BLHK, v_BLHK, tree, window)
    # One gather and one split for all groups: the gradient of a slice is as long as the row.
    lengths = [group.stop - group.start for group in tree.groups]
    key_lengths = [len(group.keys_S) for group in tree.groups]
    keys_N = torch.cat([group.keys_S for group in tree.groups])
    queries = torch.split(q_BLHK, lengths, dim=1)
    keys, values = (torch.split(x.index_select(1, keys_N), key_lengths, dim=1) for x in (k_BLHK, v_BLHK))
    parts = []
    for (start, stop, keys_S, mask_GS), *qkv in zip(tree.groups, queries, keys, values, strict=True):
        if window is not None:
            mask_GS = _windowed(tree.positions_L[start:stop], tree.positions_L[keys_S], mask_GS, window)
        q, k, v = (x.transpose(1, 2) for x in qkv)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_GS, is_causal=mask_GS is None)
        parts.append(out.transpose(1, 2).flatten(2))
    return torch.cat(parts, dim=1)


def _windowed(own_G: Tensor, keys_S: Tensor, mask_GS: Tensor | None, window: int) -> Tensor:
    back_GS = own_G[:, None] - keys_S
    return (back_GS < window) & (back_GS >= 0 if mask_GS is None else mask_GS)


def _attend_flex(q_BLHK: Tensor, k_BLHK: Tensor, v_BLHK: Tensor, tree: PrefixTree, window: int | None) -> Tensor:
    """``attend_tree`` by FlexAttention, which skips the blocks that no token attends to."""
    if window not in tree.block_masks:
        tree.block_masks[window] = _make_block_mask(tree.exits_L, tree.positions_L, window)
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BLHK, v_BLHK))
    out = _compiled_flex_attention()(q, k, v, block_mask=tree.block_masks[window])
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).flatten(2)


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    # Imported late: it loads torch's compiler.
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _make_block_mask(exits_L: Tensor, positions_L: Tensor, window: int | None) -> Any:
    """Which blocks of tokens attend to which, wholly or in part: FlexAttention's ``BlockMask``.

    A block's outermost exits and positions decide it, so that no mask of tokens by tokens is held:
    ``create_block_mask`` would take some GB for a row of 32,768 tokens.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length, padding = len(exits_L), -len(exits_L) % FLEX_BLOCK
    exits_CT, depth_CT = (F.pad(x, (0, padding)).view(-1, FLEX_BLOCK) for x in (exits_L, positions_L))
    first_C = torch.arange(0, length, FLEX_BLOCK, device=exits_L.device)
    earlier_CC = first_C[:, None] > first_C
    # Padding ends at once, and so is attended to by none; its depth of 0 matters in the last block only.
    some_CC = earlier_CC & (exits_CT.amax(1) > first_C[:, None])
    all_CC = earlier_CC & (exits_CT.amin(1) >= first_C[:, None] + FLEX_BLOCK)
    if window is not None:
        some_CC &= depth_CT.amin(1)[:, None] - depth_CT.amax(1) < window
        all_CC &= depth_CT.amax(1)[:, None] - depth_CT.amin(1) < window
    some_CC |= first_C[:, None] == first_C

    reach = 0 if window is None else window

    def is_ancestor(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < exits_L[key])

    def is_near_ancestor(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return is_ancestor(batch, head, query, key) & (positions_L[query] - positions_L[key] < reach)

    return BlockMask.from_kv_blocks(
        *_list_blocks(some_CC & ~all_CC),
        *_list_blocks(all_CC),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=is_ancestor if window is None else is_near_ancestor,
        seq_lengths=(length, length),
    )


def _list_blocks(in_CC: Tensor) -> tuple[Tensor, Tensor]:
    """The number of key blocks of each block of queries [1, 1, C], and their indices, which come first [1, 1, C, C]."""
    order_CC = torch.argsort(in_CC.int(), dim=1, descending=True, stable=True)
    return in_CC.sum(1, dtype=torch.int32)[None, None], order_CC.int()[None, None]
