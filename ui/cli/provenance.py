"""``league match`` and ``lineage``: the origins of a result and an agent; exports."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer import Argument, Option

from league.log.jetstream import JetStreamLog
from league.queries.conversation import print_conversation, read_conversation
from league.queries.match_list import matches_text, read_matches
from league.queries.match_text import (
    explain_match,
    match_header,
    print_explanation,
    print_match,
    print_resimulation,
    read_transcript,
    resimulate_from_record,
)
from league.queries.matches import MatchEvents, find_match, load_record
from league.queries.pages import MAX_ROWS
from league.queries.terminal import Console, say
from league.run import Run
from schemas.errors import UsageError, format_choices
from ui.cli.options import JsonOption
from ui.output import format_bytes, format_count, print_answer, print_json, terminal_width, writing

if TYPE_CHECKING:
    from league.history.lineage import Lineage


IdArgument = Annotated[str, Argument(metavar="ID", help="Id of the match, such as rollout-1-0.")]
RecordOption = Annotated[
    Path | None, Option("--record", help="A copy of the record, for a league that keeps its digest only.")
]
_MAX_OPPONENTS = 6


async def list_newest(
    *,
    run: Run,
    agent: Annotated[str | None, Option(help="Only matches in which this agent had a seat, or failed to.")] = None,
    purpose: Annotated[
        str | None, Option(help="Only matches of this purpose, such as training, evaluation or benchmark.")
    ] = None,
    limit: Annotated[int, Option(min=1, max=MAX_ROWS, help="Matches to list at most.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List matches, newest first: agents with their scores, and who won."""
    rows = await read_matches(run, agent, purpose, limit)
    print_answer(rows, as_json, lambda found: print(matches_text(found, terminal_width()), end=""))


