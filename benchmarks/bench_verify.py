"""``league verify`` with its blobs, beside plain SHA-256 of the same bytes.

A run of adapters and game records, sealed; the history is verified through the broker as the command does. Plain
SHA-256 reads the same bytes from files, one after the other in one thread. Processor time is that of this process, and
that of the broker in brackets.
"""

import asyncio
import hashlib
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import psutil
import uvloop

from benchmarks.sizes import size
from league.blobs import CachedBlobStore
from league.integrity.audit import audit_integrity
from league.integrity.blob_scrub import scrub_blobs
from league.integrity.garbage import collect_references
from league.integrity.seals import seal_through
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig, LeagueConfig, to_builtins
from schemas.errors import ExitCode
from schemas.events import Event, LeagueOpened, PolicyPublished
from tests.builders import match_finished

ADAPTERS, ADAPTER_BYTES = size((200, 4_700_000), (3, 700_000))
MATCHES_PER_ADAPTER, RECORD_BYTES = size((10, 30_000), (6, 1_000))
PARALLEL_PUTS, BATCH = 16, 500
CONFIG = LeagueConfig(name="bench")
Item = TypeVar("Item")


def make_blobs() -> Iterator[tuple[str, bytes]]:
    """Adapters and records: kind and bytes, the same at every call."""
    rng = random.Random(7)
    for _ in range(ADAPTERS):
        yield "adapter", rng.randbytes(ADAPTER_BYTES)
        for _ in range(MATCHES_PER_ADAPTER):
            yield "record", rng.randbytes(RECORD_BYTES)


async def fill_run(log: JetStreamLog, blobs: CachedBlobStore, folder: Path) -> int:
    """Store blobs and the events that refer to them; returns the total size of the blobs, which also lie in files."""
    total = version = 0
    events: list[Event] = [LeagueOpened(league=CONFIG.name, config=to_builtins(CONFIG), model="none")]
    for group in batched(make_blobs(), PARALLEL_PUTS):
        names = await asyncio.gather(*(blobs.store.put(data) for _, data in group))
        for name, (kind, data) in zip(names, group, strict=True):
            (folder / name).write_bytes(data)
            total += len(data)
            if kind == "adapter":
                events.append(PolicyPublished(policy="main", version=version, adapter=name, parent=""))
                version += 1
            else:
                match_id = f"people-{len(events)}"
                events.append(match_finished(match_id=match_id, purpose="exhibition", worker="people", record=name))
    for part in batched(events, BATCH):
        await log.append_batch(part)
    await seal_through(log, await log.last_sequence(), 5_000)
    return total


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Lists of ``count`` items, the last one shorter."""
    left = iter(items)
    while part := list(islice(left, count)):
        yield part


def hash_files(folder: Path) -> None:
    """Plain SHA-256 of all files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256").hexdigest()


class Timer:
    """Wall and processor time of one measurement."""

    def __init__(self, broker: psutil.Process) -> None:
        self._broker = broker
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        used = self._broker.cpu_times()
        return time.perf_counter(), time.process_time(), used.user + used.system

    def print_row(self, what: str, total: int) -> None:
        """Print the time since the beginning, and bytes by time."""
        wall, processor, broker = (now - began for now, began in zip(self._now(), self._began, strict=True))
        rate = total / 1e6
        print(
            f"{what:<42}{wall:>8.2f} s{processor:>8.2f} s{f'({broker:.2f} s)':>11}{rate / wall:>9,.0f} MB/s"
            f"{rate / (processor + broker):>9,.0f} MB/s of processor time",
            flush=True,
        )


def broker_process(run: Run) -> psutil.Process:
    """The run's embedded broker."""
    assert run._server is not None
    running = run._server._read_running()
    assert running is not None
    return psutil.Process(running.pid)


async def measure(folder: Path) -> None:
    """Fill a run and print the table."""
    run, files = Run(folder / "run", name=CONFIG.name), folder / "files"
    files.mkdir()
    async with run.connect("bench") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log, blobs = JetStreamLog(client, CONFIG.name, "people"), run.open_blob_store(client, CONFIG.name)
        total = await fill_run(log, blobs, files)
        events = await log.last_sequence()
        records = ADAPTERS * MATCHES_PER_ADAPTER
        print(f"{ADAPTERS} adapters and {records:,} records, {total / 1e6:,.0f} MB; {events:,} events")
        print(f"{'':<42}{'wall':>10}{'processor':>10}{'(broker)':>11}")
        broker = broker_process(run)
        timer = Timer(broker)
        hash_files(files)
        timer.print_row("plain SHA-256 of files, one thread", total)
        references = await collect_references(log, blobs)
        timer = Timer(broker)
        report = await scrub_blobs(blobs, references, client)
        timer.print_row("blobs alone", total)
        assert (report.bytes, report.faults) == (total, [])
        timer = Timer(broker)
        found = await audit_integrity(log, blobs, client=client, scrubbed=lambda done, total: None)
        timer.print_row("verify: seals, references, blobs", total)
        assert found.outcome is ExitCode.SUCCESS, found.references.first[:3]
        timer = Timer(broker)
        singly = await scrub_blobs(blobs, references)
        timer.print_row("blob by blob through the store", total)
        assert singly.checked == report.checked


def main() -> None:
    """Measure in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
