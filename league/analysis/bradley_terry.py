"""Bradley–Terry strengths of a whole history by maximum likelihood, with 95 % intervals.

Every two sides of a match, teams or single seats, are compared: the first wins with probability
1 / (1 + 10^((r₂ - r₁) / 400)), where r is the mean of the side's seats, and a tie is half a win for each (Bradley and
Terry, Biometrika 39, 1952). Order and age of matches have no influence.

- A pair counts 1 / (sides - 1): a match is worth one comparison per side, however many sides it has, since the
  comparisons within one match depend on each other.
- A Gaussian prior (sd 800 Elo: less evidence than a fifth of a match) keeps agents that never lost finite. They are
  marked ``one_sided``, as the prior determines their distance from the others.
- Intervals are those of the sandwich estimator with matches as clusters (Liang and Zeger, Biometrika 73, 1986). It is
  unreliable for agents with few matches, so it is averaged with the variance of the likelihood's curvature, which
  counts as much as ten matches; for agents that are ``one_sided`` the curvature alone counts.

Suffixes: M match, S seat, A agent, T different line-up of a side, P pair of sides, J seat of such a pair.
"""

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

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
_ENTRIES_PER_BLOCK = 4_000_000


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
    side_S: Ints
    """Any number that differs between the sides of a match; the seats of a side are adjacent and have one score."""
    agent_S: Ints
    """Index into ``agents``."""
    score_S: Floats
    weight_S: Floats
    """Weight of the seat's match; 1 where all count alike."""
    agents: Sequence[str]


def fit_strengths(results: MatchResults) -> dict[str, Strength]:
    """Fit the strengths of the largest group of agents that matches connect; the others have none.

    Empty without a match between two agents, or with more than ``MAX_AGENTS`` agents.
    """
    size = len(results.agents)
    if not 2 <= size <= MAX_AGENTS:
        return {}
    sides = _Sides(results)
    pairs = _sum_pairs(sides, size)
    group = _largest_group(pairs.gram(np.ones(len(pairs.games_P)), absolute=True))
    if len(group) < 2:
        return {}
    pairs = pairs.within(group)
    strength_A = _maximise(pairs)
    # Matches do not determine a common shift, so only differences from the mean have an interval.
    centre_AA = np.eye(len(group)) - 1.0 / len(group)
    inverse_AA = np.linalg.inv(_curvature(pairs, strength_A))
    whole_A = np.zeros(size)
    whole_A[group] = strength_A
    score_AA, matches_A = _clustered_scores(sides, whole_A)
    curved_A, clustered_A = (
        np.diag(centre_AA @ covariance_AA @ centre_AA)
        for covariance_AA in (inverse_AA, inverse_AA @ score_AA[np.ix_(group, group)] @ inverse_AA)
    )
    one_sided_A = pairs.one_sided()
    trust_A = np.where(one_sided_A, 0.0, matches_A[group] / (matches_A[group] + _CURVATURE_MATCHES))
    variance_A = trust_A * clustered_A + (1.0 - trust_A) * curved_A
    half_A = Z_95 * _ELO_PER_LOG_UNIT * np.sqrt(variance_A)
    rating_A = _ELO_PER_LOG_UNIT * (strength_A - strength_A.mean())
    return {
        results.agents[code]: Strength(float(rating), float(rating - half), float(rating + half), bool(one_sided))
        for code, rating, half, one_sided in zip(group.tolist(), rating_A, half_A, one_sided_A, strict=True)
    }


class _Block(NamedTuple):
    """Pairs of sides of some matches."""

    match_P: Ints
    """Number of the match, from 0 in the block."""
    own_P: Ints
    """Line-up of the first side."""
    other_P: Ints
    weight_P: Floats
    share_P: Floats
    """Points of the first side."""


