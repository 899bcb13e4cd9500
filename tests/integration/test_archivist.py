"""Archivists archive and save as the history grows, through kills, and never twice."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from league.auth.authority import Authority
from league.blobs import BlobStore, BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.archive import ArchiveManifest, archive_history, newest_manifest
from league.integrity.snapshots import load_folds, take_snapshot
from league.integrity.verify import verify_history
from league.log.base import RecordedEvent, append_in_batches
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas.config import DecisionsConfig, EvaluationConfig, ExperienceConfig, HistoryConfig, LeagueConfig, to_builtins
from schemas.events import (
    DecisionsDropped,
    DecisionsStored,
    Event,
    HistoryArchived,
    LeagueConfigured,
    LeagueOpened,
    SnapshotTaken,
    WorkerLeft,
)
from tests.integration.test_auth import Broker, user
from tests.simulated_history import Simulation
from workers import archivist
from workers.archivist import Archivist
from workers.runtime import Context, beside

CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7),
    history=HistoryConfig(archive_events=200, snapshot_events=150),
)
HISTORY = [r.event for r in Simulation(CONFIG).run(80, 3) if r.event is not None]


@contextlib.asynccontextmanager
async def league_in(folder: Path) -> AsyncIterator[tuple[Run, JetStreamLog, CachedBlobStore]]:
    run = Run(folder)
    async with run.connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield run, JetStreamLog(client, "league", "test"), run.open_blob_store(client, "league")


async def count(log: JetStreamLog, kind: type[Event]) -> int:
    return sum(1 for r in [r async for r in log.read(only=kind)] if isinstance(r.event, kind))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(300):
        while not await condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.05)


async def assert_archive_is_whole(log: JetStreamLog, artifacts: CachedBlobStore, folder: Path) -> ArchiveManifest:
    """Sound, without gaps or copies, and the same as if it had been written in one go."""
    found = await verify_history(log, artifacts)
    assert found.damage == []
    manifest = await newest_manifest(log, artifacts)
    assert manifest is not None
    announced = [r.event async for r in log.read(only=HistoryArchived)]
    assert [(s.first, s.last) for s in manifest.segments] == [
        (event.first, event.last) for event in announced if isinstance(event, HistoryArchived)
    ]

    class Unarchived(JetStreamLog):
        """The same history before it was archived."""

        async def newest(self, kind: type[Event]):  # type: ignore[no-untyped-def]
            return None if kind is HistoryArchived else await super().newest(kind)

        def read(self, first=1, last=None, *, only=None):  # type: ignore[no-untyped-def]
            async def nothing() -> AsyncIterator[object]:
                for _ in ():
                    yield _

            return nothing() if only is HistoryArchived else super().read(first, last, only=only)

        async def append(self, event: Event, *, expected: int | None = None) -> int:
            self.last_archived = event
            return 0

    afresh = Unarchived(log.client, "league", "afresh")
    store = CachedBlobStore(FolderBlobStore(folder / "store"), FolderBlobStore(folder / "cache"))
    done = await archive_history(afresh, store, CONFIG.history.archive_events)
    # What is archived on leaving is a shorter segment.
    whole = [segment for segment in manifest.segments if segment.events == CONFIG.history.archive_events]
    assert len(whole) >= len(manifest.segments) - 1
    assert [event.manifest for event in done[: len(whole)]] == [
        event.manifest for event in announced[: len(whole)] if isinstance(event, HistoryArchived)
    ]
    return manifest


def test_archivists_that_are_killed_leave_one_chain_and_one_archive(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ui", "worker", "archivist", "--run", str(tmp_path / "run"), "--name", "a-1"]

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def body() -> None:
        async with league_in(tmp_path / "run") as (_, log, artifacts):
            step = len(HISTORY) // 4
            for nth, kind in enumerate((SnapshotTaken, HistoryArchived, SnapshotTaken)):
                await log.append_batch(HISTORY[nth * step : (nth + 1) * step])
                before = await count(log, kind)
                process = start()
                try:
                    # Killed as soon as it has begun to do this: snapshots and segments are under way.
                    await until(lambda kind=kind, before=before: _more(log, kind, before))  # type: ignore[misc]
                finally:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            await log.append_batch(HISTORY[3 * step :])
            process = start()
            archivable = len(HISTORY) - CONFIG.history.archive_events
            await until(lambda: _archived(log, archivable))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 300) == 0
            manifest = await assert_archive_is_whole(log, artifacts, tmp_path / "afresh")
            assert len(manifest.segments) >= 3
            state, ratings = await load_folds(log, artifacts)
            assert state.sequence == ratings.sequence > len(HISTORY) - 2 * CONFIG.history.snapshot_events
            found = await verify_history(log, artifacts)
            left = {type(r.event) async for r in log.read(found.archived_to + 1)}
            assert left <= {HistoryArchived, SnapshotTaken, WorkerLeft}, "all else is archived on leaving"

    asyncio.run(asyncio.wait_for(body(), 300))


async def _more(log: JetStreamLog, kind: type[Event], before: int) -> bool:
    return await count(log, kind) > before


async def _archived(log: JetStreamLog, through: int) -> bool:
    newest = await log.newest(HistoryArchived)
    return newest is not None and isinstance(newest.event, HistoryArchived) and newest.event.last >= through


async def _copied(log: JetStreamLog, artifacts: CachedBlobStore) -> bool:
    """Whether the copy of the archive holds all of it; it is never damaged meanwhile."""
    found = await verify_history(log, artifacts, scrubbed=lambda *_: None)
    assert [damage for damage in found.damage if damage.where != "copy"] == []
    return 0 < found.archived_to == found.copied_to


def test_of_two_archivists_one_works_and_the_other_takes_over_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = msgspec.structs.replace(CONFIG.history, copy_to=f"file://{tmp_path}/copy")
    config = msgspec.to_builtins(msgspec.structs.replace(CONFIG, history=history))
    opened = LeagueOpened(league="league", config=config, model="")
    # This process goes on with other tests, and may not raise its priority again.
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    # Longer than any pause of a busy machine, until one of them is gone.
    monkeypatch.setattr(archivist, "STANDBY_DELAY_S", 300.0)

    class Followed(JetStreamLog):
        """Counts how often the history is followed."""

        follows = 0

        def follow(self, first: int = 1) -> AsyncIterator[RecordedEvent]:
            self.follows += 1
            return super().follow(first)

    logs: list[Followed] = []

    async def serving(run: Run, log: JetStreamLog, name: str) -> None:
        logs.append(Followed(log.client, "league", name))
        context = Context(run, log.client, logs[-1], name)
        context.folds_ratings = True
        await context.load_snapshot()
        async with beside(context.follow()):
            await context.wait_for_sequence(1)
            await archivist.serve(context)

    async def body() -> None:
        async with league_in(tmp_path / "run") as (run, log, artifacts):
            half = len(HISTORY) // 2
            await log.append_batch([opened, HISTORY[1]])
            first, second = [asyncio.create_task(serving(run, log, name)) for name in ("one", "two")]
            await log.append_batch(HISTORY[2:half])
            await until(lambda: _archived(log, half - 250))
            producers = {r.producer async for r in log.read(only=HistoryArchived)}
            assert len(producers) == 1
            (first if producers == {"one"} else second).cancel()
            monkeypatch.setattr(archivist, "STANDBY_DELAY_S", 0.5)
            await log.append_batch(HISTORY[half:])
            await until(lambda: _archived(log, len(HISTORY) - 250))
            assert {r.producer async for r in log.read(only=HistoryArchived)} == {"one", "two"}
            await until(lambda: _copied(log, artifacts))
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            await assert_archive_is_whole(log, artifacts, tmp_path / "afresh")
            assert [each.follows for each in logs] == [1, 1]

    asyncio.run(asyncio.wait_for(body(), 900))


@pytest.mark.parametrize("damage", ["none", "truncated", "missing", "another version"])
def test_a_worker_begins_at_the_newest_usable_snapshot_and_ends_where_the_full_fold_does(
    tmp_path: Path, damage: str
) -> None:
    async def body() -> None:
        async with league_in(tmp_path / "run") as (run, log, artifacts):
            await append_in_batches(log, HISTORY)
            state, ratings = LeagueState(), RatingFold()
            taken = []
            async for recorded in log.read():
                state.apply(recorded.sequence, recorded.event)
                ratings.apply(recorded.sequence, recorded.event)
                if recorded.sequence in (200, len(HISTORY) - 10):
                    taken.append(await take_snapshot(state, ratings, artifacts))
            if damage == "another version":
                taken[1] = SnapshotTaken(taken[1].sequence, taken[1].artifact, taken[1].state, 999)
            for event in taken:
                await log.append(event)
                state.apply(await log.last_sequence(), event)
            if damage == "truncated":
                path = artifacts.cache.path(taken[1].artifact)
                path.write_bytes(path.read_bytes()[:-1])
                await artifacts.store.delete(taken[1].artifact)
            elif damage == "missing":
                await artifacts.delete(taken[1].artifact)
            context = Context(run, log.client, log, "worker")
            await context.load_snapshot()
            expected = 200 if damage != "none" else len(HISTORY) - 10
            assert (context.state.sequence, context.ratings.sequence) == (expected, expected)
            async with beside(context.follow()):
                await context.wait_for_sequence(await log.last_sequence())
            assert context.state.digest() == state.digest()

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_new_worker_reads_only_the_events_after_the_newest_snapshot(tmp_path: Path) -> None:
    class Counted(JetStreamLog):
        """Counts the events that are read."""

        count = 0

        async def follow(self, first: int = 1) -> AsyncIterator[RecordedEvent]:
            async for recorded in super().follow(first):
                self.count += 1
                yield recorded

    async def ready(run: Run, log: JetStreamLog, begin_at_snapshot: bool) -> tuple[int, Context]:
        """Events that a worker has read when it is up to date."""
        counted = Counted(log.client, "league", "worker")
        context = Context(run, log.client, counted, "worker")
        if begin_at_snapshot:
            await context.load_snapshot()
        async with beside(context.follow()):
            await context.wait_for_sequence(await log.last_sequence())
        return counted.count, context

    async def body() -> None:
        async with league_in(tmp_path / "run") as (run, log, artifacts):
            await append_in_batches(log, HISTORY)
            state, ratings = LeagueState(), RatingFold()
            async for recorded in log.read():
                state.apply(recorded.sequence, recorded.event)
                ratings.apply(recorded.sequence, recorded.event)
            taken = await log.append(await take_snapshot(state, ratings, artifacts))
            whole, _ = await ready(run, log, begin_at_snapshot=False)
            assert whole == taken > len(HISTORY)
            rest, context = await ready(run, log, begin_at_snapshot=True)
            assert rest == 1
            assert context.ratings.to_snapshot() == ratings.to_snapshot()

    asyncio.run(asyncio.wait_for(body(), 300))


def with_limits(limits: DecisionsConfig) -> LeagueConfig:
    return msgspec.structs.replace(CONFIG, history=msgspec.structs.replace(CONFIG.history, decisions=limits))


async def store_segments(log: JetStreamLog, blobs: BlobStore, limits: DecisionsConfig) -> list[str]:
    """A league with these limits and four segments of 100 bytes; their names, oldest first."""
    await log.append(LeagueOpened(league="league", config=to_builtins(with_limits(limits)), model=""))
    names = [await blobs.put(bytes([number]) * 100) for number in range(4)]
    for name in names:
        await log.append(DecisionsStored("rollout-1", "decisions", name, 1, 100))
    return names


async def present(blobs: BlobStore) -> set[str]:
    return {found.name for found in await blobs.stored()}


@contextlib.asynccontextmanager
async def archivist_of(context: Context) -> AsyncIterator[Archivist]:
    async with beside(context.follow()):
        await context.wait_for_sequence(await context.log.last_sequence())
        yield Archivist(context)


def test_an_archivist_deletes_segments_of_decisions_by_size_and_by_age_every_ten_minutes(tmp_path: Path) -> None:
    async def body() -> None:
        async with league_in(tmp_path / "run") as (run, log, artifacts):
            names = await store_segments(log, artifacts.store, DecisionsConfig(bytes=250))
            context = Context(run, log.client, log, "archivist")
            async with archivist_of(context) as worker:
                await worker.run_due()
                assert await present(artifacts.store) == {*names[2:]}
                aged = with_limits(DecisionsConfig(days=1e-9))
                changed = LeagueConfigured(config=to_builtins(aged), config_digest="aged", after=1)
                await context.wait_for_sequence(await log.append(changed))
                await worker.run_due()
                assert await present(artifacts.store) == {*names[2:]}, "not before ten minutes have passed"
                worker._decisions_after = 0.0
                await worker.run_due()
                assert await present(artifacts.store) == set()
            dropped = [r.event async for r in log.read(only=DecisionsDropped)]
            assert [event.artifacts for event in dropped if isinstance(event, DecisionsDropped)] == [
                names[:2],
                names[2:],
            ]

    asyncio.run(asyncio.wait_for(body(), 300))


def test_an_archivist_that_may_not_delete_says_what_does_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority.create(tmp_path / "auth")
    authority.add("operator", ["operator"], days=1)
    authority.add("archivist", ["archivist"], days=1, league="league")
    broker = Broker(tmp_path, authority)

    async def body() -> None:
        await broker.open()
        async with user(broker, "operator") as boss, user(broker, "archivist") as client:
            store = BrokerBlobStore(boss, "league")
            names = await store_segments(JetStreamLog(boss, "league", "operator"), store, DecisionsConfig(bytes=250))
            context = Context(Run(tmp_path / "run"), client, JetStreamLog(client, "league", "archivist"), "archivist")
            async with archivist_of(context) as worker:
                await worker.run_due()
                assert await present(store) == {*names}
                assert await context.log.newest(DecisionsDropped) is None

    try:
        asyncio.run(asyncio.wait_for(body(), 300))
    finally:
        broker.stop()
    assert "`league gc --delete` does" in "".join(capsys.readouterr())
