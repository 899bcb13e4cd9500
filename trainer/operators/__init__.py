"""Operators on adapters: they make an offspring of one or more parents.

A policy's reset may begin from an offspring of checkpoints (``policies.NAME.reset_operator``), as in population-based
training. That operators on low-rank adapters can be the replacement step of such a population is PopuLoRA's finding
(Castanyer et al. 2026, arXiv:2605.16727), which published neither code nor formulas: those here are this project's.

Shape suffixes: R rank, K sum of the parents' ranks, I/O input and output features of a linear.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from models import adapters
from models.adapters import CONFIG_FILE, Matrices, read_config, read_matrices
from schemas.config import Plugin
from schemas.errors import ConfigError, ModelError
from schemas.numbers import NonNegativeFloat, Share
from schemas.plugins import PluginStruct, Registry

_EQUAL_KEYS = ("base_model_name_or_path", "r", "lora_alpha", "use_rslora", "target_modules")
"""Keys of PEFT's configuration in which parents must be equal."""


class Operator(Protocol):
    """Makes the matrices of an offspring; equal parents and equal random numbers give equal matrices."""

    parents: ClassVar[int]
    """Number of parents."""

    def apply(self, parents: Sequence[Matrices], rng: torch.Generator) -> Matrices:
        """The offspring's matrices: the linears, shapes and rank of the parents, which are compatible."""


OPERATORS: Registry[Operator] = Registry("policies.reset_operator", "trainer.operators")


def make_offspring(plugin: Plugin, parents: Sequence[Path], seed: int, folder: Path) -> None:
    """Write the offspring of adapters in PEFT's format to ``folder``; equal inputs give equal bytes.

    Raises:
        ConfigError: an unknown operator, unknown settings, or another number of parents than it takes.
        ModelError: a damaged parent, or parents of different bases, ranks, scales or linears.
    """
    operator = OPERATORS.build(plugin)
    if len(parents) != operator.parents:
        raise ConfigError(f"{OPERATORS.where}: {plugin.name!r} got {len(parents)} parents; expected {operator.parents}")
    matrices = [read_matrices(parent) for parent in parents]
    for parent, tensors in zip(parents[1:], matrices[1:], strict=True):
        _check_compatible(parents[0], matrices[0], parent, tensors)
    offspring = operator.apply(matrices, torch.Generator().manual_seed(seed))
    adapters.write(folder, adapters.name_tensors(offspring), (parents[0] / CONFIG_FILE).read_bytes())


def add_noise(matrices: Matrices, scale: float, rng: torch.Generator) -> Matrices:
    """Gaussian noise with ``scale`` times the root mean square of each matrix as its standard deviation."""

    def disturb(matrix: Tensor) -> Tensor:
        return matrix + torch.randn(matrix.shape, generator=rng) * (scale * matrix.square().mean().sqrt())

    return {name: (disturb(a_RI), disturb(b_OR)) for name, (a_RI, b_OR) in matrices.items()}


def _check_compatible(first: Path, first_matrices: Matrices, other: Path, other_matrices: Matrices) -> None:
    first_config, other_config = read_config(first), read_config(other)
    for key in _EQUAL_KEYS:
        if (expected := _comparable(first_config.get(key))) != (actual := _comparable(other_config.get(key))):
            raise ModelError(f"{other}: {key} is {actual!r}, expected {expected!r}, as in the other parent")
    expected_sizes, found_sizes = (
        {name: (b_OR.shape[0], a_RI.shape[1]) for name, (a_RI, b_OR) in matrices.items()}
        for matrices in (first_matrices, other_matrices)
    )
    for name in sorted({*expected_sizes, *found_sizes}):
        if (expected := expected_sizes.get(name)) != (actual := found_sizes.get(name)):
            raise ModelError(
                f"{other}: {name} is adapted as {actual}, expected {expected} (output and input features), as in the "
                "other parent"
            )


def _comparable(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, list) else value or None


@OPERATORS.register("mutation")
class Mutation(PluginStruct, frozen=True):
    """``W + noise * rms(W) * N(0, 1)`` for A and B of every linear; 0 copies the parent.

    The noise is relative to each matrix, so that one setting suits matrices of any size; a B that is still zero stays
    zero. Perturbing a copy of a better member is the exploration of population-based training (Jaderberg et al. 2017).
    """

    parents: ClassVar[int] = 1
    noise: NonNegativeFloat = 0.02
    """Standard deviation of the noise, as a share of the root mean square of each matrix."""

    def apply(self, parents: Sequence[Matrices], rng: torch.Generator) -> Matrices:
        """The parent's matrices with noise added."""
        return add_noise(parents[0], self.noise, rng)


Pair = tuple[Tensor, Tensor]


@OPERATORS.register("crossover")
class Crossover(PluginStruct, frozen=True):
    """Combines the updates ``B A`` of two adapters, never A of one with B of the other.

    ``linears`` takes each adapted linear from one of the parents (uniform crossover, Syswerda 1989). ``average`` adds
    ``weight`` times the first update to ``1 - weight`` times the second and factors the sum, of up to twice the rank,
    by a singular value decomposition into the nearest update of the parents' rank (Eckart and Young 1936), as PEFT's
    ``add_weighted_adapter`` does with ``svd``. Averages of A and of B would not give the average of the products.
    """

    parents: ClassVar[int] = 2
    method: Literal["linears", "average"] = "linears"
    """Whether single linears are inherited, or both updates are averaged."""
    weight: Share = 0.5
    """Share of the first parent, the better rated one; the probability of its linear if ``linears`` are inherited."""
    noise: NonNegativeFloat = 0.0
    """Mutation of the offspring: see ``mutation``."""

    def apply(self, parents: Sequence[Matrices], rng: torch.Generator) -> Matrices:
        """The parents' updates combined by ``method``, linear by linear, with noise added."""
        first, second = parents
        if self.method == "average":
            offspring = {name: average_updates(first[name], second[name], self.weight) for name in sorted(first)}
        else:
            chances = {name: torch.rand((), generator=rng).item() for name in sorted(first)}
            offspring = {name: (first if chance < self.weight else second)[name] for name, chance in chances.items()}
        return add_noise(offspring, self.noise, rng) if self.noise else offspring


def average_updates(first: Pair, second: Pair, weight: float) -> Pair:
    """A and B of the nearest update of the parents' rank to the weighted average of both updates.

    The rows of A have the parents' mean norm, and B holds the singular values: where the average has a lower rank, A
    stays trainable beside zeros in B, as in a fresh adapter.
    """
    rank = first[0].shape[0]
    a_KI = torch.cat([first[0], second[0]]).double()
    b_OK = torch.cat([first[1] * weight, second[1] * (1 - weight)], dim=1).double()
    norm = a_KI.norm(dim=1).mean().clamp(min=1e-12)
    # The decomposition of the sum itself would be of an O by I matrix.
    left, left_core = torch.linalg.qr(b_OK)
    right, right_core = torch.linalg.qr(a_KI.T)
    u, values, vt = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
    a_RI = norm * (vt @ right.T)[:rank]
    b_OR = ((left @ u) * values)[:, :rank] / norm
    missing = rank - a_RI.shape[0]
    return pad(a_RI, (0, 0, 0, missing)).float(), pad(b_OR, (0, missing)).float()
