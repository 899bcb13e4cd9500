"""Dead letters: undecodable messages and jobs that were given up, with their place and the reason.

A letter is about one message of one stream; there is at most one, however many workers read the message. The stream of
letters is bounded: the oldest are dropped.
"""

import contextlib

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from league.log.publisher import OutgoingMessage, Publisher
from league.log.pull import PulledMessage, message_at, present_messages
from schemas.codec import DECODE_ERRORS, decode_job, encode_job
from schemas.errors import ConflictError, MissingStreamError, UsageError
from schemas.subjects import DEAD_LETTER_STREAM, WORK_STREAM, dead_letter_subject, work_subject

MAX_PAYLOAD_BYTES = 64 * 1024
"""Largest part of a message that its letter keeps when the stream does not; a job has a few hundred bytes."""
_ERROR_LENGTH = 2_000


class DeadLetter(msgspec.Struct, frozen=True):
    """One message that was set aside."""

    stream: str
    sequence: int
    """Its place there."""
    subject: str
    error: str
    tries: int = 1
    match_id: str = ""
    """Match of a job that was given up, which is recorded as failed; empty for an undecodable message."""
    payload: bytes = b""
    """The message or its beginning, when its stream does not keep it."""
    size: int = 0
    """Bytes of the whole message; 0 when its stream keeps it."""

    @property
    def is_retriable(self) -> bool:
        """Whether it holds a whole job."""
        return self.stream == WORK_STREAM and self.size <= len(self.payload)


class DeadLetterEntry(msgspec.Struct, frozen=True):
    """A letter and its number."""

    number: int
    time_ns: int
    """Time at which it was set aside, in nanoseconds since 1970."""
    letter: DeadLetter


class DeadLetters:
    """The letters of one league. The connection stays the caller's."""

    def __init__(self, client: Client, league: str) -> None:
        self._client = client
        self._league = league
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def publish(self, letter: DeadLetter) -> bool:
        """Publish a letter; False when there is one for this message already."""
        kept = msgspec.structs.replace(
            letter, error=letter.error[:_ERROR_LENGTH], payload=letter.payload[:MAX_PAYLOAD_BYTES]
        )
        subject = f"{dead_letter_subject(self._league, letter.stream)}.{letter.sequence}"
        # A condition, not the duplicate window, ensures one letter however often the message is read.
        once = {"Nats-Expected-Last-Subject-Sequence": "0"}
        try:
            with translate_broker_errors(f"setting aside message {letter.sequence} of {letter.stream}"):
                await self._js.publish(subject, msgspec.json.encode(kept), headers=once)
        except ConflictError:
            return False
        return True

    async def list_all(self) -> list[DeadLetterEntry]:
        """All letters, oldest first."""
        subject = dead_letter_subject(self._league, ">")
        try:
            batches = present_messages(self._client, DEAD_LETTER_STREAM, subject)
            return [_decode_entry(each.sequence, each.time_ns, each.msg.data) async for b in batches for each in b]
        except MissingStreamError:
            return []

    async def get(self, number: int) -> DeadLetterEntry:
        """One letter; UsageError if this league has none of this number."""
        message = await self._message(DEAD_LETTER_STREAM, dead_letter_subject(self._league, ">"), number)
        if message is None:
            raise UsageError(f"{number}: no such dead letter; `league dead-letters` lists them")
        return _decode_entry(number, message.time_ns, message.msg.data)

    async def original_message(self, letter: DeadLetter) -> bytes | None:
        """The message that a letter is about, or its beginning; None when it is gone."""
        if letter.size:
            return letter.payload
        message = await self._message(letter.stream, letter.subject, letter.sequence)
        return None if message is None else message.msg.data

    async def _message(self, stream: str, subject: str, sequence: int) -> PulledMessage | None:
        with contextlib.suppress(MissingStreamError):
            return await message_at(self._client, stream, subject, sequence)
        return None

    async def retry(self, filed: DeadLetterEntry) -> str:
        """Put a job back on the work queue and drop its letter; return the id of the match that will be played.

        A job that was given up has failed for good in the history, so its match is requested under a new id, outside
        the evaluation that ended without it. An undecodable message is put back unchanged. UsageError for a letter
        without a whole job.
        """
        letter = filed.letter
        if not letter.is_retriable:
            reason = f"it is about message {letter.sequence} of {letter.stream}"
            if letter.stream == WORK_STREAM:
                reason = f"of its {letter.size:,} bytes {len(letter.payload):,} were kept"
            raise UsageError(f"dead letter {filed.number}: {reason}; only jobs can be retried")
        payload, match_id = letter.payload, ""
        if letter.match_id:
            job = decode_job(payload)
            match_id = f"{job.match_id}-again-{filed.number}"
            payload = encode_job(msgspec.structs.replace(job, match_id=match_id, evaluation_id=""))
        with translate_broker_errors(f"putting back the job of dead letter {filed.number}"):
            subject = work_subject(self._league, letter.subject.rpartition(".")[2])
            # A second retry, before the letter is dropped, is a duplicate; equal messages of two letters are not.
            work = Publisher(self._client, WORK_STREAM)
            await work.publish([OutgoingMessage(subject, payload, {})], scope=f"retry of letter {filed.number}")
        await self.delete(filed)
        return match_id

    async def delete(self, letter: DeadLetterEntry) -> None:
        """Drop a letter. A worker that reads the same message again writes another one."""
        with (
            translate_broker_errors(f"dropping dead letter {letter.number}"),
            contextlib.suppress(nats.js.errors.NotFoundError, nats.js.errors.BadRequestError),
        ):
            await self._js.delete_msg(DEAD_LETTER_STREAM, letter.number)


def _decode_entry(number: int, time_ns: int, data: bytes) -> DeadLetterEntry:
    try:
        return DeadLetterEntry(number, time_ns, msgspec.json.decode(data, type=DeadLetter))
    except DECODE_ERRORS as error:
        return DeadLetterEntry(
            number, time_ns, DeadLetter(DEAD_LETTER_STREAM, number, "", f"not a dead letter: {error}")
        )
