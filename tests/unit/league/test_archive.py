"""The archive holds exactly what was recorded; what is damaged in it comes from the store again, or from the stream."""

import asyncio
import os
from pathlib import Path

import duckdb
import msgspec
import pytest
from structlog.testing import capture_logs

from league.blobs import CachedBlobStore, FolderBlobStore
from league.integrity.archive import (
    ArchiveManifest,
    archive_history,
    archived_batches,
    event_digest,
    fetch_attachable,
    newest_manifest,
    next_segment_start,
)
from league.log.base import RecordedEvent
from league.projections.export import export_tables
from league.projections.projection import Projection
from schemas.config import EvaluationConfig, LeagueConfig, PromotionConfig
from schemas.errors import DecodeError, LogError
from schemas.events import ArtifactStored, HistoryArchived
from schemas.ids import digest
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

HISTORY = Simulation(
    LeagueConfig(
        seed=4,
        promotion=PromotionConfig(rule="high_score"),
        evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7),
    ),
    registers=True,
).run(20, 3)
EVERY = 100


def store_in(folder: Path) -> CachedBlobStore:
    return CachedBlobStore(FolderBlobStore(folder / "store"), FolderBlobStore(folder / "cache"))


async def recorded_log() -> MemoryLog:
    log = MemoryLog()
    await log.copy(HISTORY)
    return log


async def archived_log(artifacts: CachedBlobStore) -> tuple[MemoryLog, ArchiveManifest]:
    """Two segments and a tail."""
    log = await recorded_log()
    await archive_history(log, artifacts, EVERY)
    manifest = await newest_manifest(log, artifacts)
    assert manifest is not None
    return log, manifest


def plain(records: list[RecordedEvent]) -> list[tuple[object, ...]]:
    return [(r.sequence, r.time_ns, r.subject, r.producer, r.schema, r.payload) for r in records]


def edited(recorded: RecordedEvent, payload: bytes) -> RecordedEvent:
    return RecordedEvent(
        recorded.sequence, recorded.time_ns, recorded.subject, recorded.producer, payload, recorded.schema
    )


async def read_archived(
    log: MemoryLog, artifacts: CachedBlobStore, first: int, last: int | None
) -> list[RecordedEvent]:
    return [r async for batch in archived_batches(log, artifacts, first, last) for r in batch]


def part_of(manifest: ArchiveManifest, segment: int, part: str = "events_bulky") -> str:
    return manifest.segments[segment].files[part].digest


def spoil(store: FolderBlobStore, name: str, how: str) -> None:
    path = store.path(name)
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[:-100])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_segments_follow_one_another_from_the_first_event_on(tmp_path: Path) -> None:
    async def body() -> None:
        log, manifest = await archived_log(store_in(tmp_path))
        assert [(s.first, s.last, s.events) for s in manifest.segments] == [(1, 100, 100), (101, 200, 100)]
        newest = await log.newest(HistoryArchived)
        assert newest is not None
        assert manifest.digests() == {event.manifest: event.last async for _, event in log.read_events(HistoryArchived)}
        assert newest.event.manifest == digest(manifest.encode())  # type: ignore[union-attr]

    asyncio.run(body())


@pytest.mark.parametrize(("first", "last"), [(1, None), (1, 100), (57, 158), (101, 250), (230, None), (150, 120)])
def test_history_read_through_the_archive_is_the_history(tmp_path: Path, first: int, last: int | None) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, _ = await archived_log(artifacts)
        expected = [r async for r in log.read(first, last)]
        assert plain(await read_archived(log, artifacts, first, last)) == plain(expected)

    asyncio.run(body())


