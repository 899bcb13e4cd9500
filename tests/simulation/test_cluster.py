"""The log on the simulated cluster: what only three servers do, by seeds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from league.auth.tokens import UserIdentity
from league.log.access import FailFastClient
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig, LeagueConfig
from schemas.errors import LogUnavailableError
from schemas.subjects import LEAGUE_STREAM
from tests.builders import checkpoint_added, opening_events
from tests.simulation.broker.cluster import SERVERS
from tests.simulation.broker.server import URL
from tests.simulation.standalone import World, run_with_broker
from workers.membership import Membership
from workers.runtime import Context, beside

EVENTS = 40


@asynccontextmanager
async def open_log(name: str = "test") -> AsyncIterator[JetStreamLog]:
    client = await connect(URL, name)
    await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
    yield JetStreamLog(client, "nim", name)
    await flush_and_close(client)


async def append(log: JetStreamLog, version: int) -> int:
    """Append as workers do, again and again while the broker is unavailable."""
    while True:
        try:
            return await log.append(checkpoint_added(version))
        except LogUnavailableError:
            await asyncio.sleep(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_readers_miss_no_event_where_messages_between_servers_are_lost(seed: int) -> None:
    async def body(world: World) -> list[int]:
        assert world.broker.cluster is not None
        async with open_log() as log:
            sequences = [await log.append(checkpoint_added(version)) for version in range(EVENTS)]
            world.broker.cluster.lost_deliveries = 0.1
            found = [recorded.sequence async for recorded in log.read(last=EVENTS)]
        assert sequences == list(range(1, EVENTS + 1))
        return found

    assert run_with_broker(body, seed, is_clustered=True) == list(range(1, EVENTS + 1))


def test_an_event_that_is_still_in_flight_when_it_is_sent_again_is_waited_for() -> None:
    async def body(world: World) -> list[int]:
        async with open_log() as log:
            # Longer than a request's time: the second one finds the id in process.
            world.conditions.flush_s = 12.0
            return [await append(log, version) for version in range(4)]

    assert run_with_broker(body, seed=1, is_clustered=True) == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(3))
def test_events_are_recorded_once_while_leaders_change(seed: int) -> None:
    async def body(world: World) -> list[int]:
        async with open_log() as log:
            world.conditions.flush_s = 0.5
            appends = [asyncio.create_task(append(log, version)) for version in range(EVENTS)]
            for number in range(6):
                await asyncio.sleep(2.0)
                world.broker.lose_server(SERVERS[number % 3], 1.0, is_crash=number % 2 == 0)
            await asyncio.gather(*appends)
            return sorted(task.result() for task in appends)

    assert run_with_broker(body, seed, is_clustered=True) == list(range(1, EVENTS + 1))


@pytest.mark.parametrize("seed", [0, 4])
def test_a_process_works_by_its_own_joining_where_replicas_lag(tmp_path: Path, seed: int) -> None:
    async def body(world: World) -> tuple[int, int]:
        assert world.broker.cluster is not None
        async with open_log("w") as log:
            await log.append_batch(opening_events(LeagueConfig(), log.league))
            # As a worker with credentials, it reads from the replica of whatever server hosts its consumer.
            assert isinstance(log.client, FailFastClient)
            log.client.identity = UserIdentity("w", "", None, "rollout")
            for server in SERVERS:
                world.broker.cluster.delay(server, 20.0)
            context = Context(Run(tmp_path), log.client, log, "w")
            async with beside(context.follow()):
                await Membership(context, "rollout").join()
            assert log.fence is not None
            return log.fence[1], world.disk.streams[LEAGUE_STREAM].last

    fence, joined = run_with_broker(body, seed, is_clustered=True)
    assert fence == joined
