"""Agents: search, results, opponents, matches, and the gradient steps that made one."""

from collections import Counter
from typing import Any

from league.history.lineage import resolve_agent, trace_lineage
from league.queries.live_league import LiveLeague
from league.queries.pages import MAX_ROWS, RequestParams, route, run_single_flight
from schemas.errors import LeagueError, UsageError

_MAX_STEPS = 200
_MAX_OPPONENTS = 30
_STEP_FIELDS = ("policy", "step", "sequence", "batch", "adapter", "accepted", "stale", "refused", "voided", "skipped")


@route("/agents")
async def agents(league: LiveLeague, params: RequestParams) -> Any:
    """Agents whose names contain ``search``, including rated versions that never joined."""
    words, upto = params.text("search") or "", params.as_of(league)
    return await league.rows(
        """
        SELECT agent, kind, joined_sequence FROM entrants_at(?) WHERE contains(lower(agent), lower(?))
        UNION ALL
        SELECT DISTINCT agent, 'version', NULL FROM ratings
        WHERE sequence <= ? AND contains(lower(agent), lower(?)) AND agent NOT IN (SELECT agent FROM agents)
        ORDER BY joined_sequence NULLS LAST, len(agent), agent LIMIT ?
        """,
        *(upto, words, upto, words, params.limit()),
    )


@route("/search")
async def search(league: LiveLeague, params: RequestParams) -> Any:
    """Agents, and matches, whose names contain ``search``: those that begin with it first, then the newest."""
    words = params.text("search") or ""
    rows = await league.rows(
        """
        WITH played AS (SELECT match_id, purpose, sequence FROM matches UNION ALL
                        SELECT match_id, purpose, sequence FROM match_failures)
        FROM played WHERE sequence <= ? AND contains(lower(match_id), lower(?))
        ORDER BY starts_with(lower(match_id), lower(?)) DESC, sequence DESC LIMIT ?
        """,
        *(params.as_of(league), words, words, params.limit()),
    )
    return {"agents": await agents(league, params), "matches": rows}


@route("/agent")
async def agent(league: LiveLeague, params: RequestParams) -> Any:
    """The agent ``name``: registration, results by purpose, changes of its activity, ratings; as of ``at``."""
    name, upto = _agent_name(params), params.as_of(league)
    joined = await league.rows("SELECT * EXCLUDE (active, reason) FROM agents WHERE agent = ?", name)
    published = await league.rows("FROM lineage WHERE agent = ?", name)
    played = await league.rows(
        """
        SELECT m.purpose, count(DISTINCT m.sequence) AS matches, avg(s.rank) AS mean_rank, avg(s.score) AS mean_score,
               count(DISTINCT m.sequence) FILTER (s.won) AS wins
        FROM match_seats s JOIN matches m USING (sequence)
        WHERE s.agent = ? AND sequence <= ? AND coalesce(voided_sequence > ?, true)
        GROUP BY m.purpose ORDER BY m.purpose
        """,
        *(name, upto, upto),
    )
    if not (joined or published or played):
        raise LeagueError(f"agent {name!r}: not in this history; expected one that joined, was published or played")
    systems = "SELECT systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"
    [configured] = await league.rows(systems, upto)
    ratings = "SELECT rating, deviation, rated_games FROM ratings_at(?, under := ?) WHERE agent = ?"
    return {
        "agent": name,
        "joined": joined[0] if joined else None,
        "published": published[0] if published else None,
        "played": played,
        "changes": await league.rows(
            "SELECT sequence, time, active, change, reason FROM activations WHERE agent = ? AND sequence <= ? "
            "ORDER BY sequence DESC LIMIT 50",
            *(name, upto),
        ),
        "ratings": [
            {"system": system, **row}
            for system in configured["systems"]
            for row in await league.rows(ratings, upto, system, name)
        ],
    }


def _agent_name(params: RequestParams) -> str:
    name = params.text("name")
    if name is None:
        raise UsageError("name: missing; expected an agent's")
    return name


@route("/agent/opponents")
async def opponents(league: LiveLeague, params: RequestParams) -> Any:
    """Results against each opponent: games, seat pairs won, drawn and lost, and the share of the points."""
    return await league.rows(
        "SELECT * EXCLUDE agent FROM payoff_at(?) WHERE agent = ? ORDER BY games DESC, opponent LIMIT ?",
        *(params.as_of(league), _agent_name(params), MAX_ROWS),
    )


@route("/agent/matches")
async def matches(league: LiveLeague, params: RequestParams) -> Any:
    """The newest matches of ``name`` with its roles, ranks and scores."""
    name, upto = _agent_name(params), params.as_of(league)
    return await league.rows(
        """
        SELECT m.match_id, sequence, m.time, m.purpose, m.reason, m.length, m.voided_sequence <= ? AS voided,
               list(s.role ORDER BY s.seat) AS roles, list(s.rank ORDER BY s.seat) AS ranks,
               list(s.score ORDER BY s.seat) AS scores, bool_or(s.won) AS won
        FROM match_seats s JOIN matches m USING (sequence) WHERE s.agent = ? AND sequence <= ?
        GROUP BY ALL ORDER BY sequence DESC LIMIT ?
        """,
        *(upto, name, upto, params.limit()),
    )


@route("/agent/steps")
async def steps(league: LiveLeague, params: RequestParams) -> Any:
    """``league lineage``: the ancestors of ``name``, and the gradient steps between it and its parent."""
    name = _agent_name(params)

    async def work() -> Any:
        return await trace_lineage(league.query, await resolve_agent(league.query, name))

    lineage = await run_single_flight(league, ("steps", name), work)
    # A bot has no parent: it is the only node, without steps.
    last = lineage.stations[-1]
    seats = Counter[str]()
    for step in last.steps:
        seats.update(step.opponents)
    opponents = sorted(seats.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "way": [station.agent for station in lineage.stations],
        "count": len(last.steps),
        "matches": sum(len(step.matches) for step in last.steps),
        "accepted": sum(step.accepted for step in last.steps),
        "opponents": [{"agent": opponent, "seats": count} for opponent, count in opponents[:_MAX_OPPONENTS]],
        "others": max(0, len(opponents) - _MAX_OPPONENTS),
        "steps": [
            {name: getattr(step, name) for name in _STEP_FIELDS}
            | {"matches": len(step.matches), "tainted": step.tainted, "roles": step.roles}
            for step in last.steps[-_MAX_STEPS:]
        ],
    }