class _Sides:
    """The sides of all matches, by line-up: who is on a side, whatever the order of seats."""

    def __init__(self, results: MatchResults) -> None:
        is_new_S = np.diff(results.match_S, prepend=-1) != 0
        begins = np.flatnonzero(is_new_S | (np.diff(results.side_S, prepend=-1) != 0))
        sizes = np.diff(begins, append=len(results.match_S))
        most = int(sizes.max(initial=1))
        if most == 1:
            members, codes = np.arange(len(results.agents))[:, None], results.agent_S
        else:
            place_J = np.arange(most)
            within = place_J < sizes[:, None]
            padded = np.where(within, results.agent_S[(begins[:, None] + place_J) * within], -1)
            members, codes = np.unique(np.sort(padded), axis=0, return_inverse=True)
        self.agents = len(results.agents)
        self.member_TJ: Ints = np.maximum(members, 0)
        """Agents of each line-up."""
        is_member_TJ = members >= 0
        self.share_TJ: Floats = is_member_TJ / is_member_TJ.sum(1, keepdims=True)
        """What each adds to the side's strength; 0 where it has fewer seats."""
        self._lineup = codes.reshape(-1)
        self._score, self._weight = results.score_S[begins], results.weight_S[begins]
        self._match = results.match_S[begins]

    def blocks(self) -> Iterator[_Block]:
        """All pairs of sides with different line-ups, in blocks of matches."""
        begins = np.flatnonzero(np.diff(self._match, prepend=-1))
        sizes = np.diff(begins, append=len(self._match))
        for size in np.unique(sizes[sizes > 1]).tolist():
            chosen = begins[sizes == size]
            first, second = np.triu_indices(size, 1)
            for start in range(0, len(chosen), _MATCHES_PER_BLOCK):
                side_MT = chosen[start : start + _MATCHES_PER_BLOCK, None] + np.arange(size)
                lineup_MT, score_MT = self._lineup[side_MT], self._score[side_MT]
                own_MP, other_MP = lineup_MT[:, first], lineup_MT[:, second]
                counts_MP = (own_MP != other_MP) & np.isfinite(score_MT).all(1)[:, None]
                match_P = np.nonzero(counts_MP)[0]
                share_MP = 0.5 + 0.5 * np.sign(score_MT[:, first] - score_MT[:, second])
                weight_P = self._weight[side_MT[:, 0]][match_P] / (size - 1)
                yield _Block(match_P, own_MP[counts_MP], other_MP[counts_MP], weight_P, share_MP[counts_MP])

    def seats(self, own_P: Ints, other_P: Ints) -> tuple[Ints, Floats]:
        """Agents of both sides, and what each adds to the difference of their strengths, [P, J]."""
        agent_PJ = np.concatenate([self.member_TJ[own_P], self.member_TJ[other_P]], axis=1)
        return agent_PJ, np.concatenate([self.share_TJ[own_P], -self.share_TJ[other_P]], axis=1)


