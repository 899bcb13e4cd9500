"""The matches that people can play in a league, and the agents to play against."""

import asyncio
import math
from importlib.util import find_spec
from typing import Any

from arena.environments import ArenaSpec, EnvironmentSpec, make_environment, rules_in_words
from arena.games.texts import evaluation_spec, seat_counts
from league.auth.permissions import permissions
from league.run import Run
from league.state import LeagueState
from schemas.errors import BusyError, LeagueError, UsageError
from schemas.events import MatchFinished
from schemas.ids import agent_name
from schemas.subjects import match_end_subject

PURPOSE = "exhibition"
"""Purpose of matches of people."""
_WAIT_ATTEMPTS = 200
_POLL_INTERVAL_S = 0.05


def unrecorded_reason(run: Run, league: str) -> str:
    """Reason for which these credentials cannot record results; empty where they can."""
    identity = run.access.identity()
    if identity is None or identity.role is None:
        return ""
    subject = match_end_subject(league, PURPOSE, MatchFinished, identity.name)
    if {subject, ">"} & set(permissions(identity.role, identity.name, league).publish):
        return ""
    return (
        f"the credentials of {identity.name} ({identity.role}) do not let this page record matches; "
        "`league auth add evaluator NAME` makes some that do"
    )


async def wait_until_folded(state: LeagueState, sequence: int) -> None:
    """Wait until a new fold has reached an event; raises ``BusyError`` after ten seconds."""
    for _ in range(_WAIT_ATTEMPTS):
        if state.sequence >= sequence:
            return
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise BusyError("the league's history is still being read; try again in a moment")


def make_league_contest(state: LeagueState) -> EnvironmentSpec:
    """The game or environment of a league.

    Raises ``UsageError`` where its configuration is not known, ``ConfigError`` where it cannot be made here.
    """
    if state.config is None:
        raise UsageError("the league's configuration is not known here; expected an open league of this version")
    return make_environment(state.config.game.name, state.config.game.settings)


def match_options(state: LeagueState) -> dict[str, Any]:
    """The seats of a league's game and the agents for them; raises as ``make_league_contest`` does.

    ``usual`` is the best agent that learned, if any can play here.
    """
    contest = make_league_contest(state)
    agents = [
        {"agent": agent.name, "kind": agent.kind, "rating": agent.rating, "active": agent.active}
        for agent in state.standings().agents.values()
        # External agents play elsewhere: nothing here could act for them.
        if agent.kind != "external" and (agent.kind != "bot" or agent.name in contest.bots)
    ]
    registered = {row["agent"] for row in agents}
    for policy in state.policies:
        live = state.live_version(policy)
        if live is not None and (name := agent_name(policy, live.version)) not in registered:
            agents.append({"agent": name, "kind": "newest", "rating": None, "active": True})
    learned = [row for row in agents if row["kind"] in ("checkpoint", "newest")] if find_spec("torch") else []
    usual = max(
        learned, key=lambda row: (row["active"], -math.inf if row["rating"] is None else row["rating"]), default=None
    )
    why_not = ""
    try:
        rules_in_words(contest)
    except LeagueError as error:
        why_not = str(error)
    assert state.config is not None
    return {
        "game": contest.name,
        "spoken": isinstance(contest, ArenaSpec),
        "seats": list(contest.seats)[: seat_counts(evaluation_spec(contest)).most],
        "agents": agents,
        "usual": None if usual is None else usual["agent"],
        "why_not": why_not,
        "rated": PURPOSE in state.config.ratings.purposes,
    }
