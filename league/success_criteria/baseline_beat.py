"""Baseline beat: the hero's share of games won against a baseline in all other seats."""

import msgspec

from league.analysis.summary import wilson_interval
from league.success_criteria.statistics import BenchmarkResult, CriteriaEvidence, Thresholds


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
    verdict = BaselineBeat(
        passed=False,
        problems=[],
        opponent=thresholds.opponent,
        bound=thresholds.win_share,
        agent=evaluation.agent,
        wins=wins,
        games=games,
        failed=games - len(results),
        share=wins / games if games else 0.0,
        low=low,
        high=high,
        seats=seats,
    )
    problems = _find_problems(verdict, thresholds)
    return msgspec.structs.replace(verdict, passed=not problems, problems=problems)


def seat_shares(results: dict[str, BenchmarkResult]) -> list[SeatShare]:
    """Shares by seat from the results of a benchmark's matches, smallest first."""
    seats = dict.fromkeys(result.role for result in results.values())
    shares = []
    for seat in seats:
        won = [result.won for result in results.values() if result.role == seat]
        shares.append(SeatShare(seat, sum(won), len(won), *wilson_interval(sum(won), len(won))))
    return sorted(shares, key=lambda one: (one.wins / one.games, one.seat))


def _find_problems(result: BaselineBeat, thresholds: Thresholds) -> list[str]:
    problems = []
    if result.games < thresholds.games:
        problems.append(f"not measured: {result.games} games; expected {thresholds.games} or more")
    counts = [one.games for one in result.seats]
    if counts and max(counts) - min(counts) > result.failed:
        problems.append(f"not measured: {min(counts)} games from one seat and {max(counts)} from another")
    if not result.low > thresholds.win_share:
        bound = f"{100 * thresholds.win_share:.0f} %"
        problems.append(f"the interval's lower end is {100 * result.low:.1f} %; expected more than {bound}")
    return problems
