"""The event log on NATS JetStream."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.log.base import Recorded
from league.log.connection import REQUEST_TIMEOUT_S, broker_errors
from league.log.pull import Pulled, pull
from schemas.codec import SCHEMA_VERSION, UnknownEventError, decode_event, encode_event
from schemas.errors import DecodeError, LogError
from schemas.events import Event
from schemas.subjects import LEAGUE_STREAM, dead_letter_subject, event_subject, league_subjects

KEY_HEADER = "Nats-Msg-Id"
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
SCHEMA_HEADER = "League-Schema"
PRODUCER_HEADER = "League-Producer"
TIME_HEADER = "League-Time"
"""Nanoseconds since 1970 at which the fact happened; imported history keeps its own."""

# The server takes 1,000 messages in an atomic batch; smaller ones spread its memory.
_BATCH_MAX = 500

Undecodable = Callable[[Recorded, DecodeError], Awaitable[None]]


class JetStreamLog:
    """A league's history on a broker; ``base.EventLog`` says what the methods do.

    Args:
        client: A connection; it stays the caller's.
        league: Name of the league; part of every subject.
        producer: Who appends, for the header.
    """

    def __init__(self, client: Client, league: str, producer: str) -> None:
        self.league = league
        self.producer = producer
        self.client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """Record one event on disk; return its sequence."""
        headers = self._headers(event)
        if expected is not None:
            headers[EXPECTED_HEADER] = str(expected)
        with broker_errors(f"recording {event.key}"):
            ack = await self._js.publish(event_subject(self.league, event), encode_event(event), headers=headers)
        return int(ack.seq)

    def _headers(self, event: Event) -> dict[str, str]:
        return {
            KEY_HEADER: f"{self.league}:{event.key}",
            SCHEMA_HEADER: str(SCHEMA_VERSION),
            PRODUCER_HEADER: self.producer,
            TIME_HEADER: str(time.time_ns()),
        }

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """Record events in order, in atomic batches; return their sequences."""
        sequences: list[int] = []
        for start in range(0, len(events), _BATCH_MAX):
            chunk = events[start : start + _BATCH_MAX]
            condition = expected if start == 0 else None
            done = await self._append_atomically(chunk, condition) if len(chunk) > 1 else None
            if done is None:
                # One copy in a batch rejects it whole; one by one, copies are recognised for what they are.
                done = [await self.append(chunk[0], expected=condition)]
                done += [await self.append(event) for event in chunk[1:]]
            sequences += done
        return sequences

    async def _append_atomically(self, events: Sequence[Event], expected: int | None) -> list[int] | None:
        """Sequences, or None when the broker would not take these events as one batch."""
        batch = self.client.new_inbox().rpartition(".")[2]
        for nth, event in enumerate(events, 1):
            headers = self._headers(event) | {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(nth)}
            if nth == 1 and expected is not None:
                headers[EXPECTED_HEADER] = str(expected)
            subject, payload = event_subject(self.league, event), encode_event(event)
            if nth < len(events):
                await self.client.publish(subject, payload, headers=headers)
                continue
            headers["Nats-Batch-Commit"] = "1"
            with broker_errors(f"recording {len(events)} events"):
                try:
                    ack = await self._js.publish(subject, payload, headers=headers)
                except nats.js.errors.APIError as error:
                    if error.err_code is not None and 10174 <= error.err_code <= 10220:
                        return None
                    raise
        return list(range(ack.seq - len(events) + 1, ack.seq + 1))

    async def read(
        self, first: int = 1, last: int | None = None, *, undecodable: Undecodable | None = None
    ) -> AsyncIterator[Recorded]:
        """Events up to ``last``, by default up to the newest at this moment."""
        newest = await self.last_sequence()
        stop = newest if last is None else min(last, newest)
        if first <= stop:
            async for recorded in self._recorded(first, stop, undecodable):
                yield recorded

    def follow(self, first: int = 1, *, undecodable: Undecodable | None = None) -> AsyncIterator[Recorded]:
        """Events from ``first`` on, for ever."""
        return self._recorded(first, None, undecodable)

    async def _recorded(self, first: int, stop: int | None, undecodable: Undecodable | None) -> AsyncIterator[Recorded]:
        async for messages in pull(self.client, LEAGUE_STREAM, league_subjects(self.league), first, stop):
            for pulled in messages:
                recorded, error = _decode(pulled)
                if error is not None and undecodable is not None:
                    await undecodable(recorded, error)
                yield recorded

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event on ``subject`` (default: of this league); 0 when there is none."""
        wanted = subject or league_subjects(self.league)
        with broker_errors(f"reading {LEAGUE_STREAM}"):
            try:
                if "*" not in wanted and ">" not in wanted:
                    found = await self._js.get_last_msg(LEAGUE_STREAM, wanted, direct=True)
                else:
                    found = await self._js.get_last_msg(LEAGUE_STREAM, wanted)
            except nats.js.errors.NotFoundError:
                return 0
        return found.seq or 0

    async def bury(self, recorded: Recorded, error: DecodeError) -> None:
        """Put a message that nobody can decode on the dead-letter subject, once, with its place and the reason."""
        if isinstance(error, UnknownEventError):
            return
        note = {
            "stream": LEAGUE_STREAM,
            "sequence": recorded.sequence,
            "subject": recorded.subject,
            "error": str(error),
        }
        subject = f"{dead_letter_subject(self.league, LEAGUE_STREAM)}.{recorded.sequence}"
        try:
            # The condition, not the duplicate window, keeps it to one letter however often history is read.
            await self._js.publish(subject, msgspec.json.encode(note), headers={EXPECTED_HEADER: "0"})
        except nats.js.errors.APIError:
            return


def _decode(pulled: Pulled) -> tuple[Recorded, DecodeError | None]:
    msg = pulled.msg
    headers = msg.headers or {}
    event: Event | None = None
    failure: DecodeError | None = None
    try:
        event = decode_event(msg.data, int(headers.get(SCHEMA_HEADER, SCHEMA_VERSION)))
    except DecodeError as error:
        failure = error
    recorded = Recorded(
        sequence=pulled.sequence,
        time_ns=int(headers.get(TIME_HEADER, pulled.time_ns)),
        subject=msg.subject,
        producer=headers.get(PRODUCER_HEADER, ""),
        payload=msg.data,
        event=event,
    )
    return recorded, failure


async def league_on(client: Client, name: str = "*") -> str | None:
    """Name of the league that a broker holds, if it holds exactly one; or ``name``, if that one is open there.

    Raises:
        LogError: it holds several; the message lists them.
    """
    js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
    with broker_errors("looking for leagues"):
        try:
            info = await js.stream_info(LEAGUE_STREAM, subjects_filter=f"league.{name}.league.opened")
        except nats.js.errors.NotFoundError:
            return None
    names = sorted(subject.split(".")[1] for subject in (info.state.subjects or {}))
    if len(names) > 1:
        raise LogError(f"the broker holds several leagues ({', '.join(names)}); say which one with --league")
    return names[0] if names else None


async def wait_closed(client: Client) -> None:
    """Close a connection without losing what is on its way."""
    if not client.is_closed:
        try:
            async with asyncio.timeout(5):
                await client.flush()
        except (TimeoutError, OSError):
            pass
        await client.close()
