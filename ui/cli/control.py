"""``league pause|resume|config|agent|match request``: changes to a running league, recorded as events."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from typer import Argument, Option

from league.queries.terminal import say
from league.run import Run
from league.state import LeagueState
from lifecycle import control
from schemas.config import AgentConfig, RemoteAgentConfig, SearchConfig, convert
from schemas.config.base import parse_value
from schemas.errors import UsageError, format_choices
from schemas.events import AgentActivated, AgentRetired, Event, LeagueConfigured, LeaguePaused, LeagueResumed
from ui.cli.options import JsonOption
from ui.output import print_answer, print_json

PolicyOption = Annotated[str, Option("--policy", help="Only this policy; by default the whole league.")]
ReasonOption = Annotated[str, Option("--reason", help="Reason; recorded with the event.")]
NameArgument = Annotated[str, Argument(metavar="NAME", help="Name of the agent.")]


async def _append(run: Run, kind: type[Event] | None, decide: control.DecideEvents) -> Sequence[Event]:
    async with run.open_log() as history:
        return await control.append_decision(run, history, kind, decide)


async def pause(policy: PolicyOption = "", reason: ReasonOption = "", *, run: Run, as_json: JsonOption = False) -> None:
    """Stop a league from starting matches, evaluations and gradient steps; matches under way are completed."""
    events = await _append(run, LeaguePaused, lambda state: control.pause(state, policy, reason.strip()))
    _print_result(events, as_json, f"{policy or 'the league'} pauses; resume it with: league resume", "paused already")


async def resume(
    policy: PolicyOption = "", reason: ReasonOption = "", *, run: Run, as_json: JsonOption = False
) -> None:
    """Resume a league, or a policy that was paused by itself."""
    events = await _append(run, LeagueResumed, lambda state: control.resume(state, policy, reason.strip()))
    _print_result(events, as_json, f"{policy or 'the league'} goes on", "not paused")


async def config_set(
    settings: Annotated[list[str], Argument(metavar="KEY=VALUE…", help="A setting, such as rollout.ahead_steps=1.5.")],
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Change settings of an open league, for all its workers, from the next decision on.

    Values are TOML, or a word; an empty one removes the setting. Changes are checked as when a league is opened, and
    rejected where they would make it another league. A settings file given to `league up` later replaces all of them.
    """
    late: dict[str, tuple[str, ...]] = {}

    def decide(state: LeagueState) -> Sequence[Event]:
        events = control.configure(state, settings)
        late.clear()
        for event in events:
            late.update(control.keys_needing_restart(state, event))
        return events

    events = await _append(run, LeagueConfigured, decide)
    if as_json:
        print_json({"changed": bool(events), "needs_new_processes": list(late), "roles": late})
        return
    print("settings changed" if events else "these settings are in force already")
    for key, roles in late.items():
        say(f"{key}: {', '.join(roles)} processes that run keep theirs until they are started again")
    if events and not late:
        say("running processes follow from their next decision on")


