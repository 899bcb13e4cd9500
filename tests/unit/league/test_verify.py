"""Verification: any change to archived history is found and located, in the stream, the archive or its manifest."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from league.blobs import CachedBlobStore
from league.integrity.archive import ArchiveFile, ArchiveManifest, archive_history, newest_manifest
from league.integrity.verify import Damage, DamagedEvents, IntegrityReport, verify_history
from league.log.base import RecordedEvent
from schemas.events import HistoryArchived
from schemas.ids import digest
from tests.memory_log import MemoryLog
from tests.unit.league.test_archive import EVERY, HISTORY, archived_log, edited, part_of, spoil, store_in

Blobs = CachedBlobStore
Check = Callable[[MemoryLog, Blobs, ArchiveManifest, list[RecordedEvent]], Awaitable[None]]


def on_archive(tmp_path: Path, check: Check) -> None:
    """Run a check on a history of two segments and a tail, and its events."""

    async def body() -> None:
        blobs = store_in(tmp_path)
        log, manifest = await archived_log(blobs)
        await check(log, blobs, manifest, [recorded async for recorded in log.read()])

    asyncio.run(body())


async def verify(records: Sequence[RecordedEvent], blobs: Blobs, expect: str = "") -> IntegrityReport:
    log = MemoryLog()
    await log.copy(list(records))
    return await verify_history(log, blobs, expect)


async def announce(records: Sequence[RecordedEvent], blobs: Blobs, manifest: ArchiveManifest) -> MemoryLog:
    """The history with a manifest that no archivist wrote as its newest."""
    log = MemoryLog()
    await log.copy(list(records))
    name = await blobs.put(manifest.encode())
    await log.append(HistoryArchived(first=1, last=manifest.last, manifest=name, bytes=0))
    return log


def ranges(damage: Sequence[Damage]) -> list[tuple[str, int, int]]:
    return [(found.where, found.first, found.last) for found in damage]


def test_an_undamaged_history_is_sound_and_names_its_manifest(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        name = digest(manifest.encode())
        found = await verify(records, blobs, expect=name)
        assert found.is_sound
        assert (found.manifest, found.archived_to, found.events, found.last) == (name, 200, len(records), len(records))
        assert found.known == {"the expected manifest": 200}
        assert (await verify(records, blobs, expect=next(iter(manifest.digests())))).is_sound
        lost = await verify(records, blobs, expect="f" * 64)
        assert "no manifest has the expected digest" in lost.damage[0].what

    on_archive(tmp_path, check)


@pytest.mark.parametrize("field", ["payload", "time", "subject", "producer", "schema", "sequence"])
def test_a_change_to_anything_recorded_is_located(tmp_path: Path, field: str) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        r = records[24]
        changed = {
            "payload": edited(r, r.payload.replace(b"1", b"2", 1)),
            "time": RecordedEvent(r.sequence, r.time_ns + 1, r.subject, r.producer, r.payload, r.schema),
            "subject": RecordedEvent(r.sequence, r.time_ns, r.subject + "x", r.producer, r.payload, r.schema),
            "producer": RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer + "x", r.payload, r.schema),
            "schema": RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, r.payload, r.schema + 1),
        }
        instead = [changed[field]] if field in changed else []
        found = await verify([*records[:24], *instead, *records[25:]], blobs)
        what = "differs" if instead else "missing"
        assert ranges(found.damage) == [("stream", 1, 100)]
        assert found.damage[0].located == [DamagedEvents(what, 25, 25, 1)]

    on_archive(tmp_path, check)


def test_a_flipped_bit_of_an_event_is_located(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        victim = records[29]
        for bit in range(0, 8 * len(victim.payload), 397):
            payload = bytearray(victim.payload)
            payload[bit // 8] ^= 1 << bit % 8
            found = await verify([*records[:29], edited(victim, bytes(payload)), *records[30:]], blobs)
            assert [damage.located for damage in found.damage] == [[DamagedEvents("differs", 30, 30, 1)]]

    on_archive(tmp_path, check)


def test_swapped_events_and_a_history_written_anew_without_one_differ_from_there_on(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        swapped = list(records)
        swapped[10], swapped[11] = edited(records[10], records[11].payload), edited(records[11], records[10].payload)
        assert (await verify(swapped, blobs)).damage[0].located == [DamagedEvents("differs", 11, 12, 2)]
        shifted = [
            RecordedEvent(r.sequence - 1, r.time_ns, r.subject, r.producer, r.payload, r.schema) for r in records[10:]
        ]
        found = await verify([*records[:9], *shifted], blobs)
        located = [damage.located for damage in found.damage if damage.located]
        assert located == [[DamagedEvents("differs", 10, 100, 91)], [DamagedEvents("differs", 101, 200, 100)]]

    on_archive(tmp_path, check)


def test_a_missing_an_added_and_a_changed_event_of_one_segment_are_told_apart(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        cut = [r for r in HISTORY if r.sequence not in (11, 61)]
        sparse, store = MemoryLog(), store_in(tmp_path / "sparse")
        await sparse.copy([r for r in HISTORY if r.sequence != 61])
        await archive_history(sparse, store, EVERY)
        cut[20] = edited(cut[20], b'{"type":"AgentRetired","agent":"x","reason":"y"}')
        cut.insert(59, RecordedEvent(61, 0, "league.league.agent.retired", "nobody", b"{}"))
        other = MemoryLog()
        await other.copy(cut)
        async for recorded in sparse.read(only=HistoryArchived):
            await other.append(recorded.event)  # type: ignore[arg-type]
        (damage,) = (await verify_history(other, store)).damage
        changed = cut[20].sequence
        assert damage.located == [
            DamagedEvents("missing", 11, 11, 1),
            DamagedEvents("differs", changed, changed, 1),
            DamagedEvents("added", 61, 61, 1),
        ]

    on_archive(tmp_path, check)


def test_an_altered_or_lost_archiving_is_reported(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        first, second = [n for n, r in enumerate(records) if isinstance(r.event, HistoryArchived)]
        for place, where in ((first, ("archive", 1, 100)), (second, ("archive", 101, 200))):
            event = records[place].event
            assert isinstance(event, HistoryArchived)
            forged = msgspec.json.encode(msgspec.structs.replace(event, manifest="f" * 64))
            found = await verify([*records[:place], edited(records[place], forged), *records[place + 1 :]], blobs)
            assert where in ranges(found.damage)

    on_archive(tmp_path, check)


def test_damage_in_the_archive_is_told_from_damage_in_the_stream(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        spoil(blobs.store, part_of(manifest, 1), "flipped")  # type: ignore[arg-type]
        # This machine's copy is intact, so that the stream is compared all the same.
        found = await verify([r for r in records if r.sequence != 177], blobs)
        assert ranges(found.damage) == [("archive", 101, 200), ("stream", 101, 200)]
        assert "is damaged" in found.damage[0].what
        spoil(blobs.cache, part_of(manifest, 1), "flipped")
        found = await verify(records, blobs)
        assert ranges(found.damage) == [("archive", 101, 200)]
        assert found.notes == ["events 101 to 200 could not be compared"]

    on_archive(tmp_path, check)


def test_damage_in_the_stream_leaves_the_archive_sound(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        found = await verify([r for r in records if r.sequence != 77], blobs)
        assert ranges(found.damage) == [("stream", 1, 100)]
        assert found.archived_to == 200

    on_archive(tmp_path, check)


def test_an_archive_of_other_events_does_not_continue_the_announced_one(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        forged = MemoryLog()
        await forged.copy([edited(HISTORY[0], HISTORY[0].payload + b" "), *HISTORY[1:]])
        await archive_history(forged, blobs, EVERY)
        other = await newest_manifest(forged, blobs)
        assert other is not None
        segments = [other.segments[0], manifest.segments[1]]
        found = await verify_history(
            await announce(records, blobs, msgspec.structs.replace(manifest, segments=segments)), blobs
        )
        assert {("archive", 1, 100), ("archive", 101, 200), ("stream", 1, 100)} <= set(ranges(found.damage))
        assert [damage.located for damage in found.damage if damage.where == "stream"] == [
            [DamagedEvents("differs", 1, 1, 1)]
        ]

    on_archive(tmp_path, check)


def test_a_segment_that_holds_no_events_or_others_is_damage(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        junk = ArchiveFile(await blobs.put(b"no table"), 8)
        files = manifest.segments[0].files | {"events_rest": junk}
        first = msgspec.structs.replace(manifest.segments[0], files=files)
        forged = msgspec.structs.replace(manifest, segments=[first, manifest.segments[1]])
        found = await verify_history(await announce(records, blobs, forged), blobs)
        assert ("archive", 1, 100) in ranges(found.damage)
        beyond = msgspec.structs.replace(manifest.segments[1], first=201, last=205)
        forged = msgspec.structs.replace(manifest, segments=[*manifest.segments, beyond])
        found = await verify_history(await announce(records, blobs, forged), blobs)
        assert ("archive", 201, 205) in ranges(found.damage)

    on_archive(tmp_path, check)


def test_the_local_copy_of_a_segment_is_mended_by_a_check(tmp_path: Path) -> None:
    async def check(log: MemoryLog, blobs: Blobs, manifest: ArchiveManifest, records: list[RecordedEvent]) -> None:
        spoil(blobs.cache, part_of(manifest, 0), "flipped")
        found = await verify(records, blobs)
        assert found.is_sound
        assert len(found.notes) == 1
        assert blobs.cache.is_intact(part_of(manifest, 0))

    on_archive(tmp_path, check)
