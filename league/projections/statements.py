"""What is done with a batch's events once they are parsed: per type, and in the order of running.

Each statement keeps what the state's fold keeps: the first event of a key, agents that joined before they are promoted
or retired. Bulky tables need not look: ``marks`` has removed what was seen before.
"""

from typing import NamedTuple


class Statement(NamedTuple):
    """SQL over the temporary tables of parsed events."""

    events: tuple[str, ...]
    """The types that call for it."""
    sql: str


BULKY_STATEMENTS = [
    Statement(
        ("MatchFinished",),
        """
        INSERT INTO kept.matches
        SELECT match_id, sequence, time, game, purpose, worker, seed, winner,
               list_filter(seats, lambda s: s.seat = winner)[1].agent,
               reason, length, seconds, tokens, record, experience, evaluation_id
        FROM MatchFinished
        """,
    ),
    Statement(
        ("MatchFinished",),
        """
        INSERT INTO kept.match_seats
        SELECT match_id, sequence, s.seat, s.role, s.agent, s.score, s.rank, s.trainable, s.metrics
        FROM (SELECT match_id, sequence, unnest(seats) AS s FROM MatchFinished)
        """,
    ),
    Statement(
        ("MatchFailed",),
        """
        INSERT INTO kept.match_failures
        SELECT match_id, sequence, time, purpose, worker, error, evaluation_id FROM MatchFailed
        """,
    ),
    Statement(
        ("OpponentsSampled",),
        """
        INSERT INTO kept.opponents_sampled
        SELECT match_id, sequence, time, worker, hero, hero_seat, sampler, sampler_digest, standings_sequence, draw,
               pick.seat, pick.agent, pick.bucket
        FROM (SELECT *, unnest(picks) AS pick FROM OpponentsSampled)
        """,
    ),
    Statement(
        ("RatingUpdated",),
        """
        INSERT INTO kept.ratings
        SELECT sequence, time, match_id, match_sequence, game, system, c.agent, c.before, c.after
        FROM (SELECT *, unnest(changes) AS c FROM RatingUpdated)
        """,
    ),
    Statement(
        ("RatingsCorrected",),
        """
        INSERT INTO kept.corrections
        SELECT sequence, time, game, system, first, through, voided, ratings FROM RatingsCorrected
        """,
    ),
]


def _first_of(event: str, table: str, keys: str, values: dict[str, str], when: str = "true") -> Statement:
    """Insert the first event of each key that is not in the table yet.

    Args:
        event: Its type.
        table: Where its rows go.
        keys: Columns of both that tell rows apart, separated by commas.
        values: What goes into the table's columns.
        when: A further condition.
    """
    same = " AND ".join(f"t.{key.strip()} = e.{key.strip()}" for key in keys.split(","))
    return Statement(
        (event,),
        f"""
        INSERT INTO {table} ({", ".join(values)})
        SELECT {", ".join(values.values())} FROM {event} e
        WHERE NOT EXISTS (FROM {table} t WHERE {same}) AND {when}
        QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY sequence) = 1 ORDER BY sequence
        """,
    )


def _same(columns: str) -> dict[str, str]:
    return {name.strip(): name.strip() for name in columns.split(",")}


_AT = {"sequence": "sequence", "time": "time"}
_JOINED = {"joined_sequence": "sequence", "joined_time": "time"}

SMALL_STATEMENTS = [
    _first_of(
        "AgentRegistered",
        "agents",
        "agent",
        _same("agent, kind, baseline")
        | {"start_rating": "rating", "policy": "''", "version": "0", "join_reason": "''"}
        | _JOINED,
    ),
    _first_of(
        "CheckpointAdded",
        "agents",
        "agent",
        _same("agent, policy, version, parent, adapter")
        | {"kind": "'checkpoint'", "baseline": "false", "start_rating": "rating", "join_reason": "reason"}
        | _JOINED,
    ),
    Statement(
        ("CheckpointPromoted",),
        """
        UPDATE agents SET promoted_sequence = p.sequence FROM (
            SELECT e.agent, min(e.sequence) AS sequence FROM CheckpointPromoted e
            JOIN agents a ON a.agent = e.agent AND e.sequence > a.joined_sequence GROUP BY e.agent
        ) p WHERE agents.agent = p.agent AND agents.promoted_sequence IS NULL
        """,
    ),
    Statement(
        ("AgentRetired",),
        """
        UPDATE agents SET retired_sequence = r.sequence, retired_reason = r.reason FROM (
            SELECT e.agent, min(e.sequence) AS sequence, arg_min(e.reason, e.sequence) AS reason FROM AgentRetired e
            JOIN agents a ON a.agent = e.agent AND e.sequence > a.joined_sequence GROUP BY e.agent
        ) r WHERE agents.agent = r.agent AND agents.retired_sequence IS NULL
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
    _first_of(
        "PolicyPublished", "policies", "policy, version", _same("policy, version, adapter, parent, sequence, time")
    ),
    _first_of(
        "GradientStepTaken",
        "gradient_steps",
        "policy, step",
        _same("policy, step, sequence, time, batch, matches, experience_from, experience_to")
        | _same("accepted, stale, refused, voided, state, skipped, metrics"),
    ),
    _first_of(
        "EvaluationRequested",
        "evaluations",
        "evaluation_id",
        _same("evaluation_id, agent, suite, opponents")
        | {"matches": "len(matches)", "requested_sequence": "sequence", "requested_time": "time"},
    ),
    Statement(
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
    _first_of(
        "WorkerJoined",
        "workers",
        "worker, incarnation",
        _same("worker, incarnation, role, host, pid, version") | _JOINED,
    ),
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
    _first_of("HistorySealed", "seals", "first", _AT | _same("first, last, events, previous, digest")),
    _first_of("HistoryArchived", "archives", "last", _AT | _same("first, last, seal, manifest, bytes")),
    _first_of(
        "SnapshotTaken",
        "snapshots",
        "through, version",
        _AT | _same("through, artifact, state, version"),
    ),
    _first_of("LeagueBranched", "branches", "through", _AT | _same("origin, through, digest")),
    _first_of("HistoryImported", "imports", "digest", _AT | _same("source, digest, agents, matches, metadata")),
]
"""``LeagueOpened`` and ``LeagueConfigured`` are read in Python (``load``)."""
