"""Two criteria about baselines: the hero beats one in all other seats; once warmed up, it was never below any.

The second is judged by whole-history ratings (Coulom 2008, ``league.analysis.history_rating``): every version of the
policy is a point on a random walk over gradient steps, all other agents are constant, and all rated matches inform all
of them: whole matches at a time (Plackett–Luce), net of the seats' effects, with matches of one seed as a cluster. The
official rating is unsuitable: Elo has no interval, and those of the other online systems cover too little where one bot
holds six seats (``docs/6-ratings.md``). For each baseline the scale is fixed to that baseline, so that a version's
interval is that of the difference between the two.

A version is below a baseline if its whole 95 % interval is. As that alone would pass versions with hardly any matches,
every interval must also exclude a deficit of more than ``Thresholds.margin``.
"""

import math

import msgspec
import numpy as np

from league.analysis.history_rating import WalkOptions, fit_learning_curves
from league.analysis.summary import rating_curve, wilson_interval
from league.ratings.arrays import MatchArrays
from league.success_criteria.statistics import BenchmarkResult, CriteriaEvidence, RatedMatch, Thresholds
from schemas.errors import UsageError


class SeatShare(msgspec.Struct, frozen=True):
    """Share of games won from one seat."""

    seat: str
    wins: int
    games: int
    low: float
    """Ends of the share's 95 % Wilson interval."""
    high: float


class BaselineBeat(msgspec.Struct, frozen=True):
    """Figures of the criterion; a game is won by the strictly highest of all seats, so a tie is not a win."""

    passed: bool
    problems: list[str]
    """Reasons for failure, including evidence that is missing."""
    opponent: str
    bound: float
    agent: str | None = None
    """The last evaluated version; None if none has a finished benchmark."""
    wins: int = 0
    games: int = 0
    """Number of games requested: one that failed or was voided counts as not won."""
    failed: int = 0
    share: float = 0.0
    low: float = 0.0
    high: float = 1.0
    seats: list[SeatShare] = []
    """Ordered by share, smallest first."""


def judge_baseline_beat(collected: CriteriaEvidence, thresholds: Thresholds) -> BaselineBeat:
    """Judge the last evaluated version.

    Failed games count as not won, since otherwise a hero would gain by failing where it is about to lose. The games of
    one round of seats share a seed, so they are not quite independent; the interval assumes that they are.
    """
    evaluation = collected.last_benchmark()
    if evaluation is None:
        why = f"not measured: no version of {collected.policy} has a finished benchmark against {thresholds.opponent}"
        return BaselineBeat(False, [why], thresholds.opponent, thresholds.win_share)
    results = collected.benchmarks.get(evaluation.requested.evaluation_id, {})
    games, wins = len(evaluation.requested.matches), sum(result.won for result in results.values())
    low, high = wilson_interval(wins, games)
    seats = seat_shares(results)
    failed, problems = games - len(results), []
    counts = [one.games for one in seats]
    if games < thresholds.games:
        problems.append(f"not measured: {games} games; expected {thresholds.games} or more")
    if counts and max(counts) - min(counts) > failed:
        problems.append(f"not measured: {min(counts)} games from one seat and {max(counts)} from another")
    if not low > thresholds.win_share:
        bound = f"{100 * thresholds.win_share:.0f} %"
        problems.append(f"the interval's lower end is {100 * low:.1f} %; expected more than {bound}")
    return BaselineBeat(
        passed=not problems,
        problems=problems,
        opponent=thresholds.opponent,
        bound=thresholds.win_share,
        agent=evaluation.agent,
        wins=wins,
        games=games,
        failed=failed,
        share=wins / games if games else 0.0,
        low=low,
        high=high,
        seats=seats,
    )


def seat_shares(results: dict[str, BenchmarkResult]) -> list[SeatShare]:
    """Shares by seat from the results of a benchmark's matches, smallest first."""
    shares = []
    for seat in dict.fromkeys(result.role for result in results.values()):
        won = [result.won for result in results.values() if result.role == seat]
        shares.append(SeatShare(seat, sum(won), len(won), *wilson_interval(sum(won), len(won))))
    return sorted(shares, key=lambda one: (one.wins / one.games, one.seat))


class VersionDifference(msgspec.Struct, frozen=True):
    """A version of the hero relative to a baseline, in rating points; positive where the hero is stronger."""

    version: int
    sequence: int
    """Sequence of its last rated match."""
    difference: float
    low: float
    """Lower end of the 95 % interval."""
    high: float


class BaselineComparison(msgspec.Struct, frozen=True):
    """Comparison of the hero with one baseline."""

    baseline: str
    problem: str = ""
    """Reason for failure, or for a missing measurement; empty when passed."""
    versions: int = 0
    """Number of rated versions after the warm-up."""
    below: int = 0
    """Number of these whose whole interval is below the baseline."""
    worst: VersionDifference | None = None
    """The version whose interval has the lowest upper end."""
    last: VersionDifference | None = None


