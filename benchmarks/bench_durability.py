"""The cost of flushing before an acknowledgement: one broker or three, flushing always or every two minutes.

Two minutes is the broker's default, and what a bare client of it gets: ratios are against that, in the same run.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.bench_log import make_match_event
from benchmarks.sizes import size
from league.log.cluster import LocalCluster
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import find_nats_server, free_port, spawn, terminate
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig

SYNC_LAZY = "2m"
SYNC_ALWAYS = "always"
SINGLE_EVENTS = size(500, 5)
GATHERED_ROUNDS = size(20, 1)
BATCHED_EVENTS = size(2_000, 100)
BATCH_SIZES = size((10, 100, 500), (10,))

_SINGLE = """\
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{
  store_dir: "{store}"
  sync_interval: {sync}
}}
"""


@contextmanager
def start_broker(folder: Path, sync: str) -> Iterator[str]:
    """One broker."""
    port, config = free_port(), folder / "nats.conf"
    config.write_text(_SINGLE.format(port=port, store=folder / "store", sync=sync))
    pid = spawn([find_nats_server(), "-c", str(config)], folder / "server.log")
    time.sleep(0.5)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        terminate(pid)


@contextmanager
def start_cluster(folder: Path, sync: str) -> Iterator[str]:
    """Three of them, with three copies of every stream."""
    with LocalCluster(folder, sync=sync) as nodes:
        yield nodes.url


async def measure_latency(count: int, work: Callable[[int], Awaitable[object]]) -> tuple[float, float, float]:
    """Events per second, and how long one took in milliseconds: the median, and what 99 of 100 were within."""
    took, began = [], time.perf_counter()
    for number in range(count):
        started = time.perf_counter()
        await work(number)
        took.append((time.perf_counter() - started) * 1e3)
    took.sort()
    return count / (time.perf_counter() - began), took[count // 2], took[count * 99 // 100]


async def measure(url: str) -> dict[str, tuple[float, float, float]]:
    """Rates by way of appending."""
    client = await connect(url, "bench")
    await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
    rows: dict[str, tuple[float, float, float]] = {}
    log = JetStreamLog(client, "single", "bench")
    rows["one at a time"] = await measure_latency(
        SINGLE_EVENTS, lambda number: log.append(make_match_event("single", number))
    )
    side = JetStreamLog(client, "side", "bench")

    async def together(number: int) -> None:
        await asyncio.gather(*(side.append(make_match_event("side", number * 50 + nth)) for nth in range(50)))

    rate, median, most = await measure_latency(GATHERED_ROUNDS, together)
    rows["50 at once"] = (rate * 50, median, most)
    for length in BATCH_SIZES:
        batches = JetStreamLog(client, f"batch{length}", "bench")

        async def batch(number: int, length: int = length, batches: JetStreamLog = batches) -> None:
            await batches.append_batch(
                [make_match_event(batches.league, number * length + nth) for nth in range(length)]
            )

        rate, median, most = await measure_latency(max(BATCHED_EVENTS // length, 8), batch)
        rows[f"batches of {length}"] = (rate * length, median, most)
    await flush_and_close(client)
    return rows


def main() -> None:
    """Measure all four, and print a table."""
    found = {}
    for name, place in (("one broker", start_broker), ("three brokers", start_cluster)):
        for sync in (SYNC_LAZY, SYNC_ALWAYS):
            with tempfile.TemporaryDirectory() as folder, place(Path(folder), sync) as url:
                found[name, sync] = uvloop.run(asyncio.wait_for(measure(url), 240))
    peer = found["one broker", SYNC_LAZY]
    print(
        "acknowledged events a second, p50 and p99 of an acknowledgement, ratio to one broker that flushes every 2 min"
    )
    for (name, sync), rows in found.items():
        for way, (rate, median, most) in rows.items():
            ratio = rate / peer[way][0]
            print(f"{name:<14} {sync:<7} {way:<16}{rate:>9,.0f}/s {median:>8.2f} ms {most:>8.2f} ms   {ratio:.2f}×")


if __name__ == "__main__":
    main()
