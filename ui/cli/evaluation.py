"""``league criteria`` and ``promote``: the success criteria, and decisions on promotion with their certificates."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from league.evaluation.certificates import CertificateCheck, check_certificates
from league.evaluation.outlook import EvaluationOutlook
from league.run import Run
from schemas.errors import UsageError
from schemas.events import (
    AgentActivated,
    AgentRetired,
    CheckpointAdded,
    CheckpointPromoted,
    Event,
    PromotionDecided,
    RegressionNoticed,
)
from ui.cli.options import AtOption, JsonOption
from ui.output import PLACEHOLDER, format_percent, print_answer, print_json

if TYPE_CHECKING:
    from league.success_criteria import CriteriaReport
    from league.success_criteria.against_baselines import BaselineBeat, NoRegression, VersionDifference
    from league.success_criteria.training import Diversity, Stability

# Sky blue and orange of Okabe and Ito's palette, which colour-blind readers tell apart; the words say it too.
_PASS, _FAIL = Text(" PASS ", "black on #56B4E9"), Text(" FAIL ", "black on #E69F00")
ALL = "all"
_MAX_SHOWN = 3
"""Number of tests with a recorded verdict to print; --json has all."""


async def criteria(*, run: Run, at: AtOption = None, as_json: JsonOption = False) -> None:
    """Judge a run by the four success criteria, from its history alone; exits 1 unless all are met.

    The baseline is beaten; the hero was never below a baseline; opponents were drawn as the mix says; nothing failed.
    Figures have intervals. A criterion that was not measured is not met.
    """
    from league.queries.reports import judge_run

    report = await judge_run(run, at)
    print_answer(report, as_json, _print_criteria)
    raise typer.Exit(0 if report.passed else 1)


def _print_criteria(report: "CriteriaReport") -> None:
    console = Console(highlight=False)
    parts = (report.baseline_beat, report.no_regression, report.diversity, report.stability)
    passed = sum(part.passed for part in parts)
    about = f"League {report.league!r} ({report.game}), policy {report.policy!r}, up to event {report.sequence:,}"
    console.print(Text(about))
    for title, part, lines in (
        ("Baseline beat", report.baseline_beat, _baseline_beat_lines(report.baseline_beat)),
        ("No regression", report.no_regression, _no_regression_lines(report.no_regression)),
        ("Diversity", report.diversity, _diversity_lines(report.diversity)),
        ("Stability", report.stability, _stability_lines(report.stability)),
    ):
        problems = [Text(f"→ {problem}") for problem in part.problems]
        heading = Text.assemble("\n", _PASS if part.passed else _FAIL, " ", (title, "bold"))
        console.print(Group(heading, Padding(Group(*lines, *problems), (0, 0, 0, 2))))
    verdict = "All four criteria are met" if passed == len(parts) else f"{passed} of {len(parts)} criteria are met"
    verdict += ", diversity by a mix other than the specification's." if report.diversity.deviation else "."
    console.print(Text(f"\n{verdict}", "bold"))


def _baseline_beat_lines(result: "BaselineBeat") -> Iterator[RenderableType]:
    if result.agent is None:
        return
    yield Text(
        f"{result.agent}, the last evaluated version, with {result.opponent} in all other seats. Won is strictly the "
        "most of all seats; a tie is no win."
    )
    share = _format_share(result.wins, result.games, result.low, result.high)
    yield Text(f"Won {share}. Expected: the interval above {format_percent(result.bound)}")
    if len(result.seats) > 1:
        worst, best = result.seats[0], result.seats[-1]
        yield Text(
            f"Worst seat {worst.seat}: {_format_share(worst.wins, worst.games, worst.low, worst.high)}; "
            f"best {best.seat}: {best.wins} of {best.games}"
        )
    if result.failed:
        yield Text(f"{result.failed:,} games failed or were voided, and count as not won.")


def _format_share(wins: int, games: int, low: float, high: float) -> str:
    share = wins / games if games else 0.0
    return f"{wins:,} of {games:,} = {format_percent(share, 1)} (95 %: {100 * low:.1f} to {100 * high:.1f})"


def _no_regression_lines(result: "NoRegression") -> Iterator[RenderableType]:
    yield Text(
        f"The hero's rating less each baseline's, by {result.system} over {result.matches:,} rated matches, from "
        f"version {result.warm_up:,} on, with 95 % intervals. Below are those whose whole interval is below 0."
    )
    table = Table("baseline", box=None, pad_edge=False, header_style="dim")
    for column in ("versions", "below", "worst", "at version (event)", "last"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in result.baselines:
        cells = [PLACEHOLDER] * 5
        if (worst := one.worst) is not None and one.last is not None:
            place = f"{worst.version:,} ({worst.sequence:,})"
            figures = (_format_difference(worst), place, _format_difference(one.last))
            cells = [f"{one.versions:,}", f"{one.below:,}", *figures]
        table.add_row(one.baseline, *cells)
    if result.baselines:
        yield table
    if result.official_worst is not None:
        yield Text(
            f"As {result.official} had it, without intervals: {result.official_below:,} evaluated versions below the "
            f"best baseline, the worst at {round(result.official_worst):+d}."
        )


def _format_difference(moment: "VersionDifference") -> str:
    # Rounded to an integer, of which there is no -0.
    return f"{round(moment.difference):+d} ±{(moment.high - moment.low) / 2:.0f}"


def _diversity_lines(result: "Diversity") -> Iterator[RenderableType]:
    if not result.buckets:
        return
    yield Text(
        f"{result.picks:,} opponents drawn for {result.draws:,} matches by {result.sampler!r}. The target is the mix, "
        "with the shares of empty buckets given to the others. Expected: every interval within "
        f"{100 * result.tolerance:.0f} points of its target."
    )
    table = Table("bucket", box=None, pad_edge=False, header_style="dim")
    for column in ("specified", "configured", "target", "realised", "95 %, all together"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in result.buckets:
        shares = (format_percent(share, 1) for share in (one.specified, one.configured, one.target, one.realised))
        table.add_row(one.bucket, *shares, f"{100 * one.low:.1f} to {format_percent(one.high, 1)}")
    yield table
    if result.deviation:
        yield Text(f"Deviation: {result.deviation}. The draws are judged by the configured mix.")


def _stability_lines(result: "Stability") -> Iterator[RenderableType]:
    reached = "reached" if result.steps >= result.target else "not reached: judged for the steps it had"
    yield Text(f"{result.steps:,} gradient steps; the specification's horizon of {result.target:,} is {reached}.")
    letters = PLACEHOLDER if result.dead_letters is None else f"{result.dead_letters:,}"
    ended = f"{result.failed:,} of {result.matches + result.failed:,}"
    table = Table.grid(padding=(0, 2))
    for row in (
        ("steps skipped", f"{result.skipped:,}", "worker crashes", f"{result.crashes:,}"),
        ("steps missing", f"{result.gaps:,}", "out of memory", f"{result.out_of_memory:,}"),
        ("stalls", f"{result.stalls:,}", "dead letters", letters),
        ("matches failed", ended, "events unreadable", f"{result.unreadable:,}"),
        ("ledger balanced", "yes" if result.balanced else "NO", "regressions noticed", f"{result.regressions:,}"),
    ):
        table.add_row(*row)
    yield table


async def promote(
    *,
    run: Run,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Record nothing.")] = False,
    check: Annotated[
        str | None, typer.Option(metavar="AGENT|all", help="Check certificates instead; exits 1 if one fails.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the rules for promotion and retirement decide now, and why; record due decisions, as a rater would.

    A running rater records the same by itself. Promotion tests are requested here and played by evaluators.
    """
    if check is not None:
        if dry_run:
            raise UsageError("--check: records nothing anyway; expected it without --dry-run")
        async with run.open_log() as history:
            checks = await check_certificates(history, None if check == ALL else check)
        if as_json:
            print_json([{"holds": one.holds} | msgspec.structs.asdict(one) for one in checks])
        else:
            _print_certificates(checks)
        raise typer.Exit(0 if all(one.holds for one in checks) else 1)
    from lifecycle.control import apply_promotion_rules

    outlook, recorded = await apply_promotion_rules(run, dry_run)
    if as_json:
        print_json(msgspec.structs.asdict(outlook) | {"recorded": recorded})
    else:
        _print_outlook(outlook, recorded, dry_run)


