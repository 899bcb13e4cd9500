"""What `experience.copies = 1` trades on a cluster: rollouts wait for the one node with them, the history does not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.js import JetStreamContext

from league.log.cluster import LocalCluster
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import ExperienceStream
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig, convert
from schemas.errors import ConfigError, LogError
from schemas.events import PolicyPublished
from schemas.trajectories import Trajectory
from tests.builders import trajectory


def rollout(number: int) -> Trajectory:
    return trajectory(f"m-{number}")


def published(version: int) -> PolicyPublished:
    return PolicyPublished(policy="main", version=version, adapter="", parent="")


async def until_done(attempt: Callable[[], Awaitable[object]]) -> None:
    """While a cluster finds its leaders."""
    async with asyncio.timeout(120):
        while True:
            try:
                await attempt()
                return
            except LogError:
                await asyncio.sleep(0.1)


async def holders(js: JetStreamContext) -> tuple[int, int]:
    """How many copies there are of experience, and which node leads it."""
    info = await js.stream_info("EXPERIENCE")
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return info.config.num_replicas or 1, int(info.cluster.leader.rpartition("-")[2])


async def without_its_node(folder: Path, copies: int) -> tuple[int, bool, list[int]]:
    """Copies, whether rollouts are taken while the node that leads them is away, and what is there once it is back."""
    with LocalCluster(folder) as cluster:
        client = await connect(cluster.url, "test")
        js = client.jetstream(timeout=10)
        await ensure_streams(js, ExperienceConfig(copies=copies))
        experience, log = ExperienceStream(client, "nim"), JetStreamLog(client, "nim", "test")
        await until_done(lambda: experience.publish(rollout(1)))
        found, node = await holders(js)
        assert (await js.stream_info("LEAGUE")).config.num_replicas == 3
        cluster.kill(node)
        await until_done(lambda: log.append(published(1)))
        is_taken = True
        try:
            async with asyncio.timeout(20):
                await until_done(lambda: experience.publish(rollout(2)))
        except TimeoutError:
            is_taken = False
        await until_done(lambda: log.append(published(2)))
        cluster.start(node)
        # The same rollout: had it been taken, it would still be there once.
        await until_done(lambda: experience.publish(rollout(2)))
        sequences = []
        async with asyncio.timeout(60):
            async for received in experience.follow("main", 1):
                sequences.append(received.sequence)
                if len(sequences) == 2:
                    break
        assert [recorded.sequence async for recorded in log.read()] == [1, 2]
        await flush_and_close(client)
        return found, is_taken, sequences


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 3])
def test_one_copy_of_experience_waits_for_its_node_and_loses_nothing_while_three_go_on(
    copies: int, tmp_path: Path
) -> None:
    found, is_taken, sequences = asyncio.run(without_its_node(tmp_path, copies))
    assert found == copies
    assert is_taken == (copies == 3)
    assert sequences == [1, 2]


def test_copies_are_one_or_three() -> None:
    for copies in (0, 2, 5):
        with pytest.raises(ConfigError, match=rf"experience\.copies: {copies}; expected 1 or 3"):
            convert({"copies": copies}, ExperienceConfig, "experience")
    assert ExperienceConfig().copies == 3
