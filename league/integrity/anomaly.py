"""Anomaly scores of workers: finds those whose results the ratings make improbable, broken or dishonest.

A pair of seats with ratings r and s ends with a = 1, ½ or 0 for the first. Its expected score is
p = 1 / (1 + 10^((s - r) / 400)) (Elo, "The Rating of Chessplayers", 1978, 8.4). A match's surprise is the sum over its
pairs of (a - p)² - p (1 - p), which is 0 on average where ratings are right; its favour of an agent is the sum of
a - p over the agent's pairs. Ratings are never quite right, and some systems have other scales, so neither is compared
with 0: a worker's matches are compared with those of all other workers for the same purpose, by a two-sample z with
Welch's standard error.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from league.ratings.elo import expected_share
from schemas.events import MatchFinished

MIN_MATCHES = 8
"""Minimum number of matches for a mean and its error."""


class WorkerResidual(msgspec.Struct, frozen=True):
    """Deviation of a worker's results for one purpose from those of the other workers."""

    worker: str
    purpose: str
    matches: int
    """Matches with at least one pair of different, rated agents."""
    surprise: float
    """Mean surprise of a match."""
    surprise_z: float | None
    """Compared with other workers' matches; None with too few on either side."""
    favours: str
    """The agent with the largest ``favours_z``, whatever its sign; empty when there are too few matches."""
    favours_z: float | None
    """Positive where the agent does better in this worker's matches than in those of others."""

    @property
    def z(self) -> float:
        """The larger magnitude of the two z values."""
        return max(abs(self.surprise_z or 0.0), abs(self.favours_z or 0.0))


def worker_residuals(matches: Iterable[MatchFinished], ratings: Mapping[str, float]) -> list[WorkerResidual]:
    """Residuals of every worker, largest z first.

    Ratings are on Elo's scale; seats of agents without one are left out.
    """
    surprises: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    favours: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for match in matches:
        surprise = _match_surprise(match, ratings)
        if surprise is not None:
            surprises[match.purpose][match.worker].append(surprise[0])
            for agent, favour in surprise[1].items():
                favours[match.purpose][agent][match.worker].append(favour)
    rows = []
    for purpose, by_worker in surprises.items():
        for worker, values in by_worker.items():
            reported = [
                (agent, _z_score(by_worker_favours, worker))
                for agent, by_worker_favours in sorted(favours[purpose].items())
            ]
            agent, most = max(reported, key=lambda one: abs(one[1] or 0.0))
            mean = math.fsum(values) / len(values)
            row = WorkerResidual(
                worker, purpose, len(values), mean, _z_score(by_worker, worker), agent if most else "", most
            )
            rows.append(row)
    return sorted(rows, key=lambda row: (-row.z, row.worker, row.purpose))


def _match_surprise(match: MatchFinished, ratings: Mapping[str, float]) -> tuple[float, dict[str, float]] | None:
    """Surprise of a match and its favour of each agent; None when it has no rated pair."""
    surprise, favours = 0.0, dict[str, float]()
    for one, other in combinations(match.seats, 2):
        if one.agent != other.agent and one.agent in ratings and other.agent in ratings:
            expected = expected_share(ratings[one.agent] - ratings[other.agent], max_exponent=50.0)
            actual = 0.5 if one.rank == other.rank else float(one.rank < other.rank)
            surprise += (actual - expected) ** 2 - expected * (1.0 - expected)
            favours[one.agent] = favours.get(one.agent, 0.0) + actual - expected
            favours[other.agent] = favours.get(other.agent, 0.0) + expected - actual
    return (surprise, favours) if favours else None


def _z_score(by_worker: Mapping[str, Sequence[float]], worker: str) -> float | None:
    """Difference between a worker's mean and that of all others, in standard errors."""
    own = by_worker.get(worker, [])
    others = [value for name, values in by_worker.items() if name != worker for value in values]
    if min(len(own), len(others)) < MIN_MATCHES:
        return None
    (mean, error), (theirs, their_error) = _mean_and_squared_error(own), _mean_and_squared_error(others)
    spread = math.sqrt(error + their_error)
    return (mean - theirs) / spread if spread > 0.0 else 0.0


def _mean_and_squared_error(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
