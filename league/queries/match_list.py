"""Lists matches, newest first, page by page or as a table for a terminal, and gathers the details of one.

A first query finds the sequences of a page in the few columns that the filters use; a second one reads everything else
about its matches between the first and the last of them. On long histories that is several times faster than one query.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from league.log.base import RecordedEvent
from league.queries.live_league import LiveLeague
from league.queries.matches import MatchEvents, event_position, find_match_events, void_fields
from league.queries.pages import MAX_INTEGER, RequestParams
from league.queries.tables import open_tables, row_dicts
from league.queries.text_table import Column, number_columns, render_table
from league.run import Run
from schemas.errors import UsageError, format_choices
from schemas.ids import HUMAN

_ENDED_MATCHES = """
    SELECT sequence, match_id, game, purpose, worker, winner, evaluation_id, false AS failed FROM kept.all_matches
    UNION ALL
    SELECT sequence, match_id, NULL, purpose, worker, NULL, evaluation_id, true FROM kept.all_match_failures
"""
_SEATED_CONDITION = "sequence IN (SELECT sequence FROM kept.all_match_seats WHERE agent = ?)"
_FAILED_FOR_AGENT_CONDITION = """
    failed AND (
        match_id IN (SELECT match_id FROM kept.all_opponents_sampled WHERE agent = ? OR hero = ?)
        OR evaluation_id IN (SELECT evaluation_id FROM evaluations WHERE agent = ? OR list_contains(opponents, ?)))
"""
_WON_CONDITION = "sequence IN (SELECT sequence FROM kept.all_match_seats WHERE won AND agent = ?)"
_OUTCOMES = {
    "won": _WON_CONDITION,
    "lost": f"NOT failed AND winner IS NOT NULL AND NOT {_WON_CONDITION}",
    "drawn": "NOT failed AND winner IS NULL",
    "failed": "failed",
}
"""Conditions of outcomes for the agent of the request; ``drawn`` and ``failed`` also apply to all matches."""
_VOIDED_CONDITION = "match_id IN (SELECT match_id FROM voids WHERE sequence <= ?)"

_ROWS = """
    SELECT m.sequence, m.match_id, m.time, m.game, m.environment, m.purpose, m.worker, m.winner, m.reason, m.length,
           m.seconds, m.evaluation_id, NULL AS error, v.sequence AS voided, v.reason AS void_reason
    FROM kept.all_matches m LEFT JOIN (FROM voids WHERE sequence <= $upto) v USING (match_id)
    WHERE m.sequence BETWEEN $first AND $last AND list_contains($wanted, m.sequence)
    UNION ALL
    SELECT f.sequence, f.match_id, f.time, NULL, NULL, f.purpose, f.worker, NULL, 'failed', NULL,
           NULL, f.evaluation_id, f.error, NULL, NULL
    FROM kept.all_match_failures f
    WHERE f.sequence BETWEEN $first AND $last AND list_contains($wanted, f.sequence)
    ORDER BY ALL DESC
"""
_SEATS = """
    SELECT sequence, seat, role, agent, score, rank, trainable, team, won FROM kept.all_match_seats
    WHERE sequence BETWEEN $first AND $last AND list_contains($wanted, sequence) ORDER BY sequence, seat
"""
_NAMES = {
    "agent": "SELECT DISTINCT agent FROM kept.all_match_seats UNION SELECT agent FROM agents",
    "purpose": "SELECT DISTINCT purpose FROM kept.all_matches UNION SELECT purpose FROM kept.all_match_failures",
}
"""Queries for the values of the filters that a command has."""
_OPTIONAL_COLUMNS = ("worker", "seconds", "event", "length")
"""Columns that a narrow terminal does without, in the order in which they go."""


class PageQuery(NamedTuple):
    """A query and its parameters."""

    sql: str
    parameters: list[Any]


async def list_matches(league: LiveLeague, params: RequestParams) -> list[dict[str, Any]]:
    """The matches of a request with their seats, newest first.

    Filters are ``agent``, ``purpose``, ``game``, ``worker``, ``evaluation``, ``outcome`` and ``voided`` (``yes`` or
    ``no``); ``before`` a sequence; ``limit``; ``at`` for what was known at a sequence.

    Raises:
        UsageError: a parameter has no such value, or an outcome needs an agent.
    """
    page = build_page_query(params)
    upto = params.at() or MAX_INTEGER
    return await league.read(lambda connection: read_page(connection, page, upto))


async def read_matches(run: Run, agent: str | None, purpose: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest matches of a run, as ``list_matches`` gives them.

    Raises:
        UsageError: the league has no such agent or purpose.
    """
    filters = {name: value for name, value in (("agent", agent), ("purpose", purpose)) if value is not None}
    page = build_page_query(RequestParams({**filters, "limit": str(limit)}, {}))
    async with open_tables(run) as tables:
        rows = read_page(tables.connection, page, MAX_INTEGER)
        for name, value in {} if rows else filters.items():
            names = {known for (known,) in tables.connection.execute(_NAMES[name]).fetchall()}
            if value not in names:
                raise UsageError(f"--{name} {value}: no match was found; expected {format_choices(names, value)}")
    return rows


