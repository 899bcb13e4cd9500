"""``league release``, ``restore``, ``model import``, ``model merge`` and ``parity``: models to take and give away."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
import uvloop
from typer import Argument, Option

from league.history.branch import describe_trainer_start
from league.queries.terminal import Console, say
from league.queries.text_table import number_columns, print_table
from league.run import DEFAULT_RUN, Run
from lifecycle.branch import RestoreResult, restore_run
from schemas.errors import UsageError
from ui.cli.options import JsonOption, LeagueOption, ManifestOption, check_manifest
from ui.output import print_answer, print_json, print_line
from workers.progress import show_progress

if TYPE_CHECKING:
    from league.log.jetstream import JetStreamLog
    from lifecycle.parity import ParityReport


def parity(
    *,
    run: Run,
    backend: Annotated[str | None, Option(help="The backend; by default the league's.")] = None,
    dtype: Annotated[str, Option(help="Data type that both sides compute in.")] = "float32",
    places: Annotated[int, Option(min=1, help="Decisions to sample, each in twelve ways.")] = 32,
    as_json: JsonOption = False,
) -> None:
    """Compare the backend's log-probabilities with the learner's, token by token; exits 1 when they drift.

    Both take the league's base model and the newest adapter of each policy, at decisions of its game. Without a league,
    a small random model of Nim and two adapters are made.
    """
    from lifecycle.backends import check_parity
    from lifecycle.parity import PERCENTILES

    report = uvloop.run(check_parity(run, backend, dtype, places))
    if as_json:
        print_json({"agrees": report.agrees, **msgspec.to_builtins(report), "percentiles": PERCENTILES})
    else:
        _print_parity(report)
    raise typer.Exit(0 if report.agrees else 1)


def _print_parity(report: "ParityReport") -> None:
    from lifecycle.parity import PERCENTILES, format_summary

    console = Console()
    ratios = [f"{percentile} %" for percentile in PERCENTILES]
    figures = number_columns("temp.", "top-p", "tokens", "mean", "largest", *ratios, "kept")
    rows = []
    for cell in report.cells:
        found = ["refused", *[""] * (len(figures) - 2)]
        if not cell.refused:
            ratio = (f"{value - 1:+.0e}" for value in cell.ratio)
            found = [f"{cell.tokens:,}", f"{cell.mean:.1e}", f"{cell.largest:.1e}", *ratio, f"{cell.kept:.3f}"]
            found.append("within" if cell.within else "BEYOND")
        rows.append([cell.way.kind, f"{cell.way.temperature:g}", f"{cell.way.top_p:g}", *found])
    print_table(console, ["", *figures, "bounds"], rows, ["kept", "tokens", *ratios[1:-1]])
    console.print(
        "mean, largest: differences in nats; %: percentiles of learner/backend - 1; kept: least mass drawn from"
    )
    for refused in sorted({cell.refused for cell in report.cells if cell.refused}):
        print_line(console, f"not sampled: {refused}")
    print_line(console, format_summary(report))


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
        raise UsageError(f"--from {source}: no such folder; expected that of the damaged run, or --archive or --nats")
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


def model_merge(
    agent: Annotated[str, Argument(help="A checkpoint or published version such as main@20.")],
    out: Annotated[Path, Option("--to", "--out", "-o", help="Folder to make; must not exist.")],
    *,
    run: Run,
) -> None:
    """Export an agent's adapter merged into its base model, as a folder in Hugging Face's format."""
    if out.exists():
        raise UsageError(f"--to {out}: exists already; expected a new folder")
    from lifecycle.league_models import export_merged_model

    uvloop.run(export_merged_model(run, agent, out))
    print_line(Console(stderr=True), f"{agent} as a model of its own in {out}")


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
    *,
    run: Run,
) -> None:
    """Write an agent's adapter as a folder in PEFT's format."""
    if folder.exists():
        raise UsageError(f"{folder}: exists already; expected a new folder")
    from lifecycle.league_models import export_adapter

    base = uvloop.run(export_adapter(run, agent, folder))
    print_line(Console(stderr=True), f"{agent} in {folder}: AutoPeftModelForCausalLM loads it, on the base {base}")
