"""Training: metrics of gradient steps, the ledger of trajectories, pauses and resets; matchmaking; learning.

Whether policies learn is shown by their ratings over gradient steps beside baselines, and benchmarks before and after.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from league.analysis.leaderboard import leaderboard
from league.matchmaking.audit import SamplingAudit, audit_sampling
from league.matchmaking.roles import sampler_of
from league.projections.tables import sql_literal
from league.queries.conversation import DECISION_COLUMNS
from league.queries.learning import learning_verdict, paired_benchmarks
from league.queries.live_league import LiveLeague
from league.queries.pages import RequestParams, route
from league.queries.reports import count_dead_letters
from league.queries.stored import LeagueReader, reuse_until_s
from league.samplers import agent_probabilities, bucket_shares, make_sampler
from league.success_criteria import judge
from schemas.config import LeagueConfig
from schemas.errors import BusyError, UsageError
from schemas.ids import split_agent

_POINTS = 500
"""Points of one curve; steps that share a point are shown by their mean, minimum and maximum."""
_MAX_CURVES = 24

# Besides the metrics of a step: its counters, and the share of its time that it spent waiting.
_COUNTER_COLUMNS = {name: f"{name}::DOUBLE" for name in ("accepted", "stale", "filtered", "refused", "voided")} | {
    "wait_share": "least(map_extract(metrics, 'wait_s')[1] / nullif(map_extract(metrics, 'wall_s')[1], 0), 1)"
}
_METRIC_COLUMN = "map_extract(metrics, ?)[1]"
_ALL_COUNTERS = ", ".join(f"'{name}': {value}" for name, value in _COUNTER_COLUMNS.items())
_FIGURES = f"map_concat(metrics, MAP {{{_ALL_COUNTERS}}})"


@route("/training")
async def training(league: LiveLeague, params: RequestParams) -> Any:
    """Policies with their progress, the names of their metrics, and pauses, resets and ends; as of ``at``."""
    at = params.as_of(league)
    policies = await league.rows(
        "SELECT policy, count(*) AS steps, min(step) AS first_step, max(step) AS last_step, "
        "count(*) FILTER (skipped) AS skipped, sum(accepted)::BIGINT AS accepted, sum(stale)::BIGINT AS stale, "
        "sum(filtered)::BIGINT AS filtered, sum(refused)::BIGINT AS refused, sum(voided)::BIGINT AS voided "
        "FROM gradient_steps WHERE sequence <= ? GROUP BY policy ORDER BY min(sequence)",
        at,
    )
    names = await league.rows(
        f"SELECT DISTINCT unnest(map_keys({_FIGURES})) AS name FROM gradient_steps WHERE sequence <= ? "
        "QUALIFY row_number() OVER (PARTITION BY policy ORDER BY step DESC) <= 20 ORDER BY name",
        at,
    )
    marks = await league.rows(
        """
        WITH marks AS (
            SELECT sequence, time, policy, CASE WHEN paused THEN 'paused' ELSE 'resumed' END AS what, reason FROM pauses
            UNION ALL SELECT sequence, time, policy, 'began anew', reason || CASE WHEN operator = '' THEN '' ELSE '; '
                || operator || ' of ' || array_to_string(list_transform(parents, lambda p: p.agent), ' and ') END
                FROM resets
            UNION ALL SELECT sequence, time, payload->>'$.policy', 'finished', payload->>'$.reason' FROM events
                      WHERE type = 'TrainingFinished'
        )
        SELECT m.*, coalesce((SELECT max(step) FROM gradient_steps g WHERE g.sequence < m.sequence
                              AND m.policy IN ('', g.policy)), 0) AS step
        FROM marks m WHERE sequence <= ? ORDER BY sequence DESC LIMIT 200
        """,
        at,
    )
    return {"policies": policies, "names": [row["name"] for row in names], "marks": marks}


@route("/training/curves")
async def curves(league: LiveLeague, params: RequestParams) -> Any:
    """Metrics over steps: for each ``policy`` each of ``names``, ``from`` one step ``to`` another, as of ``at``.

    A point is ``[step, mean, minimum, maximum]`` over the steps that share it; the last two are null for a single step.
    """
    names = params.names("names", most=_MAX_CURVES)
    series = await asyncio.gather(*(_curve(league, params, name) for name in dict.fromkeys(names)))
    return [curve for each in series for curve in each]


async def _curve(league: LiveLeague, params: RequestParams, name: str) -> list[dict[str, Any]]:
    """One metric of each policy. A query a metric: joining the maps of metrics with names copies them for each name."""
    value, parameters = (_COUNTER_COLUMNS[name], ()) if name in _COUNTER_COLUMNS else (_METRIC_COLUMN, (name,))
    return await league.rows(
        f"""
        WITH chosen AS (
            SELECT policy, step, {value} AS value FROM gradient_steps
            WHERE list_contains(?::VARCHAR[], policy) AND sequence <= ? AND step BETWEEN ? AND ?
        ), spread AS (
            SELECT min(step) AS first, greatest(ceil((max(step) - min(step) + 1) / ?), 1)::BIGINT AS width FROM chosen
        ), joined AS (
            SELECT policy, avg(step) AS step, avg(value) AS mean,
                   CASE WHEN count(*) > 1 THEN min(value) END AS low, CASE WHEN count(*) > 1 THEN max(value) END AS high
            FROM chosen CROSS JOIN spread WHERE isfinite(value) GROUP BY policy, (step - first) // width
        )
        SELECT policy, ? AS name, list([step, mean, low, high] ORDER BY step) AS points
        FROM joined GROUP BY policy ORDER BY policy
        """,
        *(*parameters, params.names("policy"), params.as_of(league), *params.span(), _POINTS, name),
    )


@route("/training/steps")
async def steps(league: LiveLeague, params: RequestParams) -> Any:
    """The newest gradient steps of a ``policy`` ``from`` one ``to`` another, newest first."""
    return await league.rows(
        f"SELECT policy, step, sequence, time, len(matches) AS matches, accepted, stale, filtered, refused, voided, "
        f"skipped, {_FIGURES} AS figures FROM gradient_steps WHERE (? IS NULL OR policy = ?) AND sequence <= ? "
        "AND step BETWEEN ? AND ? ORDER BY sequence DESC LIMIT ?",
        *(params.text("policy"), params.text("policy"), params.as_of(league), *params.span(), params.limit()),
    )


@route("/training/decisions")
async def step_decisions(league: LiveLeague, params: RequestParams) -> Any:
    """What a ``step`` of a ``policy`` was trained on: the decisions with the largest advantages, of a ``total``."""
    policy, step = params.text("policy"), params.integer("step")
    credited = await league.decisions(
        "SELECT DISTINCT match_id FROM kept.all_credit WHERE policy = ? AND step = ?", policy, step
    )
    # Literals, by which the files of other steps are passed over: their texts do not fit in the tables' memory.
    matches = ", ".join(sql_literal(row["match_id"]) for row in credited) or "NULL"
    of_step = f"FROM decisions WHERE match_id IN ({matches}) AND policy = ? AND step = ? AND sequence <= ?"
    chosen = policy, step, params.as_of(league)
    rows = await league.rows(
        f"SELECT {DECISION_COLUMNS} {of_step} ORDER BY abs(advantage) DESC NULLS LAST, match_id, seat, call LIMIT ?",
        *(*chosen, params.limit()),
    )
    total = len(rows)
    if total == params.limit():
        [(total,)] = [row.values() for row in await league.rows(f"SELECT count(*) {of_step}", *chosen)]
    return {"rows": rows, "total": total}


# It follows every trajectory of the history, which takes a while where there are many.
@route("/training/ledger", stays_s=5.0)
async def ledger(league: LiveLeague, _: RequestParams) -> Any:
    """``league ledger``: the fate of every trajectory, per policy."""
    return await league.rows("FROM ledger")


_WINDOWS = 12
_DRAWS = 400
"""Draws whose target is recomputed."""
_MAX_PENDING_AUDITS = 8


class _Auditor:
    """Runs audits one at a time: each folds the whole history, and takes a core for as long as that lasts."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._pending = 0
        self._latest: WeakKeyDictionary[LiveLeague, dict[str | None, tuple[float, SamplingAudit]]] = WeakKeyDictionary()

    async def latest(self, league: LiveLeague, window: int, policy: str | None) -> SamplingAudit:
        """An audit of the whole history, reused for some time (``reuse_until_s``)."""
        latest = self._latest.setdefault(league, {})
        until_s, audit = latest.get(policy, (0.0, None))
        if audit is None or time.monotonic() >= until_s:
            began = time.monotonic()
            audit = await self.audit(league, league.position, window, policy)
            latest[policy] = reuse_until_s(began), audit
        return audit

    async def audit(self, league: LiveLeague, at: int, window: int, policy: str | None) -> SamplingAudit:
        """``audit_sampling`` of the history up to ``at``."""
        if self._pending >= _MAX_PENDING_AUDITS:
            raise BusyError(f"matchmaking: {self._pending} audits are waiting; expected fewer at once, try again later")
        self._pending += 1
        try:
            reader = LeagueReader(league, at, self._executor)
            return await reader.fold(lambda history: audit_sampling(history, window, _DRAWS, policy))
        finally:
            self._pending -= 1


