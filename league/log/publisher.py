"""Publishing that may be repeated: message ids that no other client can take, and duplicates that are compared.

Within its duplicate window a broker stores no second message of one id, whatever its bytes, and acknowledges it as a
duplicate. An id here is a digest of everything that is published, so equal messages have equal ids and others do not;
it is keyed with the secret of the connection's credentials, so that no other client can take it in advance. A duplicate
is believed only after the stored messages were read back.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from league.log.access import is_worker
from league.log.base import publication_digest
from league.log.connection import REQUEST_TIMEOUT_S, is_clustered
from league.log.pull import message_at
from schemas.codec import decode_event
from schemas.errors import DecodeError, MessageIdError
from schemas.subjects import LEAGUE_STREAM, league_subjects

ID_HEADER = "Nats-Msg-Id"
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
PRODUCER_HEADER = "League-Producer"
_CONTAINS_DUPLICATE, _WRONG_LAST_ID, _WRONG_SEQUENCE, _IN_FLIGHT = 10201, 10070, 10071, 10164
_PERHAPS_STORED = (_CONTAINS_DUPLICATE, _WRONG_SEQUENCE)
"""The broker's errors for a batch with a known id, and for a condition that fails: it may be our own message that made
it fail, when the acknowledgement was lost."""
_NO_SEQUENCE = str((1 << 63) - 1)
"""Sequence that no message has."""
_READ_ATTEMPTS, _READ_PAUSE_S = 10, 0.2
_SHOWN = 80
"""Characters of a message in an error."""


class OutgoingMessage(NamedTuple):
    """A message to publish."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]


class Publisher:
    """Publisher to one stream, which stores the subjects published to. The connection stays the caller's.

    ``key`` is the secret of the message ids, by default the connection's; empty for ids that are equal for all.
    """

    def __init__(self, client: Client, stream: str, key: bytes | None = None) -> None:
        self._client = client
        self._stream = stream
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._key: bytes = getattr(client, "id_key", b"") if key is None else key

    async def publish(
        self, messages: Sequence[OutgoingMessage], condition: Mapping[str, str] | None = None, scope: str = ""
    ) -> int:
        """Publish messages as one atomic batch, once: a repetition of the call has no effect.

        There are 1 to ``base.MAX_BATCH``, and ``condition`` has the headers under which the broker stores the first
        one, and so all. ``scope`` tells this publication from another one of equal messages. Returns the sequence of
        the first message; the others follow it.

        Raises:
            MessageIdError: another message was stored under the id; none of these is.
            nats.js.errors.APIError: the broker rejects the messages; none is stored.
        """
        message_id = publication_digest([(each.subject, each.payload) for each in messages], scope, self._key)
        try:
            first, is_duplicate = await self._send(messages, {ID_HEADER: message_id, **(condition or {})})
        except nats.js.errors.APIError as error:
            if error.err_code not in _PERHAPS_STORED:
                raise
            stored = await self._find_stored(messages[0].subject, message_id)
            if stored is None:
                raise
            first, is_duplicate = stored, True
        if is_duplicate:
            await self._compare(messages, first, message_id)
        return first

    async def _send(self, messages: Sequence[OutgoingMessage], conditions: Mapping[str, str]) -> tuple[int, bool]:
        """Send messages; returns the first one's sequence, and whether the broker calls it a duplicate.

        Id and condition belong to the first message: the broker then looks for duplicates before it checks the
        condition, and stores all messages or none.
        """
        if len(messages) == 1:
            subject, payload, own = messages[0]
            ack = await self._js.publish(subject, payload, headers={**own, **conditions})
            return int(ack.seq), bool(ack.duplicate)
        batch = self._client.new_inbox().rpartition(".")[2]
        for nth, (subject, payload, own) in enumerate(messages, 1):
            headers = {**own, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(nth)}
            if nth == 1:
                headers |= conditions
            if nth < len(messages):
                await self._client.publish(subject, payload, headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        return int((await self._js.publish(subject, payload, headers=headers)).seq) - len(messages) + 1, False

    async def _find_stored(self, subject: str, message_id: str) -> int | None:
        """Sequence of the message stored under an id; None when the broker remembers none.

        Asked by a message whose condition cannot hold, which is never stored. It is one that the broker checks after it
        looked for duplicates: a single node does so for the last message's id. On a cluster that condition would fail
        as all nodes apply the message, which ends the stream (nats-server 2.15.1), and a subject's sequence does.
        """
        headers = {ID_HEADER: message_id}
        if is_clustered(self._client):
            headers[EXPECTED_HEADER] = _NO_SEQUENCE
        else:
            headers["Nats-Expected-Last-Msg-Id"] = self._client.new_inbox()
        try:
            return int((await self._js.publish(subject, b"", headers=headers)).seq)
        except nats.js.errors.APIError as error:
            if error.err_code in (_WRONG_LAST_ID, _WRONG_SEQUENCE, _IN_FLIGHT):
                return None
            raise

    async def _compare(self, messages: Sequence[OutgoingMessage], first: int, message_id: str) -> None:
        """Check that these messages are stored from a sequence on.

        Streams other than the history drop messages that were consumed. Of these a missing one was ours. A connection
        with credentials has ids that no other connection can know, and may not read what others publish there.
        """
        if self._stream != LEAGUE_STREAM and self._key:
            return
        subjects = [each.subject for each in messages]
        actual = await asyncio.gather(*(self._read(each, first + nth) for nth, each in enumerate(subjects)))
        for sequence, (message, stored) in enumerate(zip(messages, actual, strict=True), first):
            if stored is None and self._stream != LEAGUE_STREAM:
                continue
            found = "which cannot be read"
            if stored is not None:
                if (stored.subject, stored.data or b"") == (message.subject, message.payload):
                    continue
                found = _describe(stored.subject or "", stored.data or b"", stored.headers or {})
            raise MessageIdError(
                f"{_describe(*message)} is not recorded: its message id {message_id} is taken by message {sequence} of "
                f"{self._stream}, {found}; expected the same subject and bytes"
            )

    async def _read(self, subject: str, sequence: int) -> RawStreamMsg | Msg | None:
        """The message at a sequence, of the league that a subject names."""
        if self._stream == LEAGUE_STREAM and is_worker(self._client):
            for _ in range(_READ_ATTEMPTS):
                message = await message_at(self._client, self._stream, league_subjects(subject.split(".")[1]), sequence)
                if message is not None:
                    return message.msg
                # The node that answers may be behind the one that acknowledged.
                await asyncio.sleep(_READ_PAUSE_S)
            return None
        try:
            return await self._js.get_msg(self._stream, sequence)
        except nats.js.errors.NotFoundError:
            return None


def _describe(subject: str, payload: bytes, headers: Mapping[str, str]) -> str:
    try:
        text = decode_event(payload).key
    except DecodeError:
        text = repr(payload[:_SHOWN])
    return f"{text} on {subject} from {headers.get(PRODUCER_HEADER) or 'an unnamed producer'}"
