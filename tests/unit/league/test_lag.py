"""How far a worker is behind the history: known from what it reads, since asking does not scale to many workers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.metrics import MetricsStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig
from schemas.events import LeaguePaused
from workers.monitoring.metrics import HeartbeatPublisher
from workers.runtime import Context

EVENTS = 12


def on_a_league(folder: Path, body: Callable[[JetStreamLog], Awaitable[None]]) -> None:
    """With so many events."""

    async def run() -> None:
        with EmbeddedServer(folder / "nats") as server:
            client = await connect(server.url, "test")
            try:
                await ensure_streams(client.jetstream(), ExperienceConfig())
                log = JetStreamLog(client, "nim", "test")
                await log.append_batch([LeaguePaused(after=n) for n in range(EVENTS)])
                await body(log)
            finally:
                await flush_and_close(client)

    asyncio.run(run())


def test_whoever_follows_knows_how_many_events_it_has_not_been_given(tmp_path: Path) -> None:
    async def body(log: JetStreamLog) -> None:
        assert log.follow_lag == 0
        async with aclosing(log.follow(1)) as following:
            behind = [log.follow_lag for _ in range(EVENTS) if await anext(following)]
            assert behind == list(range(EVENTS - 1, -1, -1))
            await log.append(LeaguePaused(after=99))
            assert (await anext(following)).sequence == EVENTS + 1
            assert log.follow_lag == 0

    on_a_league(tmp_path, body)


def test_heartbeats_tell_the_lag_and_ask_the_broker_nothing(tmp_path: Path) -> None:
    async def body(log: JetStreamLog) -> None:
        context = Context(Run(tmp_path), log.client, log, "rollout-1")
        heart, js = HeartbeatPublisher(context, "rollout"), log.client.jetstream()
        # Makes nothing that is not there yet, so that only the heartbeats below are counted.
        await heart.publish()
        log.follow_lag = 7
        asked = (await js.account_info()).api.total
        for _ in range(5):
            await heart.publish()
        # The question itself is one.
        assert (await js.account_info()).api.total == asked + 1
        assert (await MetricsStream(log.client, "nim").newest())["rollout-1"].heartbeat.lag == 7

    on_a_league(tmp_path, body)
