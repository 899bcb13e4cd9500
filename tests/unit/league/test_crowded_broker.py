"""A broker that more is sent to at once than it lets wait: it refuses some, and nobody notices."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from league.log.connection import connect, translate_broker_errors
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import find_nats_server, free_port, spawn, terminate
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import BackpressureError, LogUnavailableError
from schemas.events import LeaguePaused

EVENTS = 120


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a broker that lets forty messages wait."""
    port, config = free_port(), tmp_path / "nats.conf"
    limits = f'store_dir: "{tmp_path / "store"}", sync_interval: always, max_buffered_msgs: 40'
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ {limits} }}\n')
    pid = spawn([find_nats_server(), "-c", str(config)], tmp_path / "server.log")
    yield f"nats://127.0.0.1:{port}"
    terminate(pid)


async def connected(url: str) -> JetStreamLog:
    for _ in range(2_000):
        try:
            client = await connect(url, "test")
            break
        except LogUnavailableError:
            await asyncio.sleep(0.1)
    await ensure_streams(client.jetstream(), ExperienceConfig())
    return JetStreamLog(client, "nim", "test")


def test_what_a_crowded_broker_refuses_is_sent_again_and_recorded_once(url: str) -> None:
    async def body() -> None:
        log = await connected(url)
        places = await asyncio.gather(*(log.append(LeaguePaused(after=number)) for number in range(EVENTS)))
        recorded = [r.event.after async for r in log.read() if isinstance(r.event, LeaguePaused)]
        assert sorted(places) == list(range(1, EVENTS + 1))
        assert sorted(recorded) == list(range(EVENTS))
        await flush_and_close(log.client)

    asyncio.run(body())


def test_a_crowded_broker_is_something_that_waiting_mends(url: str) -> None:
    async def body() -> None:
        log = await connected(url)
        js = log.client.jetstream()

        async def send(number: int) -> str:
            try:
                with translate_broker_errors("sending"):
                    await js.publish("league.nim.league.paused", b"{}", headers={"Nats-Msg-Id": str(number)})
            except BackpressureError as error:
                return str(error)
            return ""

        said = set(await asyncio.gather(*(send(number) for number in range(EVENTS))))
        assert said == {"", "sending: too many requests (broker error 10167)"}
        await flush_and_close(log.client)

    asyncio.run(body())
