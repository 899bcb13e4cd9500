"""The work queue: jobs for any free worker, redelivered when that worker dies."""

import asyncio
import contextlib

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from league.log.connection import REQUEST_TIMEOUT_S, has_no_responder, translate_broker_errors
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.publisher import OutgoingMessage, Publisher
from schemas.codec import decode_job, encode_job
from schemas.errors import AccessError, BackpressureError, DecodeError, LogError, LogUnavailableError
from schemas.jobs import PlayMatch
from schemas.subjects import WORK_STREAM, work_consumer, work_subject

# Time after which a dead worker's jobs go to another one.
ACK_WAIT_S = 15.0

_MAX_DEAD_LETTERS = 1_000
"""Dead letters that one process writes for undecodable messages; further ones are dropped without a letter."""


class ClaimedJob:
    """A delivered job: call ``acknowledge`` when its result is recorded, ``extend_lease`` while it takes long."""

    def __init__(self, job: PlayMatch, msg: Msg) -> None:
        self.job = job
        self._msg = msg
        self.delivery_count: int = msg.metadata.num_delivered or 1
        """Number of deliveries, this one included; more than one when workers died over it."""

    def make_dead_letter(self, error: str) -> DeadLetter:
        """Make the dead letter of a job that is given up because of ``error``."""
        return _make_dead_letter(self._msg, error, self.job.match_id)

    async def acknowledge(self) -> None:
        """Remove the job from the queue: its result is recorded."""
        await self._msg.ack()

    async def extend_lease(self) -> None:
        """Tell the broker that the job is still being worked on."""
        await self._msg.in_progress()


class WorkQueue:
    """Jobs of one league on a broker.

    Args:
        client: A connection; it stays the caller's.
        league: Name of the league.
    """

    def __init__(self, client: Client, league: str) -> None:
        self._subject = work_subject(league, "play_match")
        self._consumer = work_consumer(league)
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._publisher = Publisher(client, WORK_STREAM)
        self._dead = DeadLetters(client, league)
        self._buried = 0

    async def submit(self, job: PlayMatch) -> None:
        """Request a match; an equal request within the duplicate window, by any evaluator, does nothing.

        Raises:
            MessageIdError: another message is stored under this one's message id; nothing was requested.
        """
        with translate_broker_errors(f"submitting {job.key}"):
            await self._publisher.publish([OutgoingMessage(self._subject, encode_job(job), {})])

    async def create_consumer(self) -> None:
        """Create the shared consumer, or set it right: for the operator, when the league is opened.

        Workers, not the consumer, bound the deliveries of a job: the broker would stop silently, and no result of the
        job would be recorded.
        """
        config = ConsumerConfig(
            durable_name=self._consumer,
            filter_subject=self._subject,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=10_000,
        )
        with translate_broker_errors("opening the work queue"):
            await self._js.add_consumer(WORK_STREAM, config)

    async def bind(self) -> None:
        """Bind to the shared consumer, for ``fetch``.

        Raises:
            LogError: there is no consumer of this league.
        """
        with translate_broker_errors("opening the work queue"):
            try:
                # Credentials of an older version may take jobs, and not ask.
                with contextlib.suppress(AccessError):
                    await self._js.consumer_info(WORK_STREAM, self._consumer)
            except nats.js.errors.NotFoundError:
                raise LogError(
                    f"the work queue has no consumer {self._consumer}; expected the one that the "
                    "operator's `league open` or `league up` makes"
                ) from None
            self._pull = await self._js.pull_subscribe_bind(self._consumer, WORK_STREAM)

    async def fetch(self, most: int, timeout_s: float) -> list[ClaimedJob]:
        """Claim up to ``most`` jobs, or none after ``timeout_s``. Undecodable messages become dead letters."""
        try:
            messages = await self._pull.fetch(most, timeout=timeout_s)
        except (nats.errors.TimeoutError, TimeoutError):
            return []
        except nats.js.errors.APIError as error:
            if not has_no_responder(error):
                raise
            # The consumer has no leader now: as if there were no jobs, but the answer came at once.
            await asyncio.sleep(timeout_s)
            return []
        claims = []
        for msg in messages:
            try:
                claims.append(ClaimedJob(decode_job(msg.data), msg))
            except DecodeError as error:
                await self._reject(msg, error)
        return claims

    async def _reject(self, msg: Msg, error: DecodeError) -> None:
        self._buried += 1
        if self._buried <= _MAX_DEAD_LETTERS:
            try:
                await self._dead.publish(_make_dead_letter(msg, str(error)))
            except (BackpressureError, LogUnavailableError):
                # Not acknowledged, so it is delivered again.
                return
        await msg.term()

    async def dead_letter(self, claim: ClaimedJob, error: str) -> None:
        """Write the dead letter of a job that is given up because of ``error``; then call its ``acknowledge``."""
        await self._dead.publish(claim.make_dead_letter(error))


def _make_dead_letter(msg: Msg, error: str, match_id: str = "") -> DeadLetter:
    placed = msg.metadata
    return DeadLetter(
        stream=WORK_STREAM,
        sequence=placed.sequence.stream,
        subject=msg.subject,
        error=error,
        tries=placed.num_delivered or 1,
        match_id=match_id,
        payload=msg.data,
        size=len(msg.data),
    )
