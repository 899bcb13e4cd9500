"""Service times of a league's parts, for ``benchmarks.simulate_scale``: measured on this machine, a minute in all."""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop

from benchmarks.bench_durability import SYNC_ALWAYS, start_cluster
from benchmarks.bench_workers import BrokerProcesses
from benchmarks.fleet import make_match_event
from benchmarks.scale_model import ServiceTimes
from benchmarks.sizes import size
from league.blobs import BrokerBlobStore
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.metrics import MetricsStream
from league.log.pull import pull_messages
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.metrics import Heartbeat
from schemas.subjects import LEAGUE_STREAM, event_subject, league_subjects
from tests.simulated_history import Simulation

_CONCURRENCY = size(50, 5)
_READERS = size(40, 2)
_ROUNDS = size(20, 1)
_HISTORY = size((20, 100), (3, 5))
"""Gradient steps, and matches of each."""
_BATCHES = size(12, 1)


def measure_costs() -> ServiceTimes:
    """What parts cost here; what the trainer, the archivist and the tracker cost are figures of other benchmarks."""
    fold_us, rate_us = measure_folds()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        broker = BrokerProcesses([json.loads((Path(folder) / "server.json").read_text())["pid"]])
        costs = uvloop.run(_measure_single_broker(server.url, broker))
    with tempfile.TemporaryDirectory() as folder, start_cluster(Path(folder), SYNC_ALWAYS) as url:
        cluster_ms = uvloop.run(_measure_cluster(url))
    found: ServiceTimes = msgspec.structs.replace(costs, fold_us=fold_us, rate_us=rate_us, cluster_ms=cluster_ms)
    return found


def measure_folds() -> tuple[float, float]:
    """Microseconds of an event: decoded and folded into the state; folded into ratings as well."""
    config = LeagueConfig(evaluation=EvaluationConfig(every=10, gatekeeper_games=14, benchmark_games=21))
    history = Simulation(config).run(*_HISTORY)
    state, ratings = LeagueState(), RatingFold(config)
    began = time.process_time()
    # Copies, since a recorded event is decoded once.
    for r in history:
        state.apply(r.sequence, RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, r.payload).event)
    folded = time.process_time()
    for r in history:
        ratings.apply(r.sequence, r.event)
    return 1e6 * (folded - began) / len(history), 1e6 * (time.process_time() - folded) / len(history)


async def _measure_concurrent(rounds: int, work: Callable[[int], Awaitable[object]]) -> float:
    """Milliseconds for each of so many at once."""
    began = time.perf_counter()
    for number in range(rounds):
        await asyncio.gather(*(work(number * _CONCURRENCY + nth) for nth in range(_CONCURRENCY)))
    return 1e3 * (time.perf_counter() - began) / (rounds * _CONCURRENCY)


async def _measure_single_broker(url: str, broker: BrokerProcesses) -> ServiceTimes:
    client = await connect(url, "bench")
    await ensure_streams(client.jetstream(timeout=30), ExperienceConfig())
    log, store, metrics = (
        JetStreamLog(client, "one", "bench"),
        BrokerBlobStore(client, "one"),
        MetricsStream(client, "one"),
    )
    cpu = broker.cpu_s()
    flush_ms = await _measure_concurrent(_ROUNDS, lambda number: log.append(make_match_event("single", number)))
    broker_ms = 1e3 * (broker.cpu_s() - cpu) / (_ROUNDS * _CONCURRENCY)
    record_ms = await _measure_concurrent(4, lambda number: store.put(f"{number:08}".encode() * 150))
    batch_ms = {}
    for length in (10, 100, 500):
        began, rounds = time.perf_counter(), _BATCHES
        for number in range(rounds):
            await log.append_batch(
                [make_match_event(f"batch-{length}", number * length + nth) for nth in range(length)]
            )
        batch_ms[str(length)] = 1e3 * (time.perf_counter() - began) / rounds
    cpu, beats = broker.cpu_s(), 2 * _ROUNDS * _CONCURRENCY
    heartbeat = Heartbeat("w", "rollout", "0", "host", 1, 1.0, 10**8, 0.5, 30, 1000, 0)
    await _measure_concurrent(
        2 * _ROUNDS, lambda number: metrics.publish(msgspec.structs.replace(heartbeat, worker=f"w{number}"))
    )
    beat_ms = 1e3 * (broker.cpu_s() - cpu) / beats
    deliver_us = await _measure_delivery(url, broker)
    event = make_match_event("single", 1)
    await flush_and_close(client)
    return ServiceTimes(
        flush_ms=flush_ms,
        batch_ms=batch_ms,
        record_ms=record_ms,
        broker_ms=broker_ms,
        beat_ms=beat_ms,
        deliver_us=deliver_us,
        # On its way an event has a line of the protocol, its subject, a reply subject and headers.
        event_bytes=len(encode_event(event)) + len(event_subject("one", event)) + 300,
    )


async def _measure_delivery(url: str, broker: BrokerProcesses) -> float:
    """Processor time of the broker, in microseconds, for an event that one of many readers is sent."""
    clients = [await connect(url, "reader") for _ in range(_READERS)]
    last = await JetStreamLog(clients[0], "one", "bench").last_sequence()

    async def read(number: int) -> int:
        messages = pull_messages(clients[number], LEAGUE_STREAM, league_subjects("one"), 1, last)
        return sum([len(batch) async for batch in messages])

    cpu = broker.cpu_s()
    count = sum(await asyncio.gather(*map(read, range(_READERS))))
    taken = 1e6 * (broker.cpu_s() - cpu) / count
    await asyncio.gather(*map(flush_and_close, clients))
    return taken


async def _measure_cluster(url: str) -> float:
    client = await connect(url, "bench")
    await ensure_streams(client.jetstream(timeout=5), ExperienceConfig())
    log = JetStreamLog(client, "three", "bench")
    found = await _measure_concurrent(_ROUNDS, lambda number: log.append(make_match_event("single", number)))
    await flush_and_close(client)
    return found
