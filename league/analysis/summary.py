"""Summaries of a state: win shares with intervals, the leaderboard, benchmarks, rating curves."""

import itertools
import math

import msgspec

from league.state import LeagueState
from schemas.ids import agent_name, split_agent
from schemas.standings import Agent

Z_95 = 1.96
"""Rounded, unlike ``comparisons.Z_95``: intervals with it decide when training stops, and are recorded."""


def wilson_interval(wins: int, n: int) -> tuple[float, float]:
    """Lower and upper end of the 95 % Wilson score interval of a share; (0, 1) without trials.

    Source: Wilson (1927); Brown, Cai and DasGupta (2001), eq. 4.
    """
    if n == 0:
        return 0.0, 1.0
    share = wins / n
    spread = Z_95 * Z_95 / n
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


class LeaderboardRow(msgspec.Struct, frozen=True):
    """A row of the leaderboard."""

    rank: int
    agent: str
    kind: str
    rating: float
    games: int
    """Rated matches."""
    active: bool
    reason: str
    """Reason why a checkpoint is in the league."""


def leaderboard_rows(state: LeagueState) -> list[LeaderboardRow]:
    """All agents, and each policy's newest rated version, by rating, best first; names break ties."""
    agents, ratings = [*state.standings().agents.values()], state.rating_table
    # Each policy's newest rated version, where it is no agent: not admitted, or not yet.
    for policy, version in ratings.newest_versions().items():
        if (name := agent_name(policy, version)) not in state.agents:
            rating, games = ratings.rating(name), ratings.games[name]
            newest = Agent(
                name, "version", rating, games, policy=policy, version=version, active=False, reason="newest"
            )
            agents.append(newest)
    agents.sort(key=lambda agent: (-agent.rating, agent.name))
    return [
        LeaderboardRow(rank, a.name, a.kind, a.rating, a.games, a.active, a.reason)
        for rank, a in enumerate(agents, start=1)
    ]


class BenchmarkRow(msgspec.Struct, frozen=True):
    """A finished benchmark: an agent in one seat, one opponent in all others."""

    opponent: str
    agent: str
    wins: int
    games: int
    failed: int
    share: float
    low: float
    """Ends of the share's 95 % Wilson interval."""
    high: float
    mean_score: float
    mean_rank: float


def benchmark_rows(state: LeagueState) -> list[BenchmarkRow]:
    """Finished benchmarks in the order of their requests: the base model's first, so before comes before after."""
    results = [x.finished for x in state.evaluations.values() if x.suite == "benchmark" and x.finished is not None]
    return [
        BenchmarkRow(
            ", ".join(result.opponents),
            result.agent,
            result.wins,
            result.games,
            result.failed,
            result.wins / result.games if result.games else 0.0,
            *wilson_interval(result.wins, result.games),
            result.mean_score,
            result.mean_rank,
        )
        for result in results
    ]


class RatingCurve(msgspec.Struct, frozen=True):
    """Ratings over a policy's training: one point per evaluated version, as of the end of its evaluation."""

    policy: str
    steps: list[int]
    hero: list[float]
    past_best: list[float]
    """Best rating of this and all earlier versions."""
    baselines: dict[str, list[float]]


def rating_curve(state: LeagueState, policy: str) -> RatingCurve:
    """The policy's gatekeeper evaluations as a curve, by version."""
    verdicts = {
        named[1]: evaluation.verdict
        for evaluation in state.evaluations.values()
        if evaluation.suite == "gatekeepers"
        and evaluation.verdict is not None
        and (named := split_agent(evaluation.agent)) is not None
        and named[0] == policy
    }
    steps = sorted(verdicts)
    hero = [verdicts[step].rating for step in steps]
    names = sorted({name for verdict in verdicts.values() for name in verdict.baselines})
    return RatingCurve(
        policy=policy,
        steps=steps,
        hero=hero,
        past_best=list(itertools.accumulate(hero, max)),
        baselines={name: [verdicts[step].baselines.get(name, math.nan) for step in steps] for name in names},
    )
