"""``league sql``: the history in SQL."""

from enum import StrEnum
from typing import Annotated

import typer
import uvloop

from workers.commands.options import JsonOption, LeagueOption, NatsOption, RunOption, the_run
from workers.run import DEFAULT_RUN, Run


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def sql(
    statement: Annotated[str, typer.Argument(help="A query; `SHOW TABLES` lists what there is.")],
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    league: LeagueOption = None,
    form: Annotated[Format, typer.Option("--format", help="How rows are printed.")] = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Ask the history in SQL; read-only, over tables rebuilt from the events."""
    print_answer(the_run(run, nats, league), statement, "json" if as_json else form.value)


def print_answer(run: Run, statement: str, form: str) -> None:
    """Print what a statement of ours or a person's gives."""
    print(uvloop.run(_answer(run, statement, form)), end="")


async def _answer(run: Run, statement: str, form: str) -> str:
    # Imported here, not above: every worker imports this module, and DuckDB is a second and 50 MB that none needs.
    from league.projections.render import render
    from workers.tables import ask

    async with run.history() as history:
        result = await ask(run, history, statement)
    return render(result.columns, result.types, result.rows, form)
