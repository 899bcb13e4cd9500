"""The rater: turns results into ratings, and ratings into promotions and retirements.

Ratings depend on the order of matches, so only one rater may write them: each batch of updates is appended on the
condition that none was appended since the last one seen. A second rater is a standby: its condition fails while the
first is at work, and it learns the first one's updates from the history. After a void the same holds for the one event
that corrects the ratings.
"""

import asyncio

import structlog

from league import budgets, pool, schedule
from league.corrections import owed, take
from league.evaluation import promotion
from schemas.errors import ConflictError
from schemas.events import Event, PromotionDecided, RegressionNoticed
from schemas.standings import Standings
from workers.runtime import Context, beside

log = structlog.get_logger()


async def serve(context: Context) -> None:
    """Rate matches until told to stop; what was played by then is rated first."""
    rater = Rater(context)
    async with beside(rater.follow()):
        # Not before: half-way through, old matches look unrated and old voids uncorrected.
        await rater.reached(await context.log.last_sequence())
        while not context.stopping.is_set():
            await rater.settle()
            await context.moved(timeout_s=1.0)
        await rater.reached(await context.log.last_sequence())
        while await rater.record():
            pass
        await rater.decide()


class Rater:
    """The fold of results into ratings, from the snapshot that the worker began with, and what it owes the history."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fold = context.ratings
        self._folded = asyncio.Condition()
        self._pooled: Standings | None = None

    async def follow(self) -> None:
        """Fold the history, for ever.

        Raises:
            ReplayError: it holds an update that these rules do not give.
        """
        async for recorded in self._context.log.follow(self._fold.sequence + 1):
            take(self._fold, recorded)
            async with self._folded:
                self._folded.notify_all()

    async def reached(self, sequence: int) -> None:
        """Wait until the event at ``sequence`` has been folded."""
        async with self._folded:
            await self._folded.wait_for(lambda: self._fold.sequence >= sequence)

    async def settle(self) -> None:
        """Record the ratings that are due, then what they decide about checkpoints."""
        await self.record()
        # Also while results keep coming in: a test that goes on after its verdict plays matches for nothing.
        await self.decide()

    async def record(self) -> bool:
        """Record what ratings owe the history and take it in again; False when they owe nothing."""
        if self._fold.due:
            # Voids come in batches, of which the fold may have seen the beginning: one correction is for all of them.
            await self.reached(await self._context.log.last_sequence())
        # The newest that was known before the refold: another writer's, found meanwhile, makes ours a conflict.
        expected = self._fold.recorded
        events = await owed(self._context.log, self._fold)
        if not events:
            return False
        try:
            sequences = await self._context.persistently(
                lambda: self._context.log.append_batch(events, expected=expected)
            )
        except ConflictError:
            # Another rater was first, or our own answer got lost; either way its events reach us and settle ours.
            log.info("these ratings are being recorded already", events=len(events))
            await asyncio.sleep(0.2)
            return True
        await self.reached(max(sequences))
        await self._context.reached(max(sequences))
        return True

    async def decide(self) -> None:
        """Record verdicts of promotion tests, promotions, alarms and retirements."""
        state, recorded = self._context.state, set[str]()
        # Again, since a promotion follows from a recorded verdict; each once, whatever the fold makes of it.
        while events := [event for event in promotion.due(state) if event.key not in recorded]:
            for event in events:
                await self._record(event)
                recorded.add(event.key)
        for policy in state.policies:
            for retirement in schedule.retirements(state, policy):
                await self._record(retirement)
        for change in budgets.changes(state):
            log.info("budget of a remote agent", agent=change.agent, what=change.reason)
            await self._record(change)
        await self._pool()

    async def _pool(self) -> None:
        """Record who rests and who is activated, whenever members, ratings or live versions have changed."""
        now, before = self._context.state.standings(), self._pooled
        if before is None or now.agents is not before.agents or now.live != before.live:
            self._pooled = now
            for change in pool.changes(self._context.state):
                await self._record(change)

    async def _record(self, event: Event) -> None:
        if isinstance(event, RegressionNoticed):
            log.warning(
                "a trained policy is below a baseline", agent=event.agent, rating=event.rating, below=event.below
            )
        elif isinstance(event, PromotionDecided):
            log.info("promotion decided", candidate=event.candidate, verdict=event.verdict, pairs=len(event.scores))
        await self._context.reached(await self._context.record(event))
