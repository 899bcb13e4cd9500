"""Ratings: histories under any rating system, the leaderboard, payoffs, and the lineage of checkpoints."""

from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np

from league.analysis.comparisons import Z_95
from league.analysis.leaderboard import LIKELIHOOD_MODELS, make_leaderboard
from league.analysis.payoff import make_payoff_report
from league.analysis.roster import Roster
from league.queries.live_league import LiveLeague
from league.queries.pages import RequestParams, route, run_single_flight
from league.ratings.arrays import Ints, MatchArrays
from league.ratings.base import SYSTEMS
from league.ratings.rating_history import rating_histories
from schemas.errors import UsageError, format_choices

MAX_POINTS = 500
"""Points of one agent; a shorter part of the history shows more detail."""
_MAX_AGENTS = 20
_INTERVAL = (
    "rating ± 1.96 deviations: 95 % if the system's own assumptions hold. It says nothing about luck in the order of "
    "matches; the leaderboard's intervals do."
)


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
    """Rating systems: the official one, the recorded ones, those that can be computed, and the likelihood models."""

    def work(connection: Any) -> Any:
        roster = Roster(connection, league.position)
        return {
            "official": roster.official_system,
            "recorded": roster.systems,
            "computed": [name for name in SYSTEMS.names() if name not in roster.systems],
            "boards": sorted(LIKELIHOOD_MODELS),
        }

    return await league.read(work)


@route("/when")
async def event_time(league: LiveLeague, params: RequestParams) -> Any:
    """The time at which the event ``at`` was recorded, in milliseconds since 1970."""
    rows = await league.rows(
        "SELECT sequence, time_ns // 1000000 AS time_ms FROM kept.all_events WHERE sequence = ?", params.as_of(league)
    )
    return rows[0] if rows else {"sequence": 0, "time_ms": 0}


