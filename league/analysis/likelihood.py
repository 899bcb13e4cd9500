"""Compiled likelihoods of matches over log-strengths, with gradients and curvatures, and a linear solver.

The parameters are one vector: a log-strength per agent, one per role, and last the logarithm of the tie parameter ν.
A seat's worth is w = exp(agent + role).

Pairs (``PAIRS``): every two seats i, j of a match are compared, with Davidson's ties (JASA 65, 1970, eq. 2.1):
D = wᵢ + wⱼ + ν√(wᵢwⱼ), i wins with wᵢ/D, ties with ν√(wᵢwⱼ)/D. With ν = 0 a tie is half a win for each. The pairs of
a match depend on each other, so this is a composite likelihood: its maximum is right, its curvature is too sharp.

Ranks (``RANKS``): Plackett–Luce, the best of the remaining seats is i with wᵢ/Σw. Where seats tie, the logarithm is
averaged over all orders that the ranks allow; two tied seats are then half a win for each.

Suffixes: M match, S seat, N seat of one match, P parameter. Sums are formed in the order of the matches by one
thread, so equal arguments give equal bits.
"""

from collections.abc import Callable
from math import comb
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from league.ratings.arrays import Codes, Floats, Ints, Mask
from league.ratings.compiled import compile_function

PAIRS, RANKS = 0, 1

Args = ParamSpec("Args")
Result = TypeVar("Result")


