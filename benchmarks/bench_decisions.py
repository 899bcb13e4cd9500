"""Reading decisions after many matches: ``league sql`` over the view ``decisions``, and the pages that read it.

A run of so many matches with six decisions each, in segments as workers write them: the questions of games of words
(the same rules, then one of many positions; 800 characters), and the credit of trained steps. Each statement is a whole
``league sql`` process, with the start of the run's broker; memory is that of its largest process, which holds what
DuckDB takes. The pages are read in one process of the web server, whose tables have 200 MB.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import uvloop

from benchmarks.sizes import require_package, size
from league.integrity.archive import archive_history
from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.queries.conversation import DECISION_COLUMNS
from league.queries.live_league import open_live_league
from league.queries.pages import RequestParams
from league.queries.pages.training import step_decisions
from league.run import Run
from schemas.config import ExperienceConfig, LeagueConfig, to_builtins
from schemas.decisions import CreditRow, DecisionNote
from schemas.events import LeagueOpened, MatchFinished, SeatResult
from schemas.jobs import PlayMatch
from schemas.trajectories import ModelCall

LEAGUE = "bench"
DECISIONS = 6
"""Decisions of a match."""
STEP_MATCHES = 128
FLUSH_MATCHES = 500
"""Matches of a segment: of a long run, what a worker plays in ten minutes."""
POSITIONS = 50_000
RULES_WORDS, POSITION_WORDS, REPLY_WORDS = 100, 32, 8
TEXT = Path(__file__).parents[1] / "docs" / "concepts.md"
WORKERS = ("rollout-1", "rollout-2")

STATEMENTS = {
    "first row": "SELECT * FROM decisions LIMIT 1",
    "a match": "SELECT * FROM decisions WHERE match_id = '{match}'",
    "a step": "SELECT * FROM decisions WHERE step = {step}",
    "ten replies of a step": "SELECT reply, advantage FROM decisions WHERE step = {step} ORDER BY advantage LIMIT 10",
    "join with matches": "SELECT winner_agent, count(*), avg(advantage) FROM decisions JOIN matches USING (match_id) "
    "GROUP BY 1",
    "replies by step": "SELECT step, avg(length(reply)) FROM decisions GROUP BY 1 ORDER BY 1",
}


def match_id(number: int) -> str:
    """Id of a match; the workers play in turns."""
    return f"{WORKERS[number % len(WORKERS)]}-{number // len(WORKERS)}"


def make_call(prompt_ids: list[int], rng: Random, words: int) -> ModelCall:
    """A reply to a prompt."""
    reply = [rng.randrange(words) + 3 for _ in range(REPLY_WORDS)]
    allowed: list[list[int]] = [[] for _ in reply]
    return ModelCall(prompt_ids, reply, list(range(REPLY_WORDS)), [-0.5] * REPLY_WORDS, allowed, 1, 0, 0.0)


async def fill(folder: Path, count: int) -> None:
    """A run of so many matches, with its archive."""
    # Imported here: what is measured later has no part of it in memory.
    from models import Tokenizer, make_base
    from workers.decisions import CreditWriter, DecisionWriter, seat_columns
    from workers.runtime import Context

    run, rng = Run(folder), Random(0)
    text = TEXT.read_text().split()
    words = sorted(set(text))
    tokenizer = Tokenizer(make_base(folder / "model", words))
    rules = tokenizer.encode(text[:RULES_WORDS])
    positions = [
        [*rules, *(rng.randrange(len(words)) + 3 for _ in range(POSITION_WORDS))] for _ in range(min(POSITIONS, count))
    ]
    async with run.connect("fill") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, LEAGUE, "fill")
        await log.append(LeagueOpened(league=LEAGUE, config=to_builtins(LeagueConfig(name=LEAGUE)), model="none"))
        contexts = [Context(run, client, JetStreamLog(client, LEAGUE, name), name) for name in (*WORKERS, "trainer")]
        writers = [DecisionWriter(context, tokenizer) for context in contexts[:-1]]
        credit = CreditWriter(contexts[-1])
        for start in range(0, count, FLUSH_MATCHES):
            events = []
            for number in range(start, min(start + FLUSH_MATCHES, count)):
                worker, step = number % len(WORKERS), number // STEP_MATCHES + 1
                job = PlayMatch(match_id(number), "training", [f"main@{step}", "random_bot"], number)
                columns = seat_columns(job, 0, WORKERS[worker], "main", ["random_bot"], [1000.0], 1.0, 1)
                calls = [make_call(rng.choice(positions), rng, len(words)) for _ in range(DECISIONS)]
                writers[worker].add(columns, calls, [DecisionNote("take 2", ["take 1", "take 2"])] * DECISIONS)
                credit.add(
                    [
                        CreditRow(job.match_id, 0, call, "main", step, "trained", 1.0, rng.gauss(0, 1))
                        for call in range(DECISIONS)
                    ]
                )
                seats = [SeatResult(seat, "", agent, 1.0 - seat, seat + 1) for seat, agent in enumerate(job.seats)]
                played = (job.match_id, "nim", "training", WORKERS[worker], number, seats, number % 2, "", 12, 1.0)
                events.append(MatchFinished(*played))
            await append_in_batches(log, events)
            await asyncio.gather(credit.close(), *(writer.close() for writer in writers))
        await archive_history(log, run.open_blob_store(client, LEAGUE), LeagueConfig().history.archive_events)


TIMER = """
import resource, subprocess, sys, time
started = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
took, usage = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
print(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
"""
"""A small process that starts another one, since the peak of a process begins at the memory of what started it."""


def time_statement(folder: Path, statement: str) -> list[float]:
    """Wall and processor seconds of a ``league sql`` process with its children, and peak bytes of the largest."""
    command = [sys.executable, "-m", "ui", "sql", statement, "--format", "json", "--run", str(folder)]
    timed = subprocess.run([sys.executable, "-c", TIMER, *command], check=True, capture_output=True, text=True)
    return [float(figure) for figure in timed.stdout.split()]


def peak_bytes() -> int:
    """Peak memory of this process."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


async def read_pages(folder: Path, count: int) -> None:
    """What the pages of a step and of a match take once the web server is up, and its peak memory."""
    run = Run(folder)
    async with run.open_log() as history, open_live_league(run, history) as league:
        await league.attach_decisions()
        step = str(count // STEP_MATCHES // 2 + 1)
        of_match = f"SELECT {DECISION_COLUMNS} FROM decisions WHERE match_id = ?"
        asked = RequestParams({"policy": "main", "step": step, "limit": "500"}, {})
        for name, read in (
            ("page of a step", lambda: step_decisions(league, asked)),
            ("page of a match", lambda: league.decisions(of_match, match_id(count // 2))),
        ):
            started, cpu_s = time.perf_counter(), time.process_time()
            await read()
            seconds = time.perf_counter() - started, time.process_time() - cpu_s
            print_row(name, *seconds, peak_bytes())


def print_row(name: str, seconds: float, cpu_s: float, peak: float) -> None:
    """A line of the table."""
    print(f"{name:<24}{seconds:>8.2f} s{cpu_s:>10.2f} s of processor time{peak / 1e6:>10,.0f} MB", flush=True)


def measure(folder: Path, count: int) -> None:
    """Print the table."""
    if not (folder / "nats").exists():
        started = time.perf_counter()
        uvloop.run(fill(folder, count))
        print(f"{count:,} matches, {count * DECISIONS:,} decisions written in {time.perf_counter() - started:.0f} s")
    place = {"match": match_id(count // 2), "step": count // STEP_MATCHES // 2 + 1}
    # The first one builds the tables.
    for name, statement in {"the first of all": "SELECT count(*) FROM decisions", **STATEMENTS}.items():
        print_row(name, *time_statement(folder, statement.format(**place)))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    command = [sys.executable, "-m", "benchmarks.bench_decisions", str(count), "--pages", "--run", str(folder)]
    subprocess.run(command, check=True)


def main() -> None:
    """Measure on a run of its own."""
    require_package("pyarrow")
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=size(100_000, 1_000), help="matches")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--run", type=Path, help="folder, which is kept")
    arguments = parser.parse_args()
    if arguments.pages:
        uvloop.run(read_pages(arguments.run, arguments.count))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments.run or Path(folder), arguments.count)


if __name__ == "__main__":
    main()
