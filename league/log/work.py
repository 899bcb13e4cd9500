"""The work queue: requests that any free worker takes, redelivered when that worker dies."""

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from league.log.connection import REQUEST_TIMEOUT_S, broker_errors
from schemas.codec import decode_job, encode_job
from schemas.errors import DecodeError
from schemas.jobs import PlayMatch
from schemas.subjects import WORK_STREAM, work_subject

# A dead worker's jobs go to another one after so long.
ACK_WAIT_S = 15.0


class Taken:
    """A job in hand: say ``done`` when its result is recorded, ``extend`` while it takes long."""

    def __init__(self, job: PlayMatch, msg: Msg) -> None:
        self.job = job
        self._msg = msg

    async def done(self) -> None:
        """The job's result is recorded; nobody else need do it."""
        await self._msg.ack()

    async def extend(self) -> None:
        """The job is still being worked on."""
        await self._msg.in_progress()


class WorkQueue:
    """Jobs of one league on a broker.

    Args:
        client: A connection; it stays the caller's.
        league: Name of the league.
    """

    def __init__(self, client: Client, league: str) -> None:
        self._subject = work_subject(league, "play_match")
        self._consumer = f"players-{league}"
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._league = league

    async def submit(self, job: PlayMatch) -> None:
        """Ask for a match; asking twice within the duplicate window is asking once."""
        headers = {"Nats-Msg-Id": f"{self._league}:{job.key}"}
        with broker_errors(f"submitting {job.key}"):
            await self._js.publish(self._subject, encode_job(job), headers=headers)

    async def open(self) -> None:
        """Make sure that the shared consumer exists."""
        config = ConsumerConfig(
            durable_name=self._consumer,
            filter_subject=self._subject,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=10_000,
        )
        with broker_errors("opening the work queue"):
            await self._js.add_consumer(WORK_STREAM, config)
            self._pull = await self._js.pull_subscribe_bind(self._consumer, WORK_STREAM)

    async def take(self, most: int, timeout_s: float) -> list[Taken]:
        """Up to ``most`` jobs; an empty list when none came within ``timeout_s``. What is no job is dropped."""
        try:
            messages = await self._pull.fetch(most, timeout=timeout_s)
        except (nats.errors.TimeoutError, TimeoutError):
            return []
        taken = []
        for msg in messages:
            try:
                taken.append(Taken(decode_job(msg.data), msg))
            except DecodeError:
                await msg.term()
        return taken