def test_archiving_goes_on_where_it_ended_and_gives_the_same_however_often_it_was_interrupted(tmp_path: Path) -> None:
    async def body() -> None:
        _, at_once = await archived_log(store_in(tmp_path / "one"))
        artifacts, log = store_in(tmp_path / "two"), await recorded_log()
        refused = FullAfter(log, 1)
        with pytest.raises(LogError, match="stop here"):
            # The second segment's files are stored, the event that says so is not recorded.
            await archive_history(refused, artifacts, EVERY)
        assert (await newest_manifest(log, artifacts)).last == 100  # type: ignore[union-attr]
        assert [event.last for event in await archive_history(log, artifacts, EVERY)] == [200]
        assert await newest_manifest(log, artifacts) == at_once
        assert await archive_history(log, artifacts, EVERY) == []

    asyncio.run(body())


class FullAfter(MemoryLog):
    """Shares another log's events and records so many more."""

    def __init__(self, log: MemoryLog, appends: int) -> None:
        self.__dict__ = log.__dict__
        self.left = appends

    async def append(self, event: object, *, expected: int | None = None) -> int:
        if self.left == 0:
            raise LogError("stop here")
        self.left -= 1
        return await super().append(event, expected=expected)  # type: ignore[arg-type]


def test_what_is_not_as_it_was_first_read_is_not_archived(tmp_path: Path) -> None:
    async def body() -> None:
        witness = {recorded.sequence: event_digest(recorded) for recorded in HISTORY}
        for changed in ([*HISTORY[:30], edited(HISTORY[30], HISTORY[30].payload + b" "), *HISTORY[31:]], HISTORY[:30]):
            log = MemoryLog()
            await log.copy([*changed, *HISTORY[31:]] if len(changed) == 30 else changed)
            with pytest.raises(LogError, match=r"event 31 is not what this archivist read before"):
                await archive_history(log, store_in(tmp_path), EVERY, witness=witness)
            assert await log.newest(HistoryArchived) is None
        assert await archive_history(await recorded_log(), store_in(tmp_path), EVERY, witness=witness)

    asyncio.run(body())


