"""Nash averaging and the decomposition of payoffs: an agent's worth within a population.

Nash averaging (Balduzzi et al., *Re-evaluating Evaluation*, 2018) is not affected by clones. Two players each choose
an agent and are paid the log-odds; the Nash equilibrium of greatest entropy is unique, and divides an agent's share
among its clones.

It is the limit of p = softmax(Ap/τ) as τ falls. That fixed point is the saddle of pᵀAq + τ(H(p) − H(q)); comparing it
with any equilibrium p* gives H(p*) ≤ H(p) for every τ, so no equilibrium has more entropy than the limit. Newton's
method follows it down from a τ at which it is uniform.
"""

from math import erfc, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from league.analysis.bradley_terry import MAX_AGENTS
from schemas.errors import LeagueError, UsageError

Floats = NDArray[np.float64]

_LAST = 1e-7
_COOLING = 0.7
_MOST_STEPS = 60


class NashAverage(msgspec.Struct, frozen=True):
    """Equilibrium with one entry per agent, in the order of the matrix."""

    share: list[float]
    """Share of the equilibrium; sums to 1. Agents with none lose to the mixture of the others."""
    worth: list[float]
    """Mean payoff against the equilibrium: 0 for agents with a share of it, else below 0 (to 1e-6 of the scale)."""
    entropy: float
    """Entropy of the shares, in nats: the logarithm of the number of equal agents with the same diversity."""


def nash_average(matrix_AA: Floats) -> NashAverage:
    """Compute the equilibrium of greatest entropy of antisymmetric payoffs, such as ``PayoffMatrix.log_odds()``.

    Raises:
        UsageError: not a finite antisymmetric matrix.
        LeagueError: Newton's method did not converge along the path.
    """
    _check_antisymmetric(matrix_AA, "nash")
    scale = float(np.abs(matrix_AA).max()) or 1.0
    payoff_AA = matrix_AA / scale
    log_A = np.full(len(matrix_AA), -np.log(len(matrix_AA)))
    heat = 4.0
    while heat > _LAST:
        heat = max(heat * _COOLING, _LAST)
        log_A = _solve_fixed_point(payoff_AA, log_A, heat)
    share_A = np.exp(log_A)
    share_A /= share_A.sum()
    positive = share_A[share_A > 0]
    return NashAverage(
        share=share_A.tolist(),
        worth=(matrix_AA @ share_A).tolist(),
        entropy=float(-(positive * np.log(positive)).sum()),
    )


def _solve_fixed_point(payoff_AA: Floats, log_A: Floats, heat: float) -> Floats:
    """Logarithm of the fixed point at a temperature, starting from one nearby."""
    size = len(log_A)
    constant = 0.0
    log_x = log_A
    error = _fixed_point_error(payoff_AA, log_x, constant, heat)
    for _ in range(_MOST_STEPS):
        if np.abs(error).max() < 1e-9:
            return log_x
        share_A = np.exp(log_x)
        slope = np.zeros((size + 1, size + 1))
        slope[:size, :size] = np.eye(size) - payoff_AA * share_A / heat
        slope[:size, size], slope[size, :size] = 1.0, share_A
        move = np.linalg.solve(slope, -error)
        # A longer step would leave the region where exp() is close to its tangent.
        length = min(1.0, 2.0 / max(np.abs(move[:size] * (share_A > 1e-12)).max(), 1e-300))
        for _ in range(30):
            trial, other = log_x + length * move[:size], constant + length * move[size]
            new = _fixed_point_error(payoff_AA, trial, other, heat)
            if np.linalg.norm(new) < np.linalg.norm(error):
                break
            length *= 0.5
        log_x, constant, error = trial, other, new
    if np.abs(error).max() > 1e-4:
        raise LeagueError(
            f"nash: no equilibrium found at temperature {heat:.1g}: {np.abs(error).max():.1g} is left after "
            f"{_MOST_STEPS} steps; expected less than 0.0001"
        )
    return log_x


def _fixed_point_error(payoff_AA: Floats, log_A: Floats, constant: float, heat: float) -> Floats:
    share_A = np.exp(np.minimum(log_A, 5.0))
    return np.append(log_A - payoff_AA @ share_A / heat + constant, share_A.sum() - 1.0)


