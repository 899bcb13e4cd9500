"""Archiving, verification and housekeeping on a real broker: damage in its files is found and located."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from nats.js.api import StreamConfig
from structlog.testing import capture_logs
from typer.testing import CliRunner

from league.blobs import ARCHIVE_AREA, CachedBlobStore
from league.integrity import snapshots
from league.integrity.archive import ArchiveManifest, archive_history, archived_batches, newest_manifest
from league.integrity.verify import DamagedEvents, IntegrityReport, verify_history
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.ids import digest
from tests.builders import store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)), registers=True
).run(8, 1)
EVERY = 60
ARCHIVED = 2 * EVERY


@contextlib.asynccontextmanager
async def league_in(folder: Path) -> AsyncIterator[tuple[JetStreamLog, CachedBlobStore]]:
    run = Run(folder)
    async with run.connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield JetStreamLog(client, "league", "test"), run.open_blob_store(client, "league")


@pytest.fixture(scope="module")
def tail_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run: all but the last events are archived, in two segments."""
    folder = tmp_path_factory.mktemp("tail")

    async def body() -> None:
        async with league_in(folder) as (log, blobs):
            await store_adapters(blobs, HISTORY)
            await log.copy(HISTORY[:ARCHIVED])
            archive = Run(folder).open_blob_store(log.client, "league", ARCHIVE_AREA)
            await archive_history(log, archive, EVERY)
            for n in range(5):
                # To have a tail.
                await log.append(e.AgentRegistered(agent=f"agent-{n}", kind="bot", baseline=False, rating=0.0))

    asyncio.run(body())
    return folder


