"""One suite for every implementation of the event log."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from league.log.base import MAX_BATCH, EventLog, RecordedEvent, append_in_batches
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.codec import encode_event
from schemas.config import ExperienceConfig
from schemas.errors import ConflictError, LogError, LogUnavailableError, UsageError
from schemas.events import AgentRegistered, AgentRetired, Event, RatingChange, RatingUpdated
from schemas.subjects import event_subject
from tests.memory_log import MemoryLog
from tests.simulation.broker.server import URL
from tests.simulation.standalone import run_with_broker


@contextlib.asynccontextmanager
async def memory_log(_: Path) -> AsyncIterator[EventLog]:
    yield MemoryLog()


@contextlib.asynccontextmanager
async def jetstream_log(folder: Path) -> AsyncIterator[EventLog]:
    with EmbeddedServer(folder / "nats") as server:
        client = await connect(server.url, "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield JetStreamLog(client, "league", "test")
        await flush_and_close(client)


@contextlib.asynccontextmanager
async def simulated_log(_: Path) -> AsyncIterator[EventLog]:
    client = await connect(URL, "test")
    await ensure_streams(client.jetstream(), ExperienceConfig())
    yield JetStreamLog(client, "league", "test")
    await flush_and_close(client)


@pytest.fixture(
    params=[(memory_log, 0), (jetstream_log, 0), (simulated_log, 1), (simulated_log, 3)],
    ids=["memory", "jetstream", "simulated", "simulated cluster"],
)
def on_log(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[EventLog], Awaitable[None]]], None]:
    make_log, servers = request.param

    def run(body: Callable[[EventLog], Awaitable[None]]) -> None:
        async def main(_: object = None) -> None:
            async with make_log(tmp_path) as log:
                await asyncio.wait_for(body(log), 300)

        if servers:
            run_with_broker(main, is_clustered=servers > 1)
        else:
            asyncio.run(main())

    return run


def agent(n: int) -> AgentRegistered:
    return AgentRegistered(agent=f"bot-{n}", kind="bot", baseline=False, rating=800.0)


def rated(n: int) -> RatingUpdated:
    change = RatingChange("a", 1.0, 2.0)
    return RatingUpdated(match_id=f"m{n}", match_sequence=n, game="nim", system="elo", changes=[change])


class BesideAnother:
    """A log where another writer's rating follows each batch."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def append_batch(self, events: Sequence[Event], *, expected: int | None = None) -> list[int]:
        sequences = await self._log.append_batch(events, expected=expected)
        await self._log.append(rated(9_000 + sequences[-1]))
        return sequences


async def collect(events: AsyncIterator[RecordedEvent], most: int = 10_000) -> list[RecordedEvent]:
    out = []
    async for recorded in events:
        out.append(recorded)
        if len(out) == most:
            break
    return out


def test_appended_events_are_read_back_in_order(on_log):
    async def body(log: EventLog) -> None:
        sequences = [await log.append(agent(n)) for n in range(5)]
        got = await collect(log.read())
        assert [r.sequence for r in got] == sequences == [1, 2, 3, 4, 5]
        assert [r.event for r in got] == [agent(n) for n in range(5)]
        assert got[0].subject == "league.league.agent.registered"
        assert got[0].producer
        assert got[0].time_ns > 1_700_000_000 * 10**9

    on_log(body)


def test_an_empty_log_reads_as_nothing(on_log):
    async def body(log: EventLog) -> None:
        assert await log.last_sequence() == 0
        assert await collect(log.read()) == []

    on_log(body)


def test_reading_takes_a_range(on_log):
    async def body(log: EventLog) -> None:
        for n in range(6):
            await log.append(agent(n))
        assert [r.sequence for r in await collect(log.read(3))] == [3, 4, 5, 6]
        assert [r.sequence for r in await collect(log.read(2, 4))] == [2, 3, 4]
        assert [r.sequence for r in await collect(log.read(5, 99))] == [5, 6]

    on_log(body)


def test_the_same_fact_is_recorded_once(on_log):
    async def body(log: EventLog) -> None:
        first = await log.append(agent(0))
        assert await log.append(agent(0)) == first
        assert await log.last_sequence() == 1

    on_log(body)


def test_a_condition_on_the_subject_keeps_one_writer(on_log):
    async def body(log: EventLog) -> None:
        subject = event_subject("league", rated(1))
        assert await log.last_sequence(subject) == 0
        await log.append(agent(0))
        first = await log.append(rated(1), expected=0)
        with pytest.raises(ConflictError):
            await log.append(rated(2), expected=0)
        second = await log.append(rated(2), expected=first)
        assert await log.last_sequence(subject) == second

    on_log(body)


def test_a_batch_is_recorded_in_order(on_log):
    async def body(log: EventLog) -> None:
        await log.append(agent(0))
        sequences = await log.append_batch([rated(n) for n in range(700)], expected=0)
        assert sequences == list(range(2, 702))
        assert [r.event for r in await collect(log.read(2))] == [rated(n) for n in range(700)]

    on_log(body)


def test_a_batch_again_is_recorded_once(on_log):
    async def body(log: EventLog) -> None:
        batch = [rated(0), agent(0), rated(1)]
        assert await log.append_batch(batch, expected=0) == [1, 2, 3]
        assert await log.append_batch(batch, expected=0) == [1, 2, 3], "the acknowledgement was lost"
        assert await log.append(rated(2), expected=3) == 4
        assert await log.append(rated(2), expected=3) == 4
        assert await log.last_sequence() == 4
        assert await log.append_batch([]) == []

    on_log(body)


