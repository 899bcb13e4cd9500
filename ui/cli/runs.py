"""``league branch``, ``import`` and ``match import``: runs and results from elsewhere."""

from pathlib import Path
from typing import Annotated

import uvloop
from typer import Argument, Option

from league.history.branch import describe_trainer_start
from league.history.registry_import import REGISTRY_FILE, SETTINGS_FILE, read_registry
from league.queries.tables import resolve_sequence
from league.queries.terminal import Console, say
from league.run import DEFAULT_RUN, Run
from lifecycle.branch import BranchResult, make_branch
from lifecycle.trust import is_released
from schemas.config import LeagueConfig, load_config
from schemas.errors import UsageError
from ui.cli.options import JsonOption, LeagueOption, TrustOption, print_left_off
from ui.output import print_answer, print_json
from workers.progress import show_progress


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
        sequence = await resolve_sequence(origin, history, at, "--at")
        with show_progress(Console(stderr=True), "branching") as report:
            made = await make_branch(origin, history, sequence, run, report)
    print_answer(made, as_json, lambda result: _print_branch(result, run))


def _print_branch(result: BranchResult, run: Path) -> None:
    if result.at != result.asked:
        say(f"event {result.asked} is not a whole place to begin at; the nearest one before it is event {result.at}")
    copied = result.copied
    say(
        f"league {result.league!r} branched from {result.origin} after event {result.at}: {copied.events:,} events and "
        f"{copied.artifacts:,} artifacts ({copied.bytes:,} bytes) copied; state {result.digest[:12]}…"
    )
    for kind, count in sorted(copied.missing.items()):
        say(f"{count:,} artifacts that the history refers to were not there to copy: {kind}")
    if result.left_behind:
        say(f"{result.left_behind:,} training matches that were being played or waited for the trainer stay behind")
    for start in result.trainers:
        print(describe_trainer_start(start))
    say(f"it goes on with: league up --run {run}")


def import_league(
    file: Annotated[Path, Argument(help="A league.json: agents, history, metadata; or the folder of a release.")],
    run: Annotated[Path, Option(help="Folder of the new run; it must not exist.")],
    config: Annotated[Path | None, Option(help="The league's settings, a TOML file; a release has its own.")] = None,
    trust: TrustOption = None,
    form: Annotated[str, Option("--format", help="league-training or flat; by default found in the file.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Start a run with the agents and results of another program, or with a release.

    `league up --run NEW` continues it; `league play --run NEW` plays against its agents. What a release's settings
    would reach (addresses, files, environment variables, plugins, a model's code) is left off, except by --trust.
    """
    if file.is_dir():
        file = file / REGISTRY_FILE
    released = file.with_name(SETTINGS_FILE)
    is_own = config is not None and config.resolve() != released.resolve() and not is_released(config)
    if trust and is_own:
        raise UsageError(f"--trust {trust[0]}: expected it with a release's own settings, not with --config {config}")
    config = config or (released if released.is_file() else None)
    registry = read_registry(file, form)
    settings = load_config(config) if config is not None else LeagueConfig()
    # After the checks: torch takes seconds to import, and a wrong file should be rejected at once.
    from lifecycle.import_registry import import_registry

    with show_progress(Console(stderr=True), "importing") as report:
        trusted = None if is_own else trust or ()
        made = uvloop.run(import_registry(registry, file.resolve().parent, settings, run, report, trusted))
    if as_json:
        print_json(made)
        return
    say(
        f"league {made.league!r}: {made.agents:,} agents, {made.checkpoints:,} of them checkpoints, "
        f"{made.adapters:,} of these with their adapters; {made.matches:,} matches"
    )
    for name, why in made.without.items():
        say(f"{name} will not be drawn, it came without its adapter: {why}")
    for name, notes in made.notes.items():
        say(f"{name}: {'; '.join(notes)}")
    print_left_off(made.left_off)
    say(f"it goes on with: league up --run {run}")


def import_match_results(
    file: Annotated[
        Path, Argument(help="Games or episodes as JSON, in a line each or not; may be compressed by gzip.")
    ],
    form: Annotated[
        str, Option("--format", help="diplomacy, kaggle, textarena or verifiers; by default found in the file.")
    ] = "",
    origin: Annotated[str | None, Option(help="Name of the source; by default the format's.")] = None,
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
    result = uvloop.run(import_results(run, file, form, origin or "", game or "", agents, dry_run))
    if as_json:
        print_json(result)
        return
    repeated = f"{result.known:,} known{', nothing was recorded' if dry_run else ''}"
    say(f"{result.origin}: {result.matches:,} results, {result.failed:,} failed matches among them; {repeated}")
    say(f"agents: {', '.join(result.agents.values())}; joined: {', '.join(result.added) or 'none'}")
    if not result.is_rated:
        say("they move no rating: ratings.purposes does not name external")
