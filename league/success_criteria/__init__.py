"""The four success criteria of the league specification, judged from the history alone.

- ``statistics``         thresholds, and one pass over the history that collects the evidence
- ``against_baselines``  the hero beats a baseline in all other seats, and is never rated below one, with intervals
- ``training``           opponents were drawn in the shares of the sampler's mix; gradient steps taken, and faults

A criterion without its evidence is not measured, and therefore not passed.
"""

import msgspec

from league.log.base import EventLog
from league.success_criteria.against_baselines import (
    BaselineBeat,
    NoRegression,
    judge_baseline_beat,
    judge_no_regression,
)
from league.success_criteria.statistics import CriteriaEvidence, Thresholds
from league.success_criteria.training import Diversity, Stability, judge_diversity, judge_stability

__all__ = ["CriteriaReport", "Thresholds", "judge_history"]


class CriteriaReport(msgspec.Struct, frozen=True):
    """The verdict on a run, criterion by criterion."""

    league: str
    game: str
    policy: str
    """The hero's policy."""
    sequence: int
    """Last sequence of the history considered."""
    events: int
    passed: bool
    baseline_beat: BaselineBeat
    no_regression: NoRegression
    diversity: Diversity
    stability: Stability


async def judge_history(
    history: EventLog, thresholds: Thresholds | None = None, until: int | None = None, dead_letters: int | None = None
) -> CriteriaReport:
    """Judge a history up to a sequence, by default the whole of it; ``dead_letters`` is None if unknown."""
    bounds = thresholds or Thresholds()
    last = await history.last_sequence() if until is None else until
    collected = CriteriaEvidence(bounds.opponent)
    async for recorded in history.read(1, last):
        collected.apply(recorded)
    beat, regression = judge_baseline_beat(collected, bounds), judge_no_regression(collected, bounds)
    diverse = await judge_diversity(history, collected, bounds, last)
    stable = judge_stability(collected, bounds, dead_letters)
    return CriteriaReport(
        league=collected.state.league,
        game=collected.config.game.name,
        policy=collected.policy,
        sequence=collected.state.sequence,
        events=collected.events,
        passed=all(criterion.passed for criterion in (beat, regression, diverse, stable)),
        baseline_beat=beat,
        no_regression=regression,
        diversity=diverse,
        stability=stable,
    )