def test_a_batch_is_one_fact_whatever_is_recorded_of_it(on_log):
    async def body(log: EventLog) -> None:
        await log.append(rated(1))
        assert await log.append_batch([rated(0), rated(1), rated(2)]) == [2, 3, 4]
        assert [r.event for r in await collect(log.read())] == [rated(n) for n in (1, 0, 1, 2)]

    on_log(body)


def test_two_facts_of_one_key_are_both_recorded(on_log):
    async def body(log: EventLog) -> None:
        other = AgentRegistered(agent="bot-0", kind="bot", baseline=True, rating=900.0)
        assert other.key == agent(0).key
        assert [await log.append(agent(0)), await log.append(other), await log.append(agent(0))] == [1, 2, 1]
        assert await log.append_batch([other, rated(0)]) == [3, 4]

    on_log(body)


def test_a_fact_of_too_many_events_is_refused_whole(on_log):
    async def body(log: EventLog) -> None:
        assert await log.append_batch([agent(n) for n in range(MAX_BATCH)]) == list(range(1, MAX_BATCH + 1))
        with pytest.raises(UsageError, match=r"registered:bot-0 with its batch: 1,001 events; expected at most"):
            await log.append_batch([agent(n) for n in range(MAX_BATCH + 1)])
        assert await log.last_sequence() == MAX_BATCH

    on_log(body)


def test_many_facts_are_split_and_each_batch_keeps_the_condition(on_log):
    async def body(log: EventLog) -> None:
        assert await append_in_batches(log, [rated(n) for n in range(1100)], expected=0) == list(range(1, 1101))
        with pytest.raises(ConflictError):
            await append_in_batches(log, [rated(n) for n in range(1100, 2300)], expected=0)
        assert await append_in_batches(log, [agent(n) for n in range(600)]) == list(range(1101, 1701))

        with pytest.raises(ConflictError):
            await append_in_batches(
                cast(EventLog, BesideAnother(log)), [rated(n) for n in range(1100, 2300)], expected=1100
            )
        assert await log.last_sequence() == 1700 + 500 + 1

    on_log(body)


def test_a_batch_whose_condition_fails_records_nothing(on_log):
    async def body(log: EventLog) -> None:
        await log.append(rated(0))
        with pytest.raises(ConflictError):
            await log.append_batch([rated(1), rated(2)], expected=0)
        assert await log.last_sequence() == 1

    on_log(body)


def test_following_gives_old_events_then_new_ones(on_log):
    async def body(log: EventLog) -> None:
        await log.append(agent(0))
        task = asyncio.create_task(collect(log.follow(), 3))
        await asyncio.sleep(0.1)
        await log.append(agent(1))
        await log.append(agent(2))
        assert [r.sequence for r in await asyncio.wait_for(task, 300)] == [1, 2, 3]

    on_log(body)


def test_a_few_events_of_one_type_are_found_among_many(on_log) -> None:
    async def body(log: EventLog) -> None:
        assert await log.newest(AgentRetired) is None
        await log.append_batch([agent(n) for n in range(5)])
        await log.append_batch([AgentRetired(agent=f"bot-{n}", reason="old") for n in range(2)])
        await log.append(agent(9))
        assert [r.sequence for r in await collect(log.read(only=AgentRetired))] == [6, 7]
        assert [r.sequence for r in await collect(log.read(1, 6, only=AgentRetired))] == [6]
        newest = await log.newest(AgentRetired)
        assert newest is not None
        assert newest.event == AgentRetired(agent="bot-1", reason="old")
        read = [r.sequence async for batch in log.batches(2, 4) for r in batch]
        assert read == [2, 3, 4]

    on_log(body)


def test_copied_events_keep_their_places_times_and_bytes(on_log) -> None:
    def origin(sequence: int) -> RecordedEvent:
        event = agent(sequence)
        # As other writers space their JSON.
        payload = encode_event(event).replace(b":", b": ")
        return RecordedEvent(
            sequence, 1_700_000_000_000_000_000 + sequence, event_subject("league", event), "who", payload
        )

    history = [origin(sequence) for sequence in (1, 2, 5, 6, 1200)]

    async def body(log: EventLog) -> None:
        await log.copy(history[:3])
        await log.copy(history[3:])
        found = await collect(log.read())
        assert [(r.sequence, r.time_ns, r.subject, r.producer, r.payload) for r in found] == [
            (r.sequence, r.time_ns, r.subject, r.producer, r.payload) for r in history
        ]
        assert await log.append(agent(7)) == 1201
        with pytest.raises(LogError, match=r"copying event 6: .* at 1201"):
            await log.copy(history[3:4])

    on_log(body)


def test_a_log_says_how_many_events_it_holds(on_log):
    async def body(log: EventLog) -> None:
        assert await log.stored_count() == 0
        for n in range(3):
            await log.append(agent(n))
        await log.append(rated(1))
        await log.append(agent(0))
        assert await log.stored_count() == len(await collect(log.read())) == 4

    on_log(body)


def test_a_reader_whose_connection_is_closed_does_not_take_that_for_the_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with jetstream_log(tmp_path) as log:
            assert isinstance(log, JetStreamLog)
            # More than are read at once.
            await append_in_batches(log, [agent(n) for n in range(6_000)])
            batches = log.batches()
            assert len(await anext(batches)) < 6_000
            await log.client.close()
            with pytest.raises(LogUnavailableError, match="to 6000: the connection was closed"):
                await collect(recorded async for batch in batches for recorded in batch)

    asyncio.run(body())


def test_threads_beside_a_simulation_keep_the_real_clock() -> None:
    ended = threading.Event()

    async def main(_: object) -> float:
        def sleep() -> None:
            time.sleep(0.001)
            ended.set()

        threading.Thread(target=sleep).start()
        assert ended.wait(60)
        return asyncio.get_running_loop().time()

    # Real waiting takes no virtual time, and neither does the other thread's.
    assert run_with_broker(main) < 0.001
