"""Heartbeats: the newest message of each process, expiring after a minute.

Not part of the history and without its guarantees: a lost heartbeat is followed by the next one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from league.log.pull import present_messages
from schemas.codec import DECODE_ERRORS
from schemas.metrics import Heartbeat, WorkerHeartbeat
from schemas.subjects import METRICS_STREAM, metrics_subject

_heartbeat_decoder = msgspec.json.Decoder(Heartbeat)


class MetricsStream:
    """Heartbeats of one league's processes. The connection stays the caller's."""

    def __init__(self, client: Client, league: str) -> None:
        self.league = league
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def publish(self, heartbeat: Heartbeat) -> None:
        """Publish a process's heartbeat, which replaces its last one; LogError if the broker does not accept it."""
        subject, data = metrics_subject(self.league, heartbeat.worker), msgspec.json.encode(heartbeat)
        with translate_broker_errors(f"publishing the heartbeat of {heartbeat.worker}"):
            await self._js.publish(subject, data)

    async def newest(self) -> dict[str, WorkerHeartbeat]:
        """The newest heartbeat of every process within the last minute, by name; LogError without an answer."""
        now_s = await broker_time(self._client)
        if now_s is None:
            return {}
        latest: dict[str, WorkerHeartbeat] = {}
        # The stream keeps one message on a subject.
        async for batch in present_messages(self._client, METRICS_STREAM, metrics_subject(self.league, "*")):
            for each in batch:
                if (heartbeat := self._decode(each.msg)) is not None:
                    age_s = max(now_s - each.time_ns / 1e9, 0.0)
                    latest[heartbeat.worker] = WorkerHeartbeat(heartbeat, round(age_s, 3))
        return dict(sorted(latest.items()))

    async def follow(self) -> AsyncIterator[Heartbeat]:
        """The newest heartbeats, then new ones as they are published, without end; raises as ``newest`` does."""
        async with self.listen() as arrived:
            for received in (await self.newest()).values():
                yield received.heartbeat
            while True:
                yield await arrived.get()

    @contextlib.asynccontextmanager
    async def listen(self, worker: str = "*") -> AsyncIterator[asyncio.Queue[Heartbeat]]:
        """A queue of the heartbeats that are published during a block, of one worker or of all."""
        arrived: asyncio.Queue[Heartbeat] = asyncio.Queue(maxsize=65_536)

        async def arrive(msg: Msg) -> None:
            # A slow reader misses some; the next ones replace them.
            if not arrived.full() and (heartbeat := self._decode(msg)) is not None:
                arrived.put_nowait(heartbeat)

        inbox = await self._client.subscribe(metrics_subject(self.league, worker), cb=arrive)
        try:
            yield arrived
        finally:
            if not self._client.is_closed:
                await inbox.unsubscribe()

    def _decode(self, msg: Msg) -> Heartbeat | None:
        """The heartbeat; None for one that this version cannot decode, or on the subject of another process."""
        try:
            heartbeat = _heartbeat_decoder.decode(msg.data)
        except DECODE_ERRORS:
            return None
        return heartbeat if msg.subject == metrics_subject(self.league, heartbeat.worker) else None


class _BrokerClock(msgspec.Struct):
    """A field of the broker's answer about a stream; an answer that there is none lacks it."""

    ts: datetime | None = None


async def broker_time(client: Client) -> float | None:
    """The broker's clock, in seconds since 1970: the one that the times of stored messages and blobs are by.

    None where the broker has no streams yet; LogError if it does not answer.
    """
    with translate_broker_errors("reading the broker's clock"):
        reply = await client.request(f"$JS.API.STREAM.INFO.{METRICS_STREAM}", timeout=REQUEST_TIMEOUT_S)
    now = msgspec.json.decode(reply.data, type=_BrokerClock).ts
    return None if now is None else now.timestamp()


async def count_messages(client: Client, stream: str, subject: str) -> dict[str, int]:
    """Messages by subject in a stream, of ``subject``, which may have wildcards; empty without the stream."""
    js = client.jetstream(timeout=REQUEST_TIMEOUT_S)
    with translate_broker_errors(f"reading {stream}"):
        try:
            info = await js.stream_info(stream, subjects_filter=subject)
        except nats.js.errors.NotFoundError:
            return {}
    return dict(sorted((info.state.subjects or {}).items()))
