"""SQL per event type: the parsing of a batch's events, and the statements that insert them, in order of execution.

Each statement keeps what the state's fold keeps: the first event of a key, agents that joined before they are promoted
or retired. Bulky tables need no check: the dedup index has removed duplicates before.
"""

import json
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect as types

from league.projections.tables import column_names
from schemas.events import EVENT_TYPES

RENAMED = {"sequence": "through", "at": "through"}
"""Columns by field: ``sequence`` is where an event lies, so what it says of another one needs another name; ``at`` is a
keyword."""


@cache
def parse_statement(name: str) -> str:
    """SQL for the events of one type in ``incoming``: ``sequence``, ``time`` and one column per field."""
    kind = EVENT_TYPES[name]
    fields = ", ".join(f'j."{f}" AS "{RENAMED.get(f, f)}"' for f in kind.__struct_encode_fields__)
    structure = json.dumps(_structure(types.type_info(kind)))
    return f"""
        SELECT sequence, make_timestamp(time) AS time, {fields}
        FROM (SELECT sequence, time, json_transform(fields, '{structure}') AS j FROM incoming)
    """


def _structure(info: types.Type) -> Any:
    """DuckDB's description of the JSON that msgspec writes for a type."""
    if isinstance(info, types.StructType):
        return {field.encode_name: _structure(field.type) for field in info.fields}
    if isinstance(info, types.ListType):
        return [_structure(info.item_type)]
    if isinstance(info, types.UnionType):
        return next(_structure(each) for each in info.types if not isinstance(each, types.NoneType))
    if isinstance(info, types.DictType) and isinstance(info.value_type, types.FloatType):
        return "MAP(VARCHAR, DOUBLE)"
    return _SCALARS[type(info)]


_SCALARS = {
    types.StrType: "VARCHAR",
    types.IntType: "BIGINT",
    types.FloatType: "DOUBLE",
    types.BoolType: "BOOLEAN",
    types.AnyType: "JSON",
    types.DictType: "JSON",
}


class Statement(NamedTuple):
    """SQL over the temporary tables of parsed events."""

    events: tuple[str, ...]
    sql: str


def _columns(event: str, table: str, values: dict[str, str]) -> dict[str, str]:
    """SQL of a table's columns: ``values``, and the event's sequence, time and fields where the names are the same."""
    fields = {RENAMED.get(field, field) for field in EVENT_TYPES[event].__struct_encode_fields__}
    present = fields | {"sequence", "time"} | values.keys()
    return {name: values.get(name, name) for name in column_names(table) if name in present}


def _insert(event: str, table: str, source: str = "", **values: str) -> Statement:
    """Insert all events, or the rows that ``source`` makes of them."""
    columns = _columns(event, table, values)
    selected = ", ".join(columns.values())
    return Statement((event,), f"INSERT INTO {table} ({', '.join(columns)}) SELECT {selected} FROM {source or event}")


def _insert_first(event: str, table: str, keys: str, source: str = "", **values: str) -> Statement:
    """Insert the first event, or row that ``source`` makes of it, of each key that is not in the table yet.

    ``keys`` are the columns of both that tell rows apart, separated by commas.
    """
    same = " AND ".join(f"t.{key.strip()} = e.{key.strip()}" for key in keys.split(","))
    columns = _columns(event, table, values)
    return Statement(
        (event,),
        f"""
        INSERT INTO {table} ({", ".join(columns)})
        SELECT {", ".join(columns.values())} FROM {source or event} e
        WHERE NOT EXISTS (FROM {table} t WHERE {same})
        QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY sequence) = 1 ORDER BY sequence
        """,
    )


def _insert_activation(
    event: str, change: str, *, active: bool, reason: str = "reason", after: str = "after"
) -> Statement:
    """Note that an agent began or ceased to be drawn: once per key of the event, and only of one that had joined."""
    source = f"""(
        SELECT agent, sequence, time, {active} AS active, '{change}' AS change, {reason} AS reason, {after} AS after
        FROM {event} e WHERE EXISTS (FROM agents a WHERE a.agent = e.agent AND a.joined_sequence < e.sequence)
    )"""
    computed = {name: name for name in ("active", "change", "reason", "after")}
    return _insert_first(event, "activations", "agent, change, after", source, **computed)


