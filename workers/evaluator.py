"""The evaluator: plans evaluations and plays their matches, separately from training.

Any number share the work: all derive the same plans from the same history, of which the log keeps one copy; the queue
hands each match to one of them.
"""

import asyncio
import time
from functools import partial

from league.evaluation import plan as evaluations
from league.log.metrics import count_messages
from league.log.queues import ACK_WAIT_S, ClaimedJob
from players.remote.remote_player import check_api_keys, remote_agents_in_evaluation
from schemas.events import EvaluationRequested, WorkerLeft
from schemas.loggers import get_logger
from schemas.subjects import WORK_STREAM, work_subject
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

log = get_logger()

_LOST_JOBS_INTERVAL_S = 60.0


async def serve(context: Context) -> None:
    """Plan and play evaluations until the worker is stopped; matches in progress are finished."""
    check_api_keys(context.config, remote_agents_in_evaluation(context.config))
    await context.work_queue.bind()
    models = await ModelManager.load(context, routed=True)
    evaluator = Evaluator(context, models)
    async with beside(evaluator.plan(), evaluator.extend_leases(), evaluator.executor.report_costs()):
        await evaluator.play_jobs()
    await evaluator.executor.close()
    await models.close()


class Evaluator:
    """Plans evaluations and plays their matches."""

    def __init__(self, context: Context, models: ModelManager) -> None:
        self._context = context
        self.executor = MatchExecutor.between_agents(context, models)
        self._in_flight: dict[asyncio.Task[None], ClaimedJob] = {}

    async def plan(self) -> None:
        """Append requested and finished evaluations; runs until cancelled."""
        state = self._context.state
        seats = self.executor.evaluation_seat_counts
        await self._submit_unfinished()
        looked_at = time.monotonic()
        while True:
            if time.monotonic() - looked_at > _LOST_JOBS_INTERVAL_S:
                await self.resubmit_lost()
                looked_at = time.monotonic()
            for finished in evaluations.finished_evaluations(state):
                await self._context.wait_for_sequence(await self._context.append(finished))
            is_paused = state.pauses.active_pause() is not None
            for requested in [] if is_paused else evaluations.plan_evaluations(state, seats):
                await self._context.wait_for_sequence(await self._context.append(requested))
                # As recorded: another evaluator may have requested it first, when it knew of other opponents.
                evaluation = state.evaluations.get(requested.evaluation_id)
                if evaluation is not None:
                    await self._submit(evaluation.requested)
            # A short timeout: events during the appends above set no wake-up.
            await self._context.wait_for_event(timeout_s=1.0)

    async def resubmit_lost(self) -> None:
        """Request the waiting matches again when the queue is empty: their jobs were taken off it without a result.

        The broker does not tell evaluators' deliveries apart, so a faulty one can acknowledge another's job. Within the
        queue's duplicate window this process's second repetition does nothing.
        """
        queued = work_subject(self._context.log.league, ">")
        if not await count_messages(self._context.client, WORK_STREAM, queued):
            await self._submit_unfinished(are_lost=True)

    async def _submit_unfinished(self, are_lost: bool = False) -> None:
        for evaluation in list(self._context.state.evaluations.values()):
            if evaluation.finished is None:
                await self._submit(evaluation.requested, are_lost)

    async def _submit(self, requested: EvaluationRequested, are_lost: bool = False) -> None:
        for job in evaluations.evaluation_jobs(self._context.state, requested, self.executor.evaluation_seat_counts):
            await self._context.persistently(partial(self._context.work_queue.submit, job, are_lost))

    async def play_jobs(self) -> None:
        """Play jobs from the queue, up to ``evaluation.games_in_flight`` at a time, until the worker is stopped."""
        while not self._context.stopping.is_set():
            if self._context.state.pauses.active_pause() is not None:
                await self._context.wait_for_event(timeout_s=0.5)
                await self._reap(at_least_one=False)
                continue
            most = self._context.config.evaluation.games_in_flight
            # More jobs than requested may arrive: those sent to a lost connection, too.
            free = max(most - len(self._in_flight), 0)
            for claim in await self._context.work_queue.fetch(free, timeout_s=0.5) if free else []:
                self._in_flight[asyncio.create_task(self._play(claim))] = claim
            await self._reap(at_least_one=free == 0)
        while self._in_flight:
            await self._reap(at_least_one=True)

    async def _reap(self, at_least_one: bool) -> None:
        """Remove ended matches; an error that is not confined to one match ends the worker."""
        if at_least_one:
            await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in self._in_flight if task.done()]:
            del self._in_flight[task]
            task.result()

    async def _play(self, claim: ClaimedJob) -> None:
        job, state = claim.job, self._context.state
        if (evaluation := state.evaluations.get(job.evaluation_id)) is not None:
            # It waits neither once it is played, nor once a sequential test was decided without it.
            is_needed = job.match_id in evaluation.waiting
        else:
            is_needed = not state.has_match_ended(job.match_id)
        if is_needed:
            if claim.delivery_count > self._context.config.evaluation.tries:
                # It ended every worker that played it: recorded as failed, so that its evaluation can finish.
                left = await self._context.persistently(lambda: self._context.log.newest(WorkerLeft))
                last = left.event if left is not None else None
                why = (
                    f"delivered {claim.delivery_count - 1} times and never finished; expected at most evaluation.tries"
                )
                if isinstance(last, WorkerLeft):
                    why += f"; the last worker that left was {last.worker}: {last.reason}"
                await self._context.persistently(lambda: self._context.work_queue.dead_letter(claim, why))
                await self.executor.append_failure(job, f"given up: {why}")
            elif (played := await self.executor.run(job)) is not None:
                await self.executor.append_result(played)
        await claim.acknowledge()

    async def extend_leases(self) -> None:
        """Extend the queue's leases on running matches; runs until cancelled."""
        while True:
            await asyncio.sleep(ACK_WAIT_S / 3)
            for claim in list(self._in_flight.values()):
                await claim.extend_lease()