@route("/ratings")
async def ratings(league: LiveLeague, params: RequestParams) -> Any:
    """Rating histories of ``agents`` under a ``system`` in the range ``from``–``to``.

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

    async def work() -> Any:
        return await league.read(lambda connection: _rating_history(Roster(connection, league.position), query))

    if query.system is None or query.system in (await systems(league, params))["recorded"]:
        return await work()
    if query.system not in SYSTEMS.names():
        raise UsageError(f"system {query.system!r}: no rating system; expected {format_choices(SYSTEMS.names())}")
    return await run_single_flight(league, query, work)


def _rating_history(roster: Roster, query: _HistoryQuery) -> Any:
    system = query.system or roster.official_system
    recorded = system in roster.systems
    points = (_recorded_points if recorded else _computed_points)(roster, system, query)
    deviates = any(len(row) > 2 for rows in points.values() for row in rows)
    return {
        "game": roster.game,
        "system": system,
        "recorded": recorded,
        "by": query.axis,
        "interval": _INTERVAL if deviates else None,
        "series": [{"agent": agent, "points": points.get(agent, [])} for agent in dict.fromkeys(query.agents)],
    }


def _recorded_points(roster: Roster, system: str, query: _HistoryQuery) -> dict[str, list[list[float]]]:
    """Recorded ratings, corrections included: the last rating in each of ``MAX_POINTS`` parts of equal size."""
    rows = roster.query(
        """
        WITH rated AS (
            SELECT agent, sequence, time, after AS rating, deviation, 1 AS games FROM ratings
            WHERE game = ? AND system = ? AND agent IN (SELECT unnest(?::VARCHAR[])) AND sequence <= ?
            UNION ALL
            SELECT agent, sequence, time, rating, deviation, 0 FROM rating_corrections
            WHERE game = ? AND system = ? AND agent IN (SELECT unnest(?::VARCHAR[])) AND sequence <= ?
        ), counted AS (
            SELECT *, sum(games) OVER (PARTITION BY agent ORDER BY sequence) AS played FROM rated
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
        """,
        *(2 * (roster.game, system, list(query.agents), roster.upto)),
        *(query.axis, query.policy, MAX_POINTS - 1, query.first, query.last),
    )
    points: dict[str, list[list[float]]] = {}
    for agent, x, rating, deviation in rows:
        points.setdefault(agent, []).append(rating_point(x, rating, deviation))
    return points


def rating_point(x: int, rating: float, deviation: float | None) -> list[float]:
    """``[x, rating]``, with the ends of the 95 % interval where there is a deviation."""
    if deviation is None:
        return [x, rating]
    return [x, rating, rating - Z_95 * deviation, rating + Z_95 * deviation]


def _computed_points(roster: Roster, system: str, query: _HistoryQuery) -> dict[str, list[list[float]]]:
    """Ratings as ``league leaderboard --system`` would have shown them after each match."""
    first, last = _sequence_range(roster, query)

    def choose(sequence_R: Ints) -> Ints:
        inside = np.flatnonzero((sequence_R >= first) & (sequence_R <= last))
        if query.axis == "games":
            inside = inside[(inside + 1 >= query.first) & (inside + 1 <= query.last)]
        if len(inside) <= MAX_POINTS:
            return inside
        # Evenly spaced from the first to the last.
        chosen: Ints = inside[np.linspace(0, len(inside) - 1, MAX_POINTS).round().astype(np.int64)]
        return chosen

    histories = rating_histories(roster.matches, roster.game, roster.rules(system), query.agents, choose)
    places: dict[int, int] = {}
    if query.axis in ("time", "step"):
        stops = sorted({int(sequence) for course in histories for sequence in course.sequence_P})
        rows = roster.query(
            "SELECT m.sequence, CASE ? WHEN 'time' THEN epoch_ms(m.time) ELSE coalesce(g.step, 0) END::BIGINT "
            "FROM matches m ASOF LEFT JOIN (SELECT sequence, step FROM gradient_steps WHERE policy = ?) g "
            "ON m.sequence >= g.sequence "
            "WHERE m.sequence IN (SELECT unnest(?::BIGINT[]))",
            *(query.axis, query.policy, stops),
        )
        places = dict(rows)
    points: dict[str, list[list[float]]] = {}
    for course in histories:
        states = zip(course.sequence_P.tolist(), course.games_P.tolist(), course.state_PW.tolist(), strict=True)
        points[course.agent] = [
            rating_point(
                games if query.axis == "games" else places[sequence] if places else sequence,
                state[0],
                state[1] if len(state) > 1 else None,
            )
            for sequence, games, state in states
        ]
    return points


def _sequence_range(roster: Roster, query: _HistoryQuery) -> tuple[int, int]:
    """The range as sequences; with the axis ``games``, the whole history."""
    if query.axis == "games":
        return 0, roster.upto
    if query.axis == "event":
        return query.first, query.last
    if query.axis == "step":
        [(first, last)] = roster.query(
            "SELECT coalesce(max(sequence) FILTER (step <= ?), 0), coalesce(min(sequence) FILTER (step > ?) - 1, ?) "
            "FROM gradient_steps WHERE policy = ?",
            *(query.first, query.last, roster.upto, query.policy),
        )
    else:
        [(first, last)] = roster.query(
            "SELECT coalesce(min(sequence), 1), coalesce(max(sequence), 0) FROM matches "
            "WHERE epoch_ms(time) BETWEEN ? AND ?",
            *(query.first, query.last),
        )
    return first, last


_DEFAULT_PAYOFF_AGENTS = 12
_MAX_PAYOFF_AGENTS = 100


@route("/payoff")
async def payoff(league: LiveLeague, params: RequestParams) -> Any:
    """``league payoff``: the ``most`` agents that played most or are rated best (``who``), ``at`` a sequence."""
    at = params.at()
    most = params.integer("most", least=2, most=_MAX_PAYOFF_AGENTS) or _DEFAULT_PAYOFF_AGENTS
    who = params.choice("who", ("played", "rated")) or "played"
    purpose = params.text("purpose")

    def work(connection: Any) -> Any:
        upto = min(at or league.position, league.position)
        roster = Roster(connection, upto)
        matches, rated = _best_rated(roster, most) if who == "rated" else (roster.matches, None)
        # Pairs that never met count as even: among many agents there is nearly always one, and a page cannot ask back.
        report = make_payoff_report(matches, roster.game, [purpose] if purpose else [], most, unmet_even=True)
        return {**msgspec.to_builtins(report), "agents": rated or report.agents, "sequence": upto, "who": who}

    return await run_single_flight(league, ("payoff", at, most, who, purpose), lambda: league.read(work))


def _best_rated(roster: Roster, most: int) -> tuple[MatchArrays, int]:
    """The matches between the agents with the best official ratings, and how many agents are rated."""
    rows = roster.query(
        f"SELECT agent FROM ratings_at({roster.upto}, playing := ?) ORDER BY rating DESC, agent", roster.game
    )
    rated = [agent for (agent,) in rows if agent in roster.agents]
    if len(rated) < 2:
        raise UsageError("payoff: fewer than two agents are rated; expected rated matches, or those who played most")
    best = set(rated[:most])
    others = [name for name in roster.matches.agents if name not in best]
    return roster.matches.exclude_agents(others), len(rated)


@route("/leaderboard")
async def query_leaderboard(league: LiveLeague, params: RequestParams) -> Any:
    """``league leaderboard``: ``at`` a sequence, under a ``system``, with intervals of ``draws`` resamplings.

    By default there are none. ``intervals=affordable`` resamples as often as takes seconds at most, which for a long
    history is not at all.
    """
    at = params.at()
    system, game = params.text("system"), params.text("game")
    draws: int | None = params.integer("draws", most=1000) or 0
    if params.choice("intervals", ("affordable",)):
        draws = None

    async def work() -> Any:
        upto = min(at or league.position, league.position)
        board = await league.read(lambda it: make_leaderboard(it, upto, system, game, draws=draws))
        return msgspec.to_builtins(board)

    config = league.state.config
    is_recorded = system is None or (config is not None and system in [each.name for each in config.ratings.systems])
    if draws == 0 and is_recorded:
        return await work()
    return await run_single_flight(league, ("leaderboard", at, system, game, draws), work)


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
