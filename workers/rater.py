"""The rater: turns results into ratings, and ratings into promotions and retirements.

Ratings depend on the order of matches, so only one rater may write them: each batch of updates is appended on the
condition that none was appended since the last one seen. A second rater is a standby: its condition fails while the
first is at work, and it learns the first one's updates from the history. After a void the same holds for the one event
that corrects the ratings.

It also records the processes that fell silent and the matches that they left unfinished (``workers.membership``).
"""

import asyncio

from league.evaluation import promotion
from league.fold_primitives import FactIndex
from league.history.corrections import pending_events, skip_undecodable
from league.log.base import RecordedEvent, append_in_batches
from league.matchmaking import pool, schedule
from schemas.errors import ConflictError
from schemas.events import Event, PromotionDecided
from schemas.loggers import get_logger
from schemas.standings import Standings
from workers.membership import SilenceRecorder
from workers.runtime import Context, beside

log = get_logger()

_MAX_FACTS = 10_000
"""Newest facts of training that are watched for a second, different account."""


async def serve(context: Context) -> None:
    """Rate matches until the worker is stopped; matches finished by then are rated first."""
    rater = Rater(context)
    silence = SilenceRecorder(context)
    async with beside(silence.run()):
        # Not before: half-way through, old matches look unrated and old voids uncorrected.
        await context.fold_through(await context.log.last_sequence())
        while not context.stopping.is_set():
            await rater.record_ratings()
            # Also while results keep coming in: matches of a promotion test after its verdict are wasted.
            await rater.record_decisions()
            await context.wait_for_event(timeout_s=1.0)
        await context.fold_through(await context.log.last_sequence())
        while await rater.record_ratings():
            pass
        await rater.record_decisions()
        await silence.record_due(at_end=True)


class Rater:
    """Appends the ratings and decisions that are due, by the context's folds of the history."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fold = context.ratings
        self._newest_foreign = 0
        """Sequence of the newest undecodable message on the subject of the ratings."""
        self._facts = FactIndex(_MAX_FACTS)
        self._pool_standings: Standings | None = None
        context.observers.append(self._look_for_conflict)

    def _look_for_conflict(self, recorded: RecordedEvent) -> None:
        if (conflict := self._facts.add(recorded)) is not None:
            log.error("two accounts of one fact", what=conflict)

    async def record_ratings(self) -> bool:
        """Append the ratings or corrections that are due and fold them; False if none are due."""
        if self._fold.due_corrections:
            # Voids come in batches, and the fold may have seen only part of one: a single correction covers all.
            await self._context.fold_through(await self._context.log.last_sequence())
        # The newest known before the refold: an update by another rater in the meantime makes ours a conflict.
        expected = max(self._fold.recorded_sequence, self._newest_foreign)
        events = await pending_events(self._context.log, self._fold)
        if not events:
            return False
        try:
            sequences = await append_in_batches(self._context.log, events, expected=expected)
        except ConflictError:
            # Another rater was first, or the reply to our append was lost; either way the history brings these events.
            log.info("these ratings are being recorded already", events=len(events))
            self._newest_foreign = await skip_undecodable(self._context.log, expected)
            await asyncio.sleep(0.2)
            return True
        await self._context.fold_through(max(sequences))
        return True

    async def record_decisions(self) -> None:
        """Append verdicts of promotion tests, promotions, retirements, and budget and pool changes."""
        state = self._context.state
        recorded = set[str]()
        # Repeated, since a recorded verdict leads to a promotion; each event is appended once at most.
        while events := [event for event in promotion.due_decisions(state) if event.key not in recorded]:
            for event in events:
                await self._record(event)
                recorded.add(event.key)
        for policy in state.policies:
            for retirement in schedule.retirements(state, policy):
                await self._record(retirement)
        for change in pool.budget_changes(state):
            log.info("budget of a remote agent", agent=change.agent, what=change.reason)
            await self._record(change)
        await self._record_pool_changes()

    async def _record_pool_changes(self) -> None:
        """Append activations and rests of agents whenever members, ratings or live versions have changed."""
        now = self._context.state.standings()
        before = self._pool_standings
        if before is None or now.agents is not before.agents or now.live != before.live:
            self._pool_standings = now
            for change in pool.pool_changes(self._context.state):
                await self._record(change)

    async def _record(self, event: Event) -> None:
        if isinstance(event, PromotionDecided):
            log.info("promotion decided", candidate=event.candidate, verdict=event.verdict, pairs=len(event.scores))
        await self._context.wait_for_sequence(await self._context.append(event))
