"""Trajectories as flat arrays, and minibatches of them as rectangles of tensors.

A model call becomes one sequence: its prompt, and its completion up to the token before the last choice, since nothing
after it enters the loss. A choice's distribution comes from the hidden state one position before its token.

Shape suffixes: S sequence, T token of all sequences, W choice of all sequences, N allowed token of all choices;
K choice with a list of them, U choice over the whole vocabulary; B sequence of a rectangle, L position in it, Q choice
of a sequence in it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.forward import Packing, make_packing, packed_rows, padded_rectangles
from models.prefix_tree import PrefixTree, grow_tree, lay_out, tree_rows, tree_share
from schemas.trajectories import ModelCall, Trajectory
from trainer.learner_config import LearnerConfig
from trainer.ranks import RankComm

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_SHARED_BELOW = 0.8
"""``auto`` takes the layout ``prefix_tree`` where a batch's tree has fewer tokens than this share of its sequences'."""


@dataclass(frozen=True)
class Batch:
    """Every choice of some trajectories, as flat arrays in the order of trajectories, steps and choices."""

    ids_T: Ints
    length_S: Ints
    branches_S: Ints
    """Choices of each sequence, at least one."""
    trajectory_branches_S: Ints
    """Choices of the trajectory that each sequence belongs to."""
    position_W: Ints
    """Position in its sequence of the hidden state that predicts the choice."""
    old_logprob_W: Floats
    advantage_W: Floats
    temperature_W: Floats
    allowed_W: Ints
    """Number of allowed tokens of each choice; 0 stands for the whole vocabulary, which is not listed."""
    chosen_W: Ints
    """Index of the sampled token among the choice's allowed tokens; for the whole vocabulary, the token itself."""
    token_N: Ints
    version_S: Ints
    """Policy version that sampled each sequence."""
    tokens: int
    """Tokens of all prompts and completions, those after the last choice included."""
    proximal_W: Floats | None = None
    """Log-probabilities under the weights that a step begins with, for losses that need them."""
    reference_W: Floats | None = None
    """Log-probabilities under the base model, for losses that need them."""

    def __len__(self) -> int:
        return len(self.length_S)


def flatten(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[NDArray[np.float64]],
    longest: int | None = None,
    parts: Sequence[Sequence[NDArray[np.float64]]] | None = None,
    mask_truncated: bool = False,
) -> Batch:
    """Flatten valid trajectories to arrays; steps without a choice are left out, and choices behind ``longest`` tokens.

    ``advantages`` are [steps] per trajectory; ``parts``, [choices] per step of each, are added to them.
    ``mask_truncated`` leaves out replies that were cut off.
    """
    own = [
        [truncate_choices(step, longest, mask_truncated) for step in trajectory.steps] for trajectory in trajectories
    ]
    steps = list(chain.from_iterable(own))
    choices_S = _ints(
        sum(len(step.branches) for step in trajectory) for trajectory in own for step in trajectory if step.branches
    )
    advantage_S = [float(advantage) for values_S in advantages for advantage in values_S]
    added = [None] * len(steps) if parts is None else [part_B for rollout_parts in parts for part_B in rollout_parts]
    trained = [
        (step, advantage if part_B is None else advantage + part_B[: len(step.branches)])
        for step, advantage, part_B in zip(steps, advantage_S, added, strict=True)
        if step.branches
    ]
    steps = [step for step, _ in trained]
    prompts_S = _ints(len(step.prompt_ids) for step in steps)
    branches_S = _ints(len(step.branches) for step in steps)
    branch_W = _ints(chain.from_iterable(step.branches for step in steps))
    token_N = _ints(chain.from_iterable(chain.from_iterable(step.allowed for step in steps)))
    allowed_W = _ints(len(tokens) for step in steps for tokens in step.allowed)
    chosen_W = _ints(step.completion_ids[at] for step in steps for at in step.branches)
    listed_W = allowed_W > 0
    chosen_W[listed_W] = np.flatnonzero(token_N == np.repeat(chosen_W, allowed_W)) - run_starts(allowed_W)[listed_W]
    return Batch(
        ids_T=_ints(chain.from_iterable(chain(s.prompt_ids, s.completion_ids[: s.branches[-1]]) for s in steps)),
        length_S=prompts_S + _ints(step.branches[-1] for step in steps),
        branches_S=branches_S,
        trajectory_branches_S=choices_S,
        position_W=np.repeat(prompts_S, branches_S) + branch_W - 1,
        old_logprob_W=_floats(chain.from_iterable(step.logprobs for step in steps)),
        advantage_W=np.concatenate(
            [np.broadcast_to(value, len(step.branches)) for step, value in trained] or [np.zeros(0)]
        ).astype(np.float32),
        temperature_W=np.repeat(_floats(step.temperature for step in steps), branches_S),
        allowed_W=allowed_W,
        chosen_W=chosen_W,
        token_N=token_N,
        version_S=_ints(step.version for step in steps),
        tokens=sum(len(step.prompt_ids) + len(step.completion_ids) for step in steps),
    )


