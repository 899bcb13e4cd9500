"""Stability: the gradient steps that a run took, and its faults."""

import msgspec

from league.success_criteria.statistics import CriteriaEvidence, Thresholds

_QUOTED = 3


class Stability(msgspec.Struct, frozen=True):
    """Figures of the criterion."""

    passed: bool
    problems: list[str]
    steps: int
    """The horizon: gradient steps of the hero's policy."""
    target: int
    """The horizon that the specification names."""
    gaps: int
    """Number of missing steps."""
    skipped: int
    """Steps that left the weights unchanged, since a loss or gradient was not a number."""
    stalls: int
    """Steps more than ``alarms.stall_minutes`` after the previous one, without a pause or a restart."""
    crashes: int
    """Workers that did not exit in good order."""
    out_of_memory: int
    """Number of times that a process reduced its adapters for lack of memory."""
    dead_letters: int | None
    """Dead-lettered messages and jobs; None where unknown, since they are not part of the history."""
    unreadable: int
    """Events that cannot be decoded."""
    matches: int
    """Number of completed matches."""
    failed: int
    balanced: bool
    """Whether every trajectory is accounted for, and none twice."""
    regressions: int
    """Alarms about an evaluated version rated below a baseline; see ``no_regression`` for the verdict on them."""


def judge_stability(collected: CriteriaEvidence, thresholds: Thresholds, dead_letters: int | None = None) -> Stability:
    """Judge a run over its actual length; ``dead_letters`` is None if unknown."""
    faults, state = collected.faults, collected.state
    first, last = min(collected.steps, default=1), max(collected.steps, default=0)
    verdict = Stability(
        passed=False,
        problems=[],
        steps=len(collected.steps),
        target=thresholds.steps,
        gaps=last - first + 1 - len(collected.steps),
        skipped=collected.skipped,
        stalls=len(faults.stalls),
        crashes=len(faults.crashes),
        out_of_memory=faults.slot_reductions,
        dead_letters=dead_letters,
        unreadable=faults.unreadable,
        matches=state.finished_matches(),
        failed=state.failed,
        balanced=not faults.trained_twice and _is_balanced(collected),
        regressions=faults.regressions,
    )
    problems = _find_problems(verdict, collected, thresholds)
    return msgspec.structs.replace(verdict, passed=not problems, problems=problems)


def _is_balanced(collected: CriteriaEvidence) -> bool:
    """Whether no policy's steps account for more trajectories than its matches made.

    A match whose result was lost with its worker may have been trained on: tolerates as many matches as workers that
    crashed may have had in progress.
    """
    config, state = collected.config, collected.state
    most = len(collected.faults.crashes) * config.rollout.games_in_flight
    return all(
        state.trajectory_accounting(policy).accounted - state.trajectory_accounting(policy).generated <= most
        for policy in config.trained_policies
    )


def _find_problems(result: Stability, collected: CriteriaEvidence, thresholds: Thresholds) -> list[str]:
    problems = [] if result.steps else ["not measured: no gradient step was taken"]
    counted = {
        "gaps": "numbers of gradient steps are missing",
        "skipped": "gradient steps were skipped, since a number was none",
        "out_of_memory": "times a process ran out of memory for adapters",
        "dead_letters": "dead letters",
        "unreadable": "events cannot be decoded",
    }
    problems += [f"{getattr(result, key)} {text}" for key, text in counted.items() if getattr(result, key)]
    problems += [f"step {step} came after {minutes:.0f} minutes" for step, minutes in collected.faults.stalls[:_QUOTED]]
    problems += collected.faults.crashes[:_QUOTED]
    ended = result.matches + result.failed
    if result.failed > thresholds.failed_share * ended:
        problems.append(
            f"{result.failed} of {ended} matches failed; expected {100 * thresholds.failed_share:g} % at most"
        )
    if not result.balanced:
        problems.append("the ledger does not balance (`league ledger`)")
    return problems