_auditor = _Auditor()


@route("/matchmaking")
async def matchmaking(league: LiveLeague, params: RequestParams) -> Any:
    """The opponents drawn for a ``policy`` up to ``at``, and each agent's probability for a seat now."""
    policy, at = params.text("policy"), params.as_of(league)
    opponents = await league.rows(
        "WITH drawn AS (SELECT agent, bucket, sequence, match_id FROM opponents_sampled "
        "WHERE sequence <= ? AND (? IS NULL OR starts_with(hero, ? || '@'))) "
        "SELECT agent, count(*) AS picks, count(*) / sum(count(*)) OVER () AS share, "
        "count(DISTINCT match_id) AS matches, max(sequence) AS newest, "
        "list_sort(list(DISTINCT bucket)) AS buckets FROM drawn GROUP BY agent ORDER BY picks DESC, agent LIMIT ?",
        *(at, policy, policy, params.limit(500)),
    )
    config = league.state.config
    return {
        "policies": list(config.trained_policies) if config is not None else [],
        "opponents": opponents,
        "now": _draw_probabilities(league, policy) if params.at() is None else None,
    }


def _draw_probabilities(league: LiveLeague, policy: str | None) -> dict[str, Any] | None:
    """The probability of every agent to be drawn for a seat now; None where no draw is possible."""
    config = league.state.config
    policy = policy or (config.trainer.policy if config is not None else "")
    if config is None or policy not in config.trained_policies:
        return None
    sampler = sampler_of(config, policy)
    try:
        buckets = make_sampler(sampler).distribution(league.state.standings(), policy)
    except UsageError:
        # No version of the policy has been published.
        return None
    agents = agent_probabilities(buckets)
    return {"policy": policy, "sampler": sampler.name, "buckets": bucket_shares(buckets), "agents": agents}