def truncate_choices(step: ModelCall, longest: int | None, mask_truncated: bool = False) -> ModelCall:
    """The step without the choices behind ``longest`` tokens of prompt and completion.

    With ``mask_truncated``, a reply that was cut off keeps none.
    """
    if mask_truncated and step.truncated:
        return msgspec.structs.replace(step, branches=[], logprobs=[], allowed=[])
    if longest is None or len(step.prompt_ids) + len(step.completion_ids) <= longest:
        return step
    count = bisect_left(step.branches, longest - len(step.prompt_ids))
    return msgspec.structs.replace(
        step, branches=step.branches[:count], logprobs=step.logprobs[:count], allowed=step.allowed[:count]
    )


def minibatches(batch: Batch, rng: np.random.Generator, sequences: int, tokens: int) -> list[Ints]:
    """Shuffle the sequences into minibatches of nearly equal count.

    ``rng`` decides the order; ``sequences`` and ``tokens`` of a minibatch are approximate.
    """
    by_count = round(len(batch) / sequences)
    by_tokens = -(-int(batch.length_S.sum()) // tokens)
    return np.array_split(rng.permutation(len(batch)), min(max(by_count, by_tokens, 1), len(batch)))


@dataclass(frozen=True)
class Microbatch:
    """One rectangle of a minibatch, ready for ``forward_rectangle`` and the loss; W counts its own choices."""

    ids_BL: Tensor
    wanted_BQ: Tensor
    cell_W: Tensor
    """Index of each choice's hidden state in the flattened [B * Q]."""
    old_logprob_W: Tensor
    advantage_W: Tensor
    temperature_W: Tensor
    row_N: Tensor
    """Choice that each allowed token belongs to."""
    token_N: Tensor
    chosen_W: Tensor
    """Index of each choice's sampled token in ``token_N``; for the whole vocabulary, the token itself."""
    listed_K: Tensor
    """Choices whose allowed tokens are in ``token_N``."""
    whole_U: Tensor
    """Choices over the whole vocabulary."""
    sequence_W: Tensor
    """Sequence of the rectangle that each choice belongs to, ascending."""
    branches_W: Tensor
    """Number of choices of that sequence."""
    trajectory_branches_W: Tensor
    """Number of choices of its trajectory."""
    version_W: Tensor
    branch_W: Ints
    """Indices of these choices in the batch."""
    packed: Packing | PrefixTree | None = None
    """Layout of the sequences in one shared row; None where each has its own row."""
    proximal_W: Tensor | None = None
    reference_W: Tensor | None = None


def microbatches(
    batch: Batch, sequences_S: Ints, cells: int, device: torch.device, layout: str = "rectangles"
) -> Iterator[Microbatch]:
    """The rectangles of a minibatch, of so many ``cells`` each, padding included; ``LearnerConfig`` has the layouts."""
    first_W, first_N = run_starts(batch.branches_S), run_starts(batch.allowed_W)
    for sequences_B in _divide(batch, sequences_S, cells, layout):
        chosen_B = sequences_S[sequences_B]
        counts_B = batch.branches_S[chosen_B]
        branch_W = ragged_indices(first_W[chosen_B], counts_B)
        allowed_W = batch.allowed_W[branch_W]
        is_listed_W = allowed_W > 0
        index_BL, wanted_BQ, cell_W, row = _token_layout(batch, chosen_B, layout, device)
        arrays = {
            "ids_BL": batch.ids_T[index_BL],
            "wanted_BQ": wanted_BQ,
            "cell_W": cell_W,
            "old_logprob_W": batch.old_logprob_W[branch_W],
            "advantage_W": batch.advantage_W[branch_W],
            "temperature_W": batch.temperature_W[branch_W],
            "row_N": np.repeat(np.arange(len(branch_W)), allowed_W),
            "token_N": batch.token_N[ragged_indices(first_N[branch_W], allowed_W)],
            "chosen_W": np.where(is_listed_W, run_starts(allowed_W), 0) + batch.chosen_W[branch_W],
            "listed_K": np.flatnonzero(is_listed_W),
            "whole_U": np.flatnonzero(~is_listed_W),
            "sequence_W": np.repeat(np.arange(len(chosen_B)), counts_B),
            "branches_W": np.repeat(counts_B, counts_B),
            "trajectory_branches_W": np.repeat(batch.trajectory_branches_S[chosen_B], counts_B),
            "version_W": np.repeat(batch.version_S[chosen_B], counts_B),
        }
        for name in ("proximal_W", "reference_W"):
            if (asked_W := getattr(batch, name)) is not None:
                arrays[name] = asked_W[branch_W]
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        yield Microbatch(**tensors, branch_W=branch_W, packed=row)


def rank_microbatches(
    batch: Batch, sequences_S: Ints, config: LearnerConfig, device: torch.device, ranks: RankComm, even: bool
) -> Iterator[tuple[Microbatch, bool]]:
    """This rank's share of the rectangles of one minibatch, and whether each counts.

    Where all ranks have to run equally many (``even``), those with fewer get one sequence again, which does not count.
    """
    own_S = ranks.shard(sequences_S, batch.length_S)
    cells, layout = config.rectangle_tokens, config.layout
    if not even:
        yield from ((chunk, True) for chunk in microbatches(batch, own_S, cells, device, layout))
        return
    chunks = list(microbatches(batch, own_S, cells, device, layout))
    most = torch.tensor([len(chunks)])
    ranks.all_reduce_max(most)
    shortest_S = sequences_S[[int(np.argmin(batch.length_S[sequences_S]))]]
    spare = list(microbatches(batch, shortest_S, cells, device, layout))
    yield from ((chunk, True) for chunk in chunks)
    yield from ((chunk, False) for chunk in spare * (int(most) - len(chunks)))


def _sequences(batch: Batch, sequences_S: Ints) -> list[Ints]:
    first_T = run_starts(batch.length_S)
    return [batch.ids_T[first_T[s] : first_T[s] + batch.length_S[s]] for s in sequences_S]


def _divide(batch: Batch, sequences_S: Ints, cells: int, layout: str) -> Iterator[Ints]:
    if layout == "prefix_tree":
        return tree_rows(_sequences(batch, sequences_S), cells)
    return (packed_rows if layout == "packed" else padded_rectangles)(batch.length_S[sequences_S], cells)


def resolve_layout(batch: Batch, config: LearnerConfig, device: torch.device) -> str:
    """The layout of a step's minibatches: ``auto`` takes the tree where sequences share a fifth of their tokens.

    On a GPU, where the tree's backward pass has not been run, it takes rectangles.
    """
    if config.layout != "auto":
        return config.layout
    if device.type != "cpu":
        return "rectangles"
    shares = tree_share(_sequences(batch, np.arange(len(batch)))) < _SHARED_BELOW
    return "prefix_tree" if shares else "rectangles"


def _token_layout(
    batch: Batch, chosen_B: Ints, layout: str, device: torch.device
) -> tuple[Ints, Ints, Ints, Packing | PrefixTree | None]:
    """Lay out tokens [B, L] by their places in the batch.

    Also: the positions that are read [B, Q]; each choice's index among those [W]; the layout of a row that several
    sequences share.
    """
    first_T, first_W = run_starts(batch.length_S), run_starts(batch.branches_S)
    lengths_B, counts_B = batch.length_S[chosen_B], batch.branches_S[chosen_B]
    position_W = batch.position_W[ragged_indices(first_W[chosen_B], counts_B)]
    if layout == "packed":
        wanted_W = position_W + np.repeat(run_starts(lengths_B), counts_B)
        row = make_packing(lengths_B.tolist(), device)
        return ragged_indices(first_T[chosen_B], lengths_B)[None], wanted_W[None], np.arange(len(wanted_W)), row
    if layout == "prefix_tree":
        tree = grow_tree(_sequences(batch, chosen_B))
        index_L = np.array([first_T[chosen_B[sequence]] + at for sequence, at in tree.source_L])
        sequence_W = np.repeat(np.arange(len(chosen_B)), counts_B)
        place_W = np.array([tree.places[s][at] for s, at in zip(sequence_W, position_W, strict=True)])
        wanted_Q, cell_W = np.unique(place_W, return_inverse=True)
        return index_L[None], wanted_Q[None], cell_W, lay_out(tree, device)
    columns_L = np.minimum(np.arange(int(lengths_B.max())), lengths_B[:, None] - 1)
    width = int(counts_B.max())
    cell_W = ragged_indices(np.arange(len(chosen_B)) * width, counts_B)
    wanted = np.zeros(len(chosen_B) * width, dtype=np.int64)
    wanted[cell_W] = position_W
    return first_T[chosen_B, None] + columns_L, wanted.reshape(-1, width), cell_W, None


def run_starts(counts: Ints) -> Ints:
    """Start of each run when runs of ``counts`` stand one after the other."""
    first: Ints = np.cumsum(counts) - counts
    return first


def ragged_indices(begin: Ints, counts: Ints) -> Ints:
    """``begin[i], begin[i] + 1, ...``, ``counts[i]`` of them for each i, one after the other."""
    total: Ints = np.repeat(begin - run_starts(counts), counts) + np.arange(int(counts.sum()))
    return total


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float32)