@pytest.fixture
def run(tail_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(tail_run, tmp_path / "run")
    return tmp_path / "run"


def read(run: Path) -> list[RecordedEvent]:
    async def body() -> list[RecordedEvent]:
        async with league_in(run) as (log, _):
            return [recorded async for recorded in log.read()]

    return asyncio.run(body())


def audited(run: Path, expect: str = "") -> IntegrityReport:
    async def body() -> IntegrityReport:
        async with league_in(run) as (log, artifacts):
            return await verify_history(log, artifacts, expect, client=log.client)

    return asyncio.run(body())


def flip(run: Path, inside: bytes) -> None:
    """Flip one bit of the broker's file, in the middle of the only place that holds these bytes."""
    for block in (run / "nats" / "store").rglob("streams/LEAGUE/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(inside)) >= 0:
            stored[at + len(inside) // 2] ^= 4
            block.write_bytes(stored)
            return
    raise AssertionError("the store does not hold these bytes")


def lose_index(run: Path) -> None:
    """What a crash does: the broker has to rebuild its index from the messages."""
    for index in (run / "nats" / "store").rglob("streams/LEAGUE/msgs/index.db"):
        index.unlink()


def test_an_undamaged_history_is_sound(run: Path) -> None:
    found = audited(run)
    assert found.is_sound
    assert (found.archived_to, found.segments, found.events) == (ARCHIVED, 2, ARCHIVED + 2 + 5)
    assert audited(run, expect=found.manifest).is_sound


@pytest.mark.parametrize("place", [0, 30, 95])
def test_a_flipped_bit_in_the_brokers_store_is_found_and_located(run: Path, place: int) -> None:
    victim = read(run)[place]
    flip(run, victim.payload)
    found = audited(run)
    assert not found.is_sound
    first = place // EVERY * EVERY + 1
    assert [(d.where, d.first, d.last) for d in found.damage] == [("stream", first, first + EVERY - 1)]
    # The broker notices that the message is not what it stored, but returns the others without a word.
    assert found.damage[0].located == [DamagedEvents("missing", victim.sequence, victim.sequence, 1)]


def test_a_history_that_the_broker_cut_at_the_damage_is_found(run: Path) -> None:
    manifest = audited(run).manifest
    flip(run, read(run)[30].payload)
    lose_index(run)
    # The broker drops everything from there on, all archivings included.
    found = audited(run, expect=manifest)
    assert found.last < 40
    assert any(f"reaches {ARCHIVED}" in damage.what for damage in found.damage)
    assert any("expected digest" in damage.what for damage in found.damage)


def test_a_history_cut_below_a_snapshot_is_found(run: Path) -> None:
    async def body() -> None:
        async with league_in(run) as (log, artifacts):
            state, ratings = LeagueState(), RatingFold()
            async for recorded in log.read(last=60):
                state.apply(recorded.sequence, recorded.event)
                ratings.apply(recorded.sequence, recorded.event)
            archivists = Run(run).open_blob_store(log.client, "league", ARCHIVE_AREA)
            await log.append(await snapshots.take_snapshot(state, ratings, archivists))
            # Any worker can write such a note, which says nothing about the history.
            await artifacts.put(b"forged", "snapshot of league at 1000000")

    asyncio.run(body())
    assert audited(run).damage == []
    flip(run, read(run)[30].payload)
    lose_index(run)
    found = audited(run)
    assert found.last < 40
    assert ["snapshot" in damage.what and "reaches 60" in damage.what for damage in found.damage].count(True) == 1


def test_a_damaged_last_event_hides_neither_the_others_nor_itself(run: Path) -> None:
    records = read(run)
    flip(run, records[-1].payload)
    assert [r.sequence for r in read(run)] == [r.sequence for r in records[:-1]]
    found = audited(run)
    assert [damage.where for damage in found.damage] == ["stream"]
    assert "1 that are not archived are lost" in found.damage[0].what


def test_an_event_that_somebody_deleted_is_missed(tmp_path: Path) -> None:
    async def body() -> None:
        async with Run(tmp_path).connect("test") as client:
            # The stream of a league refuses this; somebody's own does not.
            js = client.jetstream()
            await js.add_stream(
                StreamConfig(name="LEAGUE", subjects=["league.>"], allow_direct=True, allow_atomic=True)
            )
        async with league_in(tmp_path) as (log, artifacts):
            await log.copy(HISTORY[:60])
            await archive_history(log, artifacts, EVERY)
            await log.client.jetstream().delete_msg("LEAGUE", 45)
            found = await verify_history(log, artifacts, client=log.client)
            assert [d.located for d in found.damage] == [[DamagedEvents("missing", 45, 45, 1)]]

    asyncio.run(body())


def league_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_verify_says_what_is_damaged_and_exits_with_1(run: Path) -> None:
    code, out = league_command("verify", "--run", str(run))
    assert code == 0
    assert "sound" in out
    flip(run, read(run)[30].payload)
    code, out = league_command("verify", "--run", str(run))
    assert code == 1
    assert "DAMAGED in the stream, events 1 to 60" in out
    assert "missing: event 31" in out
    code, out = league_command("verify", "--run", str(run), "--json")
    assert code == 1
    assert '"what":"missing","first":31' in out


def test_gc_lists_what_no_event_refers_to_and_deletes_only_when_told_to(tmp_path: Path) -> None:
    kept: dict[str, str] = {}

    async def fill() -> None:
        async with league_in(tmp_path) as (log, artifacts):
            names = {
                what: await artifacts.put(what.encode())
                for what in ("model", "adapter", "record", "old state", "joined state", "state", "garbage")
            }
            kept.update({name: what for what, name in names.items()})
            config = msgspec.to_builtins(LeagueConfig())
            match = next(r.event for r in HISTORY if isinstance(r.event, e.MatchFinished))
            step = next(r.event for r in HISTORY if isinstance(r.event, e.GradientStepTaken))
            replace = msgspec.structs.replace
            added = e.CheckpointAdded(
                agent="main@2", policy="main", version=2, parent="", reason="first", adapter=names["adapter"]
            )
            await log.append_batch(
                [
                    e.LeagueOpened(league="league", config=config, model=f"artifact:{names['model']}"),
                    e.PolicyPublished(policy="main", version=1, adapter=names["adapter"], parent=""),
                    replace(match, record=names["record"]),
                    replace(match, match_id="other-1", record=digest(b"never stored")),
                    replace(step, step=1, state=names["old state"]),
                    replace(step, step=2, state=names["joined state"]),
                    added,
                    replace(step, step=3, state=names["state"]),
                ]
            )

    async def left() -> tuple[set[str], set[str]]:
        async with league_in(tmp_path) as (_, artifacts):
            store, cache = await artifacts.stored(), await artifacts.cache.stored()
            return {kept[s.name] for s in store}, {kept[s.name] for s in cache}

    asyncio.run(fill())
    everything = set(kept.values())
    _, out = league_command("gc", "--run", str(tmp_path))
    assert "in the store: 0 artifacts" in out
    assert "2 too young" in out
    code, out = league_command("gc", "--run", str(tmp_path), "--older-than", "0s")
    assert code == 0
    assert digest(b"garbage") in out
    assert digest(b"old state") in out
    assert "2 artifacts that no event refers to could go" in out
    assert f"MISSING {digest(b'never stored')}: the record of match other-1" in out
    assert asyncio.run(left()) == (everything, everything)
    league_command("gc", "--run", str(tmp_path), "--delete")
    assert asyncio.run(left()) == (everything, everything), "too young"
    with patch("time.time", lambda: 9e9), patch("time.time_ns", lambda: 9 * 10**18):
        league_command("gc", "--run", str(tmp_path), "--delete")
    assert asyncio.run(left()) == (everything, everything), "young by the broker's clock"
    league_command("gc", "--run", str(tmp_path), "--delete", "--older-than", "0s")
    used = everything - {"garbage", "old state"}
    assert asyncio.run(left()) == (used, used)


def test_gc_spares_what_any_league_of_the_broker_refers_to(tmp_path: Path) -> None:
    async def body() -> None:
        async with league_in(tmp_path) as (log, artifacts):
            for league in ("one", "two"):
                model = await artifacts.put(league.encode())
                config = msgspec.to_builtins(LeagueConfig(name=league))
                await JetStreamLog(log.client, league, "test").append(
                    e.LeagueOpened(league=league, config=config, model=f"artifact:{model}")
                )

    asyncio.run(body())
    _, out = league_command("gc", "--run", str(tmp_path), "--older-than", "0s")
    assert "in the store: 0 artifacts that no event refers to could go (0 bytes), 2 in use" in out


def test_gc_keeps_the_newest_snapshots_and_every_tenth(tmp_path: Path) -> None:
    async def body() -> None:
        async with league_in(tmp_path) as (log, artifacts):
            await log.append(HISTORY[0].event)  # type: ignore[arg-type]
            for n in range(1, 14):
                name = await artifacts.put(f"snapshot {n}".encode())
                await log.append(e.SnapshotTaken(sequence=n, artifact=name, state="", version=1))

    asyncio.run(body())
    league_command("gc", "--run", str(tmp_path), "--older-than", "0s", "--delete", "--keep-snapshots", "2")

    async def left() -> set[str]:
        async with league_in(tmp_path) as (_, artifacts):
            return {stored.name for stored in await artifacts.stored()}

    assert asyncio.run(left()) == {digest(f"snapshot {n}".encode()) for n in (1, 11, 12, 13)}


@pytest.fixture(scope="module")
def archived_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run whose history is archived in two segments."""
    folder = tmp_path_factory.mktemp("archived")

    async def append(events: Sequence[e.Event]) -> None:
        async with league_in(folder) as (log, blobs):
            await store_adapters(blobs, HISTORY)
            await log.append_batch(events)

    later = e.AgentRegistered(agent="later", kind="bot", baseline=False, rating=0.0)
    for part in ([r.event for r in HISTORY if r.event is not None], [later]):
        asyncio.run(append(part))
        code, _ = league_command("archive", "--run", str(folder))
        assert code == 0
    return folder


def manifest_of(run: Path) -> ArchiveManifest:
    async def body() -> ArchiveManifest | None:
        async with league_in(run) as (log, artifacts):
            return await newest_manifest(log, artifacts)

    found = asyncio.run(body())
    assert found is not None
    return found


def test_damage_to_an_archive_in_the_brokers_store_is_told_from_damage_to_the_history(
    archived_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(archived_run, run)
    assert audited(run).is_sound
    name = manifest_of(run).segments[0].files["events_bulky"].digest
    path = next((run / "artifacts").rglob(name))
    inside = path.read_bytes()
    for block in (run / "nats" / "store").rglob("streams/OBJ_ARTIFACTS/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(inside)) >= 0:
            stored[at + len(inside) // 2] ^= 4
            block.write_bytes(stored)
    found = audited(run)
    assert {(d.where, d.first) for d in found.damage} == {("archive", 1)}
    assert found.last > len(HISTORY)
    # This machine's copy is sound, so nothing else notices; and without it the stream does.
    assert read_archived(run) == (len(read(run)), [])
    path.unlink()
    assert read_archived(run) == (len(read(run)), ["archived segment cannot be used, reading the stream instead"])


def read_archived(run: Path) -> tuple[int, list[str]]:
    """Events read through the archive, and warnings on the way."""

    async def body() -> int:
        async with league_in(run) as (log, artifacts):
            return sum([len(batch) async for batch in archived_batches(log, artifacts)])

    with capture_logs() as logs:
        return asyncio.run(body()), [entry["event"] for entry in logs]


def test_gc_drops_superseded_manifests_and_leaves_the_archive_whole(archived_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(archived_run, run)
    _, out = league_command("gc", "--run", str(run), "--older-than", "0s", "--delete")
    assert "1 artifact that no event refers to deleted" in out
    found = audited(run)
    assert found.is_sound
    assert (found.segments, found.archived_to) == (2, manifest_of(run).last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gc", "--older-than", "soon"], "expected a number"),
        (["gc", "--older-than", "9" * 400 + "d"], "expected a number"),
        (["gc", "--keep-snapshots", "0"], "expected 1 or more"),
        (["verify", "--expect", "abc"], "not the digest of a manifest"),
        (["gc"], "no league here"),
        (["verify"], "no league here"),
        (["archive"], "no league here"),
    ],
)
def test_wrong_use_is_answered_with_what_is_expected(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*arguments, "--run", str(tmp_path / "nothing")])
    assert message in str(result.exception)
    assert not (tmp_path / "nothing").exists()
