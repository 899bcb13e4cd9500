"""Voiding of results: finds the matches, appends the events, and reports what the results had influenced."""

import asyncio
from typing import Any

import msgspec

from league.history.corrections import record_pending
from league.history.counterfactual import Counterfactual, RatingShift, compare_ratings, rating_shifts
from league.integrity import snapshots
from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.queries.tables import is_sequence, open_tables, parse_sequence, parse_time
from league.run import Run
from schemas.errors import UsageError, format_choices
from schemas.events import AgentRating, MatchFinished, MatchVoided

_MAX_GAP = 1_000
"""Largest gap, in events, between matches that are read in one range; farther ones are fetched one by one."""
_MAX_NAMED = 5

_TAINTED = """
    SELECT policy, step, count(*) AS voided, any_value(total) AS matches
    FROM (SELECT policy, step, len(matches) AS total, unnest(matches) AS match_id FROM gradient_steps)
    WHERE match_id IN (SELECT unnest(?::VARCHAR[])) GROUP BY policy, step ORDER BY policy, step
"""


class TaintedStep(msgspec.Struct, frozen=True):
    """A gradient step that used voided matches."""

    policy: str
    step: int
    voided: int
    matches: int


class VoidImpact(msgspec.Struct, frozen=True):
    """Matches to void, and the steps that used them."""

    matches: list[str]
    sequences: list[int]
    already: int
    """Number of requested matches that are void already."""
    tainted: list[TaintedStep]


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
            impact = await _find_matches(tables.connection, history, request)
            before = _read_ratings(tables.connection)
            if request.dry_run:
                without = Counterfactual(without_matches=impact.matches)
                return impact, compare_ratings(tables.connection, await history.last_sequence(), without).moves
        await void_matches(run, history, impact.sequences, request.reason)
        async with open_tables(run, history) as tables:
            return impact, rating_shifts(before, _read_ratings(tables.connection))


async def _find_matches(connection: Any, history: JetStreamLog, request: VoidRequest) -> VoidImpact:
    condition, parameters = await _make_condition(history, request)
    rows = connection.execute(
        f"SELECT match_id, sequence, voided_sequence IS NOT NULL FROM matches WHERE {condition} ORDER BY sequence",
        parameters,
    ).fetchall()
    _check_found(connection, request, {name for name, _, _ in rows})
    fresh = [(name, sequence) for name, sequence, is_void in rows if not is_void]
    names = [name for name, _ in fresh]
    return VoidImpact(
        matches=names,
        sequences=[sequence for _, sequence in fresh],
        already=len(rows) - len(fresh),
        tainted=[TaintedStep(*row) for row in connection.execute(_TAINTED, [names]).fetchall()],
    )


async def _make_condition(history: JetStreamLog, request: VoidRequest) -> tuple[str, list[Any]]:
    """The SQL condition for the requested matches, and its parameters."""
    if request.worker is None:
        return "match_id IN (SELECT unnest(?::VARCHAR[]))", [request.matches]
    conditions = ["worker = ?"]
    parameters: list[Any] = [request.worker]
    for option, text, comparison in (("--since", request.since, ">="), ("--until", request.until, "<=")):
        if text is not None and is_sequence(text):
            conditions.append(f"sequence {comparison} ?")
            parameters.append(await parse_sequence(history, text, option))
        elif text is not None:
            conditions.append(f"time {comparison} ?::TIMESTAMPTZ AT TIME ZONE 'UTC'")
            parameters.append(parse_time(text, option).isoformat())
    return " AND ".join(conditions), parameters


def _check_found(connection: Any, request: VoidRequest, found: set[str]) -> None:
    if request.worker is not None:
        rows = connection.execute("SELECT DISTINCT worker FROM matches ORDER BY worker").fetchall()
        names = [name for (name,) in rows]
        if request.worker not in names:
            expected = format_choices(names[:20], request.worker)
            raise UsageError(f"--worker {request.worker}: finished no match; expected {expected}")
    elif unknown := sorted(set(request.matches) - found):
        more = f" and {len(unknown) - _MAX_NAMED:,} more" if len(unknown) > _MAX_NAMED else ""
        raise UsageError(
            f"void: {', '.join(map(repr, unknown[:_MAX_NAMED]))}{more}: no such match was played to its end; "
            'expected ids such as `league sql "SELECT match_id FROM matches"` lists'
        )


async def void_matches(run: Run, history: JetStreamLog, sequences: list[int], reason: str) -> None:
    """Append that the matches at these ascending sequences are void, and correct the ratings unless a rater is faster.

    Both are safe to interrupt: repeating the command appends what is missing, and so does the next rater.

    Raises:
        ReplayError: the recorded ratings differ from what the history's rules give.
        VersionError: a newer version writes to this league. The matches are void; its raters correct the ratings.
    """
    first = 0
    voids: list[MatchVoided] = []
    selected = set(sequences)
    for index, sequence in enumerate(sequences):
        if index + 1 == len(sequences) or sequences[index + 1] - sequence > _MAX_GAP:
            async for batch in history.batches(sequences[first], sequence):
                voids += [
                    MatchVoided(match=read.event, match_sequence=read.sequence, reason=reason)
                    for read in batch
                    if read.sequence in selected and isinstance(read.event, MatchFinished)
                ]
                await asyncio.sleep(0)
            first = index + 1
    await append_in_batches(history, voids)
    _, ratings = await snapshots.load_folds(history, run.open_blob_store(history.client))
    await record_pending(history, ratings)


def _read_ratings(connection: Any) -> list[AgentRating]:
    rows = connection.execute("SELECT agent, rating, rated_games FROM current_ratings").fetchall()
    return [AgentRating(*row) for row in rows]
