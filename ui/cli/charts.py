"""``league payoff``, shares of points between agents, and ``league plot``, a league's history as a picture."""

from enum import StrEnum
from itertools import permutations
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from typer import Argument, Option

from league.run import Run
from schemas.errors import UsageError, format_choices
from ui.cli.options import AtOption, JsonOption
from ui.output import format_count, terminal_width, writing

if TYPE_CHECKING:
    from league.analysis.payoff import PayoffReport

_SUFFIXES = (".png", ".svg", ".html")


class MatrixFormat(StrEnum):
    """Format of the matrix."""

    table = "table"
    csv = "csv"
    png = "png"


async def payoff(
    *,
    run: Run,
    form: Annotated[
        MatrixFormat, Option("--format", help="A table, CSV with a row per ordered pair, or a picture.")
    ] = MatrixFormat.table,
    to: Annotated[Path | None, Option("-o", "--output", help="File to write; required for a picture.")] = None,
    game: Annotated[str | None, Option(help="Name of the game; by default the configured one.")] = None,
    purposes: Annotated[
        list[str] | None,
        Option("--purpose", help="Only matches for training, evaluation, …; repeatable. By default all."),
    ] = None,
    most: Annotated[int, Option(min=2, max=200, help="Number of agents: those in the most matches.")] = 12,
    unmet_even: Annotated[
        bool, Option("--unmet-even", help="Treat pairs that never met as even in the Nash average.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the share of the points that every agent took from every other, with 95 % intervals and games.

    Below it: how much of that no ranking explains (the cyclic share, and how much of it is beyond chance) and the Nash
    average. Voided matches do not count. CSV and PNG hold the matrix alone.
    """
    if form is MatrixFormat.png and (to is None or as_json):
        raise UsageError("--format png: expected -o FILE beside it, and not --json")
    from league.analysis.payoff import make_payoff_report
    from league.queries.tables import open_tables
    from league.ratings.load import load_matches

    async with open_tables(run) as tables:
        configured = await tables.query("SELECT game FROM configurations ORDER BY sequence DESC LIMIT 1")
        matches = load_matches(tables.connection)
    game = game or (configured[0][0] if configured else "")
    report = make_payoff_report(matches, game, purposes or [], most, unmet_even)
    if to is None:
        typer.echo(_payoff_text(report, form, as_json, terminal_width()), nl=False)
        return
    with writing(to):
        if form is MatrixFormat.png:
            from league.plots.render import draw_payoff

            draw_payoff(report.payoff, f"Payoffs in {report.game}: rows against columns", to)
        else:
            to.write_text(_payoff_text(report, form, as_json), encoding="utf-8")
    typer.echo(f"{to}: {len(report.payoff.agents)} of {report.agents} agents of {report.game}", err=as_json)


def _payoff_text(report: "PayoffReport", form: MatrixFormat, as_json: bool, width: int | None = None) -> str:
    from league.queries.text_table import number_columns, render_rows, render_table

    if as_json:
        return msgspec.json.encode(report).decode() + "\n"
    if form is MatrixFormat.csv:
        table = report.payoff
        columns = ["agent", "opponent", "games", "share", "low", "high"]
        kinds = ["VARCHAR", "VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE"]
        figures = (table.matches, table.share, table.low, table.high)
        pairs = permutations(range(len(table.agents)), 2)
        pair_rows = [[table.agents[i], table.agents[j], *(figure[i][j] for figure in figures)] for i, j in pairs]
        return render_rows(columns, kinds, pair_rows, "csv")
    rows: list[list[str | None]] = []
    for number, agent in enumerate(report.payoff.agents):
        nash: list[str | None] = [None, None]
        if report.nash is not None:
            nash = [f"{report.nash.share[number]:.3f}", f"{report.nash.worth[number]:+.3f}"]
        rows.append([agent, f"{report.circularity.potential[number]:+.3f}", *nash])
    board = render_table(["agent", *number_columns("log-strength", "Nash share", "Nash worth")], rows, width)
    return f"{_matrix_text(report, width)}{_note_text(report)}\n{board}{_circularity_text(report)}"


def _matrix_text(report: "PayoffReport", width: int | None) -> str:
    """The matrix, in as many tables below each other as a terminal's width needs."""
    from league.queries.text_table import render_table

    def cell(i: int, j: int) -> str:
        share, low, high = report.payoff.share[i][j], report.payoff.low[i][j], report.payoff.high[i][j]
        if share is None or low is None or high is None:
            return "·" if i == j else "never met"
        return f"{share:.2f}\n{low:.2f}–{high:.2f}\n{format_count(report.payoff.matches[i][j], 'game')}"

    agents = report.payoff.agents
    parts: list[str] = []
    first = 0
    while first < len(agents):
        for last in range(len(agents), first, -1):
            cells = [[agent, *(cell(i, j) for j in range(first, last))] for i, agent in enumerate(agents)]
            text = render_table(["", *agents[first:last]], cells, has_lines=True)
            if width is None or len(text.partition("\n")[0]) <= width:
                break
        parts.append(text)
        first = last
    return "".join(parts)


def _note_text(report: "PayoffReport") -> str:
    shown, passed = len(report.payoff.agents), report.payoff.passed_over
    which = "all agents" if shown >= report.agents else f"{shown} of {report.agents} agents, those in the most matches"
    purposes = " and ".join(report.purposes)
    text = f"{report.game}, matches for {purposes}: rows against columns, strongest first; {which}.\n"
    if report.unmet:
        text += f"{report.unmet:,} of {shown * (shown - 1) // 2:,} pairs never met.\n"
    if passed:
        text += f"{passed:,} matches compare no two of them and are passed over.\n"
    return text


def _circularity_text(report: "PayoffReport") -> str:
    circles = report.circularity
    first = "Cyclic share 0: no three agents met all round, so nothing can go in circles."
    if circles.cycles:
        rough = "; approximate, since matches have more than two seats" if report.seats > 2 else ""
        first = (
            f"Cyclic share {circles.cyclic_share:.3f}, beyond chance {circles.beyond_chance:.3f} "
            f"(p = {circles.p_value:.2g}, {circles.cycles:,} independent cycles{rough})."
        )
    if report.nash is None:
        return f"{first}\nNo Nash average: {report.problem}\n"
    return f"{first}\nThe Nash shares are as diverse as {exp(report.nash.entropy):.2f} equal agents.\n"


class PlotKind(StrEnum):
    """Kind of picture."""

    elo = "elo"
    winrate = "winrate"
    payoff = "payoff"
    pfsp = "pfsp"
    throughput = "throughput"


_KINDS_BY_OPTION = {
    "agents": (PlotKind.elo, PlotKind.winrate, PlotKind.payoff),
    "policy": (PlotKind.elo, PlotKind.winrate, PlotKind.pfsp, PlotKind.throughput),
    "system": (PlotKind.elo,),
}


async def plot(
    kind: Annotated[
        PlotKind,
        Argument(
            help="elo: ratings over gradient steps. winrate: games won over gradient steps. "
            "payoff: results by pair of agents. pfsp: shares of opponents drawn, and their targets. "
            "throughput: matches, tokens and steps over time."
        ),
    ],
    to: Annotated[Path, Option("-o", "--output", help="File to write: .png, .svg or .html.")],
    *,
    run: Run,
    at: AtOption = None,
    system: Annotated[str | None, Option(help="elo: a rating system or board; by default the official one.")] = None,
    agents: Annotated[
        str | None, Option(help="elo, payoff: only these. winrate: games against each of these. With commas.")
    ] = None,
    policy: Annotated[str | None, Option(help="Only this trained policy.")] = None,
) -> None:
    """Draw ratings, games won, payoffs, matchmaking or throughput, with 95 % intervals.

    An HTML file holds the drawing with its caption and loads nothing from elsewhere.
    """
    if to.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"-o {to}: ends in {to.suffix!r}; expected {format_choices(_SUFFIXES)}")
    names = [name for name in (agents or "").split(",") if name]
    for option, value in {"agents": names, "policy": policy, "system": system}.items():
        if value and kind not in _KINDS_BY_OPTION[option]:
            expected = format_choices(each.value for each in _KINDS_BY_OPTION[option])
            raise UsageError(f"--{option}: {kind.value} has no use for it; expected it with {expected}")
    from league.plots.render import to_printable, write_picture
    from league.queries.plots import draw_picture

    picture = await draw_picture(run, kind.value, at, system, names, policy)
    with writing(to):
        write_picture(picture, to)
    typer.echo(f"{to}: {to_printable(picture.title)}")
    typer.echo(picture.caption)