def matches_text(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """The rows of ``read_matches`` as a table of at most ``width`` characters a line."""
    event, length, seconds = number_columns("event", "length", "seconds")
    columns: list[Column | str] = [event, "time (UTC)", "match", "purpose", "agents: scores", "result"]
    cells = []
    for row in rows:
        seats = ", ".join(f"{seat['agent']}: {round(seat['score'], 3):g}" for seat in row["seats"])
        clock = f"{row['time']:%Y-%m-%d %H:%M:%S}"
        about = (row["match_id"], row["purpose"], seats, _result(row))
        cells.append([row["sequence"], clock, *about, row["length"], row["seconds"], row["worker"]])
    return render_table([*columns, length, seconds, "worker"], cells, width, _OPTIONAL_COLUMNS)


def _result(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return "failed"
    winners = dict.fromkeys(seat["agent"] for seat in row["seats"] if seat["won"])
    return ("won by " + ", ".join(winners) if winners else "drawn") + (" (voided)" if row["voided"] else "")


def read_page(connection: Any, page: PageQuery, upto: int) -> list[dict[str, Any]]:
    """The rows of a page. Events after ``upto`` are not known yet."""
    sequences = [sequence for (sequence,) in connection.execute(page.sql, page.parameters).fetchall()]
    if not sequences:
        return []
    page_range = {"first": sequences[-1], "last": sequences[0], "wanted": sequences}
    seats: dict[int, list[dict[str, Any]]] = {sequence: [] for sequence in sequences}
    for seat in row_dicts(connection.execute(_SEATS, page_range)):
        seats[seat.pop("sequence")].append(seat)
    rows = row_dicts(connection.execute(_ROWS, {**page_range, "upto": upto}))
    return [{**row, "seats": seats[row["sequence"]]} for row in rows]


def build_page_query(params: RequestParams) -> PageQuery:
    """The query for the sequences of a page; raises as ``list_matches`` does."""
    upto = params.at() or MAX_INTEGER
    columns = {"purpose": "purpose", "game": "game", "worker": "worker", "evaluation": "evaluation_id"}
    conditions: list[tuple[str, list[Any]]] = [
        ("sequence <= ? AND sequence < ?", [upto, params.integer("before") or MAX_INTEGER]),
        *((f"{at} = ?", [text]) for name, at in columns.items() if (text := params.text(name)) is not None),
    ]
    agent, outcome = params.text("agent"), params.choice("outcome", _OUTCOMES)
    if outcome in ("won", "lost") and agent is None:
        raise UsageError(f"outcome {outcome!r}: whose outcome is not given; expected it together with an agent")
    if agent is not None:
        conditions.append((f"{_SEATED_CONDITION} OR ({_FAILED_FOR_AGENT_CONDITION})", [agent] * 5))
    if outcome is not None:
        condition = _OUTCOMES[outcome]
        conditions.append((condition, [agent] * condition.count("?")))
    voided = params.choice("voided", ("yes", "no"))
    if voided is not None:
        conditions.append((_VOIDED_CONDITION if voided == "yes" else f"NOT {_VOIDED_CONDITION}", [upto]))
    where = " AND ".join(f"({condition})" for condition, _ in conditions)
    parameters = [value for _, values in conditions for value in values]
    sql = f"SELECT sequence FROM ({_ENDED_MATCHES}) WHERE {where} ORDER BY sequence DESC LIMIT ?"
    return PageQuery(sql, [*parameters, params.limit()])


async def load_match(league: LiveLeague, match_id: str) -> MatchEvents:
    """The events of a match; raises as ``find_match_events`` does."""
    return await find_match_events(league.query, league.log, match_id)


async def match_details(league: LiveLeague, match: MatchEvents) -> dict[str, Any]:
    """A match for its page, without the record."""
    seats = match.result.seats if match.result is not None else ()
    return {
        "match_id": match.match_id,
        "finished": _event_fields(match.finished),
        "failed": _event_fields(match.failed),
        "sampled": _event_fields(match.sampled),
        "voided": void_fields(match),
        # The gradient steps that trained on the match, or dropped it and why.
        "used": await league.rows(
            "SELECT policy, step, sequence, NULL AS dropped FROM gradient_steps WHERE list_contains(matches, ?) UNION "
            "ALL SELECT policy, step, sequence, d.reason FROM (SELECT policy, step, sequence, unnest(dropped) AS d "
            "FROM gradient_steps) WHERE list_contains(d.matches, ?) ORDER BY sequence",
            *(match.match_id, match.match_id),
        ),
        "ratings": await league.rows(
            "SELECT system, agent, before, after FROM ratings WHERE match_id = ? ORDER BY sequence, agent",
            match.match_id,
        ),
        "kinds": {agent: agent_kind(league, agent) for agent in sorted({seat.agent for seat in seats})},
    }


def _event_fields(recorded: RecordedEvent | None) -> dict[str, Any] | None:
    if recorded is None or recorded.event is None:
        return None
    event: dict[str, Any] = msgspec.to_builtins(recorded.event)
    for name in ("seed", "draw"):
        # Beyond the exact integers of JavaScript.
        if name in event:
            event[name] = str(event[name])
    return {**event_position(recorded), **event}


def agent_kind(league: LiveLeague, name: str) -> str:
    """The kind of an agent: ``person`` for people, ``policy`` for versions that never joined."""
    agent = league.state.agents.get(name)
    if agent is not None:
        return agent.kind
    return "person" if name == HUMAN else "policy"
