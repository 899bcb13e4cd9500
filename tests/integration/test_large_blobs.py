"""Large blobs lie in a store of their own: written once, and covered by verify, gc, branches and restores."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from typer.testing import CliRunner

from league.blobs import ARCHIVE_AREA, BlobLocations, BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.archive import archive_history
from league.integrity.garbage import BlobReferences
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import BlobsConfig, EvaluationConfig, ExperienceConfig, LeagueConfig, convert, to_builtins
from schemas.errors import ArtifactError, ConfigError, LeagueError
from schemas.events import (
    AdaptersDropped,
    Event,
    LeagueBranched,
    LeagueConfigured,
    LeagueOpened,
    PolicyPublished,
    SnapshotTaken,
)
from schemas.ids import digest
from schemas.numbers import in_ranges, merge_ranges
from tests.builders import checkpoint_added, match_finished, policy_published, record_events, store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

T = TypeVar("T")
CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
LARGE, SMALL = b"an adapter of some size", b"note"
LEAST = 6
"""Bytes from which a blob is large here: as many as the shortest of the simulated adapters has."""


def league(*words: str | Path | int) -> tuple[int, str]:
    """Exit code of a command, and what it prints."""
    result = CliRunner().invoke(app, list(map(str, words)))
    code = result.exception.exit_code if isinstance(result.exception, LeagueError) else result.exit_code
    return code, " ".join(f"{result.output} {result.exception or ''}".split())


def on_run(folder: Path, work: Callable[[JetStreamLog, CachedBlobStore], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Run(folder).open_log() as log:
            return await work(log, Run(folder).open_blob_store(log.client, "league"))

    return asyncio.run(asyncio.wait_for(main(), 300))


def adapters(folder: Path) -> set[str]:
    async def work(log: JetStreamLog, _: CachedBlobStore) -> set[str]:
        published = [r.event async for r in log.read(only=PolicyPublished)]
        return {event.adapter for event in published if isinstance(event, PolicyPublished)}

    return on_run(folder, work)


def in_store(store: Path) -> dict[str, set[str]]:
    """Names of the blobs by the folder of their league."""
    return {each.name: {path.name for path in each.glob("??/*")} for each in sorted(store.iterdir())}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A archived run with its adapters in ``tmp_path / "store"``."""
    config = msgspec.structs.replace(CONFIG, blobs=BlobsConfig(url=f"file://{tmp_path}/store", min_bytes=LEAST))
    history, folder = Simulation(config, registers=True).run(6, 1), tmp_path / "run"

    async def fill() -> None:
        async with Run(folder).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            log, blobs = JetStreamLog(client, "league", "test"), Run(folder).open_blob_store(client, "league")
            await log.copy(history)
            await store_adapters(blobs, history)
            archive = Run(folder).open_blob_store(client, "league", ARCHIVE_AREA)
            await archive_history(log, archive, 1000, rest=True)

    asyncio.run(asyncio.wait_for(fill(), 300))
    for path in (folder / "artifacts").glob("??/*"):
        path.unlink()
    return folder


def test_large_blobs_bypass_the_broker_and_are_verified_branched_collected_and_restored(
    run: Path, tmp_path: Path
) -> None:
    wanted, store = adapters(run), tmp_path / "store"
    (own,) = in_store(store)
    assert in_store(store)[own] == wanted

    async def put_and_list(log: JetStreamLog, blobs: CachedBlobStore) -> set[str]:
        assert [await blobs.get(await blobs.put(data)) for data in (LARGE, SMALL)] == [LARGE, SMALL]
        return {blob.name for blob in await BrokerBlobStore(log.client, "league").stored()}

    in_broker = on_run(run, put_and_list)
    assert digest(SMALL) in in_broker
    assert not in_broker & in_store(store)[own]
    assert in_store(store)[own] == wanted | {digest(LARGE)}

    # A branch owns copies, so that the collection of its origin's garbage takes nothing from it.
    last = on_run(run, lambda log, _: log.last_sequence())
    code, said = league("branch", "--at", last, "--from", run, "--run", tmp_path / "branch")
    assert code == 0, said
    (other,) = in_store(store).keys() - {own}
    assert in_store(store)[other] == wanted
    code, said = league("gc", "--run", run, "--delete", "--older-than", "0s")
    assert code == 0, said
    assert in_store(store) == {own: wanted, other: wanted}
    assert league("verify", "--run", run)[0] == 0
    assert league("verify", "--run", tmp_path / "branch")[0] == 0

    # So does a run that is rebuilt from the archive.
    code, said = league("restore", "--from", run, "--run", tmp_path / "restored")
    assert code == 0, said
    (restored,) = in_store(store).keys() - {own, other}
    assert in_store(store)[restored] == wanted

    spoilt = sorted(wanted)[0]
    path = store / own / spoilt[:2] / spoilt
    path.chmod(0o644)
    path.write_bytes(b"other bytes")
    code, said = league("verify", "--run", run)
    assert code == 1
    assert spoilt in said
    path.unlink()
    code, said = league("gc", "--run", run)
    assert f"MISSING {spoilt}" in said


