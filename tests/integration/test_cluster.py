"""A league on three brokers, one of which dies again and again."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.cluster import LocalCluster
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import free_port
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import ConflictError, LogError, LogUnavailableError, UsageError
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, OpponentsSampled, PolicyPublished
from schemas.subjects import event_subject
from tests.builders import checkpoint_added

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as nodes:
        yield nodes


async def leader_of(url: str, stream: str = "LEAGUE") -> int:
    """Number of the node that leads a stream."""
    client = await connect(url, "test")
    try:
        async with asyncio.timeout(300):
            while True:
                try:
                    info = await client.jetstream(timeout=2).stream_info(stream)
                    if info.cluster is not None and info.cluster.leader:
                        return int(info.cluster.leader.rpartition("-")[2])
                except Exception:
                    pass
                await asyncio.sleep(0.1)
    finally:
        await flush_and_close(client)


@pytest.mark.slow
def test_every_stream_has_three_copies_and_outlives_its_leader(cluster: LocalCluster) -> None:
    async def body() -> tuple[list[int | None], list[int]]:
        client = await connect(cluster.url, "test")
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        names = ("LEAGUE", "WORK", "EXPERIENCE", "DEAD", "METRICS", "OBJ_ARTIFACTS")
        copies = [(await client.jetstream().stream_info(name)).config.num_replicas for name in names]
        log, sequences = JetStreamLog(client, "nim", "test"), []
        for version in range(30):
            if version % 10 == 5:
                number = await leader_of(cluster.url)
                cluster.kill(number)
            event = PolicyPublished(policy="main", version=version, adapter="", parent="")
            async with asyncio.timeout(300):
                while len(sequences) == version:
                    try:
                        sequences.append(await log.append(event))
                    except LogUnavailableError:
                        await asyncio.sleep(0.1)
            if version % 10 == 5:
                cluster.start(number)
        found = [recorded.sequence async for recorded in log.read()]
        await flush_and_close(client)
        assert found == sequences
        return copies, found

    copies, found = asyncio.run(body())
    assert copies == [3] * 6
    assert found == list(range(1, 31))


def test_a_condition_that_fails_leaves_a_replicated_history_writable(cluster: LocalCluster) -> None:
    async def body() -> list[int]:
        client = await connect(cluster.url, "test")
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        log = JetStreamLog(client, "nim", "test")
        first, second = (PolicyPublished(policy="main", version=n, adapter="", parent="") for n in (0, 1))
        async with asyncio.timeout(300):
            while True:
                with contextlib.suppress(LogUnavailableError):
                    await log.append(first, expected=0)
                    break
                await asyncio.sleep(0.1)
            with pytest.raises(ConflictError):
                await log.append(second, expected=0)
            assert await log.append(first, expected=0) == 1, "a repetition is recognised, not refused"
            await log.append(second, expected=1)
        found = [recorded.sequence async for recorded in log.read()]
        await flush_and_close(client)
        return found

    assert asyncio.run(body()) == [1, 2]


def test_a_worker_of_a_cluster_appends_many_events_at_once_under_its_fence(cluster: LocalCluster) -> None:
    async def body() -> list[int]:
        client = await connect(cluster.url, "test")
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        log = JetStreamLog(client, "nim", "test")
        opened = PolicyPublished(policy="main", version=0, adapter="", parent="")
        async with asyncio.timeout(300):
            while True:
                with contextlib.suppress(LogUnavailableError):
                    log.fence = (event_subject("nim", opened), await log.append(opened))
                    break
                await asyncio.sleep(0.1)
            appended = await asyncio.gather(*(log.append(checkpoint_added(version)) for version in range(12)))
        await flush_and_close(client)
        return appended

    assert sorted(asyncio.run(body())) == list(range(2, 14))


def test_a_cluster_needs_an_odd_number_of_nodes_and_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--nodes 2: expected an odd number, 3 or more"):
        LocalCluster(tmp_path, nodes=2)
    LocalCluster(tmp_path)
    with pytest.raises(UsageError, match=r"--nodes 5: the cluster under .* has 3"):
        LocalCluster(tmp_path, nodes=5)
    (tmp_path / "ports.json").write_bytes(b'{"clients":[')
    with pytest.raises(UsageError, match=r"ports\.json: .*; expected the cluster's ports"):
        LocalCluster(tmp_path)


def test_no_two_nodes_of_a_cluster_get_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [free_port() for _ in range(20)]
    drawn = iter([free[0], *free[:2], *free])
    monkeypatch.setattr("league.log.server.free_port", lambda: next(drawn))
    cluster = LocalCluster(tmp_path)
    assert len({*cluster._ports.clients, *cluster._ports.peers}) == 6


@pytest.mark.slow
def test_a_league_whose_leading_broker_dies_again_and_again_loses_nothing(
    cluster: LocalCluster, tmp_path: Path, drained: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    config, steps = tmp_path / "league.toml", 60
    config.write_text(CONFIG.read_text().replace("steps = 3", f"steps = {steps}"))
    command = [sys.executable, "-m", "ui", "up", "--config", str(config), "--run", str(tmp_path / "run")]
    with (tmp_path / "up.log").open("w") as out:
        league = subprocess.Popen([*command, "--nats", cluster.url], stdout=out, stderr=out)
        drained(league)
        killed = 0
        while league.poll() is None and killed < 8:
            time.sleep(4)
            try:
                number = asyncio.run(asyncio.wait_for(leader_of(cluster.url), 300))
            except LogError:
                continue
            cluster.kill(number)
            killed += 1
            time.sleep(2)
            cluster.start(number)
        assert league.wait(240) == 0, (tmp_path / "up.log").read_text()
    assert killed >= 3
    history = asyncio.run(read(cluster.url))
    taken = [r.event for r in history if isinstance(r.event, GradientStepTaken)]
    used = [match for step in taken for match in step.matches]
    drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
    ended = [r.event.match_id for r in history if isinstance(r.event, MatchFinished | MatchFailed)]
    assert [step.step for step in taken] == list(range(1, steps + 1))
    assert len(used) == len(set(used))
    assert len(ended) == len(set(ended))
    assert drawn <= set(ended)
    assert verify_events(history).is_identical


async def read(url: str) -> list[RecordedEvent]:
    client = await connect(url, "test")
    events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
    await flush_and_close(client)
    return events


@pytest.fixture
def drained() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Ends processes that a failed test leaves running."""
    started: list[subprocess.Popen[bytes]] = []
    yield started.append
    for process in started:
        process.terminate()
        process.wait(300)
