"""Heartbeats on a real broker and on the simulated one: the newest of every process, its age, none in the history."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.metrics import MetricsStream, count_messages
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.queries.status import read_status
from league.state import LeagueState
from schemas.config import ExperienceConfig
from schemas.errors import LogUnavailableError
from schemas.metrics import Heartbeat, InferenceMetrics
from schemas.subjects import DEAD_LETTER_STREAM, METRICS_STREAM
from tests.builders import gradient_step
from tests.simulation.broker.server import URL
from tests.simulation.standalone import run_with_broker

Body = Callable[[MetricsStream], Awaitable[None]]
OnBroker = Callable[[Body], None]


def heartbeat(worker: str, sequence: int = 1, **more: object) -> Heartbeat:
    return Heartbeat(worker, "rollout", "a1", "host", 7, 1.0, 10, 0.5, 3, sequence, 0, **more)  # type: ignore[arg-type]


async def with_stream(url: str, body: Body) -> None:
    """Run a body with the heartbeat stream of a broker."""
    client = await connect(url, "test")
    await ensure_streams(client.jetstream(), ExperienceConfig())
    try:
        await body(MetricsStream(client, "nim"))
    finally:
        await flush_and_close(client)


def on_a_broker(folder: Path, body: Body) -> None:
    with EmbeddedServer(folder / "nats") as server:
        asyncio.run(with_stream(server.url, body))


@pytest.fixture(params=[0, 1, 3], ids=["one broker", "simulated", "simulated cluster"])
def on_each_broker(request: pytest.FixtureRequest, tmp_path: Path) -> OnBroker:
    """Runs a body on a real broker, or on a simulated one of so many servers."""
    if not request.param:
        return lambda body: on_a_broker(tmp_path, body)
    return lambda body: run_with_broker(lambda _: with_stream(URL, body), is_clustered=request.param > 1)


def test_the_time_since_a_step_is_by_the_clock_of_the_broker_alone(tmp_path: Path) -> None:
    async def body(stream: MetricsStream) -> None:
        log = JetStreamLog(stream._client, "nim", "trainer-1")
        assert (await read_status(log, LeagueState())).since_step_s is None
        # The trainer's clock is thirty years behind, that of the reader thirty years ahead.
        with patch("time.time_ns", lambda: 10**18 - 10**17):
            await log.append(gradient_step(1))
        with patch("time.time_ns", lambda: 27 * 10**17), patch("time.time", lambda: 27e8):
            since_s = (await read_status(log, LeagueState())).since_step_s
        assert since_s is not None
        assert since_s < 10**6

    on_a_broker(tmp_path, body)


def test_the_newest_heartbeat_of_each_process_is_read_with_its_age(on_each_broker: OnBroker) -> None:
    async def body(stream: MetricsStream) -> None:
        assert await stream.newest() == {}
        for number in range(1, 4):
            await stream.publish(heartbeat("rollout-1", number))
        await asyncio.sleep(0.3)
        last = heartbeat("rater-1", 9, inference=InferenceMetrics("local", queued=4, tokens_s=12.5))
        await stream.publish(last)
        found = await stream.newest()
        assert list(found) == ["rater-1", "rollout-1"]
        assert found["rater-1"].heartbeat == last
        assert found["rollout-1"].heartbeat == heartbeat("rollout-1", 3)
        assert 0.3 <= found["rollout-1"].age_s < 30
        assert found["rater-1"].age_s < found["rollout-1"].age_s

    on_each_broker(body)


def test_more_processes_than_are_read_at_once_are_all_read(on_each_broker: OnBroker) -> None:
    async def body(stream: MetricsStream) -> None:
        await stream.publish(heartbeat("first"))
        await asyncio.gather(*(stream.publish(heartbeat(f"w{number}", number)) for number in range(1_200)))
        found = await stream.newest()
        assert len(found) == 1_201
        assert found["w777"].heartbeat.sequence == 777

    on_each_broker(body)


def test_followers_hear_what_is_there_and_what_comes(on_each_broker: OnBroker) -> None:
    async def body(stream: MetricsStream) -> None:
        await stream.publish(heartbeat("a", 1))
        following = stream.follow()
        assert (await anext(following)).worker == "a"
        await stream.publish(heartbeat("b", 2))
        await stream.publish(heartbeat("a", 3))
        assert [(await anext(following)).sequence for _ in range(2)] == [2, 3]
        await following.aclose()

    on_each_broker(body)


def test_a_broker_without_the_stream_has_heard_of_nobody_and_a_publisher_does_not_make_it(
    on_each_broker: Callable[[Body], None],
) -> None:
    async def body(stream: MetricsStream) -> None:
        await stream._client.jetstream().delete_stream(METRICS_STREAM)
        assert await stream.newest() == {}
        with pytest.raises(LogUnavailableError):
            await stream.publish(heartbeat("a"))
        await ensure_streams(stream._client.jetstream(), None)
        await stream.publish(heartbeat("b"))
        assert list(await stream.newest()) == ["b"]

    on_each_broker(body)


def test_leagues_on_one_broker_and_messages_in_other_words_are_kept_apart(
    on_each_broker: Callable[[Body], None],
) -> None:
    async def body(stream: MetricsStream) -> None:
        other = MetricsStream(stream._client, "other")
        await stream.publish(heartbeat("a"))
        await other.publish(heartbeat("b"))
        await stream._client.jetstream().publish("metrics.nim.odd", b'{"worker": 3}')
        newer = msgspec.json.decode(msgspec.json.encode(heartbeat("newer"))) | {"mood": "good"}
        await stream._client.jetstream().publish("metrics.nim.newer", msgspec.json.encode(newer))
        assert list(await stream.newest()) == ["a", "newer"]
        assert list(await other.newest()) == ["b"]

    on_each_broker(body)


def test_nothing_of_it_is_in_the_history(tmp_path: Path) -> None:
    async def body(stream: MetricsStream) -> None:
        await stream.publish(heartbeat("a"))
        assert await JetStreamLog(stream._client, "nim", "test").last_sequence() == 0

    on_a_broker(tmp_path, body)


def test_messages_that_wait_are_counted_by_subject(on_each_broker: OnBroker) -> None:
    async def body(stream: MetricsStream) -> None:
        assert await count_messages(stream._client, DEAD_LETTER_STREAM, "dead.nim.>") == {}
        for number in range(3):
            await stream._client.jetstream().publish(f"dead.nim.LEAGUE.{number % 2}", b"x")
        await stream._client.jetstream().publish("dead.other.LEAGUE.1", b"x")
        assert await count_messages(stream._client, DEAD_LETTER_STREAM, "dead.nim.>") == {
            "dead.nim.LEAGUE.0": 2,
            "dead.nim.LEAGUE.1": 1,
        }

    on_each_broker(body)


def test_a_heartbeat_to_a_broker_that_is_gone_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "test")
        await client.close()
        with pytest.raises(LogUnavailableError, match="heartbeat of a"):
            await MetricsStream(client, "nim").publish(heartbeat("a"))

    asyncio.run(body())


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("data", [b'{"worker":"\xff"}', DEEP, msgspec.json.encode(heartbeat("a", 9))])
def test_what_is_no_heartbeat_of_its_process_is_passed_over(tmp_path: Path, data: bytes) -> None:
    async def body(stream: MetricsStream) -> None:
        await stream.publish(heartbeat("a"))
        async with stream.listen() as arrived:
            await stream._client.jetstream().publish("metrics.nim.rogue", data)
            await stream.publish(heartbeat("b"))
            assert (await arrived.get()).worker == "b"
        found = await stream.newest()
        assert {name: one.heartbeat for name, one in found.items()} == {"a": heartbeat("a"), "b": heartbeat("b")}

    on_a_broker(tmp_path, body)
