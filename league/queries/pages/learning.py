"""Whether policies learn: their ratings over gradient steps beside baselines, and benchmarks before and after."""

from typing import Any

from league.analysis.summary import wilson_interval
from league.queries.live_league import LiveLeague
from league.queries.pages import RequestParams, route
from league.queries.pages.ratings import rating_point
from league.ratings.elo import Elo, chance_deviation

_MAX_VERSIONS = 500
"""Versions of one policy with a rating; of more, evenly spaced ones and the newest."""

_VERSIONS_SQL = """
    WITH numbered AS (
        SELECT policy, version, rating, deviation, row_number() OVER (PARTITION BY policy ORDER BY version DESC) - 1 AS
               place, ceil(count(*) OVER (PARTITION BY policy) / ?)::BIGINT AS every,
               sum(rated_games) OVER (PARTITION BY policy ORDER BY version)::BIGINT AS games
        FROM ratings_at(?) WHERE policy IS NOT NULL
    )
    SELECT policy, version, rating, deviation, games FROM numbered WHERE place % every = 0 ORDER BY policy, version
"""
_BASELINES_SQL = """
    SELECT l.agent, l.kind, l.rating FROM leaderboard_at(?) l JOIN agents a USING (agent)
    WHERE a.baseline AND l.rated_games > 0 ORDER BY l.rating DESC, l.agent
"""
_BEST_SQL = "SELECT agent, rating FROM leaderboard_at(?) WHERE kind = 'checkpoint' ORDER BY rank LIMIT 1"
# The base model and the versions of a policy, each with one opponent in all other seats.
_BENCHMARKS_SQL = """
    SELECT e.agent, array_to_string(e.opponents, ', ') AS opponent, e.wins, e.games, p.policy, p.version,
           coalesce(a.kind, 'version') AS kind, e.finished_sequence AS sequence
    FROM evaluations e LEFT JOIN policies p ON p.policy || '@' || p.version = e.agent LEFT JOIN agents a USING (agent)
    WHERE e.suite = 'benchmark' AND e.finished_sequence <= ? AND e.games > 0 ORDER BY e.finished_sequence
"""


@route("/learning")
async def learning(league: LiveLeague, params: RequestParams) -> Any:
    """Each policy's ratings by version, the baselines' and the best checkpoint's, and benchmarks, as of ``at``.

    A point is ``[version, rating, low, high]``; low and high are a 95 % interval by the rating system's deviation,
    under Elo by that of chance in the results.
    """
    at = params.as_of(league)
    system = league.state.rating_table.system
    versions = await league.rows(_VERSIONS_SQL, _MAX_VERSIONS, at)
    best = await league.rows(_BEST_SQL, at)
    curves: dict[str, list[list[float]]] = {}
    for row in versions:
        # A version begins where the one before it ended, so chance adds up over all versions.
        deviation = chance_deviation(system.k, row["games"]) if isinstance(system, Elo) else row["deviation"]
        curves.setdefault(row["policy"], []).append(rating_point(row["version"], row["rating"], deviation))
    return {
        "policies": [{"policy": policy, "points": points} for policy, points in curves.items()],
        "baselines": await league.rows(_BASELINES_SQL, at),
        "best": best[0] if best else None,
        "benchmarks": _pair_benchmarks(await league.rows(_BENCHMARKS_SQL, at)),
        "sequence": at,
    }


def _pair_benchmarks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each policy and opponent the first benchmark, or the base model's, beside that of the newest version.

    ``verdict`` compares the 95 % Wilson intervals: ``better`` or ``worse`` where they are apart, else ``open``.
    """
    shares = [_with_share(row) for row in rows]
    bases = {row["opponent"]: row for row in reversed(shares) if row["kind"] == "base"}
    pairs = []
    for policy, opponent in dict.fromkeys((row["policy"], row["opponent"]) for row in shares if row["policy"]):
        own = [row for row in shares if (row["policy"], row["opponent"]) == (policy, opponent)]
        after = max(own, key=lambda row: (row["version"], row["sequence"]))
        before = bases.get(opponent) or min(own, key=lambda row: (row["version"], row["sequence"]))
        verdict = "better" if after["low"] > before["high"] else "worse" if after["high"] < before["low"] else "open"
        pairs.append(
            {
                "policy": policy,
                "opponent": opponent,
                "before": before if before is not after else None,
                "after": after,
                "verdict": verdict,
            }
        )
    return pairs


def _with_share(row: dict[str, Any]) -> dict[str, Any]:
    low, high = wilson_interval(row["wins"], row["games"])
    return {**row, "share": row["wins"] / row["games"], "low": low, "high": high}
