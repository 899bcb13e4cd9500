"""Operators on adapters: they make an offspring of one or more parents. ``genetic`` holds those of this project.

A policy's reset may begin from an offspring of checkpoints (``policies.NAME.reset_operator``), as in population-based
training. That operators on low-rank adapters can be the replacement step of such a population is PopuLoRA's finding
(Castanyer et al. 2026, arXiv:2605.16727), which published neither code nor formulas: those here are this project's.

Shape suffixes: R rank, I/O input and output features of a linear.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from models import adapters
from models.adapters import CONFIG_FILE, Matrices, read_config, read_matrices
from schemas.config import Plugin
from schemas.errors import ConfigError, ModelError
from schemas.plugins import Registry

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


def check_noise(key: str, scale: float) -> None:
    """Raise ``ConfigError`` unless a noise is 0 or more, and finite."""
    if not 0 <= scale < float("inf"):
        raise ConfigError(f"{key}: {scale}; expected 0 or more")


def _check_compatible(first: Path, first_matrices: Matrices, other: Path, other_matrices: Matrices) -> None:
    one, two = read_config(first), read_config(other)
    for key in _EQUAL_KEYS:
        if (expected := _comparable(one.get(key))) != (actual := _comparable(two.get(key))):
            raise ModelError(f"{other}: {key} is {actual!r}, expected that of the other parent, {expected!r}")
    expected_sizes, found_sizes = _sizes(first_matrices), _sizes(other_matrices)
    for name in sorted({*expected_sizes, *found_sizes}):
        if expected_sizes.get(name) != found_sizes.get(name):
            raise ModelError(
                f"{other}: {name} is adapted as {found_sizes.get(name)}, expected that of the other parent, "
                f"{expected_sizes.get(name)} (output and input features)"
            )


def _comparable(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, list) else value or None


def _sizes(matrices: Matrices) -> Mapping[str, tuple[int, int]]:
    return {name: (b_OR.shape[0], a_RI.shape[1]) for name, (a_RI, b_OR) in matrices.items()}
