"""Work queues: jobs for any free worker, and trajectories for the trainer of their policy.

A job is redelivered when the worker that took it dies. The stream of trajectories is bounded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from league.log.access import user_name
from league.log.connection import REQUEST_TIMEOUT_S, has_no_responder, translate_broker_errors
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.publisher import OutgoingMessage, Publisher
from league.log.pull import PulledMessage, pull_messages
from schemas.codec import decode_job, decode_trajectory, encode_job, encode_trajectory
from schemas.errors import (
    BackpressureError,
    DecodeError,
    LogError,
    LogUnavailableError,
    MessageIdError,
    MessageTooLargeError,
)
from schemas.ids import digest
from schemas.jobs import PlayMatch
from schemas.loggers import get_logger
from schemas.subjects import EXPERIENCE_STREAM, WORK_STREAM, experience_subject, work_consumer, work_subject
from schemas.trajectories import Trajectory

log = get_logger()

# Time after which a dead worker's jobs go to another one.
ACK_WAIT_S = 15.0
_MAX_DEAD_LETTERS = 1_000
"""Undecodable messages of a stream that one process reports; more are only removed, or a flood would hold up work."""


class ClaimedJob:
    """A delivered job: call ``acknowledge`` when its result is recorded, ``extend_lease`` while it takes long."""

    def __init__(self, job: PlayMatch, msg: Msg) -> None:
        self.job = job
        self.msg = msg
        self.delivery_count: int = msg.metadata.num_delivered or 1
        """Number of deliveries, this one included; more than one when workers died over it."""

    async def acknowledge(self) -> None:
        """Remove the job from the queue: its result is recorded."""
        await self.msg.ack()

    async def extend_lease(self) -> None:
        """Tell the broker that the job is still being worked on."""
        await self.msg.in_progress()


class WorkQueue:
    """Jobs of one league on a broker. The connection stays the caller's."""

    def __init__(self, client: Client, league: str) -> None:
        self._subject = work_subject(league, "play_match")
        self._consumer = work_consumer(league)
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        # Several evaluators request the same jobs, which are to be stored once: under ids without a key.
        self._publisher = Publisher(client, WORK_STREAM, key=b"")
        self._own_publisher = Publisher(client, WORK_STREAM)
        self._dead = DeadLetters(client, league)
        self._buried = 0

    async def submit(self, job: PlayMatch, is_lost: bool = False) -> None:
        """Request a match; an equal request within the duplicate window, by any evaluator, does nothing.

        Another evaluator can take the request's message id for another message. The request is then repeated under an
        id that only these credentials can make, as is one that ``is_lost``, since its first message is gone.
        """
        message = OutgoingMessage(self._subject, encode_job(job), {})
        with translate_broker_errors(f"submitting {job.key}"):
            if not is_lost:
                try:
                    await self._publisher.publish([message])
                    return
                except MessageIdError as error:
                    log.warning("a job's message id is taken, requesting it under another", error=str(error))
            await self._own_publisher.publish([message], scope=f"requested by {user_name(self._client)}")

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
        """Bind to this league's shared consumer, for ``fetch``; LogError if there is none."""
        with translate_broker_errors("opening the work queue"):
            try:
                await self._js.consumer_info(WORK_STREAM, self._consumer)
            except nats.js.errors.NotFoundError:
                raise LogError(
                    f"the work queue has no consumer {self._consumer}; expected the one that the "
                    "operator's `league up` makes"
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
                self._buried += 1
                if self._buried <= _MAX_DEAD_LETTERS:
                    try:
                        await self._dead.publish(_make_dead_letter(msg, str(error)))
                    except (BackpressureError, LogUnavailableError):
                        # Not acknowledged, so it is delivered again.
                        continue
                await msg.term()
        return claims

    async def dead_letter(self, claim: ClaimedJob, error: str) -> None:
        """Write the dead letter of a job that is given up because of ``error``; then call its ``acknowledge``."""
        await self._dead.publish(_make_dead_letter(claim.msg, error, claim.job.match_id))


def _make_dead_letter(msg: Msg, error: str, match_id: str = "") -> DeadLetter:
    sequence, tries = msg.metadata.sequence.stream, msg.metadata.num_delivered or 1
    return DeadLetter(WORK_STREAM, sequence, msg.subject, error, tries, match_id, payload=msg.data, size=len(msg.data))


LABEL_HEADER = "League-Trajectory"
"""Match and seat of a trajectory, ``<match>:<seat>``, so that a damaged message still says whose it was."""
_GONE_ERRORS = (nats.js.errors.BadRequestError, nats.js.errors.NotFoundError, nats.js.errors.ServerError)
_MAX_KEPT_DAMAGED = 32
"""Undecodable messages with a label that stay in the stream until a step accounts for them: trajectories damaged in
transit. Bounded, since a stream full of them would accept no trajectory, and no step would come."""


class ReceivedTrajectory(msgspec.Struct, frozen=True):
    """A trajectory and its place in the stream."""

    sequence: int
    trajectory: Trajectory | None
    error: str = ""
    match_id: str = ""
    """Match in the message's label; empty without a label."""
    seat: int = -1
    """Seat in the message's label; -1 without a label."""


class ExperienceStream:
    """Trajectories of one league on a broker. The connection stays the caller's."""

    def __init__(self, client: Client, league: str) -> None:
        self.league = league
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._publisher = Publisher(client, EXPERIENCE_STREAM)
        self._dead = DeadLetters(client, league)
        self._damaged = 0
        self._kept: set[int] = set()

    async def publish(self, trajectory: Trajectory) -> str:
        """Publish a trajectory for the trainer of its policy; returns the digest of the published bytes.

        The same trajectory again, within the duplicate window, has no effect.

        Raises:
            MessageIdError: another message is stored under this one's message id; nothing was stored.
            BackpressureError: the stream is full; retry once the trainer has caught up.
            MessageTooLargeError: larger than the broker's maximum; nothing was sent.
        """
        data = encode_trajectory(trajectory)
        if len(data) > self._client.max_payload:
            raise MessageTooLargeError(
                f"the trajectory of {trajectory.match_id} has {len(data):,} bytes, compressed; expected at most the "
                f"broker's max_payload of {self._client.max_payload:,}"
            )
        label = {LABEL_HEADER: f"{trajectory.match_id}:{trajectory.seat}"}
        message = OutgoingMessage(experience_subject(self.league, trajectory.policy), data, label)
        with translate_broker_errors(f"publishing the trajectory of {trajectory.match_id}"):
            await self._publisher.publish([message])
        return digest(data)

    async def follow(self, policy: str, first: int) -> AsyncIterator[ReceivedTrajectory]:
        """Trajectories of ``policy`` from sequence ``first`` on, without end."""
        subject = experience_subject(self.league, policy)
        async for messages in pull_messages(self._client, EXPERIENCE_STREAM, subject, first, None):
            for pulled in messages:
                received = _decode_message(pulled)
                if received.trajectory is None and not await self._dead_letter(pulled, received):
                    continue
                yield received

    async def _dead_letter(self, pulled: PulledMessage, received: ReceivedTrajectory) -> bool:
        """Write a dead letter; returns whether ``follow`` yields the message.

        Messages without a label are removed at once, and labelled ones beyond a bound: a stream full of them would
        accept no trajectory, and the trainer would wait without end for the step that accounts for them.
        """
        self._damaged += 1
        is_reported = self._damaged <= _MAX_DEAD_LETTERS
        msg = pulled.msg
        is_kept = bool(received.match_id) and len(self._kept) < _MAX_KEPT_DAMAGED
        if is_kept:
            self._kept.add(pulled.sequence)
        with contextlib.suppress(BackpressureError, LogUnavailableError):
            if is_reported:
                letter = DeadLetter(EXPERIENCE_STREAM, pulled.sequence, msg.subject, received.error)
                await self._dead.publish(msgspec.structs.replace(letter, payload=msg.data, size=len(msg.data)))
            if not is_kept:
                await self.delete([pulled.sequence])
        return is_kept or is_reported

    async def purge_through(self, policy: str, sequence: int) -> None:
        """Drop trajectories of ``policy`` up to ``sequence``, which the trainer's saved state accounts for."""
        self._kept = {kept for kept in self._kept if kept > sequence}
        subject = experience_subject(self.league, policy)
        with translate_broker_errors(f"purging {EXPERIENCE_STREAM}"), contextlib.suppress(nats.js.errors.NotFoundError):
            await self._js.purge_stream(EXPERIENCE_STREAM, seq=sequence + 1, subject=subject)

    async def delete(self, sequences: Iterable[int]) -> None:
        """Drop single trajectories that recorded steps account for; missing ones are skipped.

        Otherwise one old trajectory that still waits would keep all later ones in the stream until it is full.
        """
        with translate_broker_errors(f"dropping trajectories from {EXPERIENCE_STREAM}"):
            for sequence in sequences:
                self._kept.discard(sequence)
                with contextlib.suppress(*_GONE_ERRORS):
                    await self._js.delete_msg(EXPERIENCE_STREAM, sequence)


def _decode_message(pulled: PulledMessage) -> ReceivedTrajectory:
    match_id, _, number = (pulled.msg.headers or {}).get(LABEL_HEADER, "").rpartition(":")
    # Bounded, since the history cannot hold arbitrarily large integers.
    seat = int(number) if match_id and number.isascii() and number.isdigit() and len(number) < 5 else -1
    trajectory, why = None, ""
    try:
        trajectory = decode_trajectory(pulled.msg.data)
    except DecodeError as error:
        why = str(error)
    return ReceivedTrajectory(pulled.sequence, trajectory, why, match_id, seat)
