"""``league plot``: a league's history as a picture."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from league.run import Run
from schemas.errors import UsageError, format_choices
from ui.cli.options import AtOption
from ui.output import writing

_SUFFIXES = (".png", ".svg")


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
}


async def plot(
    kind: Annotated[
        PlotKind,
        Argument(
            help="elo: ratings over gradient steps. winrate: games won over gradient steps. "
            "payoff: results by pair of agents. pfsp: shares of opponents drawn, by bucket. "
            "throughput: matches, tokens and steps over time."
        ),
    ],
    to: Annotated[Path, Option("-o", "--output", help="File to write: .png or .svg.")],
    *,
    run: Run,
    at: AtOption = None,
    agents: Annotated[
        str | None, Option(help="elo, payoff: only these. winrate: games against each of these. With commas.")
    ] = None,
    policy: Annotated[str | None, Option(help="Only this trained policy.")] = None,
) -> None:
    """Draw ratings, games won, payoffs, opponents drawn or throughput, with 95 % intervals."""
    if to.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"-o {to}: ends in {to.suffix!r}; expected {format_choices(_SUFFIXES)}")
    names = [name for name in (agents or "").split(",") if name]
    for option, value in {"agents": names, "policy": policy}.items():
        if value and kind not in _KINDS_BY_OPTION[option]:
            expected = format_choices(each.value for each in _KINDS_BY_OPTION[option])
            raise UsageError(f"--{option}: {kind.value} has no use for it; expected it with {expected}")
    from league.plots.render import to_printable, write_picture
    from league.queries.plots import draw_picture

    picture = await draw_picture(run, kind.value, at, names, policy)
    with writing(to):
        write_picture(picture, to)
    typer.echo(f"{to}: {to_printable(picture.title)}")
    typer.echo(picture.caption)