def test_the_store_is_fixed_and_adapters_are_dropped_by_a_recorded_policy(run: Path, tmp_path: Path) -> None:
    wanted = adapters(run)
    code, said = league("config", "set", f"blobs.url={tmp_path / 'second'}", "--run", run)
    assert (code, "was opened with" in said) == (2, True), said
    blobs = BlobsConfig(url=str(tmp_path / "store"), min_bytes=LEAST, keep_versions=1)
    changed = msgspec.structs.replace(CONFIG, blobs=blobs)

    async def change(log: JetStreamLog, blobs: CachedBlobStore) -> list[str]:
        opened = await log.newest(LeagueOpened)
        assert opened is not None
        await log.append(LeagueConfigured(config=to_builtins(changed), config_digest="d", after=opened.sequence))
        names = [await blobs.put(f"adapter {version}".encode()) for version in (90, 91)]
        for version, name in zip((90, 91), names, strict=True):
            await log.append(policy_published(version, adapter=name))
        assert {blob.name for blob in await blobs.stored()} >= wanted | set(names)
        return names

    async def dropped(log: JetStreamLog, blobs: CachedBlobStore) -> tuple[list[list[int]], set[str]]:
        events = [r.event async for r in log.read(only=AdaptersDropped)]
        ranges = merge_ranges(*(event.versions for event in events if isinstance(event, AdaptersDropped)))
        return ranges, {blob.name for blob in await blobs.stored()}

    (old, new) = on_run(run, change)
    assert list(in_store(tmp_path / "store").values()) == [wanted | {old, new}]
    assert "blobs.keep_versions is 1" in league("gc", "--run", run, "--older-than", "0s")[1]
    assert on_run(run, dropped)[0] == []
    assert league("gc", "--run", run, "--older-than", "0s", "--delete")[0] == 0
    ranges, stored = on_run(run, dropped)
    assert in_ranges(ranges, 90)
    assert not in_ranges(ranges, 91)
    assert new in stored
    assert old not in stored
    # What played or joined the league is kept, and nothing misses what was dropped.
    assert wanted & stored
    said = league("gc", "--run", run)[1]
    assert "MISSING" not in said
    assert "keep_versions" not in said
    assert "MISSING" not in league("verify", "--run", run)[1]


def test_versions_that_a_match_a_checkpoint_or_a_snapshot_refers_to_are_kept() -> None:
    config = to_builtins(msgspec.structs.replace(CONFIG, blobs=BlobsConfig(keep_versions=1)))
    published = [policy_published(version) for version in range(6)]
    events = [
        LeagueOpened(league="t", config=config, model="m"),
        *published[:4],
        SnapshotTaken(sequence=4, artifact="a" * 64, state="", version=1),
        *published[4:],
        match_finished(("main@1", 1.0), ("random_bot", 0.0)),
        checkpoint_added(3, adapter=published[3].adapter),
    ]
    references = BlobReferences()
    references.apply_batch(record_events(events))
    # Version 2 was the newest at the snapshot, 5 is the newest now; the last event is too young.
    (dropped,) = references.drop_adapters(before_ns=10**12)
    assert (dropped.policy, dropped.versions, dropped.keep) == ("main", [[0, 0], [4, 4]], 1)
    assert {published[version].adapter for version in (1, 2, 3, 5)} <= references.required_blobs().keys()
    assert not {published[version].adapter for version in (0, 4)} & references.required_blobs().keys()
    recorded = BlobReferences()
    recorded.apply_batch(record_events([*events, dropped]))
    assert recorded.required_blobs() == references.required_blobs()
    assert recorded.drop_adapters(before_ns=10**12) == []
    young = BlobReferences()
    young.apply_batch(record_events(events))
    assert young.drop_adapters(before_ns=0) == []


