"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from workers.run import Run

RunOption = Annotated[Path, typer.Option("--run", help="The run's folder: store, artifacts, logs.")]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="LEAGUE_NATS",
        help="A broker's address, of a cluster several with commas; by default the run has its own.",
    ),
]
LeagueOption = Annotated[str | None, typer.Option("--league", help="Which league, if the broker holds several.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one value for programs.")]


def the_run(folder: Path, nats: str | None, league: str | None) -> Run:
    """The run that the shared options name."""
    return Run(folder, nats=nats, name=league)
