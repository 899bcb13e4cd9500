"""Runs matches of any environment: seats the players, plays, and appends results and failures."""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from arena.environments import ArenaSpec, EnvironmentSpec, make_environment
from arena.games.base import TeamSizes
from arena.games.texts import evaluation_spec, seat_counts
from inference.statistics import RateMeter
from league.blobs import open_blobs
from players.remote.remote_player import RemoteAgents
from schemas.decisions import is_kept
from schemas.errors import DecodeError, LeagueError, LogError, MemoryShortError, RemoteError, describe_error
from schemas.events import MatchFailed, MatchFinished, SeatResult
from schemas.ids import digest, policy_of
from schemas.jobs import PlayMatch
from schemas.loggers import get_logger
from schemas.metrics import MatchMetrics
from schemas.plugins import is_plugins_fault, locate_error
from schemas.trajectories import Trajectory
from workers.decisions import DecisionWriter, seat_columns
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.episodes import EpisodeRunner
from workers.match_runner.games import GameRunner
from workers.match_runner.ngrams import NgramMemory
from workers.policy_weights import ModelManager
from workers.runtime import Context, RemoteUsageRecorder

log = get_logger()

# So many consecutive failures are not the fault of single matches: the process exits with the last error.
_MAX_CONSECUTIVE_FAILURES = 25
_REPORT_INTERVAL_S = 60.0
_MAX_REASON_CHARS = 4_000
"""Characters of a reason in the history: an exception may hold a whole conversation."""


class MatchRunner(Protocol):
    """Plays the matches of one environment in this process."""

    @property
    def environment(self) -> EnvironmentSpec:
        """What is played."""

    async def play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedMatch:
        """Play a match; in ``live`` seats a policy's newest version acts, looked up at each decision.

        ``LeagueError`` if it has no result; the message gives the reason.
        """

    def make_tombstone(self, job: PlayMatch, seat: int, policy: str) -> Trajectory | None:
        """A tombstone trajectory: tells the trainer to stop waiting for this match's group.

        Call once per match, after it. None where no group waits.
        """


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}… ({len(text):,} characters)"