def test_what_is_written_once_is_never_replaced(tmp_path: Path) -> None:
    async def body() -> None:
        store = FolderBlobStore(tmp_path, write_once=True)
        name = await store.put(LARGE)
        before = store.path(name).stat()
        assert await store.put(LARGE) == name
        assert store.path(name).stat().st_ino == before.st_ino
        store.path(name).chmod(0o644)
        store.path(name).write_bytes(SMALL)
        for attempt in (store.put(LARGE), store.put(LARGE)):
            with pytest.raises(ArtifactError, match=f"{digest(SMALL)[:12]}….*{name[:12]}…"):
                await attempt
        assert store.path(name).read_bytes() == SMALL
        assert [blob.name for blob in await store.stored()] == [name]

    asyncio.run(body())


def test_the_draft_of_a_killed_writer_is_listed_and_deleted(tmp_path: Path) -> None:
    async def body() -> None:
        store = FolderBlobStore(tmp_path)
        with store.write_atomically(digest(LARGE)) as draft:
            left = draft.with_name(f"{draft.name}x")
            left.write_bytes(LARGE)
        await store.delete(digest(LARGE))
        assert [blob.name for blob in await store.stored()] == [left.name]
        await store.delete(left.name)
        assert await store.stored() == []

    asyncio.run(body())


def test_the_location_is_that_of_the_opening_in_a_folder_of_the_league_or_branch() -> None:
    def config(url: str, endpoint: str = "") -> dict[str, object]:
        return to_builtins(msgspec.structs.replace(CONFIG, blobs=BlobsConfig(url=url, endpoint=endpoint)))

    def folded(events: list[Event], interval_ns: int = 1) -> BlobLocations:
        found = BlobLocations("nim")
        for recorded in record_events(events, interval_ns=interval_ns):
            found.apply(recorded)
        return found

    opened = LeagueOpened(league="nim", config=config("s3://first"), model="m")
    changed = LeagueConfigured(config=config("s3://second", "http://host:9000"), config_digest="a", after=1)
    newer = LeagueConfigured(config={"history": {"of_a_newer_version": 1}}, config_digest="b", after=2)
    branched = LeagueBranched(origin="here", at=3, digest="d", blobs="of-the-branch")
    first, last = folded([opened]).current, folded([opened, changed, newer, branched]).current
    assert first is not None
    assert last is not None
    assert (first.url, first.endpoint, last.url, last.endpoint) == ("s3://first", "", "s3://first", "http://host:9000")
    assert last.folder == "of-the-branch"
    # A run of the same configuration that was opened at another time writes elsewhere.
    other = folded([opened], interval_ns=7).current
    assert other is not None
    assert other.folder != first.folder


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"url": "s3:///prefix"}, "blobs.url"),
        ({"url": "relative/folder"}, "blobs.url"),
        ({"url": "s3://key:secret@bucket"}, "blobs.url"),
        ({"url": "/folder", "endpoint": "http://host"}, "blobs.endpoint"),
        ({"url": "s3://b", "endpoint": "host:9000"}, "blobs.endpoint"),
        ({"min_bytes": -1}, "blobs.min_bytes"),
        ({"keep_versions": 0}, "blobs.keep_versions"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        convert(settings, BlobsConfig, "blobs")


def test_a_league_whose_store_cannot_be_written_is_told_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def body() -> None:
        with pytest.raises(ArtifactError, match=str(tmp_path / "file")):
            await FolderBlobStore(tmp_path / "file" / "store", write_once=True).put(LARGE)

    asyncio.run(body())
