"""Strengths that change over gradient steps: learning curves with intervals, from the whole history at once.

Whole-history rating (R. Coulom, *Whole-History Rating*, 2008) with gradient steps for days: the versions of a policy
are a random walk, ``main@20 − main@10 ~ N(0, 10 · walk²)``, and all matches inform all versions, so that later results
refine earlier ratings. Agents without a version are constant. The likelihood is that of ``bradley_terry``; the
intervals are the curvature's at the maximum (Laplace). They are calibrated for ``ranks``, the default here, whose
matches are independent.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Literal

import msgspec
import numpy as np

from league.analysis.comparisons import Z_95, Comparisons, connected_groups, make_comparisons
from league.analysis.likelihood import likelihood_derivatives
from league.analysis.posterior import (
    ELO_PER_LOG_UNIT,
    PosteriorProblem,
    clusters_of,
    make_likelihood_data,
    start_parameters,
)
from league.ratings.arrays import Floats, Ints, MatchArrays
from schemas.errors import UsageError, format_choices
from schemas.ids import split_agent

VersionChain = tuple[str, list[tuple[int, int]]]
"""A policy, and the gradient step and code of each of its versions, oldest first."""


class WalkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prior of the curves."""

    walk: float = 15.0
    """Standard deviation of the change in one gradient step, Elo."""
    start: float = 400.0
    """Standard deviation of the first version of a policy and of other agents, Elo."""
    centre: float = 1000.0
    """Mean Elo of the first versions of all policies and of other agents, without anchors."""
    anchors: dict[str, float] = {}
    model: Literal["pairs", "ranks"] = "ranks"


class CurvePoint(msgspec.Struct, frozen=True):
    """A version of a policy on its learning curve, in Elo."""

    step: int
    rating: float
    low: float
    """95 % interval."""
    high: float
    matches: int


class LearningCurve(msgspec.Struct, frozen=True):
    """Learning curve of a policy, or a single point for an agent without versions (``step`` 0)."""

    policy: str
    points: list[CurvePoint]


class LearningCurves(msgspec.Struct, frozen=True):
    """Learning curves of all policies, in the order of first seats."""

    curves: list[LearningCurve]
    converged: bool


def fit_learning_curves(
    matches: MatchArrays,
    role_S: Sequence[str] | None = None,
    options: WalkOptions | None = None,
    cluster_M: Sequence[Hashable] | None = None,
) -> LearningCurves:
    """Fit the learning curves of a history.

    With ``cluster_M``, such as the seed of each match, intervals are the wider of the curvature's and of the clusters'
    (``_sandwich_covariance``).

    Raises:
        UsageError: bad options, arrays that do not fit together, nothing to compare, or policies that never met.
    """
    options = options or WalkOptions()
    compared = make_comparisons(matches, role_S)
    versions: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for code, agent in enumerate(compared.agents):
        # An agent with a policy's name but without a version is not a version of it.
        policy, step = split_agent(agent) or (agent, 0)
        versions.setdefault((policy, policy != agent), []).append((step, code))
    chains = [(policy, sorted(chain)) for (policy, _), chain in versions.items()]
    _check_options(compared, chains, options)
    problem, middle = _make_problem(compared, chains, options)
    at_P, _, _, distance = problem.maximise()
    agents = len(compared.agents)
    covariance_PP = problem.covariance(at_P)
    several = [covariance_PP]
    if cluster_M is not None:
        several.append(_sandwich_covariance(problem, at_P, covariance_PP, clusters_of(matches, compared, cluster_M)))
    # Without anchors, the zero of the scale is a convention: the mean of all first versions.
    first = [] if options.anchors else [chain[0][1] for _, chain in chains]
    if first:
        middle -= ELO_PER_LOG_UNIT * float(at_P[first].mean())
    variance_A = np.max([_variances(one_PP[:agents, :agents], first) for one_PP in several], axis=0)
    spread_A = np.sqrt(variance_A) * ELO_PER_LOG_UNIT * Z_95 * problem.free_P[:agents]
    rating_A = middle + ELO_PER_LOG_UNIT * at_P[:agents]
    rating, low, high = rating_A.tolist(), (rating_A - spread_A).tolist(), (rating_A + spread_A).tolist()
    games = compared.games_A.tolist()
    curves = [
        LearningCurve(policy, [CurvePoint(step, rating[at], low[at], high[at], games[at]) for step, at in chain])
        for policy, chain in chains
    ]
    return LearningCurves(curves, bool(distance <= 1e-12))


