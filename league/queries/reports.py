"""Reports on whole runs: success criteria, and ratings under other rules."""

from collections.abc import Sequence

import msgspec

from league.history.counterfactual import Counterfactual, RatingComparison, compare_ratings
from league.log.jetstream import JetStreamLog
from league.log.metrics import count_messages
from league.projections.tables import sql_literal
from league.queries.tables import open_tables, query_history, resolve_sequence
from league.run import Run
from league.success_criteria import CriteriaReport, config_at, draw_targets, judge
from schemas.errors import UsageError, format_choices
from schemas.subjects import DEAD_LETTER_STREAM, dead_letter_subject


async def judge_run(run: Run, at: str | None) -> CriteriaReport:
    """Judge a run by the success criteria; raises as ``resolve_sequence`` does.

    Dead letters count only as of now, without ``at``, the sequence or time of the last event to consider.
    """
    async with run.open_log() as history:
        upto = None if at is None else await resolve_sequence(run, history, at, "--at")
        letters = await count_dead_letters(history) if at is None else None
        async with open_tables(run, history) as tables:
            if upto is None:
                [(upto,)] = tables.connection.execute("SELECT sequence FROM position").fetchall()
            policy = config_at(tables.connection, upto).trainer.policy
            return judge(tables.connection, upto, await draw_targets(history, policy, upto), letters)


async def count_dead_letters(history: JetStreamLog) -> int:
    """Count the dead letters of a league."""
    subject = dead_letter_subject(history.league, ">")
    return sum((await count_messages(history.client, DEAD_LETTER_STREAM, subject)).values())


async def compare_counterfactual(
    run: Run,
    history: JetStreamLog,
    until: int,
    rules: Counterfactual,
    workers: Sequence[str],
    predicates: Sequence[str],
) -> RatingComparison:
    """The ratings under other rules beside the recorded ones.

    The matches of ``workers``, and those for which one of the SQL ``predicates`` on ``matches`` holds, are left out.

    Raises:
        UsageError: a worker played no match, or a condition or setting is wrong.
    """
    left_out: set[str] = set()
    for name in workers:
        played = await _matching_matches(run, history, f"worker = {sql_literal(name)}", until)
        if not played:
            statement = "SELECT DISTINCT worker FROM matches ORDER BY worker LIMIT 20"
            names = [row[0] for row in (await query_history(run, history, statement)).rows]
            raise UsageError(f"--without-worker {name}: played no match; expected {format_choices(names)}")
        left_out |= played
    for predicate in predicates:
        left_out |= await _matching_matches(run, history, predicate, until)
    async with open_tables(run, history) as tables:
        return compare_ratings(tables.connection, until, msgspec.structs.replace(rules, without_matches=left_out))


async def _matching_matches(run: Run, history: JetStreamLog, predicate: str, until: int) -> set[str]:
    """Ids of the matches for which a condition holds; a user's SQL is evaluated in a separate process."""
    # On a line of its own, so that an error points into what was typed, and a comment at its end ends there.
    statement = f"SELECT list(match_id) FROM matches WHERE (\n{predicate}\n) AND sequence <= {until}"
    [(match_ids,)] = (await query_history(run, history, statement)).rows
    return set(match_ids or ())