async def agent_add(
    name: NameArgument,
    kind: Annotated[str, Option(help="bot (one of the game's), remote, search or external.")] = "bot",
    rating: Annotated[float | None, Option(help="Rating that it starts with; by default its kind's.")] = None,
    baseline: Annotated[bool, Option("--baseline", help="Compare policies with it in the criteria.")] = False,
    url: Annotated[str, Option(help="For remote agents: the server's address, up to /v1.")] = "",
    model: Annotated[str, Option(help="For remote agents: the model's name on the server.")] = "",
    key_variable: Annotated[str, Option(help="For remote agents: environment variable that holds the key.")] = "",
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Settings of remote agents and search, such as training=true or samples=8.",
        ),
    ] = None,
    version: Annotated[int, Option(min=0, help="For external agents: the version that joins.")] = 0,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Add an agent to the league.

    Samplers draw a bot of the game, or a model behind a server (remote), from then on. A policy with search is met in
    evaluations and benchmarks. An external agent is a learner that plays against the opponent pool: its versions are
    rated and stand on the leaderboard, and are never drawn.
    """
    if kind not in ("bot", "remote", "search", "external"):
        raise UsageError(
            f"--kind {kind}: expected bot, remote, search or external; checkpoints join by the trainer's schedule"
        )
    if kind != "remote" and (url or model or key_variable or (settings and kind != "search")):
        raise UsageError("--url, --model, --key-variable, --set: expected with --kind remote")
    if kind == "external":
        if baseline or rating is not None:
            raise UsageError("--baseline, --rating: expected with --kind bot or remote")
        events = await _append(run, None, lambda state: control.add_external_version(state, name, version))
        _print_result(events, as_json, f"{name}@{version} entered the league", f"{name}@{version} was there before")
        return
    if version:
        raise UsageError("--version: expected with --kind external")
    more = {key: parse_value(text) for key, _, text in (setting.partition("=") for setting in settings or [])}
    address = {"url": url, "model": model, "key_variable": key_variable}
    remote = convert(address | more, RemoteAgentConfig, "remote") if kind == "remote" else None
    search = convert(more, SearchConfig, "search") if kind == "search" else None
    agent = AgentConfig(kind=cast(Any, kind), baseline=baseline, remote=remote, search=search)
    if rating is not None:
        agent = msgspec.structs.replace(agent, rating=rating)
    events = await _append(run, LeagueConfigured, lambda state: control.add_agent(state, name, agent))
    _print_result(events, as_json, f"{name} entered the league", "")


async def agent_retire(
    name: NameArgument,
    reason: ReasonOption = "",
    undo: Annotated[bool, Option("--undo", help="Let samplers draw the retired agent again.")] = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Retire an agent: samplers no longer draw it. Evaluations that name it still do, and its history stays."""
    if not (undo or reason.strip()):
        raise UsageError("--reason: empty; expected the reason why the agent retires")
    if undo:
        events = await _append(run, AgentActivated, lambda state: control.activate(state, name, reason.strip()))
        _print_result(events, as_json, f"{name} is drawn again", f"{name} is active")
        return
    events = await _append(run, AgentRetired, lambda state: control.retire(state, name, reason.strip()))
    _print_result(events, as_json, f"{name} is drawn no more", f"{name} was retired before")


async def match_request(
    seats: Annotated[str, Option(help="An agent for each seat, with commas; a policy stands for its newest version.")],
    count: Annotated[int, Option(min=1, max=100_000, help="Number of matches, each with its own seed.")] = 1,
    kind: Annotated[str, Option(help="exhibition, or evaluation: rated like other evaluations.")] = ("exhibition"),
    rotate: Annotated[bool, Option("--rotate", help="Rotate the agents by one seat from match to match.")] = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Request matches between agents; evaluators play them when they are free."""
    if kind not in control.PURPOSES:
        raise UsageError(f"--kind {kind}: expected {format_choices(control.PURPOSES)}")
    line_up = [agent.strip() for agent in seats.split(",")]
    async with run.open_log() as history:
        request = await control.request_matches(run, history, line_up, count, kind, rotate)
    print_answer(request, as_json, _print_requested)


def _print_requested(requested: control.RequestedMatches) -> None:
    first, last = requested.matches[0], requested.matches[-1]
    ids = first if first == last else f"{first} … {last}"
    say(f"{len(requested.matches):,} matches asked for, {'rated' if requested.is_rated else 'unrated'}: {ids}")
    if requested.paused is not None:
        say(f"the league pauses ({requested.paused or 'no reason given'}): they wait until league resume")
    elif not requested.evaluators:
        say("no evaluator serves now: they wait for one (league up, or league worker evaluator)")


def _print_result(events: Sequence[Event], as_json: bool, done: str, otherwise: str) -> None:
    if as_json:
        print_json({"recorded": events})
    else:
        print(done if events else otherwise)
