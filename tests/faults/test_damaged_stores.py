"""Bits flip in the stores of brokers, and ends of files are missing: nothing is lost, or it is located and mended."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from league.blobs import ARCHIVE_AREA, BrokerBlobStore
from league.integrity.archive import archive_history
from league.log.base import RecordedEvent
from league.log.cluster import LocalCluster
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from tests.builders import store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)), registers=True
).run(8, 1)
VICTIM = HISTORY[len(HISTORY) // 2]
ARCHIVED = len(HISTORY) // 100 * 100
READS = 12
"""A reader is served by any of the nodes: so many find each of three with a probability of 0.98."""

pytestmark = pytest.mark.slow


def flipped(store: Path) -> None:
    """One bit of one event's bytes is another one."""
    for block in store.rglob("streams/LEAGUE/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(VICTIM.payload)) >= 0:
            stored[at + len(VICTIM.payload) // 2] ^= 4
            block.write_bytes(stored)
            return
    raise AssertionError("the store does not hold these bytes")


def flipped_in_place(store: Path) -> None:
    """The same under a node that runs: it goes on with the file that it has open."""
    for block in store.rglob("streams/LEAGUE/msgs/*.blk"):
        if (at := block.read_bytes().find(VICTIM.payload)) >= 0:
            with block.open("r+b") as file:
                file.seek(at + len(VICTIM.payload) // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 4]))
            return
    raise AssertionError("the store does not hold these bytes")


def truncated(store: Path) -> None:
    """The second half of the newest file of events is gone."""
    block = max(store.rglob("streams/LEAGUE/msgs/*.blk"))
    stored = block.read_bytes()
    block.write_bytes(stored[: len(stored) // 2])


def use(url: str, body: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        client = await connect(url, "test")
        try:
            async with asyncio.timeout(60):
                await body(client)
        finally:
            await flush_and_close(client)

    asyncio.run(connected())


async def whole_there(client: Client) -> None:
    """Wait until all nodes have all of the history."""
    while True:
        try:
            cluster = (await client.jetstream(timeout=2).stream_info("LEAGUE")).cluster
            if cluster is not None and cluster.leader and all(one.current for one in cluster.replicas or []):
                return
        except Exception:
            pass
        await asyncio.sleep(0.2)


async def whole(client: Client) -> None:
    """Wait until all nodes have all of the history, and read it again and again."""
    await whole_there(client)
    log = JetStreamLog(client, "league", "test")
    for _ in range(READS):
        assert [bare(recorded) async for recorded in log.read()] == list(map(bare, HISTORY))


def bare(recorded: RecordedEvent) -> tuple[int, bytes]:
    return recorded.sequence, recorded.payload


def test_what_is_damaged_on_one_node_of_a_cluster_comes_from_the_others(
    tmp_path: Path, leader: Callable[[str], int]
) -> None:
    async def fill(client: Client) -> None:
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        await JetStreamLog(client, "league", "test").copy(HISTORY)

    with LocalCluster(tmp_path) as cluster:
        use(cluster.url, fill)
        use(cluster.url, whole)
        for damage, leads, end in (
            (flipped, True, cluster.kill),
            (flipped, False, cluster.stop),
            (truncated, True, cluster.stop),
            (truncated, False, cluster.kill),
        ):
            number = (leader(cluster.url) + (0 if leads else 1)) % 3
            end(number)
            damage(cluster.store(number))
            cluster.start(number)
            use(cluster.url, whole)


def test_a_bit_that_flips_in_the_store_of_a_running_node_is_found_by_reading_again_and_again(tmp_path: Path) -> None:
    async def fill(client: Client) -> None:
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
        log = JetStreamLog(client, "league", "test")
        await log.copy(HISTORY)
        await store_adapters(BrokerBlobStore(client, "league"), HISTORY)
        await archive_history(log, Run(tmp_path / "run").open_blob_store(client, "league", ARCHIVE_AREA), 100)

    with LocalCluster(tmp_path) as cluster:
        use(cluster.url, fill)
        words = ("verify", "--nats", cluster.url, "--run", tmp_path / "run", "--reads", READS)
        assert league(*words)[0] == 0
        flipped_in_place(cluster.store(1))
        # Until then the node has what it was sent in memory, and hands that out.
        deadline = time.monotonic() + 120
        while (found := league(*words))[0] != 1:
            assert time.monotonic() < deadline
            time.sleep(5)
        assert f"missing: event {VICTIM.sequence}" in found[1]
        cluster.stop(1)
        cluster.start(1)
        use(cluster.url, whole_there)
        assert league(*words)[0] == 0


@pytest.fixture
def archived_run(tmp_path: Path) -> Path:
    """A stopped run with a broker of its own, archived but for the newest events."""
    run = tmp_path / "run"

    async def fill() -> None:
        async with Run(run).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            log = JetStreamLog(client, "league", "test")
            artifacts = Run(run).open_blob_store(client, "league", ARCHIVE_AREA)
            await log.copy(HISTORY)
            await store_adapters(artifacts, HISTORY)
            await archive_history(log, artifacts, 100)

    asyncio.run(fill())
    assert league("verify", "--run", run)[0] == 0
    return run


def league(*words: str | Path | int) -> tuple[int, str]:
    """Exit code of a command, and what it prints."""
    result = CliRunner().invoke(app, list(map(str, words)))
    return result.exit_code, " ".join(result.output.split())


def test_damage_in_the_only_broker_is_located_and_a_branch_has_it_from_the_archive(
    archived_run: Path, tmp_path: Path
) -> None:
    async def history(folder: Path) -> list[tuple[int, bytes]]:
        async with Run(folder).open_log() as log:
            return [bare(recorded) async for recorded in log.read()]

    flipped(archived_run / "nats" / "store")
    code, said = league("verify", "--run", archived_run)
    assert code == 1
    assert "DAMAGED in the stream" in said
    assert f"missing: event {VICTIM.sequence}" in said
    assert league("branch", "--from", archived_run, "--at", ARCHIVED, "--run", tmp_path / "mended")[0] == 0
    assert asyncio.run(history(tmp_path / "mended"))[:ARCHIVED] == list(map(bare, HISTORY[:ARCHIVED]))


def test_a_history_whose_end_the_only_broker_lost_is_told_from_a_whole_one(archived_run: Path) -> None:
    truncated(archived_run / "nats" / "store")
    code, said = league("verify", "--run", archived_run)
    assert code == 1
    assert "DAMAGED in the stream" in said
    assert f"reaches {ARCHIVED}" in said
