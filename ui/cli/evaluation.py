"""``league criteria`` and ``benchmark``: the success criteria, and an agent against the same opponent in all seats."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from league.queries.text_table import number_columns, print_table
from league.run import Run
from ui.cli.options import AtOption, JsonOption
from ui.output import PLACEHOLDER, format_percent, print_answer, print_json, print_line
from workers.progress import show_progress

if TYPE_CHECKING:
    from league.success_criteria import CriteriaReport
    from league.success_criteria.against_baselines import BaselineBeat, NoRegression, VersionDifference
    from league.success_criteria.training import Diversity, Stability
    from lifecycle.benchmark import BenchmarkReport

# Sky blue and orange of Okabe and Ito's palette, which colour-blind readers tell apart; the words say it too.
_PASS, _FAIL = Text(" PASS ", "black on #56B4E9"), Text(" FAIL ", "black on #E69F00")


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
    table = _figures_table("baseline", "versions", "below", "worst", "at version (event)", "last")
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


def _figures_table(name: str, *figures: str) -> Table:
    table = Table(name, box=None, pad_edge=False, header_style="dim")
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


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
    table = _figures_table("bucket", "specified", "configured", "target", "realised", "95 %, all together")
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


def benchmark(
    game: Annotated[str, Argument(metavar="[GAME]", help="The run's game, to be sure of it; by default any.")] = "",
    agent: Annotated[
        str, Option(help="An agent, a version such as main@80, or a bot; by default the policy's newest version.")
    ] = "",
    against: Annotated[
        str, Option(help="Opponents, with commas; by default the game's bots that are no agents here.")
    ] = "",
    games: Annotated[int, Option(min=1, max=100_000, help="Games against each opponent.")] = 70,
    until: Annotated[
        int | None, Option(help="Diplomacy: the last year that is played; by default the league's.")
    ] = None,
    seed: Annotated[int, Option(help="Benchmarks of one seed meet the same luck.")] = 0,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Measure an agent in one seat against the same opponent in all others, in every seat equally often.

    The league's evaluators play, or this command where there are none. Results are recorded, and by default not rated;
    the same command again plays only what is missing. Shares have 95 % Wilson intervals. Exits 1 if games failed.
    """
    from lifecycle.benchmark import BenchmarkOptions, run_benchmark

    names = tuple(filter(None, (name.strip() for name in against.split(","))))
    options = BenchmarkOptions(game, agent, names, games, until, seed)
    progress = Console(stderr=True)
    started = time.monotonic()
    try:
        with show_progress(progress, "benchmark") as show:

            def update(done: int, total: int) -> None:
                rate = done / max(time.monotonic() - started, 1e-6)
                left = timedelta(seconds=round((total - done) / rate)) if done else PLACEHOLDER
                show(f"{done:,} of {total:,} games, {rate:.1f} games/s, {left} left,", done / max(total, 1))

            report = uvloop.run(run_benchmark(run, options, update))
    except KeyboardInterrupt:
        print_line(progress, "interrupted: games that ended are recorded; the same command plays the rest")
        raise
    if as_json:
        print_json(report)
    else:
        for one in report:
            _print_benchmark(one, Console(highlight=False))
    if any(one.rows[-1].games < one.wanted for one in report):
        raise typer.Exit(1)


def _print_benchmark(report: "BenchmarkReport", console: Console) -> None:
    overall = report.rows[-1]
    settings = "".join(f", {key} {value}" for key, value in report.settings.items())
    print_line(
        console,
        f"{report.agent} in one seat, {report.opponent} in all others: {report.game}{settings}, seed {report.seed}, "
        f"{overall.games:,} of {report.wanted:,} games",
    )
    shares = list(overall.shares)
    # Other metrics, such as tokens and costs, are in the JSON.
    means = [name for name in ("centers", "score") if name in overall.means]
    averages = [f"mean {name}" for name in means]
    columns = ["seat", *number_columns("games", *(f"{share}, % (95 %)" for share in shares), *averages)]
    rows = []
    for row in report.rows:
        found = [row.shares.get(name) for name in shares]
        counted = [
            PLACEHOLDER if one is None else f"{100 * one.share:.1f} ({100 * one.low:.0f}–{100 * one.high:.0f})"
            for one in found
        ]
        mean = [f"{row.means[name]:.2f}" if name in row.means else PLACEHOLDER for name in means]
        rows.append([row.seat or "all", f"{row.games:,}", *counted, *mean])
    print_table(console, columns, rows, averages)
    if report.failed:
        print_line(console, f"{report.failed:,} matches failed, the last one by {report.last_failure}")