class _Pairs(NamedTuple):
    """Comparisons summed by their two line-ups."""

    size: int
    """Number of agents."""
    agent_PJ: Ints
    share_PJ: Floats
    """Share of each agent in its line-up's strength, negative on the second side."""
    games_P: Floats
    won_P: Floats
    """Points of the first side."""

    def within(self, group: Ints) -> "_Pairs":
        """The comparisons of a connected group of agents, which are numbered anew."""
        number_A = np.full(self.size, -1)
        number_A[group] = np.arange(len(group))
        kept = number_A[self.agent_PJ[:, 0]] >= 0
        agent_PJ = number_A[self.agent_PJ[kept]] * (self.share_PJ[kept] != 0)
        return _Pairs(len(group), agent_PJ, self.share_PJ[kept], self.games_P[kept], self.won_P[kept])

    def sum_agents(self, value_PJ: Floats) -> Floats:
        """Sum of each agent's values."""
        summed: Floats = np.bincount(self.agent_PJ.ravel(), value_PJ.ravel(), self.size).astype(np.float64)
        return summed

    def gap(self, strength_A: Floats) -> Floats:
        """Difference of the sides' strengths."""
        gap_P: Floats = (self.share_PJ * strength_A[self.agent_PJ]).sum(1)
        return gap_P

    def gram(self, weight_P: Floats, *, absolute: bool = False) -> Floats:
        """Weighted sum over pairs of the outer product of the agents' shares in the difference."""
        gram_AA = np.zeros((self.size, self.size))
        share_PJ = np.abs(self.share_PJ) if absolute else self.share_PJ
        step = max(1, _ENTRIES_PER_BLOCK // share_PJ.shape[1] ** 2)
        for start in range(0, len(weight_P), step):
            part = slice(start, start + step)
            place = self.agent_PJ[part, :, None] * self.size + self.agent_PJ[part, None, :]
            value = weight_P[part, None, None] * share_PJ[part, :, None] * share_PJ[part, None, :]
            summed_AA = np.bincount(place.ravel(), value.ravel(), self.size**2).astype(np.float64)
            gram_AA += summed_AA.reshape(gram_AA.shape)
        return gram_AA

    def one_sided(self) -> NDArray[np.bool_]:
        """Whether each agent won, or lost, every comparison."""
        first_PJ, second_PJ = np.maximum(self.share_PJ, 0.0), np.maximum(-self.share_PJ, 0.0)
        won_P, lost_P = self.won_P[:, None], (self.games_P - self.won_P)[:, None]
        won_A = self.sum_agents(first_PJ * won_P + second_PJ * lost_P)
        lost_A = self.sum_agents(first_PJ * lost_P + second_PJ * won_P)
        one_sided: NDArray[np.bool_] = np.minimum(won_A, lost_A) == 0
        return one_sided


def _sum_pairs(sides: _Sides, size: int) -> _Pairs:
    """Sum the comparisons of all matches by their two line-ups."""
    lineups = len(sides.member_TJ)
    keys, sums = np.empty(0, np.int64), np.empty((0, 2))
    for block in sides.blocks():
        swap_P = block.own_P > block.other_P
        low_P, high_P = np.minimum(block.own_P, block.other_P), np.maximum(block.own_P, block.other_P)
        won_P = block.weight_P * np.where(swap_P, 1.0 - block.share_P, block.share_P)
        values = np.concatenate([sums, np.stack([block.weight_P, won_P], axis=1)])
        keys, place = np.unique(np.concatenate([keys, low_P * lineups + high_P]), return_inverse=True)
        sums = np.stack([np.bincount(place, values[:, at], len(keys)) for at in (0, 1)], axis=1)
    return _Pairs(size, *sides.seats(keys // lineups, keys % lineups), sums[:, 0], sums[:, 1])


def _largest_group(met_AA: Floats) -> Ints:
    """Ascending indices of the largest group of agents that comparisons connect."""
    is_met_AA = met_AA > 0
    left = set(np.flatnonzero(is_met_AA.any(1)).tolist())
    largest: list[int] = []
    while left:
        reached = {left.pop()}
        border = set(reached)
        while border:
            border = set(np.flatnonzero(is_met_AA[sorted(border)].any(0)).tolist()) - reached
            reached |= border
        left -= reached
        largest = max(largest, sorted(reached), key=len)
    return np.array(largest, np.int64)


def _expected(gap_P: Floats) -> Floats:
    """Probability that the first side wins."""
    expected: Floats = 1.0 / (1.0 + np.exp(np.clip(-gap_P, -500, 500)))
    return expected


def _curvature(pairs: _Pairs, strength_A: Floats) -> Floats:
    """Negated second derivatives of the log posterior."""
    expected_P = _expected(pairs.gap(strength_A))
    curvature: Floats = pairs.gram(pairs.games_P * expected_P * (1.0 - expected_P)) + _PRECISION * np.eye(pairs.size)
    return curvature


def _maximise(pairs: _Pairs) -> Floats:
    """Maximum of the log posterior, which is concave, by Newton's method with bounded steps."""
    strength_A = np.zeros(pairs.size)
    for _ in range(_MAX_STEPS):
        rest_P = pairs.won_P - pairs.games_P * _expected(pairs.gap(strength_A))
        slope_A = pairs.sum_agents(pairs.share_PJ * rest_P[:, None]) - _PRECISION * strength_A
        step_A = np.linalg.solve(_curvature(pairs, strength_A), slope_A)
        strength_A += step_A * min(1.0, _LONGEST_STEP / max(float(np.abs(step_A).max()), 1e-300))
        if np.abs(step_A).max() < _TOLERANCE:
            break
    return strength_A


def _clustered_scores(sides: _Sides, strength_A: Floats) -> tuple[Floats, Floats]:
    """Sum over matches of the outer product of each match's gradient with itself, and each agent's matches."""
    size = len(strength_A)
    matches_A = np.zeros(size)
    total_AA = np.zeros((size, size))
    for block in sides.blocks():
        agent_PJ, share_PJ = sides.seats(block.own_P, block.other_P)
        expected_P = _expected((share_PJ * strength_A[agent_PJ]).sum(1))
        rest_PJ = share_PJ * (block.weight_P * (block.share_P - expected_P))[:, None]
        place_PJ = block.match_P[:, None] * size + agent_PJ
        slope_MA = np.bincount(place_PJ.ravel(), rest_PJ.ravel(), _MATCHES_PER_BLOCK * size)
        slope_MA = slope_MA.reshape(_MATCHES_PER_BLOCK, size)
        total_AA += slope_MA.T @ slope_MA
        met = np.bincount(place_PJ[share_PJ != 0], minlength=_MATCHES_PER_BLOCK * size)
        matches_A += (met > 0).reshape(slope_MA.shape).sum(0)
    return total_AA, matches_A