@route("/matchmaking/audit", stays_s=15.0)
async def matchmaking_audit(league: LiveLeague, params: RequestParams) -> Any:
    """Target and realised shares of buckets in a ``policy``'s matches up to ``at``, or ``why`` there are none."""
    policy, at = params.text("policy"), params.as_of(league)
    (steps,) = await league.rows(
        "SELECT coalesce(max(step), 0) + 1 AS steps FROM gradient_steps "
        "WHERE sequence <= ? AND (? IS NULL OR policy = ?)",
        *(at, policy, policy),
    )
    window = -(-steps["steps"] // _WINDOWS)
    try:
        if params.at() is None:
            audit = await _auditor.latest(league, window, policy)
        else:
            audit = await _auditor.audit(league, at, window, policy)
    except UsageError as error:
        return {"audit": None, "why": str(error)}
    return {"audit": msgspec.to_builtins(audit), "why": ""}


@route("/criteria", stays_s=15.0)
async def criteria(league: LiveLeague, params: RequestParams) -> Any:
    """``league criteria``: the four success criteria with their figures, as of ``at``."""
    at = params.at()
    given = {"policy": league.summary()["policy"]} | ({} if at is None else {"at": str(at)})
    audited = await matchmaking_audit(league, RequestParams(given, {}))
    targets = audited["why"] if audited["audit"] is None else audited["audit"]["whole"]["target"]
    letters = await count_dead_letters(league.log) if at is None else None
    upto = params.as_of(league)
    return msgspec.to_builtins(await league.read(lambda connection: judge(connection, upto, targets, letters)))


_MAX_VERSIONS = 500
"""Versions of one policy with a rating; of more, evenly spaced ones and the newest."""


@route("/learning", stays_s=5.0)
async def learning(league: LiveLeague, params: RequestParams) -> Any:
    """Each policy's ratings by version, the baselines', the best one, benchmarks and a verdict, as of ``at``.

    Ratings are the leaderboard's; a point is ``[version, rating, low, high]``, low and high a 95 % interval.
    """
    at = params.as_of(league)
    board = await league.read(lambda connection: leaderboard(connection, at=at))
    pairs = await league.read(lambda connection: paired_benchmarks(connection, at))
    rated = [row for row in board.rows if row.rating is not None and row.rated_games]
    curves: dict[str, list[list[float | None]]] = {}
    for row in rated:
        if (version := split_agent(row.agent)) is not None:
            curves.setdefault(version[0], []).append([version[1], row.rating, row.low, row.high])
    known = {agent.name: agent for agent in league.state.agents.values()}
    baselines = [row for row in rated if row.agent in known and known[row.agent].baseline]
    best = next((row for row in rated if row.kind == "checkpoint"), None)
    seats = await league.rows("SELECT max(seat) + 1 AS seats FROM match_seats WHERE sequence <= ?", at)
    return {
        "policies": [{"policy": policy, "points": _thinned(sorted(points))} for policy, points in curves.items()],
        "baselines": [{"agent": row.agent, "kind": row.kind, "rating": row.rating} for row in baselines],
        "best": None if best is None else {"agent": best.agent, "rating": best.rating},
        "benchmarks": pairs,
        "verdicts": {
            policy: learning_verdict([pair for pair in pairs if pair["policy"] == policy], seats[0]["seats"] or 2)
            for policy in (league.state.config or LeagueConfig()).trained_policies
        },
        "sequence": at,
    }


def _thinned(points: list[list[float | None]]) -> list[list[float | None]]:
    every = -(-len(points) // _MAX_VERSIONS)
    return points[::-1][::every][::-1]
