"""``league release``, ``restore``, ``model import`` and ``model export``: models to take and give away."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import uvloop
from typer import Argument, Option

from league.history.branch import describe_trainer_start
from league.queries.terminal import Console, say
from league.run import DEFAULT_RUN, Run
from lifecycle.branch import RestoreResult, restore_run
from schemas.errors import UsageError
from ui.cli.options import JsonOption, LeagueOption, ManifestOption, check_manifest
from ui.output import print_answer, print_json, print_line
from workers.progress import show_progress

if TYPE_CHECKING:
    from league.log.jetstream import JetStreamLog


def release(
    to: Annotated[Path, Option(help="Folder to make; must not exist.")],
    agent: Annotated[
        str | None,
        Option(
            help="A version of the main policy such as main@1000; by default the newest benchmarked one, else the "
            "newest checkpoint."
        ),
    ] = None,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Write a trained version with its base model, settings, lineage and model card to a folder to give away.

    `league import FOLDER --run NEW` makes a run of the folder, to play in the terminal or browser.
    """
    from lifecycle.release import write_release

    with show_progress(Console(stderr=True), "releasing") as report:
        made = uvloop.run(write_release(run, agent, to, report, _render_matches))
    if as_json:
        print_json(made)
        return
    width = max(map(len, made.bytes))
    for name, size in made.bytes.items():
        say(f"{name:<{width}}  {size / 1000:>9,.1f} kB")
    say(f"{made.agent}, as of event {made.sequence:,}: {sum(made.bytes.values()) / 1000:,.1f} kB in {to}")
    say(f"play it: league import {to} --run champion, then league play --run champion --agents {made.agent}")


async def _render_matches(run: Run, history: "JetStreamLog", match_ids: Sequence[str]) -> list[str]:
    from league.queries.live_league import open_live_league
    from league.queries.pages.matches import load_whole_match
    from ui.web.frozen import make_match_file

    async with open_live_league(run, history) as league:
        matches = [await load_whole_match(league, match_id) for match_id in match_ids]
        return [make_match_file(league, match, max_prompt_chars=0) for match in matches]


def restore_league(
    run: Annotated[Path, Option(help="Folder of the new run; it must not exist.")],
    source: Annotated[Path, Option("--from", help="Folder of the damaged run.")] = DEFAULT_RUN,
    nats: Annotated[str | None, Option(help="Address of the damaged broker.")] = None,
    archive: Annotated[
        list[str] | None, Option(help="Further folder or s3://bucket/prefix of artifacts; may be repeated.")
    ] = None,
    league: LeagueOption = None,
    expect: ManifestOption = "",
    as_json: JsonOption = False,
) -> None:
    """Start a new run with the history of a damaged one: its archive, and what follows it.

    Sequences, times and bytes are kept. `league up --run NEW` continues the run.
    """
    check_manifest(expect)
    if nats is None and not archive and not source.is_dir():
        raise UsageError(f"--from {source}: no such folder; expected the damaged run's, or --archive or --nats")
    with show_progress(Console(stderr=True), "restoring") as report:
        made = uvloop.run(restore_run(Run(source, nats=nats), archive or [], league, expect, run, report))
    print_answer(made, as_json, lambda result: _print_restored(result, run))


def _print_restored(result: RestoreResult, run: Path) -> None:
    copied = result.copied
    say(
        f"league {result.league!r} restored from {result.origin} up to event {result.at:,}: {copied.events:,} events, "
        f"up to {min(result.archived_to, result.at):,} from the archive; {copied.artifacts:,} artifacts "
        f"({copied.bytes:,} bytes); state {result.digest[:12]}…"
    )
    say(f"the archive vouches for it up to event {min(result.archived_to, result.at):,}; manifest: {result.manifest}")
    if result.left is not None:
        say(f"left out, events {result.left.first:,} to {result.left.last:,} of the stream: {result.left.why}")
    for kind, count in sorted(copied.missing.items()):
        say(f"{count:,} artifacts that the history refers to are lost: {kind}")
    for start in result.trainers:
        print(describe_trainer_start(start))
    say(f"it goes on with: league up --run {run}")


def model_import(
    file: Annotated[Path, Argument(help="A GGUF file.")],
    folder: Annotated[Path, Argument(help="Folder to make; must not exist.")],
) -> None:
    """Convert a GGUF file to a model folder for `model.base`, with weights in bfloat16."""
    from models.gguf import import_gguf

    import_gguf(file, folder)
    print_line(Console(stderr=True), f"{file.name} as a model folder: model.base = {str(folder)!r}")


def model_export(
    agent: Annotated[str, Argument(help="A checkpoint or published version such as main@20.")],
    folder: Annotated[Path, Argument(help="Folder to make; must not exist.")],
    merged: Annotated[
        bool,
        Option("--merged", help="Write the whole model, the adapter merged into its base, in Hugging Face's format."),
    ] = False,
    *,
    run: Run,
) -> None:
    """Write an agent's adapter as a folder in PEFT's format, or the whole model."""
    if folder.exists():
        raise UsageError(f"{folder}: exists already; expected a new folder")
    from lifecycle.league_models import export_adapter, export_merged_model

    if merged:
        uvloop.run(export_merged_model(run, agent, folder))
        print_line(Console(stderr=True), f"{agent} as a whole model in {folder}")
        return
    base = uvloop.run(export_adapter(run, agent, folder))
    print_line(Console(stderr=True), f"{agent} in {folder}: AutoPeftModelForCausalLM loads it, on the base {base}")