def _print_outlook(outlook: EvaluationOutlook, recorded: list[Event], dry_run: bool) -> None:
    print(f"rule: {outlook.rule}; elite: {', '.join(outlook.elite) or 'none'}")
    recorded_tests = [test for test in outlook.contests if test.recorded]
    for contest in recorded_tests[-_MAX_SHOWN:] + [test for test in outlook.contests if not test.recorded]:
        mean = "" if contest.mean_score is None else f", mean score {contest.mean_score:.3f}"
        over = f", {contest.passed_over} passed over" if contest.passed_over else ""
        left = f"; about {contest.pairs_left} more if they go on like this" if contest.pairs_left else ""
        print(
            f"test of {contest.candidate} against {contest.incumbent}: {contest.verdict}, {contest.pairs} of "
            f"{contest.test.most_pairs} pairs{over}{mean}, log-likelihood ratio {contest.llr:.2f} between "
            f"{contest.lower:.2f} and {contest.upper:.2f}{left}"
        )
    for one in outlook.waiting:
        best = "no other was rated" if one.best_other is None else f"the best other had {one.best_other:.1f}"
        incumbent = f", incumbent {one.incumbent}" if one.incumbent is not None else ""
        print(f"candidate {one.agent}: {one.rating:.1f} when {best}{incumbent}; {one.why}")
    for request in outlook.requests:
        print(
            f"to be tested: {request.agent} against {request.opponents[0]}, {len(request.matches) // 2} pairs at most"
        )
    for cut in outlook.cuts:
        print(f"cut by a cap of evaluations: {cut.evaluation_id}, {cut.matches} of {cut.wanted} matches")
    for policy, alarm in outlook.alarms.items():
        print(f"last alarm of {policy}: {describe_event(alarm)}")
    events = outlook.due if dry_run else recorded
    for event in events:
        print(f"{'would record' if dry_run else 'recorded'}: {describe_event(event)}")
    if not events:
        print("nothing is due")