def _insert_pause(event: str, *, paused: bool) -> Statement:
    """Note that a policy or the league was paused or resumed: once per key of the event."""
    source = f"(SELECT *, {paused} AS paused FROM {event})"
    return _insert_first(event, "pauses", "policy, after, paused", source, paused="paused")


def _insert_parts(event: str, table: str, field: str, parts: str, others: str = "*") -> Statement:
    """Insert the parts of a list as rows, with ``others`` of the event's columns."""
    source = f"(SELECT {others}, unnest({field}) AS part FROM {event})"
    return _insert(event, table, source, **{name: f"part.{name}" for name in parts.split(", ")})


_JOINED = {"joined_sequence": "sequence", "joined_time": "time"}
_RATED = _JOINED | {"start_rating": "rating", "active": "true"}
_MEMBER = _RATED | {"policy": "''", "version": "0", "join_reason": "''"}
_CHECKPOINT = _RATED | {"kind": "'checkpoint'", "baseline": "false", "join_reason": "reason"}
_EXTERNAL = _JOINED | {"kind": "'external'", "baseline": "false", "active": "false", "join_reason": "''"}
_REQUESTED = {"matches": "len(matches)", "requested_sequence": "sequence", "requested_time": "time"}
_SCORES = {"pairs": "len(scores)", "score": "list_avg(scores)", "matches": "pairs"}
_SEATS = """(
    SELECT *, list_filter(seats, lambda s: s.seat = winner)[1].team AS winning_team, unnest(seats) AS part
    FROM MatchFinished
)"""
_SEAT = {name: f"part.{name}" for name in ("seat", "agent", "score", "rank", "trainable", "metrics", "team")} | {
    "role": "coalesce(nullif(part.drawn_role, ''), part.role)",
    "side": "coalesce(list_filter(seats, lambda s: s.team <> '' AND s.team = part.team)[1].seat, part.seat)",
    "won": "coalesce(part.seat = winner OR (part.team <> '' AND part.team = winning_team), false)",
}

BULKY_STATEMENTS = [
    _insert("MatchFinished", "kept.matches", winner_agent="list_filter(seats, lambda s: s.seat = winner)[1].agent"),
    _insert("MatchFinished", "kept.match_seats", _SEATS, **_SEAT),
    _insert("MatchFailed", "kept.match_failures"),
    _insert_parts("OpponentsSampled", "kept.opponents_sampled", "picks", "seat, agent, bucket"),
    _insert_parts("RatingUpdated", "kept.ratings", "changes", "agent, before, after, rest"),
    _insert("RatingsCorrected", "kept.corrections"),
]

