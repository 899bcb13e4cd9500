"""Rebuilding from the archive: from Parquet segments to a projection that answers queries, and to final ratings.

The archive is made directly with DuckDB in the form that the archivist writes, of the very events that the stream is
filled with at the smaller sizes; there the same rebuild from JetStream is timed in the same run. Each rebuild is a
process of its own and uses one core; its peak memory is measured too. ``--full`` adds ten million matches.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import msgspec
import uvloop

from benchmarks.sizes import size
from league.blobs import file_digest
from league.log.base import RecordedEvent, append_in_batches
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.projections.dedup_index import DedupIndex
from league.projections.projection import Projection, catch_up
from league.projections.segments import SegmentFiles, write_segment
from league.ratings.arrays import fold_arrays
from league.ratings.load import load_matches
from league.run import Run
from schemas.codec import encode_event
from schemas.config import ExperienceConfig, LeagueConfig, RatingsConfig, to_builtins
from schemas.events import LeagueOpened, MatchFinished, SeatResult

SIZES = size((1_000, 10_000, 100_000, 1_000_000), (200,))
FULL_SIZE = 10_000_000
MAX_STREAMED = 100_000
"""Up to this size the stream is rebuilt from too; with ``--full`` up to ten times as much."""

SEGMENT_MATCHES = 100_000
LEAGUE = "bench"
FILL_BATCH = 5_000

CONFIG = LeagueConfig(name=LEAGUE, ratings=RatingsConfig(purposes=("training",)))
OPENED = LeagueOpened(league=LEAGUE, config=to_builtins(CONFIG), model="none")

# Match n as columns; it is event n + 2, since event 1 opens the league. ``x`` is scattered, so that columns do not
# compress better than played ones.
_NUMBERS = """
    SELECT n, n % 8 AS w, n // 8 AS i, n + 2 AS sequence, n * 2654435761 % 4294967296 // 65536 AS x
    FROM range({first}, {end}) t(n)
"""
_AGENT = "'m@' || (x + {s} * 13) % 90"
_SCORE = "(x * ({s} + 3) % 65521 % 7)"
_MATCHES = f"""
    SELECT 'r-' || w || '-' || i AS match_id, sequence, make_timestamp(1700000000000000 + sequence) AS time,
           'nim' AS game, 'training' AS purpose, 'r-' || w AS worker, x * 65537 AS seed, x % 7 AS winner,
           {_AGENT.format(s="x % 7")} AS winner_agent, 'cap' AS reason, 15 AS length, 1.5 AS seconds,
           0 AS tokens, '' AS record, '' AS experience, '' AS evaluation_id, '' AS environment, 1 AS rules
    FROM ({_NUMBERS}) ORDER BY n
"""
_SEATS = f"""
    SELECT 'r-' || w || '-' || i AS match_id, sequence, s AS seat, 'ABCDEFG'[s + 1] AS role,
           {_AGENT.format(s="s")} AS agent, {_SCORE.format(s="s")}::DOUBLE AS score, s + 1 AS rank,
           false AS trainable, MAP {{{{}}}}::MAP(VARCHAR, DOUBLE) AS metrics
    FROM ({_NUMBERS}), range(7) u(s) ORDER BY n, s
