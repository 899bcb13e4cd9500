"""The rater: turns results into ratings, and ratings into promotions and retirements.

Ratings depend on the order of matches, so only one rater may write them: each batch of updates is appended on the
condition that none was appended since the last one seen. A second rater is a standby: its condition fails while the
first is at work, and it learns the first one's updates from the history.
"""

import asyncio

import structlog

from league import schedule
from league.log.base import Recorded
from league.ratings.fold import RatingFold
from schemas.errors import ConflictError, ReplayError
from schemas.events import RatingUpdated
from workers.runtime import Context, beside

log = structlog.get_logger()


async def serve(context: Context) -> None:
    """Rate matches until told to stop; what was played by then is rated first."""
    rater = Rater(context)
    async with beside(rater.follow()):
        while not context.stopping.is_set():
            await rater.settle()
            await context.moved(timeout_s=1.0)
        last = await context.log.last_sequence()
        await rater.reached(last)
        await rater.settle()


class Rater:
    """The fold of results into ratings, and what of it is not recorded yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fold = RatingFold(context.config)
        self._last_rating = 0
        self._unrecorded: dict[str, RatingUpdated] = {}
        self._folded = asyncio.Condition()

    async def follow(self) -> None:
        """Fold the whole history, for ever: ratings have no meaning without their past."""
        async for recorded in self._context.log.follow():
            self.take(recorded)
            async with self._folded:
                self._folded.notify_all()

    async def reached(self, sequence: int) -> None:
        """Wait until the event at ``sequence`` has been folded."""
        async with self._folded:
            await self._folded.wait_for(lambda: self._fold.sequence >= sequence)

    def take(self, recorded: Recorded) -> None:
        """Fold one event.

        Raises:
            ReplayError: the history holds an update that these rules do not give.
        """
        for update in self._fold.apply(recorded.sequence, recorded.event):
            self._unrecorded[update.key] = update
        if isinstance(recorded.event, RatingUpdated):
            self._last_rating = recorded.sequence
            mine = self._unrecorded.pop(recorded.event.key, None)
            if mine is not None and mine != recorded.event:
                raise ReplayError(
                    f"event {recorded.sequence}: the ratings recorded after match {mine.match_id} are not what these "
                    "rules give; `league replay --verify` lists all differences"
                )

    async def settle(self) -> None:
        """Record the ratings that are due, then what they decide about checkpoints."""
        updates = [u for u in self._unrecorded.values() if u.match_sequence <= self._context.state.sequence]
        if updates and not await self._record(updates):
            return
        state, policy = self._context.state, self._context.config.trainer.policy
        for event in [*schedule.due_promotions(state), *schedule.retirements(state, policy)]:
            await self._context.reached(await self._context.record(event))

    async def _record(self, updates: list[RatingUpdated]) -> bool:
        try:
            sequences = await self._context.persistently(
                lambda: self._context.log.append_batch(updates, expected=self._last_rating)
            )
        except ConflictError:
            # Another rater was first, or our own answer got lost; either way its events reach us and settle ours.
            log.info("these ratings are being recorded already", matches=len(updates))
            await asyncio.sleep(0.2)
            return False
        for update in updates:
            self._unrecorded.pop(update.key, None)
        self._last_rating = max(sequences)
        await self._context.reached(self._last_rating)
        return True
