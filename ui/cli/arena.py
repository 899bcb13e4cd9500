"""``league arena``: a registered arena in one process, played by one model that learns from it."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from typer import Argument, Option

from arena.environments import arena_names
from league.run import DEFAULT_RUN
from lifecycle.standalone import (
    ArenaRunOptions,
    default_config,
    make_item_settings,
    make_size_settings,
    parse_settings,
    with_settings,
)
from lifecycle.standalone.session import ArenaStepReport, format_step, run_arena
from schemas.config import LeagueConfig
from schemas.errors import UsageError
from ui.cli.options import JsonOption, RunOption, TrustOption, load_settings


def arena(
    name: Annotated[str | None, Argument(help="A registered arena; --list prints the names.")] = None,
    items: Annotated[list[str] | None, Argument(help="Items to play about: topics, prompts, documents.")] = None,
    num_steps: Annotated[int, Option(min=1, help="Number of batches to play and train on.")] = 10,
    batch_size: Annotated[int | None, Option(min=1, help="Size of a batch: sets the arena's setting for it.")] = None,
    solver_rollouts: Annotated[
        int | None, Option(min=1, help="Attempts to compare: sets the arena's setting for them.")
    ] = None,
    questions: Annotated[str, Option(help="Items to play about, as a JSON list.")] = "",
    settings: Annotated[list[str] | None, Option(help="KEY=VALUE of the arena, as in [game]; repeatable.")] = None,
    config: Annotated[Path | None, Option(help="A league's settings; game, model and trainer are used.")] = None,
    model: Annotated[
        str, Option(help="Folder or hub id of a model, or its name on the server; by default one is made.")
    ] = "",
    local: Annotated[bool, Option("--local", help="Use a server on this machine.")] = False,
    port: Annotated[int, Option(min=1, max=65535, help="Port of that server.")] = 8000,
    hosted: Annotated[bool, Option("--hosted", help="Use OpenRouter or OpenAI; by default gpt-4o-mini.")] = False,
    judge_model: Annotated[
        str, Option(help="The judge: a name on the same server, or same; by default the base model.")
    ] = "",
    train: Annotated[bool, Option("--train/--no-train", help="Train a model of this machine, or only play.")] = True,
    save: Annotated[Path | None, Option("--to", "--save", help="Folder for the adapter, in PEFT's format.")] = None,
    concurrency: Annotated[
        int | None, Option(min=1, help="Concurrent episodes; by default 64 here, 8 with servers.")
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of all random choices.")] = None,
    examples: Annotated[bool, Option("--examples", help="Print examples of every batch.")] = False,
    verbose: Annotated[
        bool, Option("--verbose", help="Log every episode and model call, to the terminal and a file.")
    ] = False,
    log: Annotated[
        Path | None, Option(help="File for the log, as JSON lines; by default NAME_run.log with --verbose.")
    ] = None,
    listed: Annotated[bool, Option("--list", help="Print the names of all arenas.")] = False,
    run: RunOption = DEFAULT_RUN,
    trust: TrustOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play an arena with a model and train it on every step, without a league; or only play, with a server's model.

    Each step prints mean rewards, trainable samples, training metrics, and the reasons why episodes failed. Hosted
    models need a key in OPENROUTER_API_KEY or OPENAI_API_KEY; replies of servers are not trained on.
    """
    if listed:
        typer.echo(msgspec.json.encode(arena_names()).decode() if as_json else "\n".join(arena_names()))
        return
    if examples and as_json:
        raise UsageError("--examples: prints text; expected it without --json")
    base = _load_arena_config(name, config, trust)
    arena_name = base.game.name
    played = make_item_settings(arena_name, items or [], questions)
    played |= make_size_settings(arena_name, batch_size, solver_rollouts) | parse_settings(settings or [])
    if local and hosted:
        raise UsageError("--local and --hosted: expected one of them")
    options = ArenaRunOptions(
        config=with_settings(base, played),
        steps=num_steps,
        seed=base.seed if seed is None else seed,
        concurrency=concurrency,
        run=run,
        where="local" if local else "hosted" if hosted else "here",
        model=model,
        port=port,
        judge=judge_model,
        train=train,
        save=save,
        examples=examples,
        verbose=verbose,
        log=Path(f"{arena_name}_run.log") if verbose and log is None else log,
    )

    def report(step: ArenaStepReport) -> None:
        typer.echo(msgspec.json.encode(step).decode() if as_json else "\n".join(format_step(step)))

    uvloop.run(run_arena(options, report))
    if not options.is_training and not as_json:
        typer.echo("nothing was trained", err=True)


def _load_arena_config(name: str | None, file: Path | None, trust: list[str] | None) -> LeagueConfig:
    if file is None:
        if name is None:
            raise UsageError("league arena: no name; expected an arena's (league arena --list prints them)")
        return default_config(name, {})
    config = load_settings(file, trust)
    if name not in (None, config.game.name):
        raise UsageError(f"league arena {name}: {file} plays {config.game.name!r}; expected that name, or none")
    return config