def _sandwich_covariance(problem: PosteriorProblem, at_P: Floats, covariance_PP: Floats, cluster_M: Ints) -> Floats:
    """Sandwich covariance, valid when the matches of a cluster depend on each other.

    Source: Liang and Zeger 1986, "Longitudinal data analysis using generalized linear models", eq. 5, with the usual
    factor for few clusters. With a handful of clusters it is still too small.
    """
    count = int(cluster_M.max()) + 1
    weights = ((cluster_M == number).astype(np.float64) for number in range(count))
    slope_CP = np.array([likelihood_derivatives(problem.data, weight_M, at_P, False)[0] for weight_M in weights])
    inside_CP = (slope_CP * problem.free_P) @ covariance_PP
    covariance: Floats = inside_CP.T @ inside_CP * (count / max(count - 1, 1))
    return covariance


def _variances(covariance_AA: Floats, first: list[int]) -> Floats:
    """Variances of the agents' strengths, relative to the mean of those of ``first`` if there are any."""
    if first:
        for _ in ("rows", "columns"):
            covariance_AA = (covariance_AA - covariance_AA[:, first].mean(1, keepdims=True)).T
    return np.maximum(np.diag(covariance_AA), 0.0)


def _check_options(compared: Comparisons, chains: list[VersionChain], options: WalkOptions) -> None:
    if unknown := sorted(set(options.anchors) - set(compared.agents)):
        expected = format_choices(compared.agents[:20])
        raise UsageError(f"curves: anchor {unknown[0]!r} was in no match; expected {expected}")
    for name, value in {"walk": options.walk, "start": options.start}.items():
        if not (isfinite(value) and value > 0):
            raise UsageError(f"curves: {name} is {value}; expected Elo above 0")
    if not all(isfinite(value) for value in [options.centre, *options.anchors.values()]):
        raise UsageError("curves: centre and anchors should be finite Elo")
    # The walk connects a policy's versions, so two groups that never met are two sets of policies.
    chain_of = {compared.agents[code]: place for place, (_, chain) in enumerate(chains) for _, code in chain}
    joined: list[set[int]] = []
    for group in connected_groups(compared, options.anchors):
        mine = {chain_of[name] for name in group}
        touching = [other for other in joined if other & mine]
        joined = [other for other in joined if not other & mine] + [mine.union(*touching)]
    if len(joined) > 1:
        raise UsageError(
            f"curves: the policies fall into {len(joined)} groups that never met "
            f"({chains[min(joined[0])][0]!r} and {chains[min(joined[1])][0]!r} are in two); "
            "expected matches that connect them"
        )


def _make_problem(
    compared: Comparisons, chains: list[VersionChain], options: WalkOptions
) -> tuple[PosteriorProblem, float]:
    agents, roles = len(compared.agents), len(compared.roles)
    start_P, free_P, middle = start_parameters(compared, options.anchors, options.centre)
    prior_PP: Floats = np.zeros((len(free_P), len(free_P)))
    prior_PP[range(agents, agents + roles), range(agents, agents + roles)] = (ELO_PER_LOG_UNIT / options.start) ** 2
    for _, chain in chains:
        prior_PP[chain[0][1], chain[0][1]] += (ELO_PER_LOG_UNIT / options.start) ** 2
        for (before, left), (after, right) in pairwise(chain):
            precision = (ELO_PER_LOG_UNIT / options.walk) ** 2 / (after - before)
            prior_PP[left, left] += precision
            prior_PP[right, right] += precision
            prior_PP[left, right] -= precision
            prior_PP[right, left] -= precision
    prior_PP[-1, -1] = 0.0
    data = make_likelihood_data(compared, options.model)
    return PosteriorProblem(compared, data, prior_PP, free_P, start_P), middle
