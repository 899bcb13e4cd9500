"""Bradley–Terry strengths of a whole history by maximum likelihood, with 95 % intervals.

Every two seats of a match held by different agents are compared: the first wins with probability
1 / (1 + 10^((r₂ - r₁) / 400)), and a tie is half a win for each (Bradley and Terry, Biometrika 39, 1952). Order and age
of matches have no influence.

- A pair counts 1 / (seats - 1): a match is worth one comparison per seat, however many seats it has, since the
  comparisons within one match depend on each other.
- A Gaussian prior (sd 800 Elo: less evidence than a fifth of a match) keeps agents that never lost finite. They are
  marked ``one_sided``, as the prior determines their distance from the others.
- Intervals are those of the sandwich estimator with matches as clusters (Liang and Zeger, Biometrika 73, 1986). It is
  unreliable for agents with few matches, so it is averaged with the variance of the likelihood's curvature, which
  counts as much as ten matches; for agents that are ``one_sided`` the curvature alone counts.

Suffixes: M match, S seat, A agent, P pair of seats.
"""

from collections.abc import Iterator, Sequence
from math import log

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.numbers import Z_95

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_AGENTS = 4000
"""Maximum number of agents: the fit keeps dense matrices of agents by agents."""
_ELO_PER_LOG_UNIT = 400 / log(10)
_PRECISION = (_ELO_PER_LOG_UNIT / 800.0) ** 2
"""Precision of the prior, in log units."""
_CURVATURE_MATCHES = 10
_MAX_STEPS = 100
_LONGEST_STEP = 2.0
_TOLERANCE = 1e-10
_MATCHES_PER_BLOCK = 2048


class Strength(msgspec.Struct, frozen=True):
    """Strength of an agent in Elo, relative to the mean of all agents."""

    rating: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    one_sided: bool
    """Whether the agent won, or lost, every comparison."""


class MatchResults(msgspec.Struct, frozen=True):
    """Scores of the seats of matches; the seats of a match are adjacent."""

    match_S: Ints
    """Any number that differs between matches."""
    agent_S: Ints
    """Index into ``agents``."""
    score_S: Floats
    agents: Sequence[str]


def fit_strengths(results: MatchResults) -> dict[str, Strength]:
    """Fit the strengths of the largest group of agents that matches connect; the others have none.

    Empty without a match between two agents, or with more than ``MAX_AGENTS`` agents.
    """
    size = len(results.agents)
    if not 2 <= size <= MAX_AGENTS:
        return {}
    won_AA = np.zeros((size, size))
    for _, agent_P, other_P, weight_P, share_P in _pair_blocks(results):
        for row_P, column_P, part_P in ((agent_P, other_P, share_P), (other_P, agent_P, 1.0 - share_P)):
            won_AA += np.bincount(row_P * size + column_P, weight_P * part_P, size * size).reshape(size, size)
    group = _largest_group(won_AA)
    if len(group) < 2:
        return {}
    won_AA = won_AA[np.ix_(group, group)]
    strength_A = _maximise(won_AA)
    # Matches do not determine a common shift, so only differences from the mean have an interval.
    centre_AA = np.eye(len(group)) - 1.0 / len(group)
    inverse_AA = np.linalg.inv(_curvature(won_AA, strength_A))
    whole_A = np.zeros(size)
    whole_A[group] = strength_A
    score_AA, matches_A = _clustered_scores(results, whole_A)
    curved_A, clustered_A = (
        np.diag(centre_AA @ covariance_AA @ centre_AA)
        for covariance_AA in (inverse_AA, inverse_AA @ score_AA[np.ix_(group, group)] @ inverse_AA)
    )
    one_sided_A = (won_AA.sum(1) == 0) | (won_AA.sum(0) == 0)
    trust_A = np.where(one_sided_A, 0.0, matches_A[group] / (matches_A[group] + _CURVATURE_MATCHES))
    variance_A = trust_A * clustered_A + (1.0 - trust_A) * curved_A
    half_A = Z_95 * _ELO_PER_LOG_UNIT * np.sqrt(variance_A)
    rating_A = _ELO_PER_LOG_UNIT * (strength_A - strength_A.mean())
    return {
        results.agents[code]: Strength(float(rating), float(rating - half), float(rating + half), bool(one_sided))
        for code, rating, half, one_sided in zip(group.tolist(), rating_A, half_A, one_sided_A, strict=True)
    }