def describe_event(event: Event) -> str:
    """A decision as one line."""
    if isinstance(event, PromotionDecided):
        opponents, pairs = f"{event.candidate} against {event.incumbent}", len(event.scores)
        return f"{opponents}: {event.verdict} after {pairs} pairs, log-likelihood ratio {event.llr:.2f}"
    if isinstance(event, CheckpointAdded):
        return f"{event.agent} joins as {event.reason}"
    if isinstance(event, CheckpointPromoted):
        return f"{event.agent} becomes elite, rated {event.rating:.1f}"
    if isinstance(event, RegressionNoticed):
        below = ", ".join(f"{name} ({rating:.1f})" for name, rating in event.below.items())
        return f"{event.agent}, rated {event.rating:.1f}, is below {below}"
    if isinstance(event, AgentRetired):
        return f"{event.agent} {'rests' if event.resting else 'retires'}: {event.reason}"
    if isinstance(event, AgentActivated):
        return f"{event.agent} is activated: {event.reason}"
    return event.key


def _print_certificates(checks: list[CertificateCheck]) -> None:
    for one in checks:
        print(f"{'holds' if one.holds else 'DIFFERS'}: {describe_event(one.certificate)} (event {one.sequence})")
        for difference in one.differences:
            print(f"  {difference}")
        if one.voided_since:
            print(f"  voided since, the verdict stands: {', '.join(one.voided_since)}")
    if not checks:
        print("no certificates")
