"""Reports on whole runs: success criteria, two runs compared, ratings under other rules, an audit of workers."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from league.auth.authority import User
from league.history.compare import RunComparison, last_shared_sequence, make_run_comparison, summarise_run
from league.history.counterfactual import Counterfactual, RatingComparison, compare_ratings
from league.integrity.anomaly import WorkerResidual, worker_residuals
from league.integrity.signatures import WorkerKeys
from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.log.metrics import count_messages
from league.queries.tables import open_tables, query_history, resolve_sequence
from league.run import Run
from league.success_criteria import CriteriaReport, judge_history
from schemas.errors import UsageError, format_choices
from schemas.events import MatchFinished
from schemas.subjects import DEAD_LETTER_STREAM, dead_letter_subject


async def judge_run(run: Run, at: str | None) -> CriteriaReport:
    """Judge a run.

    Dead letters count only as of now, without ``at``, the sequence or time of the last event to consider.

    Raises:
        UsageError: there is no such event.
    """
    async with run.open_log() as history:
        if at is not None:
            return await judge_history(history, until=await resolve_sequence(run, history, at, "--at"))
        return await judge_now(history)


async def judge_now(history: JetStreamLog) -> CriteriaReport:
    """Judge a history up to its newest event, with the dead letters that there are."""
    subject = dead_letter_subject(history.league, ">")
    letters = sum((await count_messages(history.client, DEAD_LETTER_STREAM, subject)).values())
    return await judge_history(history, dead_letters=letters)


async def compare_runs(first: Path, second: Path) -> RunComparison:
    """Compare the runs of two folders."""
    names = (str(first), str(second)) if first.name == second.name else (first.name, second.name)
    one, other = Run(first), Run(second)
    async with one.open_log("compare") as here, other.open_log("compare") as there:
        states = (
            await load_state_at(here, one.open_blob_store(here.client)),
            await load_state_at(there, other.open_blob_store(there.client)),
        )
        sides = await summarise_run(names[0], here, states[0]), await summarise_run(names[1], there, states[1])
        return make_run_comparison(*sides, states, await last_shared_sequence(here, there))


async def audit_workers(run: Run) -> tuple[list[WorkerResidual], WorkerKeys]:
    """Residuals of all workers over the matches that count, and the workers' keys."""
    async with run.open_log("audit") as history:
        state = await load_state_at(history, run.open_blob_store(history.client))
        ratings = {rated.agent: rated.rating for rated in state.rating_table.rated_agents()}
        played = [r.event async for r in history.read() if isinstance(r.event, MatchFinished)]
        counted = (match for match in played if not state.is_voided(match.match_id))
        return worker_residuals(counted, ratings), state.keys


def unissued_keys(keys: WorkerKeys, users: Sequence[User]) -> dict[str, list[str]]:
    """Keys that workers announced without having been issued them, by worker.

    Revoked and expired keys were issued: what was signed with them before stands.
    """
    issued = {(user.name, user.public) for user in users}
    strange = {
        worker: [key for key in keys.for_worker(worker) if (worker, key) not in issued] for worker in keys.by_worker
    }
    return {worker: unissued for worker, unissued in sorted(strange.items()) if unissued}


class ReplayOptions(msgspec.Struct, frozen=True):
    """Differences of a counterfactual replay from the recorded history."""

    settings: list[str]
    """Settings of the ratings, as ``KEY=VALUE``."""
    system: str | None
    """Another rating system."""
    agents: list[str]
    """Agents whose seats are left out."""
    workers: list[str]
    """Workers whose matches are left out."""
    predicates: list[str]
    """SQL conditions on ``matches``; matches for which one holds are left out."""

    def __bool__(self) -> bool:
        return bool(self.settings or self.system or self.agents or self.workers or self.predicates)


async def compare_counterfactual(
    run: Run, history: JetStreamLog, until: int, options: ReplayOptions
) -> RatingComparison:
    """The ratings under other rules beside the recorded ones.

    Raises:
        UsageError: a worker played no match, or a condition or setting is wrong.
    """
    left_out: set[int] = set()
    for name in options.workers:
        left_out |= await _worker_sequences(run, history, name, until)
    for predicate in options.predicates:
        left_out |= await _matching_sequences(run, history, predicate, until)
    rules = Counterfactual(options.settings, options.system, options.agents, left_out)
    async with open_tables(run, history) as tables:
        return compare_ratings(tables.connection, until, rules)


async def _worker_sequences(run: Run, history: JetStreamLog, name: str, until: int) -> set[int]:
    quoted = name.replace("'", "''")
    sequences = await _matching_sequences(run, history, f"worker = '{quoted}'", until)
    if not sequences:
        known = (await query_history(run, history, "SELECT DISTINCT worker FROM matches ORDER BY worker LIMIT 20")).rows
        raise UsageError(
            f"--without-worker {name}: played no match; expected {format_choices(row[0] for row in known)}"
        )
    return sequences


async def _matching_sequences(run: Run, history: JetStreamLog, predicate: str, until: int) -> set[int]:
    """Sequences of the matches for which a condition holds; a user's SQL is evaluated in a process of its own."""
    # On a line of its own, so that an error points into what was typed, and a comment at its end ends there.
    statement = f"SELECT list(sequence) FROM matches WHERE (\n{predicate}\n) AND sequence <= {until}"
    [(sequences,)] = (await query_history(run, history, statement)).rows
    return set(sequences or ())
