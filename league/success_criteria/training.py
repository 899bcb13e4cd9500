"""Two criteria about training: opponents were drawn in the shares of the sampler's mix; steps and their faults.

The target of the first is not the configured mix itself: while a bucket is empty its share goes to the others, so each
draw's target is computed again from its standings (``league.matchmaking.audit``). The test is one of equivalence: every
bucket's share has to be within the tolerance of its target with its whole interval, so too few draws fail it. A mix
other than the specification's is named as a deviation; the draws are then judged by the mix that was configured.
"""

from math import isclose
from statistics import NormalDist

import msgspec

from league.log.base import EventLog
from league.matchmaking.audit import WindowShares, audit_sampling
from league.matchmaking.roles import sampler_of
from league.samplers import SAMPLERS
from league.success_criteria.statistics import CriteriaEvidence, Thresholds
from schemas.errors import UsageError

RECOMPUTED_DRAWS = 400
"""Number of draws, evenly spaced, whose target is recomputed."""
_WHOLE_HISTORY_WINDOW = 1_000_000_000
_FAMILYWISE_ERROR = 0.05
"""Probability that any bucket's interval misses its true share."""


class BucketShare(msgspec.Struct, frozen=True):
    """A bucket of the mix."""

    bucket: str
    configured: float | None
    """Its share without redistribution; None where the sampler's settings do not name it."""
    specified: float | None
    """Its share in the specification's mix; None for a bucket that the specification does not have."""
    target: float
    """Mean over the draws of the target under their standings."""
    realised: float
    low: float
    """Simultaneous interval of the realised share: holds for all buckets together at 95 %."""
    high: float


class Diversity(msgspec.Struct, frozen=True):
    """Figures of the criterion."""

    passed: bool
    problems: list[str]
    sampler: str
    tolerance: float
    draws: int = 0
    """Number of matches with drawn opponents."""
    picks: int = 0
    """Number of their seats."""
    distance: float | None = None
    """Total variation between target and realised shares, 0 to 1."""
    buckets: list[BucketShare] = []
    """Ordered by target, largest first."""
    deviation: str = ""
    """How the configured mix differs from the specification's; empty where it does not."""


async def judge_diversity(
    history: EventLog, collected: CriteriaEvidence, thresholds: Thresholds, until: int
) -> Diversity:
    """Compare the hero's draws with their targets."""
    name = sampler_of(collected.config, collected.policy).name
    try:
        whole = (await audit_sampling(history, _WHOLE_HISTORY_WINDOW, RECOMPUTED_DRAWS, collected.policy, until)).whole
    except UsageError as error:
        return Diversity(False, [f"not measured: {error}"], name, thresholds.tolerance)
    buckets = _bucket_shares(whole, collected, thresholds)
    problems = [problem for one in buckets if (problem := _find_problem(one, thresholds.tolerance))]
    if not buckets:
        problems = ["not measured: no draw's target can be computed"]
    return Diversity(
        passed=not problems,
        problems=problems,
        sampler=name,
        tolerance=thresholds.tolerance,
        draws=whole.draws,
        picks=whole.picks,
        distance=whole.distance,
        buckets=buckets,
        deviation=_describe_deviation(buckets, thresholds),
    )


def _bucket_shares(whole: WindowShares, collected: CriteriaEvidence, thresholds: Thresholds) -> list[BucketShare]:
    if not whole.target:
        return []
    settings = SAMPLERS.settings(sampler_of(collected.config, collected.policy))
    z = NormalDist().inv_cdf(1 - _FAMILYWISE_ERROR / (2 * len(whole.realised)))
    shares = []
    for bucket, realised in whole.realised.items():
        target = whole.target.get(bucket, 0.0)
        half = z * collected.draws.standard_error(bucket, target)
        share = getattr(settings, bucket, None)
        configured = float(share) if isinstance(share, int | float) else None
        low, high = max(realised - half, 0.0), min(realised + half, 1.0)
        shares.append(BucketShare(bucket, configured, thresholds.mix.get(bucket), target, realised, low, high))
    return sorted(shares, key=lambda one: (-one.target, one.bucket))


def _describe_deviation(buckets: list[BucketShare], thresholds: Thresholds) -> str:
    configured = {one.bucket: one.configured or 0.0 for one in buckets}
    names = dict.fromkeys([*thresholds.mix, *configured])
    shares = [(name, configured.get(name, 0.0), thresholds.mix.get(name, 0.0)) for name in names]
    if not buckets or all(isclose(own, specified) for _, own, specified in shares):
        return ""
    parts = (f"{name} {100 * own:g} %, not {100 * specified:g} %" for name, own, specified in shares)
    return f"the configured mix is not the specification's: {'; '.join(parts)}"


def _find_problem(one: BucketShare, tolerance: float) -> str:
    """Reason why a bucket's share is not shown to be its target."""
    if one.target - tolerance <= one.low and one.high <= one.target + tolerance:
        return ""
    target, within = f"{100 * one.target:.1f} %", f"{100 * tolerance:.0f} points"
    if one.low > one.target + tolerance or one.high < one.target - tolerance:
        return f"{one.bucket}: {100 * one.realised:.1f} % of the picks; expected {target}, give or take {within}"
    interval = f"between {100 * one.low:.1f} and {100 * one.high:.1f} %"
    return f"{one.bucket}: {interval} of the picks; not known to be within {within} of {target}"


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
    out_of_memory: int
    """Number of times that a process reduced its adapters for lack of memory."""
    dead_letters: int | None
    """Dead-lettered messages and jobs; None where unknown, since they are not part of the history."""
    unreadable: int
    matches: int
    failed: int
    balanced: bool
    """Whether every trajectory is accounted for, and none twice."""
    regressions: int
    """Alarms about an evaluated version rated below a baseline; see ``no_regression`` for the verdict on them."""


def judge_stability(collected: CriteriaEvidence, thresholds: Thresholds, dead_letters: int | None = None) -> Stability:
    """Judge a run over its actual length; ``dead_letters`` is None if unknown."""
    faults, state = collected.faults, collected.state
    first, last = min(collected.steps, default=1), max(collected.steps, default=0)
    # A match whose result was lost with its worker may have been trained on: no more of these are tolerated than the
    # workers that crashed may have had in progress.
    most = len(faults.crashes) * collected.config.rollout.games_in_flight
    ledgers = [state.consumption.accounting(policy) for policy in collected.config.trained_policies]
    is_balanced = all(ledger.accounted - ledger.generated <= most for ledger in ledgers)
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
        balanced=not faults.trained_twice and is_balanced,
        regressions=faults.regressions,
    )
    problems = _find_problems(verdict, collected, thresholds)
    return msgspec.structs.replace(verdict, passed=not problems, problems=problems)


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
    ended, most = result.matches + result.failed, thresholds.failed_share
    if result.failed > most * ended:
        problems.append(f"{result.failed} of {ended} matches failed; expected {100 * most:g} % at most")
    if not result.balanced:
        problems.append("the ledger does not balance (`league ledger`)")
    return problems
