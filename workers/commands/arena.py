"""``league arena``: a registered arena in one process, played with one model or server."""

from typing import Annotated

import msgspec
import typer
import uvloop

from schemas.batches import TrainingBatch
from schemas.errors import UsageError
from workers.commands.options import JsonOption


def arena(
    name: Annotated[str | None, typer.Argument(help="A registered arena; --list names them.")] = None,
    num_steps: Annotated[int, typer.Option("--num-steps", min=1, help="Batches to play.")] = 1,
    model: Annotated[str, typer.Option("--model", help="A model's folder, or a hosted model's name.")] = "",
    local: Annotated[bool, typer.Option("--local", help="Ask a server of this machine.")] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where that server listens.")] = 8000,
    settings: Annotated[
        list[str] | None, typer.Option("--settings", help="KEY=VALUE of the arena, as in [game]; repeatable.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="The setting batch_size.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Episodes side by side.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print examples of every batch.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the names of all arenas.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Play an arena and print each step: rewards by role, what can be trained on, and why episodes failed.

    Nothing is trained: a league does that (``[game] name = "…"``). Hosted models are asked with the key in
    OPENROUTER_API_KEY or OPENAI_API_KEY.
    """
    # Imported here: every worker imports this package, and none needs all arenas.
    from arena.arenas import arena_names
    from workers.arenas import Played, lines, parsed, played

    if listed:
        typer.echo(msgspec.json.encode(arena_names()).decode() if as_json else "\n".join(arena_names()))
        return
    if name is None:
        raise UsageError("league arena: which one? expected a name; league arena --list prints them")
    if verbose and as_json:
        raise UsageError("--verbose: prints text; expected it without --json")
    given = parsed(settings or []) | ({} if batch_size is None else {"batch_size": batch_size})

    def tell(batch: TrainingBatch) -> None:
        typer.echo(msgspec.json.encode(batch).decode() if as_json else "\n".join(lines(batch)))

    wanted = Played(name, given, num_steps, concurrency, seed, model, port if local else None, verbose)
    uvloop.run(played(wanted, tell))
    if not as_json:
        typer.echo("nothing was trained: league up --config trains", err=True)
