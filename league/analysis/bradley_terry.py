"""Maximum-likelihood strengths over a whole history, with intervals clustered by match.

Matches count equally, in any order. Two models (formulas in ``likelihood``): ``pairs`` compares every two seats of a
match (Bradley–Terry with Davidson's ties), ``ranks`` takes the order of all seats at once (Plackett–Luce).

- An agent in several seats plays each of them; comparisons between its own seats inform roles and ties only.
- A weak Gaussian prior (sd 800 Elo: less evidence than a fifth of a game) keeps agents that never lost finite. Such an
  agent is marked ``one_sided``: its interval is the prior's as much as the data's.
- The agents' mean is ``centre``.
- Roles (powers, turn order) have a strength of their own, which sums to zero over the roles.
- Intervals resample whole matches, since the comparisons within one depend on each other, or larger clusters that the
  caller passes, such as the matches of one seed. Where a draw leaves an agent unconnected, the prior stands in, and the
  interval is wide. ``naive`` intervals take all comparisons as independent, which is wrong for ``pairs``.
"""

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import exp, isfinite
from typing import Literal

import msgspec
import numpy as np

from league.analysis.comparisons import Z_95, Comparisons, connected_groups, make_comparisons
from league.analysis.likelihood import one_sided_mask
from league.analysis.posterior import (
    ELO_PER_LOG_UNIT,
    GOAL,
    PosteriorProblem,
    clusters_of,
    make_likelihood_data,
    start_parameters,
)
from league.ratings.arrays import Codes, Floats, Ints, MatchArrays
from schemas.errors import UsageError
from schemas.ids import derive_seed

_TIE_SD = 5.0
_DRAW_GOAL = 1e-4
"""Squared distance: a draw's parameters together are within a hundredth of a posterior spread of its maximum."""


class FitOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the fit."""

    model: Literal["pairs", "ranks"] = "pairs"
    ties: Literal["davidson", "half"] = "davidson"
    """For ``pairs``: a tie parameter, or half a win for each. ``ranks`` always uses the latter."""
    centre: float = 1000.0
    """Mean Elo of all agents."""
    prior_sd: float = 800.0
    """Standard deviation of the prior, Elo."""
    draws: int = 1000
    """Number of bootstrap draws; 0 leaves only the naive intervals."""
    seed: int = 0
    threads: int = 0
    """0 for all cores. The result does not depend on it."""


class Strength(msgspec.Struct, frozen=True):
    """Strength of an agent or a role, in Elo."""

    name: str
    rating: float
    """A role's rating is relative to the mean of all roles."""
    low: float | None
    """95 % interval by bootstrap; None without one."""
    high: float | None
    naive_low: float
    """95 % interval from the curvature alone."""
    naive_high: float
    matches: int
    """Matches of the agent; 0 for a role."""
    one_sided: bool = False
    """Whether it won, or lost, every comparison with others."""


class FittedStrengths(msgspec.Struct, frozen=True):
    """Fitted strengths, best first, and properties of the fit."""

    agents: list[Strength]
    roles: list[Strength]
    """By name; empty where none were passed."""
    tie: float | None
    """Davidson's ν: 0 no ties, 2 as many ties as decisions between equals. None where ties are half wins."""
    matches: int
    passed_over: int
    """Matches without a comparison: a score that is not finite, or fewer than two different agents."""
    steps: int
    converged: bool
    unconverged_draws: int


def fit_strengths(
    matches: MatchArrays,
    role_S: Sequence[str] | Codes | None = None,
    options: FitOptions | None = None,
    cluster_M: Sequence[Hashable] | None = None,
) -> FittedStrengths:
    """Fit the strengths of a history's agents, from matches of one game, none of them voided.

    ``role_S`` names the role of each seat, such as the power or the turn order, or holds codes into ``matches.roles``;
    ``cluster_M`` is the cluster of each match in the bootstrap, such as its seed, by default every match its own.

    Raises:
        UsageError: bad options, arrays that do not fit together, nothing to compare, or groups that never met.
    """
    options = options or FitOptions()
    compared = make_comparisons(matches, role_S)
    problem = _make_problem(compared, options)
    at_P, lower_PP, steps, distance = problem.maximise()
    draws_DP, unconverged = _bootstrap(problem, at_P, lower_PP, options, clusters_of(matches, compared, cluster_M))
    agents, roles = _strengths(problem, options, at_P, draws_DP, role_S is not None)
    return FittedStrengths(
        agents=sorted(agents, key=lambda row: (-row.rating, row.name)),
        roles=roles,
        tie=exp(at_P[-1]) if problem.free_P[-1] else None,
        matches=len(compared.begin_M),
        passed_over=compared.passed_over,
        steps=steps,
        converged=bool(distance <= GOAL),
        unconverged_draws=unconverged,
    )