"""


def make_match_event(n: int) -> MatchFinished:
    """A seven-seat result, as ``_MATCHES`` and ``_SEATS`` have it."""
    x = n * 2654435761 % 4294967296 // 65536
    seats = [
        SeatResult(
            seat=s, role="ABCDEFG"[s], agent=f"m@{(x + s * 13) % 90}", score=float(x * (s + 3) % 65521 % 7), rank=s + 1
        )
        for s in range(7)
    ]
    return MatchFinished(
        match_id=f"r-{n % 8}-{n // 8}",
        game="nim",
        purpose="training",
        worker=f"r-{n % 8}",
        seed=x * 65537,
        seats=seats,
        winner=x % 7,
        reason="cap",
        length=15,
        seconds=1.5,
    )


def events_sql(first: int, end: int) -> str:
    """SQL for the events of matches as they lie in the history."""
    seats = ",".join(
        f'{{"seat":{s},"role":"{"ABCDEFG"[s]}","agent":"\' || {_AGENT.format(s=s)} || \'",'
        f'"score":\' || {_SCORE.format(s=s)} || \'.0,"rank":{s + 1},"trainable":false,"metrics":{{}}}}'
        for s in range(7)
    )
    payload = (
        '{"type":"MatchFinished","match_id":"r-\' || w || \'-\' || i || \'","game":"nim","purpose":"training",'
        f'"worker":"r-\' || w || \'","seed":\' || x * 65537 || \',"seats":[{seats}],"winner":\' || x % 7 || \','
        '"reason":"cap","length":15,"seconds":1.5,"tokens":0,"record":"","experience":"","evaluation_id":"","ngrams":"",'
        '"environment":"","rules":1,"signature":""}'
    )
    return f"""
        SELECT sequence, 1700000000000000000 + sequence * 1000 AS time_ns, 'MatchFinished' AS type,
               'league.{LEAGUE}.match.training.finished.r-' || w AS subject, 'r-' || w AS producer, 1 AS schema,
               '{payload}' AS payload, NULL::BLOB AS raw
        FROM ({_NUMBERS.format(first=first, end=end)}) ORDER BY n
    """


def make_archive(folder: Path, count: int) -> None:
    """An archive of so many matches, with the list of its files and the marks at its end."""
    marks = DedupIndex()
    opened = RecordedEvent(1, 1_700_000_000_000_000_000, f"league.{LEAGUE}.league.opened", "b", encode_event(OPENED))
    segments = [write_segment(1, 1, [[opened]], marks, folder / "0")]
    for first in range(0, count, SEGMENT_MATCHES):
        end = min(first + SEGMENT_MATCHES, count)
        segments.append(make_segment(folder / str(first + 2), first, end, marks))
    (folder / "segments.json").write_bytes(msgspec.json.encode(segments, enc_hook=str))
    (folder / "marks").write_bytes(marks.to_bytes())


def make_segment(folder: Path, first: int, end: int, marks: DedupIndex) -> SegmentFiles:
    """An empty segment whose three large files are then filled."""
    files = write_segment(first + 2, end + 1, [], marks, folder)
    marks.add("played", [f"r-{n % 8}-{n // 8}" for n in range(first, end)])
    parts = {"matches": _MATCHES, "match_seats": _SEATS}
    queries = {part: query.format(first=first, end=end) for part, query in parts.items()}
    queries["events_bulky"] = events_sql(first, end)
    with duckdb.connect(config={"threads": 2}) as connection:
        for part, query in queries.items():
            path = files.files[part]
            connection.execute(f"CREATE OR REPLACE TEMP TABLE made AS FROM read_parquet('{path}')")
            connection.execute(f"INSERT INTO made BY NAME {query}")
            connection.execute(f"COPY made TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        (payload,) = connection.execute("SELECT payload FROM made LIMIT 1").fetchone() or ("",)
        expected = encode_event(make_match_event(first)).decode()
        assert payload == expected, f"the SQL's events: found {payload}; expected, as they are encoded, {expected}"
    return files


def read_archive(folder: Path) -> tuple[list[SegmentFiles], DedupIndex]:
    """The archive that ``make`` made."""
    segments = msgspec.json.decode(
        (folder / "segments.json").read_bytes(), type=list[SegmentFiles], dec_hook=lambda _, value: Path(value)
    )
    return segments, DedupIndex.from_bytes((folder / "marks").read_bytes())


class RebuildResult(msgspec.Struct):
    """What a measured process says to the one that started it."""

    seconds: dict[str, float]
    processor_s: float
    """Less than the seconds when others wanted the core too."""
    peak_bytes: int
    disk_bytes: int
    """Of the projection's file."""
    ratings: str
    """Digest of the final ratings."""

    @property
    def total(self) -> float:
        """Of all parts."""
        return sum(self.seconds.values())