class NoRegression(msgspec.Struct, frozen=True):
    """Figures of the criterion."""

    passed: bool
    problems: list[str]
    system: str
    warm_up: int
    """First version that counts."""
    matches: int
    """Number of rated matches used."""
    baselines: list[BaselineComparison]
    official: str
    """The league's official rating system, for the following figures."""
    official_below: int
    """Evaluated versions whose rating was below a baseline's at the time, chance included."""
    official_worst: float | None
    """Smallest difference between an evaluated version and the best baseline at the time."""


def judge_no_regression(collected: CriteriaEvidence, thresholds: Thresholds) -> NoRegression:
    """Judge every rated version after the warm-up."""
    warm_up = math.ceil(thresholds.warm_up * max(collected.steps, default=0))
    names = [agent.name for agent in collected.state.agents.values() if agent.baseline]
    matches = to_match_arrays(list(collected.rated.values()), collected.config.game.name)
    comparisons = [_compare_with_baseline(name, collected, matches, warm_up, thresholds) for name in names]
    problems = [f"{one.baseline}: {one.problem}" for one in comparisons if one.problem]
    if not names:
        problems.append("not measured: no agent of this league is a baseline")
    # Of the evaluated versions over the best baseline at the time, in the official rating.
    margins = []
    curve = rating_curve(collected.state, collected.policy)
    for place, step in enumerate(curve.steps):
        others = [rating for ratings in curve.baselines.values() if math.isfinite(rating := ratings[place])]
        if step >= warm_up and others:
            margins.append(curve.hero[place] - max(others))
    return NoRegression(
        passed=not problems,
        problems=problems,
        system="whole-history rating",
        warm_up=warm_up,
        matches=len(matches),
        baselines=comparisons,
        official=collected.config.ratings.system.name,
        official_below=sum(margin < 0 for margin in margins),
        official_worst=min(margins, default=None),
    )


def to_match_arrays(rated: list[RatedMatch], game: str) -> MatchArrays:
    """Convert rated matches into the arrays of ``league.analysis``."""
    agents: dict[str, int] = {}
    roles: dict[str, int] = {}
    seats = [seat for match in rated for seat in match.seats]
    end_M = np.cumsum([len(match.seats) for match in rated], dtype=np.int64)
    sizes_M = np.array([len(match.seats) for match in rated], np.int64)
    return MatchArrays(
        sequence_M=np.array([match.sequence for match in rated], np.int64),
        game_M=np.zeros(len(rated), np.int32),
        purpose_M=np.zeros(len(rated), np.int32),
        begin_M=end_M - sizes_M,
        end_M=end_M,
        agent_S=np.array([agents.setdefault(agent, len(agents)) for agent, _, _ in seats], np.int32),
        score_S=np.array([score for _, _, score in seats], np.float64),
        agents=list(agents),
        games=[game],
        purposes=["rated"],
        starts={},
        base=None,
        rules=[],
        role_S=np.array([roles.setdefault(role, len(roles)) for _, role, _ in seats], np.int32),
        roles=list(roles),
    )


def _compare_with_baseline(
    baseline: str, collected: CriteriaEvidence, matches: MatchArrays, warm_up: int, thresholds: Thresholds
) -> BaselineComparison:
    if baseline not in matches.agents:
        return BaselineComparison(
            baseline, "not measured: it was in no rated match (evaluation.gatekeepers can name it)"
        )
    roles, seeds = [matches.roles[code] for code in matches.role_S], [one.seed for one in collected.rated.values()]
    try:
        board = fit_learning_curves(matches, roles, WalkOptions(anchors={baseline: 0.0}), seeds)
    except UsageError as error:
        return BaselineComparison(baseline, f"not measured: {error}")
    points = [point for curve in board.curves if curve.policy == collected.policy for point in curve.points]
    moments = [
        VersionDifference(point.step, collected.last_rated_at[point.step], point.rating, point.low, point.high)
        for point in points
        if point.step >= warm_up and point.step in collected.last_rated_at
    ]
    if not moments:
        return BaselineComparison(baseline, f"not measured: no version from {collected.policy}@{warm_up} on was rated")
    below = sum(moment.high < 0 for moment in moments)
    worst = min(moments, key=lambda moment: (moment.high, moment.version))
    least = min(moments, key=lambda moment: (moment.low, moment.version))
    problem = ""
    if below:
        problem = f"{below} of {len(moments)} versions were below it"
    elif least.low < -thresholds.margin:
        problem = (
            f"not measured: version {least.version} may have been {-least.low:.0f} points below it; expected an "
            f"interval that excludes {thresholds.margin:.0f}"
        )
    return BaselineComparison(baseline, problem, len(moments), below, worst, moments[-1])
