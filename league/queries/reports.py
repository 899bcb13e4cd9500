"""Reports on whole runs: success criteria, two runs compared, ratings under other rules, an audit of workers.

Anomaly scores of workers find those whose results the ratings make improbable, broken or dishonest. A pair of seats
with ratings r and s ends with a = 1, ½ or 0 for the first. Its expected score is
p = 1 / (1 + 10^((s - r) / 400)) (Elo, "The Rating of Chessplayers", 1978, 8.4). A match's surprise is the sum over its
pairs of (a - p)² - p (1 - p), which is 0 on average where ratings are right; its favour of an agent is the sum of
a - p over the agent's pairs. Ratings are never quite right, and some systems have other scales, so neither is compared
with 0: a worker's matches are compared with those of all other workers for the same purpose, by a two-sample z with
Welch's standard error.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from league.auth.authority import User
from league.history.compare import RunComparison, last_shared_sequence, make_run_comparison, summarise_run
from league.history.counterfactual import Counterfactual, RatingComparison, compare_ratings
from league.integrity.signatures import WorkerKeys
from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.log.metrics import count_messages
from league.projections.tables import sql_literal
from league.queries.tables import open_tables, query_history, resolve_sequence
from league.ratings.elo import expected_share
from league.run import Run
from league.success_criteria import CriteriaReport, judge_history
from schemas.errors import UsageError, format_choices
from schemas.events import MatchFinished
from schemas.subjects import DEAD_LETTER_STREAM, dead_letter_subject

MIN_MATCHES = 8
"""Minimum number of matches for a mean and its error."""


class WorkerResidual(msgspec.Struct, frozen=True):
    """Deviation of a worker's results for one purpose from those of the other workers."""

    worker: str
    purpose: str
    matches: int
    """Matches with at least one pair of different, rated agents."""
    surprise: float
    """Mean surprise of a match."""
    surprise_z: float | None
    """Compared with other workers' matches; None with too few on either side."""
    favours: str
    """The agent with the largest ``favours_z``, whatever its sign; empty when there are too few matches."""
    favours_z: float | None
    """Positive where the agent does better in this worker's matches than in those of others."""

    @property
    def z(self) -> float:
        """The larger magnitude of the two z values."""
        return max(abs(self.surprise_z or 0.0), abs(self.favours_z or 0.0))


def worker_residuals(matches: Iterable[MatchFinished], ratings: Mapping[str, float]) -> list[WorkerResidual]:
    """Residuals of every worker, largest z first, by ratings on Elo's scale; seats of unrated agents are left out."""
    surprises: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    favours: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for match in matches:
        surprise = _match_surprise(match, ratings)
        if surprise is not None:
            surprises[match.purpose][match.worker].append(surprise[0])
            for agent, favour in surprise[1].items():
                favours[match.purpose][agent][match.worker].append(favour)
    rows = []
    for purpose, by_worker in surprises.items():
        for worker, values in by_worker.items():
            reported = [(agent, _z_score(theirs, worker)) for agent, theirs in sorted(favours[purpose].items())]
            agent, most = max(reported, key=lambda one: abs(one[1] or 0.0))
            mean = math.fsum(values) / len(values)
            z = _z_score(by_worker, worker)
            favoured = agent if most else ""
            rows.append(WorkerResidual(worker, purpose, len(values), mean, z, favoured, most))
    return sorted(rows, key=lambda row: (-row.z, row.worker, row.purpose))


def _match_surprise(match: MatchFinished, ratings: Mapping[str, float]) -> tuple[float, dict[str, float]] | None:
    """Surprise of a match and its favour of each agent; None when it has no rated pair."""
    surprise, favours = 0.0, dict[str, float]()
    for one, other in combinations(match.seats, 2):
        if one.agent != other.agent and one.agent in ratings and other.agent in ratings:
            expected = expected_share(ratings[one.agent] - ratings[other.agent], max_exponent=50.0)
            actual = 0.5 if one.rank == other.rank else float(one.rank < other.rank)
            surprise += (actual - expected) ** 2 - expected * (1.0 - expected)
            favours[one.agent] = favours.get(one.agent, 0.0) + actual - expected
            favours[other.agent] = favours.get(other.agent, 0.0) + expected - actual
    return (surprise, favours) if favours else None


def _z_score(by_worker: Mapping[str, Sequence[float]], worker: str) -> float | None:
    """Difference between a worker's mean and that of all others, in standard errors."""
    own = by_worker.get(worker, [])
    others = [value for name, values in by_worker.items() if name != worker for value in values]
    if min(len(own), len(others)) < MIN_MATCHES:
        return None
    (mean, error), (theirs, their_error) = _mean_and_squared_error(own), _mean_and_squared_error(others)
    spread = math.sqrt(error + their_error)
    return (mean - theirs) / spread if spread > 0.0 else 0.0


def _mean_and_squared_error(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count


async def judge_run(run: Run, at: str | None) -> CriteriaReport:
    """Judge a run; raises as ``resolve_sequence`` does.

    Dead letters count only as of now, without ``at``, the sequence or time of the last event to consider.
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
        counted = (match for match in played if match.match_id not in state.voided)
        return worker_residuals(counted, ratings), state.keys


def unissued_keys(keys: WorkerKeys, users: Sequence[User]) -> dict[str, list[str]]:
    """Keys that workers announced without having been issued them, by worker.

    Revoked and expired keys were issued: what was signed with them before stands.
    """
    issued = {(user.name, user.public) for user in users}
    strange = {name: [key for key in keys.for_worker(name) if (name, key) not in issued] for name in keys.by_worker}
    return {worker: unissued for worker, unissued in sorted(strange.items()) if unissued}


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
    left_out: set[int] = set()
    for name in workers:
        played = await _matching_sequences(run, history, f"worker = {sql_literal(name)}", until)
        if not played:
            statement = "SELECT DISTINCT worker FROM matches ORDER BY worker LIMIT 20"
            known = [row[0] for row in (await query_history(run, history, statement)).rows]
            raise UsageError(f"--without-worker {name}: played no match; expected {format_choices(known)}")
        left_out |= played
    for predicate in predicates:
        left_out |= await _matching_sequences(run, history, predicate, until)
    async with open_tables(run, history) as tables:
        return compare_ratings(tables.connection, until, msgspec.structs.replace(rules, without_matches=left_out))


async def _matching_sequences(run: Run, history: JetStreamLog, predicate: str, until: int) -> set[int]:
    """Sequences of the matches for which a condition holds; a user's SQL is evaluated in a process of its own."""
    # On a line of its own, so that an error points into what was typed, and a comment at its end ends there.
    statement = f"SELECT list(sequence) FROM matches WHERE (\n{predicate}\n) AND sequence <= {until}"
    [(sequences,)] = (await query_history(run, history, statement)).rows
    return set(sequences or ())
