"""Ratings: histories under the recorded rating systems, the leaderboard, payoffs, and the lineage of checkpoints."""

from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from league.analysis.leaderboard import leaderboard
from league.queries.live_league import LiveLeague
from league.queries.pages import RequestParams, route, run_single_flight
from schemas.errors import UsageError, format_choices
from schemas.numbers import Z_95

MAX_POINTS = 500
"""Points of one agent; a shorter part of the history shows more detail."""
_MAX_AGENTS = 20
_INTERVAL = (
    "rating ± 1.96 deviations: 95 % if the system's own assumptions hold. It ignores luck in the order of matches; the "
    "leaderboard's intervals do not."
)
_SYSTEMS_SQL = "SELECT game, system, systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"
# Recorded ratings, corrections included: the last rating in each of ``MAX_POINTS`` parts of equal size.
_POINTS_SQL = """
    WITH counted AS (
        SELECT *, sum(games) OVER (PARTITION BY agent ORDER BY sequence) AS played FROM rating_history
        WHERE game = ? AND system = ? AND agent IN (SELECT unnest(?::VARCHAR[])) AND sequence <= ?
    ), placed AS (
        SELECT c.*, CASE ? WHEN 'time' THEN epoch_ms(c.time) WHEN 'games' THEN played
                         WHEN 'step' THEN coalesce(g.step, 0) ELSE c.sequence END::BIGINT AS x
        FROM counted c ASOF LEFT JOIN (SELECT sequence, step FROM gradient_steps WHERE policy = ?) g
             ON c.sequence >= g.sequence
    ), parted AS (
        SELECT *, ntile(?) OVER mine AS part, row_number() OVER mine AS number FROM placed
        WHERE x BETWEEN ? AND ? WINDOW mine AS (PARTITION BY agent ORDER BY sequence)
    )
    SELECT agent, x, rating, deviation FROM parted
    QUALIFY number = 1 OR part IS DISTINCT FROM lead(part) OVER (PARTITION BY agent ORDER BY sequence)
    ORDER BY agent, sequence
"""


class _HistoryQuery(NamedTuple):
    """The checked parameters of a query for rating histories."""

    agents: tuple[str, ...]
    system: str | None
    axis: str
    first: int
    """Start of the range, in units of ``axis``."""
    last: int
    policy: str
    """Policy whose gradient steps are the axis ``step``."""


@route("/systems")
async def systems(league: LiveLeague, _: RequestParams) -> Any:
    """Names of the recorded rating systems, and the official one among them."""
    [(_, official, recorded)] = await league.read(
        lambda connection: connection.execute(_SYSTEMS_SQL, [league.position]).fetchall()
    )
    return {"official": official, "recorded": recorded}


@route("/when")
async def event_time(league: LiveLeague, params: RequestParams) -> Any:
    """The time at which the event ``at`` was recorded, in milliseconds since 1970."""
    rows = await league.rows(
        "SELECT sequence, time_ns // 1000000 AS time_ms FROM kept.all_events WHERE sequence = ?", params.as_of(league)
    )
    return rows[0] if rows else {"sequence": 0, "time_ms": 0}


@route("/ratings")
async def ratings(league: LiveLeague, params: RequestParams) -> Any:
    """Rating histories of ``agents`` under a recorded ``system`` in the range ``from``–``to``.

    ``by`` is the axis: event, time, games, or the hero's gradient steps.

    Points are ``[x, rating, low, high]``, with low and high where the system states a deviation. Commas and per cent
    signs within names are percent-encoded.
    """
    query = _HistoryQuery(
        tuple(unquote(name) for name in params.names("agents", _MAX_AGENTS)),
        params.text("system"),
        params.choice("by", ("event", "time", "games", "step")) or "event",
        *params.span(),
        league.summary()["policy"],
    )
    return await league.read(lambda connection: _rating_history(connection, league.position, query))


def _rating_history(connection: Any, upto: int, query: _HistoryQuery) -> Any:
    [(game, official, recorded)] = connection.execute(_SYSTEMS_SQL, [upto]).fetchall()
    system = query.system or official
    if system not in recorded:
        raise UsageError(
            f"system {system!r}: not recorded in this history; expected {format_choices(recorded, system)}"
        )
    window = (query.axis, query.policy, MAX_POINTS - 1, query.first, query.last)
    rows = connection.execute(_POINTS_SQL, [game, system, list(query.agents), upto, *window]).fetchall()
    points: dict[str, list[list[float]]] = {agent: [] for agent in query.agents}
    for agent, x, rating, deviation in rows:
        points[agent].append(rating_point(x, rating, deviation))
    return {
        "game": game,
        "system": system,
        "by": query.axis,
        "interval": _INTERVAL if any(row[3] is not None for row in rows) else None,
        "series": [{"agent": agent, "points": drawn} for agent, drawn in points.items()],
    }


def rating_point(x: int, rating: float, deviation: float | None) -> list[float]:
    """``[x, rating]``, with the ends of the 95 % interval where there is a deviation."""
    if deviation is None:
        return [x, rating]
    return [x, rating, rating - Z_95 * deviation, rating + Z_95 * deviation]


