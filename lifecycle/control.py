"""Commands to a running league: pause it, change its settings and agents, request matches, decide promotions.

Everything but matches is an event, appended on the condition that no other command was appended meanwhile; workers
see it in their own folds. Matches are jobs on ``WORK``, like those of evaluations. What cannot be done is a UsageError
(no such agent or policy, an immutable setting, a spent budget); invalid settings are a ConfigError.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from arena.environments import make_environment
from arena.games.texts import evaluation_spec, seat_counts
from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.log.queues import WorkQueue
from league.log.streams import raise_experience_limits
from league.matchmaking.roles import sampler_of
from league.matchmaking.schedule import EVALUATION_ONLY, external_version
from league.run import Run
from league.samplers import make_sampler
from league.state import LeagueState
from lifecycle.reconfigure import check_change, configuration_event, with_settings
from schemas import events as e
from schemas.config import AgentConfig, LeagueConfig, convert
from schemas.errors import ConflictError, UsageError, format_choices, suggest
from schemas.ids import OPERATOR, agent_name, derive_seed, split_agent
from schemas.jobs import PlayMatch
from schemas.subjects import event_type_filter
from workers.compatibility import restart_keys

PURPOSES = ("evaluation", "exhibition")
_MAX_TRIES = 5

DecideEvents = Callable[[LeagueState], Sequence[e.Event]]


class RequestedMatches(msgspec.Struct, frozen=True):
    """Matches that were requested."""

    matches: list[str]
    seats: list[str]
    """Seats of the first match."""
    purpose: str
    is_rated: bool
    evaluators: list[str]
    """Workers that may play the matches, according to the current state."""
    paused: str | None
    """Reason of the pause that delays the matches, if there is one."""


async def append_decision(
    run: Run, history: JetStreamLog, kind: type[e.Event] | None, decide: DecideEvents
) -> Sequence[e.Event]:
    """Append the events that ``decide`` returns for the newest state, on the condition that it is still the newest.

    No event of ``kind``, the type of the first one, may be appended meanwhile; None for events whose order does not
    matter. Without events nothing is appended.

    Raises:
        ConflictError: concurrent changes exhausted all retries.
    """
    for _ in range(_MAX_TRIES):
        expected = None if kind is None else await history.last_sequence(event_type_filter(history.league, kind))
        events = decide(await load_state_at(history, run.open_blob_store(history.client)))
        if not events:
            return events
        for event in events:
            if isinstance(event, e.LeagueConfigured):
                limits = convert(event.config, LeagueConfig, "").experience
                await raise_experience_limits(history.client.jetstream(), limits)
        try:
            await history.append_batch(events, expected=expected)
            return events
        except ConflictError:
            continue
    raise ConflictError(f"{history.league}: changed by other processes {_MAX_TRIES} times in a row; try again")


def pause(state: LeagueState, policy: str, reason: str) -> list[e.Event]:
    """Pause a policy, or the league if ``policy`` is empty; no event if it is paused already."""
    last = _last_pause(state, policy)
    return [] if last.is_paused else [e.LeaguePaused(policy=policy, reason=reason, after=last.sequence)]


def resume(state: LeagueState, policy: str, reason: str) -> list[e.Event]:
    """Resume a policy, or the league if ``policy`` is empty; no event if it is not paused."""
    last = _last_pause(state, policy)
    return [e.LeagueResumed(policy=policy, reason=reason, after=last.sequence)] if last.is_paused else []


def configure(state: LeagueState, settings: Sequence[str]) -> list[e.LeagueConfigured]:
    """Change settings; no event if nothing changes."""
    old = _require_config(state)
    new = with_settings(old, settings)
    if not check_change(state.league, old, new):
        return []
    _check_config(new)
    return [configuration_event(state, new)]


def keys_needing_restart(state: LeagueState, event: e.LeagueConfigured) -> dict[str, tuple[str, ...]]:
    """Changed keys that take effect only when processes are restarted, with the roles of these processes."""
    return restart_keys(_require_config(state), convert(event.config, LeagueConfig, ""))


def add_agent(state: LeagueState, name: str, agent: AgentConfig) -> list[e.Event]:
    """Register a bot, a remote agent or a searching agent."""
    if name in state.agents or split_agent(name) is not None or name in state.policies:
        raise UsageError(f"agent {name!r}: the name is taken, or names a policy's version; expected another one")
    if not name or any(sign.isspace() or sign == "," for sign in name):
        raise UsageError(f"agent {name!r}: expected a name without spaces and commas")
    old = _require_config(state)
    new = msgspec.structs.replace(old, agents=old.agents | {name: agent})
    _check_config(new)
    joined = e.AgentRegistered(agent=name, kind=agent.kind, baseline=agent.baseline, rating=agent.rating)
    events: list[e.Event] = [configuration_event(state, new), joined]
    if not agent.is_drawn:
        events.append(e.AgentRetired(agent=name, reason=EVALUATION_ONLY))
    return events


def add_external_version(state: LeagueState, name: str, version: int) -> list[e.Event]:
    """Add a version of an external agent; no event if it is in the league already."""
    added = external_version(state, name, version, OPERATOR)
    return [] if added is None else [added]


def retire(state: LeagueState, name: str, reason: str) -> list[e.Event]:
    """Retire an agent permanently; no event if it is retired already."""
    agent, last = _require_agent(state, name), state.activity(name)
    if not agent.active and not last.resting:
        return []
    standings, config = state.standings(), _require_config(state)
    retired = msgspec.structs.replace(standings.agents[name], active=False)
    without = msgspec.structs.replace(standings, agents={**standings.agents, name: retired})
    for policy in config.trained_policies:
        if policy in standings.live:
            try:
                make_sampler(sampler_of(config, policy)).distribution(without, policy)
            except (UsageError, ZeroDivisionError) as error:
                raise UsageError(f"agent {name!r}: without it {policy} has no opponent left: {error}") from None
    return [e.AgentRetired(agent=name, reason=reason, after=last.sequence)]


def activate(state: LeagueState, name: str, reason: str) -> list[e.Event]:
    """Reactivate a retired agent; no event if it is active."""
    if _require_agent(state, name).active:
        return []
    return [e.AgentActivated(agent=name, reason=reason, after=state.activity(name).sequence)]


async def request_matches(
    run: Run, history: JetStreamLog, seats: Sequence[str], count: int, purpose: str, rotate: bool
) -> RequestedMatches:
    """Request matches between agents.

    A seat is given as a registered agent, a version such as ``main@120``, or a policy for its newest version. With
    ``rotate`` agents move on by a seat from match to match; each match has its own seed.
    """
    state = await load_state_at(history, run.open_blob_store(history.client))
    jobs = make_requested_jobs(state, seats, count, purpose, rotate, f"request-{secrets.token_hex(4)}")
    queue = WorkQueue(history.client, history.league)
    for job in jobs:
        await queue.submit(job)
    paused = state.pauses.active_pause()
    return RequestedMatches(
        matches=[job.match_id for job in jobs],
        seats=jobs[0].seats,
        purpose=purpose,
        is_rated=purpose in _require_config(state).ratings.purposes,
        evaluators=[
            worker.joined.worker
            for _, worker in sorted(state.workers.items())
            if worker.left is None and worker.joined.role == "evaluator"
        ],
        paused=None if paused is None else paused.reason,
    )


def make_requested_jobs(
    state: LeagueState, seats: Sequence[str], count: int, purpose: str, rotate: bool, name: str
) -> list[PlayMatch]:
    """Make the jobs of ``request_matches``; ``name`` is the prefix of the match ids."""
    config = _require_config(state)
    environment, needed = make_environment(config.game.name, config.game.settings), len(seats)
    counts = seat_counts(environment if purpose == "training" else evaluation_spec(environment))
    if counts.fitting_seed(0, needed) is None:
        numbers = " or ".join(map(str, sorted({each.seats for each in counts.environments})))
        raise UsageError(f"--seats: found {needed}; expected an agent for each of {numbers} seats, separated by commas")
    line_up = [resolve_agent(state, agent, "--seats") for agent in seats]
    jobs = []
    for number in range(count):
        by = number % needed if rotate else 0
        match_id = f"{name}-{number}"
        seed = counts.fitting_seed(derive_seed(config.seed, "request", match_id), needed) or 0
        jobs.append(PlayMatch(match_id, purpose, line_up[needed - by :] + line_up[: needed - by], seed))
    return jobs


def resolve_agent(state: LeagueState, agent: str, option: str, bots: Sequence[str] = ()) -> str:
    """Resolve an agent of a command: a registered one, a published version, a policy for its newest one, or a bot.

    Raises:
        UsageError: no such agent, or one whose budget is spent; the message names the option.
    """
    live, named = state.live_version(agent), split_agent(agent)
    if live is not None:
        return agent_name(agent, live.version)
    is_published = named is not None and named[1] in state.published.get(named[0], {})
    if agent not in state.agents and agent not in bots and not is_published:
        names = dict.fromkeys([*state.agents, *state.policies, *bots])
        raise UsageError(
            f"{option}: {agent!r} is not an agent; expected {format_choices(names)}, or a published version"
            + suggest(agent, names)
        )
    if state.budget_left(agent) <= 0:
        raise UsageError(f"{option}: the budget of {agent!r} is spent; expected agents.{agent}.remote.budget raised")
    return agent


def _require_config(state: LeagueState) -> LeagueConfig:
    if state.config is None:
        raise UsageError("the league's configuration was written by a newer version; expected that version here")
    return state.config


def _last_pause(state: LeagueState, policy: str) -> Any:
    policies = _require_config(state).trained_policies
    if policy and policy not in policies:
        raise UsageError(f"--policy {policy}: no such policy; expected {format_choices(policies, policy)}")
    return state.pauses.last_state(policy)


def _require_agent(state: LeagueState, name: str) -> Any:
    if name not in state.agents:
        raise UsageError(f"agent {name!r}: not in this league; expected {format_choices(state.agents, name)}")
    return state.agents[name]


def _check_config(config: LeagueConfig) -> None:
    # Imported on use: it loads torch, which an installation that only pauses and resumes leagues may lack.
    from lifecycle.config_checks import check_config

    check_config(config)