def _check_antisymmetric(matrix_AA: Floats, name: str) -> None:
    """Check that a matrix is finite and antisymmetric, as ``PayoffMatrix.log_odds`` gives it."""
    if matrix_AA.ndim != 2 or matrix_AA.shape[0] != matrix_AA.shape[1] or not 0 < len(matrix_AA) <= MAX_AGENTS:
        raise UsageError(f"{name}: a matrix of shape {matrix_AA.shape}; expected agents by agents, 1 to {MAX_AGENTS}")
    if not np.isfinite(matrix_AA).all():
        row, column = np.argwhere(~np.isfinite(matrix_AA))[0]
        raise UsageError(f"{name}: row {row}, column {column} is {matrix_AA[row, column]}; expected a finite number")
    gap = np.abs(matrix_AA + matrix_AA.T)
    if gap.max() > 1e-9 * max(1.0, np.abs(matrix_AA).max()):
        row, column = np.unravel_index(np.argmax(gap), gap.shape)
        raise UsageError(
            f"{name}: rows {row} and {column} meet with {matrix_AA[row, column]} and {matrix_AA[column, row]}; "
            "expected each to be minus the other"
        )


class HodgeDecomposition(msgspec.Struct, frozen=True):
    """A ranking, and the part of the results that it does not explain."""

    potential: list[float]
    """Best-fitting log-strength per agent; the mean is 0 in each group of agents that met."""
    cyclic_share: float
    """Share of ‖Y‖², 0 to 1; also 0 where all are even."""
    beyond_chance: float
    """The same with the noise's expected part subtracted from both; only where the weights are 1/variance."""
    cycles: int
    """Number of independent cycles of the graph: without any, there is no cyclic part."""
    p_value: float
    """For no cyclic part, by Wilson and Hilferty's approximation; only where the weights are 1/variance."""


def decompose(odds_AA: Floats, weight_AA: Floats | None = None) -> HodgeDecomposition:
    """Decompose pairwise log-odds, weighted by a symmetric matrix with 0 for agents that never met; by default all 1.

    Raises:
        UsageError: not a finite antisymmetric matrix, or weights that are negative, not finite or not symmetric.
    """
    _check_antisymmetric(odds_AA, "hodge")
    size = len(odds_AA)
    weight_AA = np.ones((size, size)) if weight_AA is None else weight_AA.copy()
    fits = weight_AA.shape == odds_AA.shape and np.isfinite(weight_AA).all() and (weight_AA >= 0).all()
    if not fits or not np.allclose(weight_AA, weight_AA.T):
        raise UsageError("hodge: expected weights agents by agents, finite, not negative and symmetric")
    np.fill_diagonal(weight_AA, 0.0)
    laplacian = np.diag(weight_AA.sum(1)) - weight_AA
    potential = np.linalg.lstsq(laplacian, (weight_AA * odds_AA).sum(1), rcond=None)[0]
    rest_AA = odds_AA - (potential[:, None] - potential[None, :])
    whole = 0.5 * float((weight_AA * odds_AA**2).sum())
    rest = 0.5 * float((weight_AA * rest_AA**2).sum())
    met_AA = (weight_AA > 0).astype(np.float64)
    edges = int(met_AA.sum()) // 2
    # The rank of a graph's Laplacian is the number of edges of a spanning forest: each other edge closes a cycle.
    cycles = edges - int(np.linalg.matrix_rank(np.diag(met_AA.sum(1)) - met_AA, hermitian=True))
    signal = whole - edges
    p_value = 1.0
    if cycles:
        # The upper tail of the chi-square distribution.
        spread = 2 / (9 * cycles)
        p_value = 0.5 * erfc(((rest / cycles) ** (1 / 3) - (1 - spread)) / sqrt(2 * spread))
    return HodgeDecomposition(
        potential=potential.tolist(),
        cyclic_share=min(rest / whole, 1.0) if whole > 0 else 0.0,
        beyond_chance=min(max((rest - cycles) / signal, 0.0), 1.0) if signal > 0 else 0.0,
        cycles=cycles,
        p_value=p_value,
    )
