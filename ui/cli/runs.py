"""``league branch``, ``compare``, ``import`` and ``match import``: runs and results from elsewhere, and compared."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import uvloop
from rich.console import Console
from typer import Argument, Option

from league.history.branch import describe_trainer_start
from league.history.compare import RunComparison, RunSummary, align_curves
from league.history.registry_import import REGISTRY_FILE, SETTINGS_FILE, read_registry
from league.queries.tables import resolve_sequence
from league.queries.text_table import number_columns, print_benchmarks, print_table
from league.run import DEFAULT_RUN, Run
from lifecycle.branch import BranchResult, make_branch
from schemas.config import LeagueConfig, load_config
from schemas.errors import UsageError
from ui.cli.options import JsonOption, LeagueOption
from ui.output import PLACEHOLDER, format_number, print_answer, print_json, print_line
from workers.progress import show_progress


def _print_comparison(comparison: RunComparison) -> None:
    console = Console()
    first, second, shared = comparison.first, comparison.second, comparison.shared
    relation = "share no history"
    if shared:
        own = " and ".join(f"{side.run} has {side.events - shared:,} events of its own" for side in (first, second))
        relation = f"are one and the same up to event {shared}; since then {own}"
    print_line(console, f"{first.run} and {second.run} {relation}")
    for note in comparison.notes:
        print_line(console, f"note: {note}")
    figures = ((row_name, value(first), value(second)) for row_name, value in _ROWS.items())
    _print_sides(console, comparison, "", [row for row in figures if row[1:] != (None, None)], "Figures")
    if comparison.configuration:
        settings = [(difference.key, difference.first, difference.second) for difference in comparison.configuration]
        _print_sides(console, comparison, "setting", settings, "Settings that differ")
    else:
        print_line(console, "configuration: the same")
    if comparison.agents:
        rows: list[list[object]] = []
        for row in comparison.agents:
            name = row.agent if row.same else f"{row.agent} *"
            before, after = format_number(row.first_rating, 1), format_number(row.second_rating, 1)
            difference = f"{row.second_rating - row.first_rating:+.1f}"
            rows.append([name, before, row.first_rank, after, row.second_rank, difference])
        names = [f"{side.run}: {what}" for side in (first, second) for what in ("rating", "rank")]
        title = "Agents in common (* of the same name only: other weights)"
        print_table(console, ["agent", *number_columns(*names, "difference")], rows, names[1::2], title)
    for side in (first, second):
        if side.benchmarks:
            title = f"{side.run}: games won against one opponent in all other seats"
            print_benchmarks(console, side.benchmarks, title)
    if first.curve.steps or second.curve.steps:
        steps = [
            (f"{step:,}", format_number(one, 1), format_number(other, 1))
            for step, one, other in align_curves(first.curve, second.curve)
        ]
        print_table(console, number_columns("step", first.run, second.run), steps, title="Rating by gradient step")


_ROWS: dict[str, Callable[[RunSummary], Any]] = {
    "league": lambda side: side.league,
    "game": lambda side: side.game,
    "events": lambda side: f"{side.events:,}",
    "branched from": lambda side: f"{side.branched_from}, event {side.branched_at}" if side.branched_from else None,
    "gradient steps": lambda side: f"{side.steps:,}",
    "games": lambda side: ", ".join(f"{games:,} {purpose}" for purpose, games in side.games.items()),
    "failed, voided": lambda side: f"{side.failed:,}, {side.voided:,}",
    "training": lambda side: f"{side.training_s:,.1f} s",
    "training ended": lambda side: side.finished,
    "newest version's rating": lambda side: format_number(side.hero_rating, 1),
    "best checkpoint": lambda side: (
        f"{side.best}: {format_number(side.best_rating, 1)}, rank {side.best_rank}" if side.best is not None else None
    ),
}


def _print_sides(
    console: Console, comparison: RunComparison, name: str, rows: Sequence[Sequence[Any]], title: str
) -> None:
    cells = [[PLACEHOLDER if value is None else str(value) for value in row] for row in rows]
    print_table(console, [name, comparison.first.run, comparison.second.run], cells, title=title)


async def branch_league(
    at: Annotated[str, Option(help="Sequence of an event, or a time (ISO 8601, UTC by default).")],
    run: Annotated[Path, Option(help="Folder of the new run; it must not exist.")],
    source: Annotated[Path, Option("--from", help="Folder of the run to branch from.")] = DEFAULT_RUN,
    nats: Annotated[str | None, Option(help="Address of the broker to branch from.")] = None,
    league: LeagueOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a new run with a copy of another one's history up to an event; `league up --run NEW` continues it."""
    origin = Run(source, nats=nats, name=league)
    async with origin.open_log("branch") as history:
        place = await resolve_sequence(origin, history, at, "--at")
        with show_progress(Console(stderr=True), "branching") as report:
            made = await make_branch(origin, history, place, run, report)
    print_answer(made, as_json, lambda result: _print_branch(result, run))