async def show(
    match_id: IdArgument,
    *,
    run: Run,
    record: RecordOption = None,
    to: Annotated[
        Path | None, Option("-o", "--output", help="Write the match to this .html file instead of printing it.")
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Play it again from its record and compare; exits 1 at the first difference.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a match: players, result, every move, and what models were asked and said; or write it to one HTML file.

    The file holds the maps or the transcript, prompts and replies, and loads nothing from elsewhere.
    """
    if again:
        if to is not None:
            raise UsageError("--again: prints what it compared; expected it without -o")
        async with _open_match(run, match_id) as (history, match):
            outcome = await resimulate_from_record(run, history, match, record)
        if as_json:
            print_json({"match_id": match.match_id, "identical": outcome.identical, **msgspec.to_builtins(outcome)})
        else:
            print_resimulation(Console(), match, outcome)
        raise typer.Exit(0 if outcome.identical else 1)
    if to is not None:
        if to.suffix.lower() != ".html" or as_json:
            raise UsageError(f"-o {to}: expected a file that ends in '.html', and not --json")
        from league.queries.live_league import open_live_league
        from league.queries.pages.matches import load_whole_match
        from ui.web.frozen import make_match_file

        async with run.open_log() as history, open_live_league(run, history) as league:
            whole = await load_whole_match(league, match_id, record)
            page = make_match_file(league, whole).encode()
        with writing(to):
            to.write_bytes(page)
        typer.echo(f"{to}: match {whole.details['match_id']}, {format_bytes(len(page))}")
        if whole.problem:
            typer.echo(f"no moves to show: {whole.problem}", err=True)
        return
    async with _open_match(run, match_id) as (history, match):
        turns, problem = await read_transcript(run, history, match, record)
        decisions = await read_conversation(run, history, match_id)
    if as_json:
        print_json({**match_header(match), "turns": turns, "problem": problem, "decisions": decisions})
    else:
        print_match(Console(), match, turns, problem)
        print_conversation(Console(), decisions)


async def explain(match_id: IdArgument, *, run: Run, as_json: JsonOption = False) -> None:
    """Explain a match: the eligible opponents and their probabilities; exits 1 if the record disagrees."""
    async with _open_match(run, match_id) as (history, match):
        explained = await explain_match(history, run.open_blob_store(history.client), match)
    if as_json:
        print_json({"match_id": match.match_id, "agrees": explained.agrees, **explained.to_builtins()})
    else:
        print_explanation(explained, Console())
    raise typer.Exit(0 if explained.agrees else 1)


async def export_matches(
    match_ids: Annotated[list[str], Argument(metavar="ID…", help="Ids of matches, such as rollout-1-0.")],
    form: Annotated[str, Option("--format", help="diplomacy (saved games), kaggle (steps) or verifiers (traces).")],
    to: Annotated[Path | None, Option("-o", "--output", help="Write to this file instead of printing.")] = None,
    *,
    run: Run,
) -> None:
    """Export matches in the form of another system: one JSON object a line, a match each."""
    from league.integrity.snapshots import load_state_at
    from league.queries.match_export import FORMATS, export_match

    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected {format_choices(FORMATS)}")
    lines = []
    async with run.open_log() as history:
        state = await load_state_at(history, run.open_blob_store(history.client))
        for match_id in match_ids:
            match = await find_match(run, history, match_id)
            record = await load_record(run, history, match, None)
            assert match.result is not None
            lines.append(msgspec.json.encode(export_match(form, match.result, record, state.config)).decode())
    if to is None:
        print("\n".join(lines))
        return
    with writing(to):
        to.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    typer.echo(f"{to}: {format_count(len(lines), 'match', 'matches')}")


@contextlib.asynccontextmanager
async def _open_match(run: Run, match_id: str) -> AsyncIterator[tuple[JetStreamLog, MatchEvents]]:
    async with run.open_log() as history:
        yield history, await find_match(run, history, match_id)


async def lineage(
    agent: Annotated[
        str,
        Argument(help="An agent such as main@20, the digest of an adapter or its first digits, or an adapter's files."),
    ],
    *,
    run: Run,
    steps: Annotated[bool, Option("--steps", help="Print every gradient step.")] = False,
    mermaid: Annotated[bool, Option("--mermaid", help="Print a diagram in Mermaid's language.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Trace an agent back to the base model: its ancestors, the steps between them, and what each was trained on."""
    from league.history.lineage import render_mermaid
    from lifecycle.release_query import load_lineage

    if mermaid + steps + as_json > 1:
        raise UsageError("lineage: expected one of --steps, --mermaid and --json")
    result = await load_lineage(run, agent)
    if as_json:
        value: dict[str, Any] = msgspec.to_builtins(result)
        for station, plain in zip(result.stations, value["stations"], strict=True):
            plain["tainted"] = station.tainted
            for step, fields in zip(station.steps, plain["steps"], strict=True):
                fields |= {"tainted": step.tainted, "roles": step.roles, "opponents": step.opponents}
        print_json(value)
    elif mermaid:
        print(render_mermaid(result), end="")
    elif steps:
        _print_lineage_steps(result)
    else:
        _print_lineage(result)


def _print_lineage(lineage: "Lineage") -> None:
    from league.queries.text_table import number_columns, render_table

    sums = ("accepted", "stale", "refused", "voided")
    rows = []
    for station in lineage.stations:
        steps = station.steps
        taken = ""
        counts: list[object] = [None] * 6
        if steps:
            totals = (sum(getattr(step, name) for step in steps) for name in sums)
            counts = [sum(len(step.matches) for step in steps), *totals, sum(len(step.tainted) for step in steps)]
            taken = f"{steps[0].step}–{steps[-1].step}" if len(steps) > 1 else f"{steps[0].step}"
        reason, adapter = station.reason or station.origin, (station.adapter or "")[:12]
        rows.append([station.agent, station.kind, reason, adapter, taken, *counts])
    columns = ["agent", "kind", "reason", "adapter", "steps", *number_columns("matches", *sums, "tainted")]
    print(render_table(columns, rows, terminal_width(), ("kind", "reason", "refused", "adapter")), end="")
    if any(station.tainted for station in lineage.stations):
        say("tainted: matches that were voided after a step had used them; --steps shows which")


def _print_lineage_steps(lineage: "Lineage") -> None:
    for station in lineage.stations:
        for step in station.steps:
            print(f"  step {step.step} of {step.policy}, event {step.sequence}" + (", skipped" if step.skipped else ""))
            say(f"    batch {step.batch}")
            say(
                f"    {len(step.matches):,} matches; trajectories {step.experience_from:,} to {step.experience_to:,}: "
                f"{step.accepted:,} accepted, {step.stale:,} stale, {step.refused:,} refused, {step.voided:,} voided"
            )
            opponents = _count_list(step.opponents, _MAX_OPPONENTS)
            say(f"    trained on {_count_list(step.roles, len(step.roles))}; against {opponents}")
            if step.adapter:
                say(f"    made adapter {step.adapter}")
            if step.tainted:
                say(f"    TAINTED by matches voided since: {', '.join(step.tainted)}")
        about = " ".join(filter(None, (station.kind, station.reason, station.origin)))
        print(f"{station.agent} ({about})" + (f"  adapter {station.adapter}" if station.adapter else ""))


def _count_list(names: dict[str, int], shown: int) -> str:
    listed = [f"{name} ×{count}" for name, count in list(names.items())[:shown]]
    more = [f"{len(names) - shown} more"] if len(names) > shown else []
    return ", ".join(listed + more) or "nothing known"
