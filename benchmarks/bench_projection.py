"""Rebuilding the DuckDB projection from JetStream against bare nats-py readers of the same messages.

Two bare readers, both ordered consumers that count messages and leave them undecoded: one asks for the next message,
as the library's documentation does, the other is called back, which is the fastest that the library has. The projection
parses them and writes matches and seats to a file. Each runs in a process of its own, in turns, since memory is
measured too. The last figure is what a person waits for: ``league sql`` from a cold start, on a stopped run whose
projection is up to date.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nats
import uvloop

from benchmarks.sizes import size
from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.codec import encode_event
from schemas.config import ExperienceConfig, LeagueConfig, to_builtins
from schemas.events import LeagueOpened, MatchFinished, SeatResult

LEAGUE = "bench"
SEATS = 7
FILL_BATCH = 5_000
ROUNDS = size(2, 1)
QUERIES = size(5, 1)


def make_match_event(number: int) -> MatchFinished:
    """A seven-seat result of about 500 bytes."""
    seats = [
        SeatResult(seat=s, role="ABCDEFG"[s], agent=f"m@{(number + s) % 90}", score=float((number * s) % 7), rank=s + 1)
        for s in range(SEATS)
    ]
    return MatchFinished(
        match_id=f"r-{number % 8}-{number // 8}",
        game="nim",
        purpose="training",
        worker=f"r-{number % 8}",
        seed=number,
        seats=seats,
        winner=number % SEATS,
        reason="cap",
        length=15,
        seconds=1.5,
    )


def encode_match(number: int) -> bytes:
    """The event as it lies in the history, without fields that are at their defaults."""
    return encode_event(make_match_event(number))


async def fill_stream(folder: Path, count: int) -> None:
    """A history of so many matches."""
    run = Run(folder)
    async with run.connect("fill") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, LEAGUE, "fill")
        await log.append(LeagueOpened(league=LEAGUE, config=to_builtins(LeagueConfig(name=LEAGUE)), model="none"))
        for start in range(0, count, FILL_BATCH):
            await append_in_batches(log, [make_match_event(n) for n in range(start, min(start + FILL_BATCH, count))])


async def read_next_msg(folder: Path, count: int) -> None:
    """Count all messages with an ordered consumer, one ``next_msg`` after the other."""
    with Run(folder)._start_broker() as url:
        client = await nats.connect(url)
        started = time.perf_counter()
        subscription = await client.jetstream().subscribe(
            f"league.{LEAGUE}.>", ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        for _ in range(count + 1):
            await subscription.next_msg(timeout=30)
        print_result(count, time.perf_counter() - started)
        await client.close()


async def read_callback(folder: Path, count: int) -> None:
    """Count all messages with an ordered consumer's callback."""
    with Run(folder)._start_broker() as url:
        client = await nats.connect(url)
        seen, done = 0, asyncio.Event()

        async def arrive(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen > count:
                done.set()

        started = time.perf_counter()
        await client.jetstream().subscribe(
            f"league.{LEAGUE}.>", cb=arrive, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await done.wait()
        print_result(count, time.perf_counter() - started)
        await client.close()


async def rebuild_projection(folder: Path, count: int) -> None:
    """Make the projection's file from nothing."""
    from league.projections.projection import Projection, catch_up

    run = Run(folder)
    async with run.open_log() as history:
        started = time.perf_counter()
        with Projection(run.projection) as projection:
            await catch_up(projection, history)
            took = time.perf_counter() - started
            assert projection.query("SELECT count(*) FROM matches") == [(count,)]
            assert projection.query("SELECT count(*) FROM match_seats") == [(count * SEATS,)]
    print_result(count, took)


CASES = {"bare": read_next_msg, "called": read_callback, "rebuild": rebuild_projection}


def print_result(count: int, seconds: float) -> None:
    """What a measured process says to the one that started it."""
    print(count / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def run_case(what: str, folder: Path, count: int) -> tuple[float, float]:
    """Events per second and peak bytes of one of the above."""
    if what == "rebuild":
        for path in folder.glob("projection.duckdb*"):
            path.unlink()
    command = [sys.executable, "-m", "benchmarks.bench_projection", str(count), "--only", what, "--run", str(folder)]
    rate, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(rate), float(peak)


def time_first_query(folder: Path) -> float:
    """Seconds of a whole ``league sql`` process; the broker is started and stopped in it."""
    command = [str(Path(sys.executable).parent / "league"), "sql", "SELECT count(*) FROM matches", "--run", str(folder)]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(folder: Path, count: int) -> None:
    """Print the table."""
    uvloop.run(fill_stream(folder, count))
    # The broker stays up between the processes: starting it is no part of a rebuild.
    with Run(folder)._start_broker():
        rounds = [[run_case(what, folder, count) for what in CASES] for _ in range(ROUNDS)]
    polled, called_back, rate = [
        max(rates) for rates in zip(*[[m[0] for m in round_] for round_ in rounds], strict=True)
    ]
    peak = max(round_[-1][1] for round_ in rounds)
    file_bytes = (folder / "projection.duckdb").stat().st_size
    waits = [time_first_query(folder) for _ in range(QUERIES)]
    print(
        f"{count:,} events of {len(encode_match(0))} bytes with {SEATS} seats, best of {ROUNDS}, {os.cpu_count()} cores"
    )
    print(f"{'read, undecoded, next_msg':<34}{'bare nats-py':>14}{polled:>10,.0f}/s")
    print(f"{'read, undecoded, callback':<34}{'bare nats-py':>14}{called_back:>10,.0f}/s")
    ratios = f"{rate / polled:.2f}× and {rate / called_back:.2f}×"
    print(f"{'rebuild the projection file':<34}{'projection':>14}{rate:>10,.0f}/s   {ratios}")
    print(f"{'':<34}{'peak memory':>14}{peak / 1e6:>10,.0f} MB   file {file_bytes / 1e6:,.0f} MB")
    print(f"{'league sql, cold start to answer':<34}{'median':>14}{statistics.median(waits):>10.2f} s")


def main() -> None:
    """Measure on a run of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=size(1_000_000, 500), help="events")
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--run", type=Path)
    arguments = parser.parse_args()
    if arguments.only:
        uvloop.run(CASES[arguments.only](arguments.run, arguments.count))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments.run or Path(folder), arguments.count)


if __name__ == "__main__":
    main()
