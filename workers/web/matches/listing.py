"""Which matches there were, newest first, page by page."""

from typing import Any, NamedTuple

from schemas.errors import UsageError
from workers.web.asked import Asked

OUTCOMES = ("won", "lost", "drawn", "failed")
"""For the agent that is asked about; ``drawn`` and ``failed`` can be asked of all matches."""

_NEWEST = 2**62

_ENDED = """
    SELECT m.sequence, m.match_id, m.time, m.game, m.environment, m.purpose, m.worker, m.winner, m.reason, m.length,
           m.seconds, m.evaluation_id, NULL AS error, v.sequence AS voided, v.reason AS void_reason
    FROM kept.all_matches m LEFT JOIN (FROM voids WHERE sequence <= ?) v USING (match_id)
    UNION ALL
    SELECT f.sequence, f.match_id, f.time, NULL, NULL, f.purpose, f.worker, NULL, 'failed', NULL,
           NULL, f.evaluation_id, f.error, NULL, NULL
    FROM kept.all_match_failures f
"""

_SEATED = "sequence IN (SELECT sequence FROM kept.all_match_seats WHERE agent = ?)"
_DRAWN_FOR = """
    error IS NOT NULL AND (
        match_id IN (SELECT match_id FROM kept.all_opponents_sampled WHERE agent = ? OR hero = ?)
        OR evaluation_id IN (SELECT evaluation_id FROM evaluations WHERE agent = ? OR list_contains(opponents, ?)))
"""
_FIRST = "(sequence, winner) IN (SELECT (sequence, seat) FROM kept.all_match_seats WHERE agent = ?)"


class Question(NamedTuple):
    """A query of ``LiveLeague.rows``."""

    sql: str
    parameters: list[Any]


def question(asked: Asked) -> Question:
    """What asks for the matches that a request asks for.

    Args:
        asked: ``agent``, ``purpose``, ``game``, ``worker``, ``evaluation``; an ``outcome``; ``voided`` (``yes`` or
            ``no``); ``before`` and ``after`` a sequence; ``limit``; ``at`` for what was known at a sequence.

    Raises:
        UsageError: a parameter is none of these, or an outcome is asked for that only an agent can have.
    """
    upto = asked.whole("at") or _NEWEST
    conditions, given = (
        ["sequence <= ?", "sequence < ?", "sequence > ?"],
        [
            upto,
            asked.whole("before") or _NEWEST,
            asked.whole("after") or 0,
        ],
    )
    for condition, parameters in (*_plain(asked), *_of_agent(asked)):
        conditions.append(f"({condition})")
        given += parameters
    page = f"SELECT * FROM ({_ENDED}) WHERE {' AND '.join(conditions)} ORDER BY sequence DESC LIMIT ?"
    sql = f"""
        WITH page AS MATERIALIZED ({page}), seated AS (
            SELECT sequence, list({{seat: seat, role: role, agent: agent, score: score, rank: rank,
                                   trainable: trainable}} ORDER BY seat) AS seats
            FROM kept.all_match_seats
            WHERE sequence BETWEEN (SELECT min(sequence) FROM page) AND (SELECT max(sequence) FROM page)
              AND sequence IN (SELECT sequence FROM page)
            GROUP BY sequence
        )
        SELECT page.*, coalesce(seats, []) AS seats FROM page LEFT JOIN seated USING (sequence) ORDER BY sequence DESC
    """
    return Question(sql, [upto, *given, asked.limit()])


def _plain(asked: Asked) -> list[tuple[str, list[Any]]]:
    """Conditions on what stands in the match's own row."""
    columns = {"purpose": "purpose", "game": "game", "worker": "worker", "evaluation": "evaluation_id"}
    found: list[tuple[str, list[Any]]] = [
        (f"{column} = ?", [text]) for name, column in columns.items() if (text := asked.text(name)) is not None
    ]
    voided = asked.choice("voided", ("yes", "no"))
    if voided is not None:
        found.append(("voided IS NOT NULL" if voided == "yes" else "voided IS NULL", []))
    return found


def _of_agent(asked: Asked) -> list[tuple[str, list[Any]]]:
    agent, outcome = asked.text("agent"), asked.choice("outcome", OUTCOMES)
    if outcome in ("won", "lost") and agent is None:
        raise UsageError(f"outcome {outcome!r}: of whom? expected an agent beside it")
    found: list[tuple[str, list[Any]]] = []
    if agent is not None:
        found.append((f"{_SEATED} OR ({_DRAWN_FOR})", [agent] * 5))
    if outcome == "won":
        found.append((_FIRST, [agent]))
    elif outcome == "lost":
        found.append((f"error IS NULL AND winner IS NOT NULL AND NOT {_FIRST}", [agent]))
    elif outcome == "drawn":
        found.append(("error IS NULL AND winner IS NULL", []))
    elif outcome == "failed":
        found.append(("error IS NOT NULL", []))
    return found