def _pair_blocks(results: MatchResults) -> Iterator[tuple[Ints, Ints, Ints, Floats, Floats]]:
    """Blocks of pairs: the match (from 0 in its block), both agents, the weight, and the first one's share."""
    if not len(results.match_S):
        return
    begins = np.flatnonzero(np.diff(results.match_S, prepend=results.match_S[0] - 1))
    sizes = np.diff(begins, append=len(results.match_S))
    for size in np.unique(sizes[sizes > 1]).tolist():
        chosen = begins[sizes == size]
        first, second = np.triu_indices(size, 1)
        for start in range(0, len(chosen), _MATCHES_PER_BLOCK):
            seat_MS = chosen[start : start + _MATCHES_PER_BLOCK, None] + np.arange(size)
            agent_MS, score_MS = results.agent_S[seat_MS], results.score_S[seat_MS]
            agent_MP, other_MP = agent_MS[:, first], agent_MS[:, second]
            counts_MP = (agent_MP != other_MP) & np.isfinite(score_MS).all(1)[:, None]
            match_P = np.nonzero(counts_MP)[0]
            share_MP = 0.5 + 0.5 * np.sign(score_MS[:, first] - score_MS[:, second])
            weight_P = np.full(len(match_P), 1.0 / (size - 1))
            yield match_P, agent_MP[counts_MP], other_MP[counts_MP], weight_P, share_MP[counts_MP]


def _largest_group(won_AA: Floats) -> Ints:
    """Ascending indices of the largest group of agents that comparisons connect."""
    met_AA = won_AA + won_AA.T > 0
    left = set(np.flatnonzero(met_AA.any(1)).tolist())
    largest: list[int] = []
    while left:
        reached = {left.pop()}
        border = set(reached)
        while border:
            border = set(np.flatnonzero(met_AA[sorted(border)].any(0)).tolist()) - reached
            reached |= border
        left -= reached
        largest = max(largest, sorted(reached), key=len)
    return np.array(largest, np.int64)


def _expected(strength_A: Floats) -> Floats:
    """Probability that the row's agent beats the column's."""
    expected: Floats = 1.0 / (1.0 + np.exp(np.clip(strength_A[None, :] - strength_A[:, None], -500, 500)))
    return expected


def _curvature(won_AA: Floats, strength_A: Floats) -> Floats:
    """Negated second derivatives of the log posterior."""
    expected_AA = _expected(strength_A)
    weight_AA = (won_AA + won_AA.T) * expected_AA * (1.0 - expected_AA)
    curvature: Floats = np.diag(weight_AA.sum(1) + _PRECISION) - weight_AA
    return curvature


def _maximise(won_AA: Floats) -> Floats:
    """Maximum of the log posterior, which is concave, by Newton's method with bounded steps."""
    games_AA = won_AA + won_AA.T
    strength_A = np.zeros(len(won_AA))
    for _ in range(_MAX_STEPS):
        slope_A = (won_AA - games_AA * _expected(strength_A)).sum(1) - _PRECISION * strength_A
        step_A = np.linalg.solve(_curvature(won_AA, strength_A), slope_A)
        strength_A += step_A * min(1.0, _LONGEST_STEP / max(float(np.abs(step_A).max()), 1e-300))
        if np.abs(step_A).max() < _TOLERANCE:
            break
    return strength_A


def _clustered_scores(results: MatchResults, strength_A: Floats) -> tuple[Floats, Floats]:
    """Sum over matches of the outer product of each match's gradient with itself, and each agent's matches."""
    size = len(strength_A)
    matches_A = np.zeros(size)
    total_AA = np.zeros((size, size))
    for match_P, agent_P, other_P, weight_P, share_P in _pair_blocks(results):
        expected_P = 1.0 / (1.0 + np.exp(np.clip(strength_A[other_P] - strength_A[agent_P], -500, 500)))
        rest_P = weight_P * (share_P - expected_P)
        place_P = np.concatenate([match_P * size + agent_P, match_P * size + other_P])
        slope_MA = np.bincount(place_P, np.concatenate([rest_P, -rest_P]), _MATCHES_PER_BLOCK * size)
        slope_MA = slope_MA.reshape(_MATCHES_PER_BLOCK, size)
        total_AA += slope_MA.T @ slope_MA
        matches_A += (np.bincount(place_P, minlength=_MATCHES_PER_BLOCK * size) > 0).reshape(slope_MA.shape).sum(0)
    return total_AA, matches_A
