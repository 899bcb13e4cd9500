"""``league workers``: which of them to trust."""

from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from league.custody.snapshots import state_at
from league.residuals import Residual, residuals
from schemas.errors import UsageError
from schemas.events import MatchFinished
from workers.commands.corrections import Asked, take_back
from workers.commands.options import JsonOption, LeagueOption, NatsOption, RunOption, the_run
from workers.run import DEFAULT_RUN, Run

CONSPICUOUS_Z = 4.0
"""By chance one worker in 16,000 is so far from the others."""


def audit(
    run: RunOption = DEFAULT_RUN, nats: NatsOption = None, league: LeagueOption = None, as_json: JsonOption = False
) -> None:
    """Show whose results are improbable under the ratings, or favour an agent more than other workers' results do."""
    rows = uvloop.run(_audit(the_run(run, nats, league)))
    if as_json:
        print(msgspec.json.encode([msgspec.structs.asdict(row) | {"z": row.z} for row in rows]).decode())
        return
    table = Table("worker", "purpose", "matches", "surprise", "z", "favours", "z", "")
    for row in rows:
        mark = "conspicuous" if row.z >= CONSPICUOUS_Z else ""
        shown = (f"{row.surprise:+.3f}", _shown(row.surprise_z), row.favours, _shown(row.favours_z), mark)
        table.add_row(row.worker, row.purpose, f"{row.matches:,}", *shown)
    Console(width=None if Console().is_terminal else 140).print(table)


def _shown(z: float | None) -> str:
    return "too few" if z is None else f"{z:+.1f}"


async def _audit(run: Run) -> list[Residual]:
    async with run.history("audit") as history:
        state = await state_at(history, run.artifacts(history.client))
        ratings = {rated.agent: rated.rating for rated in state.table.standings()}
        played = [r.event async for r in history.read() if isinstance(r.event, MatchFinished)]
        return residuals((match for match in played if not state.is_voided(match.match_id)), ratings)


def quarantine(
    worker: Annotated[str, typer.Argument(help="Name of the worker.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; recorded with each match.")] = "",
    since: Annotated[str | None, typer.Option("--since", help="From a sequence or time on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would come of it.")] = False,
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back all results of a worker, as `league void --worker` does; `league auth revoke` keeps it out."""
    if not reason.strip() and not dry_run:
        raise UsageError("--reason: empty; expected why this worker's results are taken back")
    asked = Asked([], worker, since, None, reason.strip(), dry_run)
    uvloop.run(take_back(the_run(run, nats, league), asked, as_json))
    if not as_json and not dry_run:
        print(f"new results of {worker} still count: `league auth revoke {worker}` takes its credentials back")
