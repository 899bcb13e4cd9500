"""The power fails again and again: what no ``fsync`` has brought to the disk is gone, acknowledged events are not.

The broker's store lies on an ext4 file system of its own, in a file. The file system is shut down as a loss of power
would (``EXT4_IOC_SHUTDOWN`` without flushing its journal): nothing reaches the disk any more, what waits in memory is
dropped, and mounting it again replays the journal. A control shows that a broker which flushes every two minutes, as
is its default, loses events in the same test. Wants the right to mount.
"""

import asyncio
import fcntl
import itertools
import json
import os
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from nats.aio.client import Client

from league.log import server
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, wait_closed
from league.log.processes import free_port, has_ended
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import LeagueError
from schemas.events import PolicyPublished

FAILURES = int(os.environ.get("LEAGUE_POWER_FAILURES", "5"))
AT_ONCE = 16
"""Events on their way at any moment."""

_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = struct.pack("I", 2)

pytestmark = pytest.mark.slow


class Disk:
    """A disk whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self._image, self.mounted = folder / "disk.img", folder / "disk"
        self.mounted.mkdir()
        with self._image.open("wb") as image:
            image.truncate(512 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)

    def on(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.mounted)], check=True, capture_output=True)

    def cut(self) -> None:
        """What was not synced is dropped from now on."""
        opened = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(opened, _SHUTDOWN, _WITHOUT_FLUSHING)
        finally:
            os.close(opened)

    def off(self) -> None:
        subprocess.run(["umount", str(self.mounted)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path)
        made.on()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount, or no mkfs.ext4")
    yield made
    subprocess.run(["umount", str(made.mounted)], check=False, capture_output=True)


class OwnBroker:
    """A broker as runs have one, on a disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._folder, self._port = disk.mounted / "nats", free_port()
        self.url = f"nats://127.0.0.1:{self._port}"

    def on(self) -> None:
        self._server = EmbeddedServer(self._folder, self._port)
        self._server.__enter__()
        self._pid = int(json.loads((self._folder / "server.json").read_bytes())["pid"])

    def fail(self) -> None:
        """Cut the power and end everything; then the disk is there again."""
        self._disk.cut()
        self.off()
        self._disk.off()
        self._disk.on()

    def off(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while not has_ended(self._pid):
            time.sleep(0.01)
        # In good order it would take a lock on a disk that is off.
        self._server._release_claim()


async def recorded(client: Client, first: int, told: dict[int, int]) -> None:
    """Record versions from ``first`` on, one after the other, until cancelled; note the sequences acknowledged."""
    log = JetStreamLog(client, "nim", "test")
    for version in itertools.count(first):
        # Python 3.11 loses a cancellation that meets a result.
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
    async with asyncio.timeout(20):
        await ensure_streams(client.jetstream(timeout=10), ExperienceConfig(max_bytes=16_000_000))
        async for one in JetStreamLog(client, "nim", "test").read():
            if isinstance(one.event, PolicyPublished):
                assert one.event.version not in found
                found[one.event.version] = one.sequence
    await wait_closed(client)
    return found


def lost(brokers: OwnBroker, failures: int, chosen: random.Random) -> tuple[int, int]:
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


def test_nothing_acknowledged_is_lost_when_the_power_fails(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    acknowledged, gone = lost(OwnBroker(disk), FAILURES, random.Random(5))
    with capsys.disabled():
        print(f"\n{acknowledged:,} acknowledged events, {FAILURES} failures of power: {gone} lost")
    assert acknowledged > 100 * FAILURES
    assert gone == 0


def test_a_broker_that_flushes_now_and_then_loses_events_that_it_acknowledged(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_CONFIG", server._CONFIG.replace("sync_interval: always", "sync_interval: 2m"))
    acknowledged, gone = lost(OwnBroker(disk), 1, random.Random(6))
    with capsys.disabled():
        print(f"\n{acknowledged:,} acknowledged events without flushing, one failure of power: {gone} lost")
    assert gone > 0