_DEFAULT_PAYOFF_AGENTS = 12
_MAX_PAYOFF_AGENTS = 100
_PAYOFF_SQL = """
    WITH met AS MATERIALIZED (FROM payoff_at($upto, purposes := $purposes)), playing AS (
        SELECT agent, sum(games) AS games, avg(share) AS share FROM met GROUP BY agent
    ), chosen AS (
        SELECT p.agent, p.share FROM playing p LEFT JOIN ratings_at($upto) r USING (agent)
        ORDER BY CASE $who WHEN 'rated' THEN r.rating ELSE p.games END DESC NULLS LAST, p.agent LIMIT $most
    )
    SELECT (SELECT count(*) FROM playing) AS agents,
           (SELECT list(agent ORDER BY share DESC, agent) FROM chosen) AS shown,
           (SELECT list({agent: agent, opponent: opponent, games: games, share: share, low: low, high: high})
            FROM met SEMI JOIN chosen USING (agent) WHERE opponent IN (SELECT agent FROM chosen)) AS pairs
"""


@route("/payoff")
async def payoff(league: LiveLeague, params: RequestParams) -> Any:
    """Shares of points among the ``most`` agents that played most or are rated best (``who``), ``at`` a sequence.

    Agents are ordered by their mean share.
    """
    at = params.as_of(league)
    most = params.integer("most", least=2, most=_MAX_PAYOFF_AGENTS) or _DEFAULT_PAYOFF_AGENTS
    who = params.choice("who", ("played", "rated")) or "played"
    purpose = params.text("purpose")
    values = {"upto": at, "purposes": [purpose] if purpose else None, "who": who, "most": most}

    async def work() -> Any:
        [(agents, shown, pairs)] = await league.read(
            lambda connection: connection.execute(_PAYOFF_SQL, values).fetchall()
        )
        return {"agents": agents, "shown": shown or [], "pairs": pairs or [], "sequence": at, "who": who}

    return await run_single_flight(league, ("payoff", params.at(), most, who, purpose), work)


@route("/leaderboard")
async def query_leaderboard(league: LiveLeague, params: RequestParams) -> Any:
    """``league leaderboard``: ``at`` a sequence, of a ``game``, ordered by a ``system``."""
    system, game = params.text("system"), params.text("game")

    async def work() -> Any:
        upto = params.as_of(league)
        return msgspec.to_builtins(await league.read(lambda connection: leaderboard(connection, game, upto, system)))

    return await run_single_flight(league, ("leaderboard", params.at(), system, game), work)


_MAX_GRAPH_AGENTS = 5_000
_MAX_OPPONENTS = 50


@route("/lineage")
async def lineage(league: LiveLeague, params: RequestParams) -> Any:
    """Checkpoints and base models with their parents, in the order of joining, as of ``at``.

    ``branch`` counts the resets of the policy before a checkpoint; ``first_step`` is its first gradient step after its
    parent. ``operator`` and ``parents`` are those of the offspring that a policy's first checkpoint after a reset
    continues.
    """
    at = params.as_of(league)
    return await league.rows(
        """
        WITH entrants AS (
            SELECT e.*, a.parent, a.adapter, a.joined_time
            FROM entrants_at(?) e JOIN agents a USING (agent) WHERE e.kind IN ('base', 'checkpoint')
        ), begun AS (
            SELECT e.agent, count(z.version) AS branch, coalesce(max(z.version), 0) AS since
            FROM entrants e LEFT JOIN resets z ON z.policy = e.policy AND z.version < e.version AND z.sequence <= ?
            GROUP BY e.agent
        )
        SELECT e.agent, e.kind, e.policy, e.version, e.parent, e.reason, e.active, e.adapter, e.joined_sequence,
               e.joined_time, b.branch, greatest(coalesce(p.version, 0), b.since) + 1 AS first_step, r.rating,
               r.rated_games, z.operator, list_transform(z.parents, lambda one: one.agent) AS parents
        FROM entrants e JOIN begun b USING (agent)
             LEFT JOIN agents p ON p.agent = e.parent AND p.policy = e.policy AND p.version > b.since
             LEFT JOIN ratings_at(?) r ON r.agent = e.agent
             LEFT JOIN resets z ON z.policy = e.policy AND z.version = b.since AND p.agent IS NULL AND z.operator <> ''
        ORDER BY e.joined_sequence LIMIT ?
        """,
        *(at, at, at, _MAX_GRAPH_AGENTS),
    )


@route("/lineage/against")
async def lineage_opponents(league: LiveLeague, params: RequestParams) -> Any:
    """Opponents in the matches that a ``policy``'s steps ``from`` one ``to`` another were trained on, as of ``at``."""
    return await league.rows(
        """
        WITH used AS (
            SELECT DISTINCT unnest(matches) AS match_id FROM gradient_steps
            WHERE policy = ? AND step BETWEEN ? AND ? AND sequence <= ?
        )
        SELECT s.agent, count(*) AS seats, count(DISTINCT s.match_id) AS matches, max(s.sequence) AS newest
        FROM match_seats s SEMI JOIN used USING (match_id) WHERE NOT s.trainable
        GROUP BY s.agent ORDER BY seats DESC, s.agent LIMIT ?
        """,
        *(params.text("policy") or "", *params.span(), params.as_of(league), _MAX_OPPONENTS),
    )
