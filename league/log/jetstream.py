"""The event log on NATS JetStream."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import nats.js.errors
from nats.aio.client import Client
from nats.js.api import RawStreamMsg

from league.log.access import is_worker
from league.log.base import EventReader, RecordedEvent, check_batch_size
from league.log.connection import PATIENCE_S, REQUEST_TIMEOUT_S, retry_until_ready, translate_broker_errors
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.publisher import EXPECTED_HEADER, PRODUCER_HEADER, OutgoingMessage, Publisher
from league.log.pull import PulledMessage, newest_present, present_messages, pull_messages
from schemas.codec import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, NewerSchemaError, UnknownEventError, encode_event
from schemas.errors import (
    AccessError,
    ConflictError,
    DiskError,
    LogError,
    MissingStreamError,
    UsageError,
    WorkerConflictError,
)
from schemas.events import Event, LeagueOpened
from schemas.loggers import get_logger
from schemas.subjects import LEAGUE_STREAM, event_subject, event_type_filter, league_subjects, match_ends_filter

log = get_logger()

EXPECTED_SUBJECT_HEADER = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_STREAM_HEADER = "Nats-Expected-Last-Sequence"
SCHEMA_HEADER = "League-Schema"
TIME_HEADER = "League-Time"
"""Nanoseconds since 1970 at which the fact happened; imported history keeps its own."""
_TIME_DIGITS, _SCHEMA_DIGITS = 19, 9
_NO_SCHEMA = -1
"""Schema of a message whose header is no number: it cannot be upcast, so it becomes a dead letter."""
_COPY_BATCH = 500
_FILLER_SUBJECT = "league._.gap"


class JetStreamLog(EventReader):
    """A league's history on a broker (``base.EventLog``), over the caller's connection."""

    def __init__(self, client: Client, league: str, producer: str) -> None:
        self.league = league
        self.producer = producer
        self.follow_lag = 0
        """Events that the follower had not yet received when it received its last one."""
        self.fence: tuple[str, int] | None = None
        """Subject and sequence of the event by which this process works: once a newer one is on that subject, the
        broker rejects its appends."""
        self.is_copy = False
        """Whether the history is a copy of a run that cannot be written; nothing is appended to it."""
        self.patience_s = PATIENCE_S
        """How long an append waits for a broker that is unavailable or has no room."""
        self.client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self._publisher = Publisher(client, LEAGUE_STREAM)

    async def append(self, event: Event, *, expected: int | None = None) -> int:
        """Append one event as a message under its digest, which the broker stores once."""
        return await self._append([event], expected)

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        """Append several events as one atomic batch."""
        check_batch_size(events)
        first = await self._append(events, expected) if events else 0
        return list(range(first, first + len(events)))

    async def _append(self, events: Sequence[Event], expected: int | None) -> int:
        """Append one to ``MAX_BATCH`` events; returns the sequence of the first one."""
        if self.is_copy:
            raise DiskError(
                f"recording {events[0].key}: this run is on a disk that cannot be written; nothing was recorded"
            )
        headers = {SCHEMA_HEADER: str(SCHEMA_VERSION), PRODUCER_HEADER: self.producer, TIME_HEADER: str(time.time_ns())}
        messages = [OutgoingMessage(event_subject(self.league, each), encode_event(each), headers) for each in events]
        label = events[0].key if len(events) == 1 else f"{len(events)} events from {events[0].key} on"

        async def publish() -> int:
            # A repetition has no effect: it is published under the same id.
            return await self._publisher.publish(*self._with_conditions(messages, expected))

        while True:
            fence = self.fence
            try:
                return await retry_until_ready(f"recording {label}", publish, self.patience_s)
            except ConflictError as error:
                if fence != self.fence:
                    # Another append has moved it meanwhile, or this process joined again.
                    continue
                if fence is None or not await self._has_fence_failed(fence, len(events), expected):
                    raise
                if not await self._advance_fence(fence):
                    raise WorkerConflictError(
                        f"{self.producer}: another process has taken over this name, and the history accepts nothing "
                        "more from this one; expected one live process per name"
                    ) from error

    def _with_conditions(
        self, messages: Sequence[OutgoingMessage], expected: int | None
    ) -> tuple[list[OutgoingMessage], dict[str, str]]:
        """Messages to publish together, and the condition of the first one."""
        fence: dict[str, str] = {}
        if self.fence is not None:
            fence = {EXPECTED_HEADER: str(self.fence[1]), EXPECTED_SUBJECT_HEADER: self.fence[0]}
        if expected is None:
            return list(messages), fence
        # One message has one condition: of a batch the second one has that of the fence, and none is stored alone.
        fenced = [each._replace(headers={**each.headers, **fence}) for each in messages[1:2]]
        return [*messages[:1], *fenced, *messages[2:]], {EXPECTED_HEADER: str(expected)}

    async def _has_fence_failed(self, fence: tuple[str, int], count: int, expected: int | None) -> bool:
        """Whether it was the fence's condition that failed; a batch of ``count`` events may have one of its own too."""
        if expected is not None and count == 1:
            return False
        return expected is None or await self.last_sequence(fence[0]) > fence[1]

    async def _advance_fence(self, fence: tuple[str, int]) -> bool:
        """Move the fence past copies of earlier events and messages that are none; False if there is a new event."""
        subject, newest = fence
        known: set[str] = set()
        async for batch in self._batches(subject):
            for recorded in batch:
                key = "" if recorded.event is None else recorded.event.key
                if recorded.sequence > fence[1] and recorded.is_event and key not in known:
                    return False
                known.add(key)
                newest = recorded.sequence
        if self.fence == fence:
            log.warning("passing over messages that are no events", subject=subject, first=fence[1] + 1, last=newest)
            self.fence = (subject, newest)
        return newest > fence[1]

    async def copy(self, events: Sequence[RecordedEvent]) -> None:
        """Append another history's events; fillers take other leagues' places, so that references to sequences hold."""
        for start in range(0, len(events), _COPY_BATCH):
            chunk = events[start : start + _COPY_BATCH]
            with translate_broker_errors(f"reading {LEAGUE_STREAM}"):
                newest = int((await self._js.stream_info(LEAGUE_STREAM)).state.last_seq)
            if chunk[0].sequence <= newest:
                raise LogError(f"copying event {chunk[0].sequence}: the stream is at {newest} already")
            messages: list[OutgoingMessage] = []
            for recorded in chunk:
                gap = recorded.sequence - newest - len(messages) - 1
                messages += [OutgoingMessage(_FILLER_SUBJECT, b"", {})] * gap
                headers = {SCHEMA_HEADER: str(recorded.schema), PRODUCER_HEADER: recorded.producer}
                headers[TIME_HEADER] = str(recorded.time_ns)
                messages.append(OutgoingMessage(recorded.subject, recorded.payload, headers))
            for after in range(newest, newest + len(messages), _COPY_BATCH):
                batch = messages[after - newest : after - newest + _COPY_BATCH]
                with translate_broker_errors(f"copying {len(batch)} events"):
                    # Of equal messages at two places, such as fillers, both are copied.
                    condition = {EXPECTED_STREAM_HEADER: str(after)}
                    await self._publisher.publish(batch, condition, scope=f"copied after {after}")

    async def batches(
        self, first: int = 1, last: int | None = None, *, only: type[Event] | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        """The events of ``read``, as many at a time as have arrived."""
        subject = league_subjects(self.league) if only is None else event_type_filter(self.league, only)
        async for batch in self._batches(subject, first, last):
            yield batch

    async def _batches(
        self, subject: str, first: int = 1, last: int | None = None
    ) -> AsyncIterator[list[RecordedEvent]]:
        newest = await self.last_sequence(subject)
        stop = newest if last is None else min(last, newest)
        if first <= stop:
            async for messages in pull_messages(self.client, LEAGUE_STREAM, subject, first, stop):
                yield [_decode_message(pulled) for pulled in messages]

    async def match_ends(self, purpose: str) -> AsyncIterator[RecordedEvent]:
        """Results and failures of the matches of a purpose; other events are not transferred."""
        async for batch in self._batches(match_ends_filter(self.league, purpose)):
            for recorded in batch:
                yield recorded

    async def follow(self, first: int = 1) -> AsyncIterator[RecordedEvent]:
        """Events from ``first`` on, without end."""
        async for messages in pull_messages(self.client, LEAGUE_STREAM, league_subjects(self.league), first, None):
            for pulled in messages:
                self.follow_lag = pulled.pending
                yield _decode_message(pulled)

    async def last_sequence(self, subject: str | None = None) -> int:
        """Sequence of the newest event on ``subject`` (default: of this league); 0 when there is none."""
        subject = subject or league_subjects(self.league)
        if is_worker(self.client):
            newest = await newest_present(self.client, LEAGUE_STREAM, subject)
            return newest.sequence if newest is not None else 0
        with translate_broker_errors(f"reading {LEAGUE_STREAM}"):
            try:
                # Of the stream's leader: another node of a cluster may not have it yet.
                message = await self._js.get_last_msg(LEAGUE_STREAM, subject)
            except nats.js.errors.NotFoundError:
                message = await self._newest_readable_message(subject)
        return 0 if message is None else message.seq or 0

    async def newest(self, kind: type[Event]) -> RecordedEvent | None:
        """The newest event on the subject of a type, read directly unless the last message there is none."""
        sequence = await self.last_sequence(event_type_filter(self.league, kind))
        newest = [r async for r in self.read(sequence, sequence, only=kind)] if sequence else []
        if newest and not newest[0].is_event:
            newest = [r async for r in self.read(1, sequence, only=kind) if r.is_event][-1:]
        return next(iter(newest), None)

    async def _newest_readable_message(self, subject: str) -> RawStreamMsg | None:
        """The newest event on ``subject`` when the broker does not find it: there is none, or it is damaged.

        A single flipped bit in the last message of its store makes the broker say that there is nothing at all (seen
        with nats-server 2.15.1); everything before it is still there.
        """
        state = (await self._js.stream_info(LEAGUE_STREAM, subjects_filter=subject)).state
        back, message = 1, None
        while message is None and state.subjects and back // 2 < state.last_seq:
            message = await self._next_message(subject, max(state.last_seq - back, 1))
            back *= 2
        while message is not None and (later := await self._next_message(subject, (message.seq or 0) + 1)) is not None:
            message = later
        return message

    async def _next_message(self, subject: str, first: int) -> RawStreamMsg | None:
        try:
            return await self._js.get_msg(LEAGUE_STREAM, seq=first, next=True, subject=subject)
        except nats.js.errors.NotFoundError:
            return None

    async def stored_count(self) -> int:
        """Number of the league's messages, by the broker's count."""
        with translate_broker_errors(f"reading {LEAGUE_STREAM}"):
            info = await self._js.stream_info(LEAGUE_STREAM, subjects_filter=league_subjects(self.league))
        return sum((info.state.subjects or {}).values())

    async def publish_dead_letter(self, recorded: RecordedEvent) -> None:
        """Publish a dead letter for an undecodable message, once, with its place and the reason."""
        if recorded.error is None or isinstance(recorded.error, UnknownEventError | NewerSchemaError):
            return
        place = DeadLetter(LEAGUE_STREAM, recorded.sequence, recorded.subject, str(recorded.error))
        await DeadLetters(self.client, self.league).publish(place)


def _decode_message(pulled: PulledMessage) -> RecordedEvent:
    msg = pulled.msg
    headers = msg.headers or {}
    return RecordedEvent(
        pulled.sequence,
        _parse_header_number(headers.get(TIME_HEADER), _TIME_DIGITS, pulled.time_ns, pulled.time_ns),
        msg.subject,
        headers.get(PRODUCER_HEADER, ""),
        msg.data,
        # Not the reader's own version: what an archive recorded of a message must not change with an upgrade.
        _parse_header_number(headers.get(SCHEMA_HEADER), _SCHEMA_DIGITS, FIRST_SCHEMA_VERSION, _NO_SCHEMA),
    )


def _parse_header_number(text: str | None, digits: int, absent: int, otherwise: int) -> int:
    """The number in a header, which is untrusted input: a reader must not fail on it."""
    if text is None:
        return absent
    is_number = text.isascii() and text.isdigit() and len(text) <= digits
    return number if is_number and (number := int(text)) < 2**63 else otherwise


async def list_leagues(client: Client, name: str = "*") -> list[str]:
    """Names of the leagues on a broker that the client can read, or of the one called ``name``, sorted."""
    js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
    subject = f"league.{name}.league.opened"
    try:
        info = await retry_until_ready(
            "looking for leagues", lambda: js.stream_info(LEAGUE_STREAM, subjects_filter=subject)
        )
    except MissingStreamError:
        return []
    names = sorted(subject.split(".")[1] for subject in (info.state.subjects or {}))
    if len(names) < 2:
        return names
    return [each for each in names if await _is_open(client, each)] or names


async def _is_open(client: Client, league: str) -> bool:
    """Whether a league's opening can be read: any client can direct the broker's answers to that subject."""
    subject = event_type_filter(league, LeagueOpened)
    # Credentials of one league reach no other.
    with contextlib.suppress(AccessError):
        async with contextlib.aclosing(present_messages(client, LEAGUE_STREAM, subject)) as batches:
            async for batch in batches:
                if any(recorded.is_event for recorded in map(_decode_message, batch)):
                    return True
    return False


async def find_league(client: Client, name: str = "*") -> str | None:
    """Find the only league on a broker, or ``name`` if it is open there; None without one.

    Raises:
        LogError: there are several; the message lists them.
        UsageError: its history was written by 0.1.0.
    """
    names = await list_leagues(client, name)
    if len(names) > 1:
        raise LogError(f"the broker holds several leagues ({', '.join(names)}); say which one with --league")
    for league in names:
        await _check_schema(client, league)
    return names[0] if names else None


async def _check_schema(client: Client, league: str) -> None:
    """Raise ``UsageError`` for a league that was opened by a version whose events this one does not read."""
    with contextlib.suppress(AccessError):
        opened = await JetStreamLog(client, league, "reader").newest(LeagueOpened)
        if opened is not None and opened.schema < FIRST_SCHEMA_VERSION:
            raise UsageError(
                f"league {league!r}: its history was written by version 0.1.0 (events of schema {opened.schema}); "
                f"expected schema {FIRST_SCHEMA_VERSION} or later: read it with event-sourced-league 0.1.0, or begin a "
                "new league in another folder"
            )


async def flush_and_close(client: Client) -> None:
    """Flush and close a connection."""
    if not client.is_closed:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(5):
                await client.flush()
        # The library writes what is pending once more: on a connection that was reset just now, that fails, by uvloop
        # with a RuntimeError.
        with contextlib.suppress(OSError, RuntimeError):
            await client.close()
