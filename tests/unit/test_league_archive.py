"""The archive holds exactly what was sealed; what is damaged in it comes from the store again, or from the stream."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from league.blobs import CachedBlobStore, FolderBlobStore
from league.integrity.archive import (
    ArchiveFile,
    ArchiveManifest,
    archive_sealed,
    archived_batches,
    fetch_attachable,
    newest_manifest,
    next_segment_start,
)
from league.integrity.audit import audit_integrity
from league.integrity.seals import seal_through
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from schemas.config import EvaluationConfig, LeagueConfig, PromotionConfig
from schemas.errors import DecodeError, ExitCode, LogError
from schemas.events import AgentRetired, HistoryArchived
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
"""Of five seals."""


def store_in(folder: Path) -> CachedBlobStore:
    return CachedBlobStore(FolderBlobStore(folder / "store"), FolderBlobStore(folder / "cache"))


async def sealed_log() -> MemoryLog:
    log = MemoryLog()
    await log.copy(HISTORY)
    await seal_through(log, len(HISTORY), 20)
    return log


async def archived_log(artifacts: CachedBlobStore) -> tuple[MemoryLog, ArchiveManifest]:
    """Two segments of five seals each, and a tail."""
    log = await sealed_log()
    await archive_sealed(log, artifacts, EVERY)
    manifest = await newest_manifest(log, artifacts)
    assert manifest is not None
    return log, manifest


def plain(records: list[RecordedEvent]) -> list[tuple[object, ...]]:
    return [(r.sequence, r.time_ns, r.subject, r.producer, r.schema, r.payload) for r in records]


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


def test_segments_are_whole_seals_from_the_first_event_on(tmp_path: Path) -> None:
    async def body() -> None:
        log, manifest = await archived_log(store_in(tmp_path))
        assert [(s.first, s.last, s.events) for s in manifest.segments] == [(1, 100, 100), (101, 200, 100)]
        newest = await log.newest(HistoryArchived)
        assert newest is not None
        assert newest.event.seal == manifest.segments[-1].seal  # type: ignore[union-attr]

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
        artifacts, log = store_in(tmp_path / "two"), await sealed_log()
        refused = FullAfter(log, 1)
        with pytest.raises(LogError, match="stop here"):
            # The second segment's files are stored, the event that says so is not recorded.
            await archive_sealed(refused, artifacts, EVERY)
        assert (await newest_manifest(log, artifacts)).last == 100  # type: ignore[union-attr]
        assert [event.last for event in await archive_sealed(log, artifacts, EVERY)] == [200]
        assert await newest_manifest(log, artifacts) == at_once
        assert await archive_sealed(log, artifacts, EVERY) == []

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


def test_what_is_sealed_and_fills_no_segment_is_archived_by_hand_only(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, _ = await archived_log(artifacts)
        last = await log.last_sequence()
        await seal_through(log, last, 20)
        done = await archive_sealed(log, artifacts, 10_000, rest=True)
        assert [event.first for event in done] == [201]
        assert len(HISTORY) <= done[0].last <= last
        await seal_through(log, await log.last_sequence(), 20)
        assert await archive_sealed(log, artifacts, 10_000, rest=True) == [], "its own book-keeping is not worth it"

    asyncio.run(body())


def test_what_is_not_as_it_was_sealed_is_not_archived(tmp_path: Path) -> None:
    async def body() -> None:
        records = [r async for r in (await sealed_log()).read()]
        victim = records[30]
        records[30] = RecordedEvent(
            31, victim.time_ns, victim.subject, victim.producer, victim.payload + b" ", victim.schema
        )
        log = MemoryLog()
        await log.copy(records)
        with pytest.raises(LogError, match=r"events 21 to 40 are not what was sealed"):
            await archive_sealed(log, store_in(tmp_path), EVERY)
        assert await log.newest(HistoryArchived) is None

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


def test_damage_in_the_archive_is_told_from_damage_in_the_stream(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        assert (await audit_integrity(log, artifacts)).outcome is ExitCode.SUCCESS
        spoil(artifacts.store, part_of(manifest, 1), "flipped")  # type: ignore[arg-type]
        found = await audit_integrity(log, artifacts)
        assert [(d.where, d.first, d.last) for d in found.damage] == [("archive", 101, 200)]
        assert "is damaged" in found.damage[0].what

    asyncio.run(body())


def test_damage_in_the_stream_leaves_the_archive_sound(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, _ = await archived_log(artifacts)
        records = [r async for r in log.read()]
        other = MemoryLog()
        await other.copy([r for r in records if r.sequence != 77])
        found = await audit_integrity(other, artifacts)
        assert [(d.where, d.first, d.last) for d in found.damage] == [("stream", 61, 80)]
        assert found.archived_to == 200

    asyncio.run(body())


def test_a_forged_segment_is_found_by_its_events(tmp_path: Path) -> None:
    async def body() -> None:
        # Files and manifest agree with one another; only the seals know that the events are others.
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        records = [r async for r in log.read()]
        forged = MemoryLog()
        changed = AgentRetired(agent="x", reason="y")
        await forged.copy(
            [
                r if r.sequence != 5 else RecordedEvent(5, 1, r.subject, "x", msgspec.json.encode(changed))
                for r in HISTORY
            ]
        )
        await seal_through(forged, len(HISTORY), 20)
        await archive_sealed(forged, artifacts, EVERY)
        other = await newest_manifest(forged, artifacts)
        segments = [other.segments[0], manifest.segments[1]]  # type: ignore[union-attr]
        name = await artifacts.put(msgspec.json.encode(msgspec.structs.replace(manifest, segments=segments)))
        log = MemoryLog()
        await log.copy(records)
        log._published.clear()
        await log.append(HistoryArchived(first=101, last=200, seal="", manifest=name, bytes=0))
        found = await audit_integrity(log, artifacts)
        assert [(d.where, d.first, d.last) for d in found.damage] == [("archive", 1, 20), ("archive", 1, 100)]
        assert [loc.first for loc in found.damage[0].located] == [5]

    asyncio.run(body())


async def announce(log: MemoryLog, artifacts: CachedBlobStore, manifest: ArchiveManifest) -> MemoryLog:
    """The history with a manifest that no archivist wrote as its newest."""
    name = await artifacts.put(msgspec.json.encode(manifest))
    other = MemoryLog()
    await other.copy([r async for r in log.read()])
    await other.append(HistoryArchived(first=1, last=manifest.last, seal="", manifest=name, bytes=0))
    return other


def test_a_segment_that_holds_no_events_is_damage_and_read_from_the_stream(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        junk = ArchiveFile(await artifacts.put(b"no table"), 8)
        files = manifest.segments[0].files | {"events_rest": junk}
        first = msgspec.structs.replace(manifest.segments[0], files=files)
        forged = msgspec.structs.replace(manifest, segments=[first, manifest.segments[1]])
        log = await announce(log, artifacts, forged)
        found = await audit_integrity(log, artifacts)
        assert [(d.where, d.first, d.last) for d in found.damage] == [("archive", 1, 100)]
        assert plain(await read_archived(log, artifacts, 1, None)) == plain([r async for r in log.read()])

    asyncio.run(body())


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


def test_a_segment_beyond_all_seals_is_damage(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        beyond = msgspec.structs.replace(manifest.segments[1], first=201, last=205)
        log = await announce(log, artifacts, msgspec.structs.replace(manifest, segments=[*manifest.segments, beyond]))
        found = await audit_integrity(log, artifacts)
        assert [(d.where, d.first) for d in found.damage] == [("archive", 201)]

    asyncio.run(body())


def test_the_local_copy_of_a_segment_is_mended_by_a_check(tmp_path: Path) -> None:
    async def body() -> None:
        artifacts = store_in(tmp_path)
        log, manifest = await archived_log(artifacts)
        spoil(artifacts.cache, part_of(manifest, 0), "flipped")
        found = await audit_integrity(log, artifacts)
        assert found.outcome is ExitCode.SUCCESS
        assert len(found.notes) == 1
        assert artifacts.cache.is_intact(part_of(manifest, 0))

    asyncio.run(body())


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