def _print_branch(result: BranchResult, run: Path) -> None:
    if result.at != result.asked:
        print(f"event {result.asked} is not a whole place to begin at; the nearest one before it is event {result.at}")
    copied = result.copied
    print(
        f"league {result.league!r} branched from {result.origin} after event {result.at}: {copied.events:,} events and "
        f"{copied.artifacts:,} artifacts ({copied.bytes:,} bytes) copied; state {result.digest[:12]}…"
    )
    for kind, count in sorted(copied.missing.items()):
        print(f"{count:,} artifacts that the history refers to were not there to copy: {kind}")
    if result.left_behind:
        print(f"{result.left_behind:,} training matches that were being played or waited for the trainer stay behind")
    for start in result.trainers:
        print(describe_trainer_start(start))
    print(f"it goes on with: league up --run {run}")


def compare_run_folders(
    first: Annotated[Path, Argument(metavar="RUN", help="Folder of a run.")],
    second: Annotated[Path, Argument(metavar="RUN", help="Folder of another run.")],
    output: Annotated[Path | None, Option("-o", "--output", help="Draw both rating curves into this PNG.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: settings, figures, ratings, benchmarks, rating curves."""
    if output is not None and not output.resolve().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.resolve().parent}; expected one that exists")
    from league.queries.reports import compare_runs

    made = uvloop.run(compare_runs(first, second))
    if output is not None:
        from league.plots.render import draw_comparison

        draw_comparison({side.run: side.curve for side in (made.first, made.second)}, output)
    print_answer(made, as_json, _print_comparison)


def import_league(
    file: Annotated[Path, Argument(help="A league.json: agents, history, metadata; or the folder of a release.")],
    run: Annotated[Path, Option(help="Folder of the new run; it must not exist.")],
    config: Annotated[Path | None, Option(help="The league's settings, a TOML file; a release has its own.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run with the agents and results of another program, or with a release.

    `league up --run NEW` continues it; `league play --run NEW` plays against its agents.
    """
    if file.is_dir():
        config = config or (file / SETTINGS_FILE if (file / SETTINGS_FILE).is_file() else None)
        file = file / REGISTRY_FILE
    registry = read_registry(file)
    settings = load_config(config) if config is not None else LeagueConfig()
    # After the checks: torch takes seconds to import, and a wrong file should be refused at once.
    from lifecycle.import_registry import import_registry

    with show_progress(Console(stderr=True), "importing") as report:
        made = uvloop.run(import_registry(registry, file.resolve().parent, settings, run, report))
    if as_json:
        print_json(made)
        return
    print(
        f"league {made.league!r}: {made.agents:,} agents, {made.checkpoints:,} of them checkpoints, "
        f"{made.adapters:,} of these with their adapters; {made.matches:,} matches"
    )
    for name, why in made.without.items():
        print(f"{name} will not be drawn, it came without its adapter: {why}")
    print(f"it goes on with: league up --run {run}")


def import_match_results(
    file: Annotated[Path, Argument(help="A JSON object a line: a game, or an episode of verifiers.")],
    form: Annotated[str, Option("--format", help="textarena or verifiers.")],
    origin: Annotated[str | None, Option(help="Name of the source; by default that of the format.")] = None,
    game: Annotated[str | None, Option(help="Game of the results; by default named as the format.")] = None,
    agent: Annotated[
        list[str] | None, Option(metavar="PLAYER=AGENT", help="The league's agent for a player of the file.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Check the file, and append nothing.")] = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Record results of another system as matches of the purpose external, each once.

    A player is the agent of the league of that name, or else joins as an external agent. They move ratings where
    `ratings.purposes` names `external`; `league void --worker ORIGIN` takes them back.
    """
    from lifecycle.import_results import import_results

    agents: dict[str, str] = {}
    for pair in agent or ():
        player, _, name = pair.rpartition("=")
        if not (player and name):
            raise UsageError(f"--agent {pair}: expected PLAYER=AGENT")
        agents[player] = name
    result = uvloop.run(import_results(run, file, form, origin or form, game or form, agents, dry_run))
    if as_json:
        print_json(result)
        return
    known = f"{result.known:,} known{', nothing was recorded' if dry_run else ''}"
    print(f"{result.origin}: {result.matches:,} results, {result.failed:,} failed matches among them; {known}")
    print(f"agents: {', '.join(result.agents.values())}; joined: {', '.join(result.added) or 'none'}")
    if not result.is_rated:
        print("they move no rating: ratings.purposes does not name external")
