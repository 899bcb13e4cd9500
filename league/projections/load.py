"""How a batch of events becomes rows: DuckDB parses the events beside the reader, nothing is done row by row here.

The batch lies in an Arrow table called ``batch``. For every type of event that occurs in it, the events are parsed
into a temporary table of the type's name, one column per field, and then the type's statements run. Each keeps what
the state's fold keeps: the first event of a key, the first outcome of a match, ratings in the order of matches.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from league.log.base import Recorded
from schemas.codec import encode_event
from schemas.events import EVENT_TYPES


def to_arrow(batch: Sequence[Recorded]) -> pa.Table:
    """The batch as Arrow columns.

    ``payload`` is the event as it was written; ``fact`` as this version would write it, upcast and with defaults,
    where that differs.
    """
    facts = [None if r.event is None else encode_event(r.event) for r in batch]
    return pa.table(
        {
            "sequence": pa.array([r.sequence for r in batch], pa.int64()),
            "time": pa.array([r.time_ns // 1000 for r in batch], pa.timestamp("us")),
            "type": pa.array([None if r.event is None else type(r.event).__name__ for r in batch], pa.string()),
            "subject": pa.array([r.subject for r in batch], pa.string()),
            "producer": pa.array([r.producer for r in batch], pa.string()),
            # Arrow takes text several times faster than bytes.
            "payload": pa.array([r.payload.decode("utf-8", "replace") for r in batch], pa.string()),
            "fact": pa.array(
                [
                    None if fact is None or fact == r.payload else fact.decode()
                    for fact, r in zip(facts, batch, strict=True)
                ],
                pa.string(),
            ),
        }
    )


def parse_statement(name: str) -> str:
    """SQL that makes the temporary table of one event type from ``batch``."""
    shape = json.dumps(_shape(EVENT_TYPES[name]))
    return f"""
        CREATE OR REPLACE TEMP TABLE {name} AS
        SELECT sequence, time, unnest(json_transform(coalesce(fact, payload), '{shape}'))
        FROM batch WHERE type = '{name}'
    """


def _shape(kind: Any) -> Any:
    """DuckDB's description of the JSON that msgspec writes for a type."""
    info = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.StructType):
        return {field.encode_name: _shape(field.type) for field in info.fields}
    if isinstance(info, msgspec.inspect.ListType):
        return [_shape(info.item_type)]
    if isinstance(info, msgspec.inspect.UnionType):
        return next(_shape(t) for t in info.types if not isinstance(t, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.DictType):
        return "MAP(VARCHAR, DOUBLE)" if isinstance(info.value_type, msgspec.inspect.FloatType) else "JSON"
    return _SCALARS[type(info)]


_SCALARS = {
    msgspec.inspect.StrType: "VARCHAR",
    msgspec.inspect.IntType: "BIGINT",
    msgspec.inspect.FloatType: "DOUBLE",
    msgspec.inspect.BoolType: "BOOLEAN",
}

EVENTS = """
    INSERT INTO events
    SELECT sequence, time, coalesce(type, CASE WHEN json_valid(payload) THEN payload->>'$.type' END), subject, producer,
           CASE WHEN json_valid(payload) THEN payload::JSON ELSE to_json(payload) END
    FROM batch
"""

_OUTCOMES = """
    CREATE OR REPLACE TEMP TABLE outcomes AS
    SELECT match_id, min(sequence) AS sequence FROM (
        SELECT sequence, match_id FROM MatchFinished UNION ALL SELECT sequence, match_id FROM MatchFailed
    ) o
    WHERE NOT EXISTS (FROM matches m WHERE m.match_id = o.match_id)
      AND NOT EXISTS (FROM match_failures f WHERE f.match_id = o.match_id)
    GROUP BY match_id
"""

STATEMENTS: list[tuple[tuple[str, ...], str]] = [
    (
        ("AgentRegistered",),
        """
        INSERT INTO agents (agent, kind, baseline, start_rating, policy, version, parent, adapter, join_reason,
                            joined_sequence, joined_time)
        SELECT agent, kind, baseline, rating, '', 0, NULL, NULL, '', sequence, time FROM AgentRegistered e
        WHERE NOT EXISTS (FROM agents a WHERE a.agent = e.agent)
        QUALIFY row_number() OVER (PARTITION BY agent ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
        ("CheckpointAdded",),
        """
        INSERT INTO agents (agent, kind, baseline, start_rating, policy, version, parent, adapter, join_reason,
                            joined_sequence, joined_time)
        SELECT agent, 'checkpoint', false, NULL, policy, version, parent, adapter, reason, sequence, time
        FROM CheckpointAdded e WHERE NOT EXISTS (FROM agents a WHERE a.agent = e.agent)
        QUALIFY row_number() OVER (PARTITION BY agent ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
        ("CheckpointPromoted",),
        """
        UPDATE agents SET promoted_sequence = p.sequence FROM (
            SELECT e.agent, min(e.sequence) AS sequence FROM CheckpointPromoted e
            JOIN agents a ON a.agent = e.agent AND e.sequence > a.joined_sequence GROUP BY e.agent
        ) p WHERE agents.agent = p.agent AND agents.promoted_sequence IS NULL
        """,
    ),
    (
        ("AgentRetired",),
        """
        UPDATE agents SET retired_sequence = r.sequence, retired_reason = r.reason FROM (
            SELECT e.agent, min(e.sequence) AS sequence, arg_min(e.reason, e.sequence) AS reason FROM AgentRetired e
            JOIN agents a ON a.agent = e.agent AND e.sequence > a.joined_sequence GROUP BY e.agent
        ) r WHERE agents.agent = r.agent AND agents.retired_sequence IS NULL
        """,
    ),
    (
        ("OpponentsSampled",),
        """
        INSERT INTO opponents_sampled
        SELECT match_id, sequence, time, worker, hero, hero_seat, sampler, sampler_digest, standings_sequence, draw,
               pick.seat, pick.agent, pick.bucket
        FROM (
            SELECT *, unnest(picks) AS pick FROM (
                SELECT * FROM OpponentsSampled e
                WHERE NOT EXISTS (FROM opponents_sampled o WHERE o.match_id = e.match_id)
                QUALIFY row_number() OVER (PARTITION BY match_id ORDER BY sequence) = 1
            )
        ) ORDER BY sequence, pick.seat
        """,
    ),
    (("MatchFinished", "MatchFailed"), _OUTCOMES),
    (
        ("MatchFinished",),
        """
        INSERT INTO matches
        SELECT match_id, sequence, time, game, purpose, worker, seed, winner,
               list_filter(seats, lambda s: s.seat = winner)[1].agent,
               reason, length, seconds, tokens, record, experience, evaluation_id
        FROM MatchFinished SEMI JOIN outcomes USING (match_id, sequence) ORDER BY sequence
        """,
    ),
    (
        ("MatchFinished",),
        """
        INSERT INTO match_seats
        SELECT match_id, sequence, s.seat, s.role, s.agent, s.score, s.rank, s.trainable, s.metrics
        FROM (SELECT match_id, sequence, unnest(seats) AS s
              FROM MatchFinished SEMI JOIN outcomes USING (match_id, sequence)) ORDER BY sequence, s.seat
        """,
    ),
    (
        ("MatchFailed",),
        """
        INSERT INTO match_failures
        SELECT match_id, sequence, time, purpose, worker, error, evaluation_id
        FROM MatchFailed SEMI JOIN outcomes USING (match_id, sequence) ORDER BY sequence
        """,
    ),
    (
        ("RatingUpdated",),
        """
        INSERT INTO ratings
        SELECT sequence, time, match_id, match_sequence, game, system, c.agent, c.before, c.after
        FROM (
            SELECT *, unnest(changes) AS c FROM (
                SELECT e.* FROM RatingUpdated e LEFT JOIN (
                    SELECT game, system, max(match_sequence) AS rated_to FROM ratings GROUP BY game, system
                ) r ON r.game = e.game AND r.system = e.system
                QUALIFY e.match_sequence > greatest(coalesce(r.rated_to, 0), coalesce(max(e.match_sequence) OVER (
                    PARTITION BY e.game, e.system ORDER BY e.sequence
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0))
            )
        ) ORDER BY sequence
        """,
    ),
    (
        ("PolicyPublished",),
        """
        INSERT INTO policies
        SELECT policy, version, adapter, parent, sequence, time FROM PolicyPublished e
        WHERE NOT EXISTS (FROM policies p WHERE p.policy = e.policy AND p.version = e.version)
        QUALIFY row_number() OVER (PARTITION BY policy, version ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
        ("GradientStepTaken",),
        """
        INSERT INTO gradient_steps
        SELECT policy, step, sequence, time, batch, matches, experience_from, experience_to, accepted, stale, refused,
               state, skipped, metrics FROM GradientStepTaken e
        WHERE NOT EXISTS (FROM gradient_steps g WHERE g.policy = e.policy AND g.step = e.step)
        QUALIFY row_number() OVER (PARTITION BY policy, step ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
        ("EvaluationRequested",),
        """
        INSERT INTO evaluations (evaluation_id, agent, suite, opponents, matches, requested_sequence, requested_time)
        SELECT evaluation_id, agent, suite, opponents, len(matches), sequence, time FROM EvaluationRequested e
        WHERE NOT EXISTS (FROM evaluations v WHERE v.evaluation_id = e.evaluation_id)
        QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
        ("EvaluationFinished",),
        """
        UPDATE evaluations SET finished_sequence = f.sequence, finished_time = f.time, games = f.games,
               failed = f.failed, wins = f.wins, mean_score = f.mean_score, mean_rank = f.mean_rank
        FROM (
            SELECT e.* FROM EvaluationFinished e JOIN evaluations v
              ON v.evaluation_id = e.evaluation_id AND e.sequence > v.requested_sequence
            QUALIFY row_number() OVER (PARTITION BY e.evaluation_id ORDER BY e.sequence) = 1
        ) f WHERE evaluations.evaluation_id = f.evaluation_id AND evaluations.finished_sequence IS NULL
        """,
    ),
    (
        ("WorkerJoined",),
        """
        INSERT INTO workers (worker, incarnation, role, host, pid, version, joined_sequence, joined_time)
        SELECT worker, incarnation, role, host, pid, version, sequence, time FROM WorkerJoined e
        WHERE NOT EXISTS (FROM workers w WHERE w.worker = e.worker AND w.incarnation = e.incarnation)
        QUALIFY row_number() OVER (PARTITION BY worker, incarnation ORDER BY sequence) = 1 ORDER BY sequence
        """,
    ),
    (
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
]
"""Per statement the event types that call for it, in the order of running. ``MatchFinished`` runs after its
outcomes; agents join before they are promoted or retired."""


def statements_for(types: set[str]) -> list[str]:
    """What to run for a batch in which these event types occur."""
    statements = [(names, sql) for names, sql in STATEMENTS if types.intersection(names)]
    parsed = sorted({name for names, _ in statements for name in names})
    return [*map(parse_statement, parsed), *(sql for _, sql in statements)]
