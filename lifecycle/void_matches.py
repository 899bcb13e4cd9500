"""Voiding of results: finds the matches, appends the events, and reports what the results had influenced."""

import asyncio

import msgspec

from league.history.corrections import record_pending
from league.history.counterfactual import Counterfactual, RatingShift, compare_ratings, rating_shifts
from league.history.lineage import QueryFunction
from league.integrity import snapshots
from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.projections.tables import sql_literal
from league.queries.tables import is_sequence, open_tables, parse_sequence, parse_time
from league.run import Run
from schemas.errors import UsageError, format_choices
from schemas.events import AgentRating, MatchFinished, MatchVoided

_MAX_GAP = 1_000
"""Largest gap, in events, between matches that are read in one range; farther ones are fetched one by one."""
_MAX_NAMED = 5


class TaintedStep(msgspec.Struct, frozen=True):
    """A gradient step that used voided matches."""

    policy: str
    step: int
    voided: int
    matches: int


class VoidImpact(msgspec.Struct, frozen=True):
    """Matches to void, and what they influenced."""

    matches: list[str]
    sequences: list[int]
    already: int
    """Number of requested matches that are void already."""
    tainted: list[TaintedStep]
    checkpoints: list[str]
    """Checkpoints of the tainted steps' policies that were made at such a step or after it."""
    evaluations: list[str]
    """Evaluations of those policies' versions from such a step on, or that counted a voided match."""


class VoidRequest(msgspec.Struct, frozen=True):
    """Matches to void, selected by id or by worker."""

    matches: list[str]
    worker: str | None
    since: str | None
    """Sequence or time of the worker's first match to void; None is no limit."""
    until: str | None
    """Sequence or time of the worker's last match to void; None is no limit."""
    reason: str
    dry_run: bool
    """Whether to compute the consequences only."""


async def execute_request(run: Run, request: VoidRequest) -> tuple[VoidImpact, list[RatingShift]]:
    """Void matches; return the consequences, and how ratings move."""
    async with run.open_log() as history:
        async with open_tables(run, history) as tables:
            impact = await _find_matches(tables.query, await _make_condition(tables.query, history, request))
            before = await _read_ratings(tables.query)
            if request.dry_run:
                without = Counterfactual(without_matches=impact.sequences)
                return impact, compare_ratings(tables.connection, await history.last_sequence(), without).moves
        await void_matches(run, history, impact, request.reason)
        async with open_tables(run, history) as tables:
            return impact, rating_shifts(before, await _read_ratings(tables.query))


async def _make_condition(query: QueryFunction, history: JetStreamLog, request: VoidRequest) -> str:
    if (worker := request.worker) is None:
        condition = f"match_id IN ({', '.join(sql_literal(name) for name in request.matches)})"
        rows = await query(f"SELECT match_id FROM matches WHERE {condition}")
        if unknown := sorted(set(request.matches) - {name for (name,) in rows}):
            more = f" and {len(unknown) - _MAX_NAMED:,} more" if len(unknown) > _MAX_NAMED else ""
            raise UsageError(
                f"void: {', '.join(map(repr, unknown[:_MAX_NAMED]))}{more}: no such match was played to its end; "
                'expected ids such as `league sql "SELECT match_id FROM matches"` lists'
            )
        return condition
    names = [name for (name,) in await query("SELECT DISTINCT worker FROM matches ORDER BY worker")]
    if worker not in names:
        raise UsageError(f"--worker {worker}: finished no match; expected {format_choices(names[:20])}")
    conditions = [f"worker = {sql_literal(worker)}"]
    for option, text, comparison in (("--since", request.since, ">="), ("--until", request.until, "<=")):
        if text is not None and is_sequence(text):
            conditions.append(f"sequence {comparison} {await parse_sequence(history, text, option)}")
        elif text is not None:
            moment = sql_literal(parse_time(text, option).isoformat())
            conditions.append(f"time {comparison} TIMESTAMPTZ {moment} AT TIME ZONE 'UTC'")
    return " AND ".join(conditions)


async def _find_matches(query: QueryFunction, condition: str) -> VoidImpact:
    rows = await query(f"SELECT match_id, sequence, voided_sequence FROM matches WHERE {condition}")
    fresh = sorted((sequence, name) for name, sequence, voided in rows if voided is None)
    chosen = f"SELECT match_id, evaluation_id FROM matches WHERE ({condition}) AND voided_sequence IS NULL"
    # One row per match of a step; a step names each match once.
    used = f"""
        WITH chosen AS ({chosen}), used AS (
            SELECT policy, step, len(matches) AS matches, unnest(matches) AS match_id FROM gradient_steps
        ), tainted AS (
            SELECT policy, step, count(*) AS voided, any_value(matches) AS matches
            FROM used WHERE match_id IN (SELECT match_id FROM chosen) GROUP BY policy, step
        ), since AS (SELECT policy, min(step) AS step FROM tainted GROUP BY policy)
    """
    tainted = await query(f"{used} FROM tainted ORDER BY policy, step")
    checkpoints = await query(
        f"{used} SELECT agent FROM checkpoints c JOIN since s USING (policy) WHERE c.version >= s.step "
        "ORDER BY joined_sequence"
    )
    evaluations = await query(
        f"""{used} SELECT evaluation_id FROM evaluations e
        WHERE evaluation_id IN (SELECT evaluation_id FROM chosen) OR EXISTS (
            FROM since s WHERE starts_with(e.agent, s.policy || '@')
            AND try_cast(substr(e.agent, len(s.policy) + 2) AS BIGINT) >= s.step)
        ORDER BY requested_sequence"""
    )
    return VoidImpact(
        matches=[name for _, name in fresh],
        sequences=[sequence for sequence, _ in fresh],
        already=len(rows) - len(fresh),
        tainted=[TaintedStep(*row) for row in tainted],
        checkpoints=[name for (name,) in checkpoints],
        evaluations=[name for (name,) in evaluations],
    )


async def void_matches(run: Run, history: JetStreamLog, impact: VoidImpact, reason: str) -> None:
    """Append that the matches are void, and correct the ratings unless a rater is faster.

    Both are safe to interrupt: repeating the command appends what is missing, and so does the next rater.

    Raises:
        ReplayError: the recorded ratings differ from what the history's rules give.
        VersionError: a newer version writes to this league. The matches are void; its raters correct the ratings.
    """
    sequences = impact.sequences
    first = 0
    voids: list[MatchVoided] = []
    selected = set(sequences)
    for place, sequence in enumerate(sequences):
        if place + 1 == len(sequences) or sequences[place + 1] - sequence > _MAX_GAP:
            async for batch in history.batches(sequences[first], sequence):
                voids += [
                    MatchVoided(match=read.event, match_sequence=read.sequence, reason=reason)
                    for read in batch
                    if read.sequence in selected and isinstance(read.event, MatchFinished)
                ]
                await asyncio.sleep(0)
            first = place + 1
    await append_in_batches(history, voids)
    _, ratings = await snapshots.load_folds(history, run.open_blob_store(history.client))
    await record_pending(history, ratings)


async def _read_ratings(query: QueryFunction) -> list[AgentRating]:
    return [AgentRating(*row) for row in await query("SELECT agent, rating, rated_games FROM current_ratings")]
