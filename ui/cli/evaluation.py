"""``league criteria`` and ``benchmark``: the success criteria, and an agent against the same opponent in all seats."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from league.queries.terminal import Console
from league.queries.text_table import number_columns, print_table
from league.run import Run
from ui.cli.options import AtOption, JsonOption
from ui.output import PLACEHOLDER, print_answer, print_json, print_line
from workers.progress import show_progress

if TYPE_CHECKING:
    from league.success_criteria import CriteriaReport
    from lifecycle.benchmark import BenchmarkReport

# Sky blue and orange of Okabe and Ito's palette, which colour-blind readers tell apart; the words say it too.
_PASS, _FAIL = Text(" PASS ", "black on #56B4E9"), Text(" FAIL ", "black on #E69F00")


async def criteria(*, run: Run, at: AtOption = None, as_json: JsonOption = False) -> None:
    """Judge a run by the four success criteria, from its history alone; exits 1 unless all are met.

    The baseline is beaten; the hero was never below a baseline; opponents were drawn as the mix says; nothing failed. A
    criterion that was not measured is not met.
    """
    from league.queries.reports import judge_run

    report = await judge_run(run, at)
    print_answer(report, as_json, _print_criteria)
    raise typer.Exit(0 if report.passed else 1)


def _print_criteria(report: "CriteriaReport") -> None:
    console = Console(highlight=False)
    about = f"League {report.league!r} ({report.game}), policy {report.policy!r}, up to event {report.sequence:,}"
    console.print(Text(about))
    for criterion in report.criteria:
        console.print(Text.assemble("\n", _PASS if criterion.passed else _FAIL, " ", (criterion.title, "bold")))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
        for figure in criterion.figures:
            sign = {True: "✓", False: "✗", None: ""}[figure.met]
            expected = f"expected {figure.expected}" if figure.expected and figure.met is not None else figure.expected
            if figure.advice:
                expected += f"\n→ {figure.advice}"
            table.add_row(*map(Text, (sign, figure.figure, figure.measured, expected)))
        console.print(table)
    passed = sum(criterion.passed for criterion in report.criteria)
    verdict = "All four criteria are met." if report.passed else f"{passed} of {len(report.criteria)} criteria are met."
    console.print(Text(f"\n{verdict}", "bold"))


def benchmark(
    game: Annotated[str, Argument(metavar="[GAME]", help="Game that the run must have; by default any.")] = "",
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
        for benchmark in report:
            _print_benchmark(benchmark, Console(highlight=False))
    if any(benchmark.rows[-1].games < benchmark.wanted for benchmark in report):
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
            PLACEHOLDER
            if estimate is None
            else f"{100 * estimate.share:.1f} ({100 * estimate.low:.0f}–{100 * estimate.high:.0f})"
            for estimate in found
        ]
        mean = [f"{row.means[name]:.2f}" if name in row.means else PLACEHOLDER for name in means]
        rows.append([row.seat or "all", f"{row.games:,}", *counted, *mean])
    print_table(console, columns, rows, averages)
    if report.failed:
        print_line(console, f"{report.failed:,} matches failed, the last one by {report.last_failure}")
