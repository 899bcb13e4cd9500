"""Floods of garbage and giant messages: what is real goes on, and nothing grows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from nats.aio.client import Client

from league.log import queues
from league.log.connection import connect
from league.log.dead_letters import DeadLetters
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import ExperienceStream, ReceivedTrajectory
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas.codec import encode_event
from schemas.config import ExperienceConfig
from schemas.errors import BackpressureError, MessageTooLargeError
from schemas.events import AgentRegistered
from schemas.subjects import EXPERIENCE_STREAM
from schemas.trajectories import Trajectory
from tests.builders import model_call, trajectory
from workers import runtime
from workers.runtime import Context, beside


@contextlib.asynccontextmanager
async def broker(folder: Path, most: int = 280) -> AsyncIterator[Client]:
    with EmbeddedServer(folder / "nats") as server:
        client = await connect(server.url, "test")
        await ensure_streams(client.jetstream(), ExperienceConfig(max_messages=most, max_bytes=1_000_000))
        yield client
        await flush_and_close(client)


def rollout(name: str, tokens: int = 3) -> Trajectory:
    rng = Random(tokens)
    return trajectory(name, [model_call(3, progress=1.0, prompt_ids=[rng.getrandbits(31) for _ in range(tokens)])])


def test_a_rollout_above_the_brokers_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker(tmp_path) as client:
            stream = ExperienceStream(client, "nim")
            with pytest.raises(MessageTooLargeError, match=r"trajectory of big has .* compressed; expected at most"):
                await stream.publish(rollout("big", tokens=2_500_000))
            await stream.publish(rollout("small"))
            state = (await client.jetstream().stream_info(EXPERIENCE_STREAM)).state
            assert state.messages == 1

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_stream_full_of_nobodys_garbage_makes_room_for_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_MAX_DEAD_LETTERS", 2)

    async def body() -> None:
        async with broker(tmp_path, most=5) as client:
            for number in range(4):
                await client.jetstream().publish("experience.nim.main", b"garbage %d" % number)
            labelled = {queues.LABEL_HEADER: "m-9:1"}
            await client.jetstream().publish("experience.nim.main", b"a damaged rollout", headers=labelled)
            stream = ExperienceStream(client, "nim")
            with pytest.raises(BackpressureError):
                await stream.publish(rollout("m-1"))
            arrived: asyncio.Queue[ReceivedTrajectory] = asyncio.Queue()

            async def receive() -> None:
                async for each in stream.follow("main", 1):
                    await arrived.put(each)

            async with beside(receive()):
                received = [await arrived.get() for _ in range(3)]
                await stream.publish(rollout("m-1"))
                received.append(await arrived.get())
            assert [(each.sequence, each.match_id) for each in received] == [(1, ""), (2, ""), (5, "m-9"), (6, "m-1")]
            held = await client.jetstream().stream_info(EXPERIENCE_STREAM)
            assert held.state.messages == 2, "somebody's stays until a step has accounted for it"
            assert [each.letter.sequence for each in await DeadLetters(client, "nim").list_all()] == [1, 2]

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_stream_full_of_labelled_garbage_makes_room_for_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_MAX_KEPT_DAMAGED", 2)
    monkeypatch.setattr(queues, "_MAX_DEAD_LETTERS", 3)

    async def body() -> None:
        async with broker(tmp_path, most=6) as client:
            stream, js = ExperienceStream(client, "nim"), client.jetstream()

            async def flood(first: int) -> None:
                for number in range(first, first + 6):
                    labelled = {queues.LABEL_HEADER: f"forged-{number}:0"}
                    await js.publish("experience.nim.main", b"garbage", headers=labelled)

            await flood(0)
            with pytest.raises(BackpressureError):
                await stream.publish(rollout("m-1"))
            arrived: asyncio.Queue[ReceivedTrajectory] = asyncio.Queue()

            async def receive() -> None:
                async for each in stream.follow("main", 1):
                    await arrived.put(each)

            async with beside(receive()):
                received = [await arrived.get() for _ in range(3)]
                while True:
                    with contextlib.suppress(BackpressureError):
                        await stream.publish(rollout("m-1"))
                        break
                    await asyncio.sleep(0.02)
                received.append(await arrived.get())
                assert [each.match_id for each in received] == ["forged-0", "forged-1", "forged-2", "m-1"]
                # A step has accounted for what was kept: as many may lie there again.
                await stream.delete([1, 2])
                await flood(6)
                again = [await arrived.get() for _ in range(2)]
            assert [each.match_id for each in again] == ["forged-6", "forged-7"]

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_flood_of_garbage_events_is_passed_over_with_a_bounded_number_of_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_MAX_DEAD_LETTERS", 10)

    async def body() -> None:
        async with broker(tmp_path) as client:
            log, rng = JetStreamLog(client, "nim", "test"), Random(0)
            for _ in range(1_000):
                await client.publish("league.nim.agent.registered", rng.randbytes(20))
            last = await log.append(AgentRegistered(agent="a", kind="bot", baseline=False, rating=1.0))
            context = Context(Run(tmp_path), client, log, "worker")
            async with beside(context.follow()):
                await asyncio.wait_for(context.wait_for_sequence(last), 300)
            assert list(context.state.agents) == ["a"]
            assert len(await DeadLetters(client, "nim").list_all()) == 10

    asyncio.run(asyncio.wait_for(body(), 300))


@pytest.mark.parametrize("value", ["abc", "-1", "", "9" * 30, "1.0"])
def test_headers_that_make_no_sense_fail_no_reader(tmp_path: Path, value: str) -> None:
    async def body() -> None:
        async with broker(tmp_path) as client:
            log, event = (
                JetStreamLog(client, "nim", "test"),
                AgentRegistered(agent="a", kind="bot", baseline=False, rating=1.0),
            )
            for header in ("League-Schema", "League-Time"):
                headers = {header: value}
                await client.jetstream().publish("league.nim.agent.registered", encode_event(event), headers=headers)
            schema, time = [recorded async for recorded in log.read()]
            assert schema.event is None
            assert "no upcaster from -1 to 0" in str(schema.error)
            assert time.event == event
            assert time.time_ns > 10**18, "the broker's own"

    asyncio.run(asyncio.wait_for(body(), 300))