SMALL_STATEMENTS = [
    _insert_first("AgentRegistered", "agents", "agent", **_MEMBER),
    _insert_first("CheckpointAdded", "agents", "agent", **_CHECKPOINT),
    _insert_first("ExternalVersionAdded", "agents", "agent", **_EXTERNAL),
    _insert_activation("CheckpointPromoted", "promoted", active=True, reason="'elite'", after="0"),
    _insert_activation("AgentRetired", "retired", active=False),
    _insert_activation("AgentActivated", "activated", active=True),
    Statement(
        ("CheckpointPromoted", "AgentRetired", "AgentActivated"),
        """
        UPDATE agents SET active = c.active, promoted_sequence = c.promoted, retired_sequence = c.retired,
               retired_reason = c.retired_reason
        FROM (
            SELECT agent, arg_max(active, sequence) AS active, min(sequence) FILTER (change = 'promoted') AS promoted,
                   max(sequence) FILTER (change = 'retired') AS retired,
                   arg_max(reason, sequence) FILTER (change = 'retired') AS retired_reason
            FROM activations GROUP BY agent
        ) c WHERE agents.agent = c.agent
        """,
    ),
    # A void counts once the match's outcome is known, as in the state's fold. Voids are rare enough to look it up.
    Statement(
        ("MatchVoided",),
        """
        INSERT INTO voids
        SELECT match_id, sequence, time, match_sequence, reason
        FROM (SELECT *, "match".match_id AS match_id FROM MatchVoided) e
        WHERE match_id NOT IN (SELECT match_id FROM voids)
          AND (EXISTS (FROM kept.all_matches m WHERE m.match_id = e.match_id AND m.sequence < e.sequence)
               OR EXISTS (FROM kept.all_match_failures f WHERE f.match_id = e.match_id AND f.sequence < e.sequence))
        QUALIFY row_number() OVER (PARTITION BY match_id ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    _insert_first("PolicyPublished", "policies", "policy, version"),
    _insert_first("GradientStepTaken", "gradient_steps", "policy, step"),
    _insert_first("EvaluationRequested", "evaluations", "evaluation_id", **_REQUESTED),
    Statement(
        ("EvaluationFinished",),
        """
        UPDATE evaluations SET finished_sequence = f.sequence, finished_time = f.time, games = f.games,
               failed = f.failed, wins = f.wins, mean_score = f.mean_score, mean_rank = f.mean_rank, decided = f.decided
        FROM (
            SELECT e.* FROM EvaluationFinished e JOIN evaluations v
              ON v.evaluation_id = e.evaluation_id AND e.sequence > v.requested_sequence
            QUALIFY row_number() OVER (PARTITION BY e.evaluation_id ORDER BY e.sequence) = 1
        ) f WHERE evaluations.evaluation_id = f.evaluation_id AND evaluations.finished_sequence IS NULL
        """,
    ),
    _insert_first("PromotionDecided", "promotions", "evaluation_id", **_SCORES, elo0="test.elo0", elo1="test.elo1"),
    _insert_first("RemoteAsked", "remote_requests", "worker, since, number"),
    _insert_first("ArtifactStored", "artifacts", "match_id, number", data="coalesce(data, 'null')"),
    # NULL beyond the range of timestamps, which a client may ask for.
    _insert_first(
        "SessionOpened", "sessions", "match_id", expires="make_timestamp(TRY_CAST(expires * 1000000 AS BIGINT))"
    ),
    _insert_first("DecisionsStored", "decision_segments", "artifact"),
    Statement(
        ("DecisionsDropped",),
        """
        UPDATE decision_segments SET dropped_sequence = d.sequence
        FROM (SELECT unnest(artifacts) AS artifact, min(sequence) AS sequence FROM DecisionsDropped GROUP BY 1) d
        WHERE decision_segments.artifact = d.artifact AND decision_segments.dropped_sequence IS NULL
        """,
    ),
    _insert_first("PolicyReset", "resets", "policy, version"),
    _insert_first("WorkerJoined", "workers", "worker, incarnation", **_JOINED),
    Statement(
        ("WorkerLeft",),
        """
        UPDATE workers SET left_sequence = l.sequence, left_time = l.time, left_reason = l.reason
        FROM (
            SELECT e.* FROM WorkerLeft e JOIN workers w
              ON w.worker = e.worker AND w.incarnation = e.incarnation AND e.sequence > w.joined_sequence
            QUALIFY row_number() OVER (PARTITION BY e.worker, e.incarnation ORDER BY e.sequence) = 1
        ) l WHERE workers.worker = l.worker AND workers.incarnation = l.incarnation AND workers.left_sequence IS NULL
        """,
    ),
    _insert_pause("LeaguePaused", paused=True),
    _insert_pause("LeagueResumed", paused=False),
    _insert_first("HistoryArchived", "archives", "last"),
    _insert_first("SnapshotTaken", "snapshots", "through, version"),
    _insert_first("LeagueBranched", "branches", "through"),
    _insert_first("HistoryImported", "imports", "digest"),
    _insert_first("ResultsImported", "result_imports", "origin, digest"),
]
"""``LeagueOpened`` and ``LeagueConfigured`` are read in Python (``load``)."""