def _compile(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """``compile_function`` with the function's type; functions must be defined before those that call them."""
    compiled: Callable[Args, Result] = compile_function(function)
    return compiled


class LikelihoodData(NamedTuple):
    """The arrays of ``comparisons.Comparisons``, and the model."""

    model: int
    """``PAIRS`` or ``RANKS``."""
    begin_M: Ints
    end_M: Ints
    agent_S: Codes
    role_S: Codes
    rank_S: Codes
    agents: int
    """Number of agents: the parameter of role 0 follows theirs."""
    share_CC: Floats
    """``tie_order_shares`` for the most seats that tie; unused by ``PAIRS``."""


@_compile
def _add_pair_curvature(worth_N: Floats, root_N: Floats, nu: float, curve_NN: Floats) -> None:
    size = len(worth_N)
    for i in range(size):
        for j in range(i + 1, size):
            tie = nu * root_N[i] * root_N[j]
            scale = 1.0 / (worth_N[i] + worth_N[j] + tie)
            lead, even = 0.5 * (worth_N[i] - worth_N[j]) * scale, tie * scale
            spread = 0.25 * (1.0 - even) - lead * lead
            curve_NN[i, i] += spread
            curve_NN[j, j] += spread
            curve_NN[i, j] -= spread
            curve_NN[j, i] -= spread
            for place, sign in ((i, -1.0), (j, 1.0)):
                curve_NN[place, size] += sign * lead * even
                curve_NN[size, place] += sign * lead * even
            curve_NN[size, size] += even * (1.0 - even)


@_compile
def _add_pair_derivatives(
    worth_N: Floats, root_N: Floats, rank_N: Ints, nu: float, curved: bool, slope_N: Floats, curve_NN: Floats
) -> None:
    """Add one match's gradient and curvature; index ``len(rank_N)`` of both is log ν."""
    size = len(rank_N)
    evens = 0.0
    for i in range(size):
        mine = 0.0
        for j in range(i + 1, size):
            tie = nu * root_N[i] * root_N[j]
            scale = 1.0 / (worth_N[i] + worth_N[j] + tie)
            tied = 1.0 if rank_N[i] == rank_N[j] else 0.0
            step = 0.5 - 0.5 * tied - 0.5 * (worth_N[i] - worth_N[j]) * scale
            mine += step
            slope_N[j] -= step
            evens += tied - tie * scale
        slope_N[i] += mine
    slope_N[size] = evens
    if curved:
        _add_pair_curvature(worth_N, root_N, nu, curve_NN)


@_compile
def _add_choice_curvature(
    worth_N: Floats, tied: int, first: int, last: int, share: float, total: float, curve_NN: Floats
) -> None:
    """Add ``share`` of the curvature of log Σw over the seats in the bit set ``tied`` and those from ``last`` on."""
    size = len(worth_N)
    for i in range(first, size):
        if i >= last or (tied >> (i - first)) & 1:
            chance = share * worth_N[i] / total
            curve_NN[i, i] += chance
            for j in range(first, size):
                if j >= last or (tied >> (j - first)) & 1:
                    curve_NN[i, j] -= chance * worth_N[j] / total


@_compile
def _add_rank_derivatives(
    worth_N: Floats, rank_N: Ints, share_CC: Floats, curved: bool, slope_N: Floats, curve_NN: Floats
) -> None:
    """Add one match's gradient and curvature, from the last rank up: ``below`` is the worth of the ranks beneath."""
    last, below = len(rank_N), 0.0
    while last > 0:
        first = last - 1
        while first > 0 and rank_N[first - 1] == rank_N[last - 1]:
            first -= 1
        for i in range(first, last):
            slope_N[i] += 1.0
        for tied in range(1, 1 << (last - first)):
            total = below
            for i in range(first, last):
                if (tied >> (i - first)) & 1:
                    total += worth_N[i]
            share = share_CC[last - first, tied]
            scale = share / total
            # All seats beneath remain whenever one of these is chosen.
            for i in range(first, len(rank_N)):
                if i >= last or (tied >> (i - first)) & 1:
                    slope_N[i] -= scale * worth_N[i]
            if curved:
                _add_choice_curvature(worth_N, tied, first, last, share, total, curve_NN)
        for i in range(first, last):
            below += worth_N[i]
        last = first


def tie_order_shares(most: int) -> Floats:
    """By number of tied seats up to ``most`` and bit set of them: the chance that it remains in a random order."""
    table = np.zeros((most + 1, 1 << most))
    for size in range(1, most + 1):
        for tied in range(1, 1 << size):
            table[size, tied] = 1 / comb(size, tied.bit_count())
    return table


@_compile
def _scatter_derivatives(
    weight: float, place_NC: Ints, curved: bool, slope_N: Floats, curve_NN: Floats, slope_P: Floats, curve_PP: Floats
) -> None:
    """Add a match's gradient and curvature to those of its seats' parameters; -1 is no parameter."""
    for i in range(len(place_NC)):
        for row in place_NC[i]:
            if row < 0:
                continue
            slope_P[row] += weight * slope_N[i]
            if curved:
                for j in range(len(place_NC)):
                    for column in place_NC[j]:
                        if column >= 0:
                            curve_PP[row, column] += weight * curve_NN[i, j]


@_compile
def likelihood_derivatives(data: LikelihoodData, weight_M: Floats, at_P: Floats, curved: bool) -> tuple[Floats, Floats]:
    """Gradient of the log-likelihood, and its negated second derivatives if ``curved`` (else an empty matrix)."""
    size = len(at_P)
    slope_P = np.zeros(size)
    curve_PP = np.zeros((size, size) if curved else (0, 0))
    worth_P, root_P, nu = np.exp(at_P), np.exp(0.5 * at_P), np.exp(at_P[-1])
    most = 0
    for match in range(len(data.begin_M)):
        most = max(most, data.end_M[match] - data.begin_M[match])
    all_worth_N, all_root_N, all_rank_N = np.zeros(most), np.zeros(most), np.zeros(most, np.int64)
    all_place_NC = np.zeros((most + 1, 2), np.int64)
    all_slope_N, all_curve_NN = np.zeros(most + 1), np.zeros((most + 1, most + 1))
    for match in range(len(data.begin_M)):
        if weight_M[match] == 0.0:
            continue
        begin, seats = data.begin_M[match], data.end_M[match] - data.begin_M[match]
        worth_N, root_N, rank_N = all_worth_N[:seats], all_root_N[:seats], all_rank_N[:seats]
        place_NC = all_place_NC[: seats + 1]
        for i in range(seats):
            place_NC[i, 0], place_NC[i, 1] = data.agent_S[begin + i], data.agents + data.role_S[begin + i]
            worth_N[i] = worth_P[place_NC[i, 0]] * worth_P[place_NC[i, 1]]
            root_N[i] = root_P[place_NC[i, 0]] * root_P[place_NC[i, 1]]
            rank_N[i] = data.rank_S[begin + i]
        place_NC[seats, 0], place_NC[seats, 1] = size - 1, -1
        slope_N, curve_NN = all_slope_N[: seats + 1], all_curve_NN[: seats + 1, : seats + 1]
        slope_N[:] = 0.0
        if curved:
            curve_NN[:] = 0.0
        if data.model == PAIRS:
            _add_pair_derivatives(worth_N, root_N, rank_N, nu, curved, slope_N, curve_NN)
        else:
            _add_rank_derivatives(worth_N, rank_N, data.share_CC, curved, slope_N, curve_NN)
        _scatter_derivatives(weight_M[match], place_NC, curved, slope_N, curve_NN, slope_P, curve_PP)
    return slope_P, curve_PP


@_compile
def cholesky_factor(matrix_PP: Floats, free_P: Mask) -> Floats:
    """Cholesky factor of a positive definite matrix; rows that are not free become those of the identity."""
    size = len(free_P)
    lower = np.zeros((size, size))
    for i in range(size):
        if not free_P[i]:
            lower[i, i] = 1.0
            continue
        for j in range(i):
            if free_P[j]:
                total = matrix_PP[i, j]
                for k in range(j):
                    total -= lower[i, k] * lower[j, k]
                lower[i, j] = total / lower[j, j]
        total = matrix_PP[i, i]
        for k in range(i):
            total -= lower[i, k] * lower[i, k]
        lower[i, i] = np.sqrt(total)
    return lower


@_compile
def cholesky_solve(lower_PP: Floats, right_P: Floats) -> Floats:
    """Solve LLᵀx = right."""
    size = len(right_P)
    x = right_P.copy()
    for i in range(size):
        for k in range(i):
            x[i] -= lower_PP[i, k] * x[k]
        x[i] /= lower_PP[i, i]
    for i in range(size - 1, -1, -1):
        x[i] /= lower_PP[i, i]
        for k in range(i):
            x[k] -= lower_PP[i, k] * x[i]
    return x


@_compile
def cholesky_inverse(lower_PP: Floats) -> Floats:
    """The inverse of LLᵀ."""
    size = len(lower_PP)
    inverse = np.zeros((size, size))
    for column in range(size):
        unit = np.zeros(size)
        unit[column] = 1.0
        inverse[column] = cholesky_solve(lower_PP, unit)
    return inverse


@_compile
def add_prior_gradient(prior_PP: Floats, at_P: Floats, free_P: Mask, slope_P: Floats) -> None:
    """Add the gradient of the prior, whose mean is 0; fixed parameters have none."""
    for i in range(len(at_P)):
        for j in range(len(at_P)):
            if prior_PP[i, j] != 0.0:
                slope_P[i] -= prior_PP[i, j] * at_P[j]
        if not free_P[i]:
            slope_P[i] = 0.0


@_compile
def one_sided_mask(data: LikelihoodData) -> Mask:
    """Mask of agents that never won, or never lost, against another agent; a tie counts as both."""
    won_A, lost_A = np.zeros(data.agents, np.bool_), np.zeros(data.agents, np.bool_)
    for match in range(len(data.begin_M)):
        for i in range(data.begin_M[match], data.end_M[match]):
            for j in range(i + 1, data.end_M[match]):
                better, worse = data.agent_S[i], data.agent_S[j]
                if better != worse:
                    won_A[better] = lost_A[worse] = True
                    if data.rank_S[i] == data.rank_S[j]:
                        won_A[worse] = lost_A[better] = True
    return ~(won_A & lost_A)
