"""The power of brokers fails again and again: what was not synced is gone, acknowledged events are not.

Of one broker, and of all three of a cluster at once. Controls show that brokers which flush every two minutes, as is
their default, lose events in the same test.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from nats.aio.client import Client

from league.log import server
from league.log.cluster import NODES, LocalCluster
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer, free_port, has_ended
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import LeagueError
from schemas.events import PolicyPublished

FAILURES = int(os.environ.get("LEAGUE_POWER_FAILURES", "5"))
AT_ONCE = 16
"""Events on their way at any moment."""

pytestmark = pytest.mark.slow


class Brokers(Protocol):
    """One broker or several, on disks whose power is cut."""

    url: str

    def on(self) -> None: ...

    def fail(self) -> None:
        """Cut the power and end everything; then the disks are there again."""

    def off(self) -> None:
        """End them at once."""


class OwnBroker:
    """A broker as runs have one, on a disk."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self._folder, self._port = disk.mounted / "nats", free_port()
        self.url = f"nats://127.0.0.1:{self._port}"

    def on(self) -> None:
        self._server = EmbeddedServer(self._folder, self._port)
        self._server.__enter__()
        self._pid = int(json.loads((self._folder / "server.json").read_bytes())["pid"])

    def fail(self) -> None:
        self._disk.cut()
        self.off()
        self._disk.off()
        self._disk.on()

    def off(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while not has_ended(self._pid):
            time.sleep(0.01)
        # In good order it would take a lock on a disk that is off.
        self._server._release_claim()


class ThreeBrokers:
    """A cluster, each of its nodes on a disk of its own."""

    def __init__(self, folder: Path, new_disk: Callable[[Path], Any], sync: str = "always") -> None:
        self._cluster = LocalCluster(folder, sync=sync)
        self._disks = [new_disk(self._cluster.store(number)) for number in range(NODES)]
        self.url = self._cluster.url

    def on(self) -> None:
        for number in range(NODES):
            self._cluster.start(number)

    def fail(self) -> None:
        for disk in self._disks:
            disk.cut()
        self.off()
        for disk in self._disks:
            disk.off()
            disk.on()

    def off(self) -> None:
        for number in self._cluster.running:
            self._cluster.kill(number)
        # None is left to stop; the claim on the folder ends.
        self._cluster.__exit__()


async def recorded(client: Client, first: int, told: dict[int, int]) -> None:
    """Record versions from ``first`` on, one after the other, until cancelled; note the sequences acknowledged."""
    log = JetStreamLog(client, "nim", "test")
    for version in itertools.count(first):
        if client.is_closed:
            return
        with suppress(LeagueError):
            told[version] = await log.append(PolicyPublished(policy="main", version=version, adapter="", parent=""))


async def until_it_fails(url: str, first: int, seconds: float, fail: Callable[[], None]) -> dict[int, int]:
    """What was acknowledged before the power failed."""
    client, told = await connect(url, "test"), dict[int, int]()
    await ensure_streams(client.jetstream(timeout=10), ExperienceConfig(max_bytes=16_000_000))
    tasks = [asyncio.create_task(recorded(client, first + 100_000 * n, told)) for n in range(AT_ONCE)]
    await asyncio.sleep(seconds)
    fail()
    acknowledged = dict(told)
    with suppress(asyncio.CancelledError):
        # The library cancels its own waiting when it is closed while it connects again.
        await client.close()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5.0)
    return acknowledged


async def surviving(url: str) -> dict[int, int]:
    """Sequences by version."""
    client = await connect(url, "test")
    found = {}
    async with asyncio.timeout(60):
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig(max_bytes=16_000_000))
        async for one in JetStreamLog(client, "nim", "test").read():
            if isinstance(one.event, PolicyPublished):
                assert one.event.version not in found
                found[one.event.version] = one.sequence
    await flush_and_close(client)
    return found


def lost(brokers: Brokers, failures: int, chosen: random.Random) -> tuple[int, int]:
    """Events that were acknowledged, and how many of them are gone after so many failures."""
    told, gone = dict[int, int](), 0
    brokers.on()
    try:
        for nth in range(failures):
            first, seconds = nth * 2_000_000, chosen.uniform(1.0, 4.0)
            told |= asyncio.run(until_it_fails(brokers.url, first, seconds, brokers.fail))
            brokers.on()
            try:
                there = asyncio.run(surviving(brokers.url))
            except (TimeoutError, LeagueError):
                # Not to be read is to be lost.
                there = {}
            missing = [version for version, sequence in told.items() if there.get(version) != sequence]
            gone += len(missing)
            for version in missing:
                del told[version]
    finally:
        brokers.off()
    return len(told) + gone, gone


def shown(capsys: pytest.CaptureFixture[str], what: str, acknowledged: int, gone: int) -> None:
    with capsys.disabled():
        print(f"\n{what}: {acknowledged:,} acknowledged events, {gone:,} lost")


def test_nothing_acknowledged_is_lost_when_the_power_fails(
    tmp_path: Path, new_disk: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged, gone = lost(OwnBroker(new_disk(tmp_path / "disk")), FAILURES, random.Random(5))
    shown(capsys, f"one broker, power fails {FAILURES} times", acknowledged, gone)
    assert acknowledged > 100 * FAILURES
    assert gone == 0


def test_a_broker_that_flushes_now_and_then_loses_events_that_it_acknowledged(
    tmp_path: Path, new_disk: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_CONFIG", server._CONFIG.replace("sync_interval: always", "sync_interval: 2m"))
    acknowledged, gone = lost(OwnBroker(new_disk(tmp_path / "disk")), 1, random.Random(6))
    shown(capsys, "one broker that flushes every two minutes, power fails once", acknowledged, gone)
    assert gone > 0


def test_nothing_acknowledged_is_lost_when_the_power_of_all_nodes_fails_at_once(
    tmp_path: Path, new_disk: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged, gone = lost(ThreeBrokers(tmp_path / "cluster", new_disk), FAILURES, random.Random(7))
    shown(capsys, f"three brokers, power of all fails {FAILURES} times", acknowledged, gone)
    assert acknowledged > 50 * FAILURES
    assert gone == 0


def test_nodes_that_flush_now_and_then_lose_events_that_they_acknowledged(
    tmp_path: Path, new_disk: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged, gone = lost(ThreeBrokers(tmp_path / "cluster", new_disk, sync="2m"), 1, random.Random(8))
    shown(capsys, "three brokers that flush every two minutes, power of all fails once", acknowledged, gone)
    assert gone > 0