class MatchExecutor:
    """Runs matches in this process, counts them, and appends their results, failures and costs."""

    @classmethod
    def between_agents(cls, context: Context, models: ModelManager) -> "MatchExecutor":
        """Make an executor of matches without human players."""
        environment = make_environment(context.config.game.name, context.config.game.settings)
        if isinstance(environment, ArenaSpec):
            return cls(context, EpisodeRunner(context, models, environment))
        return cls(context, GameRunner(context, models, environment))

    def __init__(self, context: Context, runner: MatchRunner) -> None:
        self._context = context
        self.runner = runner
        self.environment = runner.environment
        self.seat_counts = seat_counts(self.environment)
        """Numbers of seats of training matches."""
        self.evaluation_seat_counts = seat_counts(evaluation_spec(self.environment))
        self._records = open_blobs(context.client, context.log.league)
        self._remote_agents = RemoteAgents(context.config.agents, lambda agent: context.state.budget_left(agent))
        self._usage = RemoteUsageRecorder(context, self._remote_agents)
        self._ngrams = NgramMemory()
        self._team_sizes = TeamSizes()
        self._decisions: DecisionWriter | None = None
        """Made with the first decision of a model."""
        self._consecutive_failures = 0
        self.most_failures: float = _MAX_CONSECUTIVE_FAILURES
        """Matches that fail in a row until the error of the last one is raised."""
        self._in_flight = self._played = self._failed = self._record_bytes = 0
        self._record_s = 0.0
        self._match_rate = RateMeter()
        context.gauges.play = self._read_metrics

    def _read_metrics(self) -> MatchMetrics:
        rate = round(self._match_rate.rate(self._played), 3)
        record_s = round(self._record_s, 3)
        return MatchMetrics(self._in_flight, self._played, self._failed, rate, self._record_bytes, record_s)

    async def play(self, job: PlayMatch) -> CompletedMatch:
        """Play a match of which nothing is counted or recorded; errors as ``MatchRunner.play``."""
        return await self.runner.play(job, (), self._remote_agents)

    async def run(self, job: PlayMatch, live: Collection[int] = ()) -> CompletedMatch | None:
        """Run a match (see ``MatchRunner.play``); None when it failed, which is then recorded.

        This is the boundary for the errors of one match: each is recorded once, and other matches go on.
        """
        remotes = self._remote_agents
        remotes.add_agents(self._context.config.agents)
        self._in_flight += 1
        try:
            completed = await self.runner.play(job, live, remotes)
            environment = completed.outcome.environment or self.environment.name
            self._team_sizes.check(job.match_id, environment, completed.outcome.teams)
            self._played += 1
            self._consecutive_failures = 0
        except LogError:
            self._failed += 1
            raise
        except Exception as error:  # the boundary of a match
            self._failed += 1
            # Failures of a remote agent's server and shortage of memory for adapters are not faults of this process.
            self._consecutive_failures += not isinstance(error, RemoteError | MemoryShortError)
            if is_plugins_fault(error):
                log.error("a plugin failed, and its match with it", match=job.match_id, error=locate_error(error))
            elif not isinstance(error, LeagueError):
                log.exception("match failed unexpectedly", match=job.match_id)
            await self._usage.append(job.match_id, remotes.finish_match(job.match_id))
            await self.append_failure(job, locate_error(error))
            if self._consecutive_failures >= self.most_failures:
                raise
            return None
        finally:
            self._in_flight -= 1
        await self._usage.append(job.match_id, remotes.finish_match(job.match_id))
        return completed

    async def append_result(
        self,
        completed: CompletedMatch,
        trainable: Sequence[int] = (),
        experience: str = "",
        kept_seats: Sequence[int] | None = None,
    ) -> MatchFinished:
        """Store the game record, or its digest alone, and append the match's result.

        Additions to the arena's stores go before the result in the same atomic batch, so that a worker that is killed
        appends either all of them or none. Seats in ``trainable`` are trained on, by the published trajectory with the
        digest ``experience``. The decisions of models in ``kept_seats`` (None: all) are kept for reading.
        """
        outcome, job = completed.outcome, completed.job
        record = await self._store_record(completed.record)
        finished = MatchFinished(
            match_id=job.match_id,
            game=self.environment.name,
            purpose=job.purpose,
            worker=self._context.name,
            seed=job.seed,
            seats=self._make_seat_results(completed, trainable),
            winner=outcome.winner,
            reason=_shorten(outcome.reason),
            length=outcome.length,
            seconds=round(completed.seconds, 3),
            tokens=completed.tokens,
            record=record,
            experience=experience,
            evaluation_id=job.evaluation_id,
            environment=outcome.environment,
            rules=self.environment.rules_version,
        )
        # It may have been recorded as failed while this process was silent.
        if not self._context.state.has_match_ended(job.match_id):
            events = [*completed.additions, finished]
            try:
                await self._context.log.append_batch(events)
            except DecodeError as error:  # it is too large, or has numbers that JSON does not
                await self.append_failure(job, describe_error(error))
                return finished
            self._keep_decisions(completed, range(len(job.seats)) if kept_seats is None else kept_seats)
        return finished

    async def _store_record(self, record: bytes) -> str:
        if self._context.config.history.records == "digest":
            return digest(record)
        started = time.monotonic()
        name = await self._context.persistently(lambda: self._records.put(record))
        self._record_bytes += len(record)
        self._record_s += time.monotonic() - started
        return name

    def _make_seat_results(self, completed: CompletedMatch, trainable: Sequence[int]) -> list[SeatResult]:
        outcome, ngrams = completed.outcome, self._count_ngrams(completed, trainable)
        return [
            SeatResult(
                seat=seat,
                role=self.environment.seats[seat],
                agent=agent,
                score=outcome.scores[seat],
                rank=outcome.ranks[seat],
                trainable=seat in trainable,
                metrics=outcome.metrics[seat] | completed.seat_metrics(seat) | ngrams.get(seat, {}),
                team=outcome.teams[seat] if outcome.teams else "",
                drawn_role=outcome.roles[seat] if outcome.roles else "",
            )
            for seat, agent in enumerate(completed.job.seats)
        ]

    def _keep_decisions(self, completed: CompletedMatch, seats: Iterable[int]) -> None:
        """Buffer the decisions of a match to be written later."""
        job, outcome, standings = completed.job, completed.outcome, self._context.state.standings()
        share = self._context.config.history.decisions.share
        if completed.tokenizer is None or not is_kept(job.match_id, share):
            return
        if self._decisions is None:
            self._decisions = DecisionWriter(self._context, completed.tokenizer)
        if not self._decisions.is_enabled:
            return
        for seat in seats:
            opponents = [agent for other, agent in enumerate(job.seats) if other != seat]
            columns = seat_columns(
                job,
                seat,
                worker=self._context.name,
                policy=policy_of(job.seats[seat]),
                opponents=opponents,
                ratings=[standings.rating(agent) for agent in opponents],
                score=outcome.scores[seat],
                rank=outcome.ranks[seat],
            )
            if made := completed.decisions(seat):
                self._decisions.add(columns, *zip(*made, strict=True))

    def _count_ngrams(self, completed: CompletedMatch, trainable: Sequence[int]) -> dict[int, dict[str, float]]:
        """Metrics of the seats of a training match; all versions of a trained policy count as one player."""
        if completed.job.purpose != "training":
            return {}
        agents = completed.job.seats
        players = [policy_of(agent) if seat in trainable else agent for seat, agent in enumerate(agents)]
        return {
            seat: self._ngrams.count(players[seat] or agents[seat], parts)
            for seat, parts in enumerate(completed.actions())
        }

    async def append_failure(self, job: PlayMatch, error: str) -> None:
        """Append a ``MatchFailed``."""
        log.warning("match failed", match=job.match_id, error=error)
        if not self._context.state.has_match_ended(job.match_id):
            failed = MatchFailed(job.match_id, job.purpose, self._context.name, _shorten(error), job.evaluation_id)
            await self._context.append(failed)

    async def report_costs(self) -> None:
        """Append at intervals the costs of remote agents in unfinished matches; runs until cancelled.

        Other workers learn of the cost before a long match ends, and little of it is lost when this process dies.
        """
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            for match_id in self._remote_agents.active_matches:
                # Shielded from the worker's end: drained usage can be appended only here.
                await asyncio.shield(self._usage.append(match_id, self._remote_agents.drain_usage(match_id)))

    async def close(self) -> None:
        """Write the decisions that are left, and close the connections to remote agents."""
        if self._decisions is not None:
            await self._decisions.close()
        await self._remote_agents.close()