class LapTimer:
    """Seconds by what they were spent on, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()
        self._processor = time.process_time()

    @property
    def processor_s(self) -> float:
        """Processor time since the beginning."""
        return time.process_time() - self._processor

    def lap(self, what: str) -> None:
        """Note what the time since the last lap was spent on."""
        now = time.perf_counter()
        self.seconds[what], self._at = now - self._at, now


def finish_rebuild(projection: Projection, watch: LapTimer, count: int) -> None:
    """First answer, then final ratings; prints what was measured."""
    assert projection.query("SELECT count(*) FROM matches WHERE winner_agent = 'm@0' OR true") == [(count,)]
    watch.lap("first query")
    matches = load_matches(projection.connection)
    watch.lap("load")
    ratings = fold_arrays(matches)["nim", "elo"]
    watch.lap("fold")
    assert sum(rated.games for rated in ratings) == 7 * count
    path = projection.path
    assert path is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    digest = str(hash(tuple((rated.agent, rated.rating, rated.games) for rated in ratings)))
    print(
        msgspec.json.encode(RebuildResult(watch.seconds, watch.processor_s, peak, path.stat().st_size, digest)).decode()
    )


def warm_up() -> None:
    """Compiled code is loaded once per installation, not once per history."""
    projection = Projection()
    opened = RecordedEvent(1, 1, f"league.{LEAGUE}.league.opened", "b", encode_event(OPENED))
    projection.apply(
        [
            opened,
            RecordedEvent(2, 2, f"league.{LEAGUE}.match.training.finished.r", "b", encode_event(make_match_event(0))),
        ]
    )
    fold_arrays(load_matches(projection.connection))


def rebuild_from_archive(folder: Path, count: int) -> None:
    """Attach the segments to an empty file, then finish."""
    warm_up()
    watch = LapTimer()
    segments, marks = read_archive(folder)
    for segment in segments:
        for path in segment.files.values():
            file_digest(path)
    watch.lap("digests")
    with Projection(folder / "projection.duckdb") as projection:
        projection.attach(segments, marks)
        watch.lap("attach")
        finish_rebuild(projection, watch, count)


async def fill_stream(folder: Path, count: int) -> None:
    """The same history in a stream."""
    async with Run(folder).connect("fill") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, LEAGUE, "fill")
        await log.append(OPENED)
        for start in range(0, count, FILL_BATCH):
            await append_in_batches(log, [make_match_event(n) for n in range(start, min(start + FILL_BATCH, count))])


async def rebuild_from_stream(folder: Path, count: int) -> None:
    """Load the stream into an empty file, then finish."""
    warm_up()
    async with Run(folder).open_log() as history:
        watch = LapTimer()
        with Projection(folder / "projection.duckdb") as projection:
            await catch_up(projection, history)
            watch.lap("load from stream")
            finish_rebuild(projection, watch, count)


def run_rebuild(what: str, folder: Path, count: int) -> RebuildResult:
    """One of the above in a process of its own, on one core."""
    command = [sys.executable, "-m", "benchmarks.bench_archive", "--only", what, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    core = {min(os.sched_getaffinity(0))}
    done = subprocess.run(
        [*command, "--count", str(count)],
        check=True,
        stdout=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    return msgspec.json.decode(done.stdout, type=RebuildResult)


def print_row(count: int, source: str, rebuilt: RebuildResult, disk: int, ratio: str = "") -> None:
    """One line of the table."""
    parts = ", ".join(f"{what} {seconds:.2f}" for what, seconds in rebuilt.seconds.items())
    rate = count / rebuilt.total
    print(
        f"{count:>11,}  {source:<8}{rebuilt.total:>8.2f} s{rebuilt.processor_s:>8.2f} s{rate:>11,.0f}/s"
        f"{rebuilt.peak_bytes / 1e6:>8,.0f} MB{disk / 1e6:>9,.1f} MB  {ratio:<7} ({parts})",
        flush=True,
    )


def measure_size(folder: Path, count: int, streamed: bool) -> None:
    """The lines of one size."""
    archive = folder / f"archive-{count}"
    make_archive(archive, count)
    attached = run_rebuild("archive", archive, count)
    files = sum(path.stat().st_size for path in archive.rglob("*.parquet"))
    print_row(count, "archive", attached, files + attached.disk_bytes)
    if not streamed:
        return
    run = folder / f"run-{count}"
    uvloop.run(fill_stream(run, count))
    loaded = run_rebuild("stream", run, count)
    assert loaded.ratings == attached.ratings, "the two rebuilds give different ratings"
    print_row(count, "stream", loaded, loaded.disk_bytes, f"{loaded.total / attached.total:.1f}×")


def main() -> None:
    """Print the table, or be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="ten million matches too; needs 5 GB of disk")
    parser.add_argument("--only", choices=["archive", "stream"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "archive":
        rebuild_from_archive(given.folder, given.count)
    elif given.only == "stream":
        uvloop.run(rebuild_from_stream(given.folder, given.count))
    else:
        print(
            f"matches of 7 seats, events of {len(encode_event(make_match_event(0)))} bytes; rebuild "
            "to first answer and ratings,"
        )
        print("one core; disk: of what a rebuild leaves, for the archive with its files; ×: stream against archive")
        print(f"{'matches':>11}  {'from':<8}{'time':>10}{'processor':>10}{'matches':>13}{'memory':>11}{'disk':>12}")
        with tempfile.TemporaryDirectory() as folder:
            for count in (*SIZES, *([FULL_SIZE] if given.full else [])):
                measure_size(Path(folder), count, streamed=count <= MAX_STREAMED * (10 if given.full else 1))


if __name__ == "__main__":
    main()