def test_the_rest_is_archived_unless_it_is_an_archivists_own(tmp_path: Path) -> None:
    async def body() -> None:
        log = await recorded_log()
        done = await archive_history(log, store_in(tmp_path), EVERY, rest=True)
        assert done[-1].last == len(HISTORY)
        assert await archive_history(log, store_in(tmp_path), EVERY, rest=True) == []

    asyncio.run(body())


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
def test_a_bad_file_of_the_cache_is_fetched_again_without_a_word(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        spoil(artifacts.cache, part_of(manifest, 0), how)
        with capture_logs() as logs:
            found = await fetch_attachable(log, artifacts, 0)
        assert found is not None
        assert [(s.first, s.last) for s in found.segments] == [(1, 100), (101, 200)]
        assert logs == []

    asyncio.run(body())


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
@pytest.mark.parametrize("segment", [0, 1])
def test_a_segment_that_is_bad_in_the_store_too_comes_from_the_stream_with_one_warning(
    tmp_path: Path, how: str, segment: int
) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        for store in (artifacts.cache, artifacts.store):
            spoil(store, part_of(manifest, segment), how)  # type: ignore[arg-type]
        with capture_logs() as logs:
            records = await read_archived(log, artifacts, 1, None)
        assert plain(records) == plain([r async for r in log.read()])
        assert [entry["first"] for entry in logs] == [1 + 100 * segment]
        with capture_logs() as logs:
            found = await fetch_attachable(log, artifacts, 0)
        assert len(logs) == 1
        assert [s.last for s in found.segments] == [100] if segment else found is None  # type: ignore[union-attr]

    asyncio.run(body())


def test_a_projection_goes_on_from_attached_segments(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, _ = await archived_log(artifacts)
        with Projection() as attached, Projection() as loaded:
            found = await fetch_attachable(log, artifacts, 0)
            assert found is not None
            attached.attach(found.segments, found.marks)
            assert attached.position == 200
            assert await fetch_attachable(log, artifacts, 150) is None, "in the middle of a segment"
            attached.apply([r async for r in log.read(201)])
            loaded.apply([r async for r in log.read()])
            for table in ("leaderboard", "matches", "agents"):
                query = f"SELECT * FROM {table} ORDER BY ALL"
                assert attached.query(query) == loaded.query(query)

    asyncio.run(body())


def test_past_a_damaged_segment_the_others_are_attached(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        for store in (artifacts.cache, artifacts.store):
            spoil(store, part_of(manifest, 0), "flipped")  # type: ignore[arg-type]
        with Projection() as attached, Projection() as loaded:
            assert await fetch_attachable(log, artifacts, 0) is None
            assert await next_segment_start(log, artifacts, 0) == 101
            attached.apply([r async for r in log.read(1, 100)])
            found = await fetch_attachable(log, artifacts, 100)
            assert found is not None
            attached.attach(found.segments, found.marks)
            assert await next_segment_start(log, artifacts, 200) is None
            attached.apply([r async for r in log.read(201)])
            loaded.apply([r async for r in log.read()])
            query = "SELECT * FROM match_seats ORDER BY ALL"
            assert attached.query(query) == loaded.query(query)

    asyncio.run(body())


async def announce(log: MemoryLog, artifacts: CachedBlobStore, manifest: ArchiveManifest) -> MemoryLog:
    """The history with a manifest that no archivist wrote as its newest."""
    name = await artifacts.put(msgspec.json.encode(manifest))
    other = MemoryLog()
    await other.copy([r async for r in log.read()])
    await other.append(HistoryArchived(first=1, last=manifest.last, manifest=name, bytes=0))
    return other


@pytest.mark.parametrize("how", ["gap", "part"])
def test_a_manifest_that_leaves_something_out_is_passed_over(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        segments = manifest.segments[1:]
        if how == "part":
            segments = [msgspec.structs.replace(manifest.segments[0], files={}), *segments]
        log = await announce(log, artifacts, msgspec.structs.replace(manifest, segments=segments))
        assert await newest_manifest(log, artifacts) == manifest
        assert plain(await read_archived(log, artifacts, 1, None)) == plain([r async for r in log.read()])

    asyncio.run(body())


def test_thousands_of_the_longest_artifacts_are_archived_and_exported(tmp_path: Path) -> None:
    async def body() -> list[RecordedEvent]:
        artifacts, log = store_in(tmp_path), await recorded_log()
        for nth in range(3000):
            content = {"text": f"{nth} {'x' * 60_000}"}
            await log.append(ArtifactStored("topics", f"a{nth}", content, 1.0, f"m{nth}", 0, "rollout-1"))
        last = await log.last_sequence()
        done = await archive_history(log, artifacts, 50_000, rest=True)
        assert done[-1].last >= last
        records = [r async for r in log.read()]
        assert plain(await read_archived(log, artifacts, last - 1, last)) == plain(records[last - 2 : last])
        return records

    records = asyncio.run(body())
    with Projection(tmp_path / "projection.duckdb") as projection:
        projection.apply(records)
    export_tables(tmp_path / "projection.duckdb", tmp_path / "tables")
    stored = f"'{tmp_path}/tables/events/*/*.parquet'"
    found = duckdb.sql(f"SELECT count(*), count(DISTINCT sequence), max(strlen(payload)) FROM {stored}").fetchall()
    assert found == [(len(records), len(records), max(len(r.payload) for r in records))]


def test_what_a_killed_archivist_left_is_removed_in_time(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        old, young = (artifacts.cache.folder / name for name in ("segment-old", "segment-young"))
        for folder in (old, young):
            folder.mkdir(parents=True)
            (folder / "matches.parquet").write_bytes(b"half")
        os.utime(old, (1, 1))
        # Listed and not there, as one that another archivist removes meanwhile.
        gone = artifacts.cache.folder / "segment-gone"
        gone.symlink_to(tmp_path / "nowhere")
        await archived_log(artifacts)
        assert set(artifacts.cache.folder.glob("segment-*")) == {young, gone}

    asyncio.run(body())


def test_bytes_that_nest_without_end_are_no_manifest() -> None:
    with pytest.raises(DecodeError, match="not the manifest"):
        ArchiveManifest.decode(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