def _make_problem(compared: Comparisons, options: FitOptions) -> PosteriorProblem:
    _check_options(options)
    groups = connected_groups(compared)
    if len(groups) > 1:
        raise UsageError(
            f"board: the agents fall into {len(groups)} groups that never met ({len(groups[0])} with {groups[0][0]}, "
            f"{len(groups[1])} with {groups[1][0]}); expected matches that connect them"
        )
    start_P, free_P, _ = start_parameters(compared, {}, options.centre)
    inside_S = np.ones(len(compared.rank_S), np.bool_)
    inside_S[compared.begin_M] = False
    has_ties = (inside_S[1:] & (np.diff(compared.rank_S) == 0)).any()
    if options.model == "pairs" and options.ties == "davidson" and has_ties:
        start_P[-1], free_P[-1] = 0.0, True
    precision_P = np.full(len(start_P), (ELO_PER_LOG_UNIT / options.prior_sd) ** 2)
    precision_P[-1] = _TIE_SD**-2
    prior_PP = np.diag(np.where(free_P, precision_P, 0.0))
    return PosteriorProblem(compared, make_likelihood_data(compared, options.model), prior_PP, free_P, start_P)


def _check_options(options: FitOptions) -> None:
    if not (isfinite(options.prior_sd) and options.prior_sd > 0 and isfinite(options.centre)):
        raise UsageError(
            f"board: prior_sd is {options.prior_sd} and centre {options.centre}; expected finite Elo, prior_sd above 0"
        )
    if options.ties not in ("davidson", "half"):
        raise UsageError(f"board: ties are {options.ties!r}; expected 'davidson' or 'half'")
    if options.draws < 0 or options.threads < 0:
        raise UsageError(f"board: {options.draws} draws on {options.threads} threads; expected 0 or more of each")


def _bootstrap(
    problem: PosteriorProblem, at_P: Floats, lower_PP: Floats, options: FitOptions, cluster_M: Ints
) -> tuple[Floats, int]:
    """Parameters for resampled histories (as many clusters of matches, drawn with replacement), and failed draws.

    Each draw has its own named seed, so results do not depend on the number of threads.
    """
    found_DP = np.zeros((options.draws, len(at_P)))
    count = int(cluster_M.max()) + 1

    def draw(number: int) -> bool:
        rng = np.random.default_rng(derive_seed(options.seed, "bootstrap", number))
        weight_M = np.bincount(rng.integers(0, count, count), minlength=count).astype(np.float64)[cluster_M]
        found_DP[number], _, _, distance = problem.maximise(weight_M, (at_P, lower_PP), _DRAW_GOAL)
        return bool(distance <= _DRAW_GOAL)

    with ThreadPoolExecutor(options.threads or os.cpu_count() or 1) as pool:
        converged = sum(pool.map(draw, range(options.draws)))
    return found_DP, options.draws - converged


def _strengths(
    problem: PosteriorProblem, options: FitOptions, at_P: Floats, draws_DP: Floats, with_roles: bool
) -> tuple[list[Strength], list[Strength]]:
    compared = problem.compared
    size, agents = len(at_P), len(compared.agents)
    # Matches do not determine a common shift: it is removed from the spread, and from rounding errors.
    kinds = [slice(0, agents), slice(agents, size - 1)]
    shift_PP = np.zeros((size, size))
    for kind in kinds:
        shift_PP[kind, kind] = 1 / (kind.stop - kind.start)
    spread_PP = _subtract_means(_subtract_means(problem.covariance(at_P, shift_PP), kinds).T, kinds)
    spread_P = np.sqrt(np.maximum(np.diag(spread_PP), 0.0)) * ELO_PER_LOG_UNIT * problem.free_P
    at_P, draws_DP = _subtract_means(at_P, kinds)[:-1], _subtract_means(draws_DP, kinds)[:, :-1]
    offset_P = np.zeros(size - 1)
    offset_P[:agents] = options.centre
    rating_P = offset_P + ELO_PER_LOG_UNIT * at_P
    bounds = offset_P + ELO_PER_LOG_UNIT * np.quantile(draws_DP, [0.025, 0.975], axis=0) if len(draws_DP) else None
    one_sided_A = one_sided_mask(problem.data)

    def row(name: str, code: int) -> Strength:
        rating, naive = float(rating_P[code]), Z_95 * float(spread_P[code])
        agent = code < agents
        return Strength(
            name=name,
            rating=rating,
            low=None if bounds is None else float(bounds[0, code]),
            high=None if bounds is None else float(bounds[1, code]),
            naive_low=rating - naive,
            naive_high=rating + naive,
            matches=int(compared.games_A[code]) if agent else 0,
            one_sided=agent and bool(one_sided_A[code]),
        )

    roles = [row(name, agents + code) for code, name in enumerate(compared.roles)] if with_roles else []
    return [row(name, code) for code, name in enumerate(compared.agents)], roles


def _subtract_means(values: Floats, kinds: list[slice]) -> Floats:
    """Subtract the mean of each kind of parameters, along the last axis."""
    centred = values.copy()
    for kind in kinds:
        centred[..., kind] -= centred[..., kind].mean(-1, keepdims=True)
    return centred
