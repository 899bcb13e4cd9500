"""Genetic operators: mutation of one parent, crossover of two.

Shape suffixes: R rank, K sum of the parents' ranks, I/O input and output features of a linear.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.adapters import Matrices
from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from trainer.operators import OPERATORS, add_noise, check_noise


@OPERATORS.register("mutation")
class Mutation(PluginStruct, frozen=True):
    """``W + noise * rms(W) * N(0, 1)`` for A and B of every linear; 0 copies the parent.

    The noise is relative to each matrix, so that one setting suits matrices of any size; a B that is still zero stays
    zero. Perturbing a copy of a better member is the exploration of population-based training (Jaderberg et al. 2017).
    """

    parents: ClassVar[int] = 1
    noise: float = 0.02
    """Standard deviation of the noise, as a share of the root mean square of each matrix."""

    def __post_init__(self) -> None:
        check_noise("noise", self.noise)

    def apply(self, parents: Sequence[Matrices], rng: torch.Generator) -> Matrices:
        """See ``Operator.apply``."""
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
    weight: float = 0.5
    """Of the first parent, which is the better rated one: the probability that a linear is its, or its share."""
    noise: float = 0.0
    """Mutation of the offspring: see ``mutation``."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"weight: {self.weight}; expected 0 to 1")
        check_noise("noise", self.noise)

    def apply(self, parents: Sequence[Matrices], rng: torch.Generator) -> Matrices:
        """See ``Operator.apply``."""
        first, second = parents
        offspring = {name: self._cross(first[name], second[name], rng) for name in sorted(first)}
        return add_noise(offspring, self.noise, rng) if self.noise else offspring

    def _cross(self, first: Pair, second: Pair, rng: torch.Generator) -> Pair:
        if self.method == "average":
            return average_updates(first, second, self.weight)
        return first if torch.rand((), generator=rng).item() < self.weight else second


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
