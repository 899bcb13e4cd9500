"""``league verify`` states its evidence: what is archived, which blobs are there, what else knows of the end."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig
from typer.testing import CliRunner

import schemas.events as e
from league.blobs import ARCHIVE_AREA, BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.archive import archive_history
from league.integrity.blob_scrub import scrub_blobs
from league.integrity.garbage import BlobReferences
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.projections.projection import Projection
from league.run import Run
from schemas.codec import SCHEMA_VERSION
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import ExitCode, LogError
from schemas.subjects import BLOB_BUCKET, blob_subject
from tests.builders import gradient_step, record_events, store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)), registers=True
).run(8, 1)
ARCHIVED = 200
TAIL = [e.AgentRegistered(agent=f"agent-{n}", kind="bot", baseline=False, rating=0.0) for n in range(5)]
FIRST_OF_TAIL = ARCHIVED + 2 + 1
"""After the events of two segments."""
ADAPTERS = {r.event.adapter: r.sequence for r in HISTORY[:ARCHIVED] if isinstance(r.event, e.PolicyPublished)}


@pytest.fixture(scope="module")
def archived_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run in a stream that permits deletion: two segments of 100 events, and five events after them."""
    folder = tmp_path_factory.mktemp("archived")

    async def fill(client: Client) -> None:
        stream = StreamConfig(name="LEAGUE", subjects=["league.>"], allow_direct=True, allow_atomic=True)
        await client.jetstream().add_stream(stream)
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, "league", "test")
        await store_adapters(BrokerBlobStore(client, "league"), HISTORY)
        await log.copy(HISTORY[:ARCHIVED])
        await archive_history(log, Run(folder).open_blob_store(client, "league", ARCHIVE_AREA), 100)
        await log.append_batch(TAIL)

    with_broker(folder, fill)
    return folder


@pytest.fixture
def run(archived_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(archived_run, tmp_path / "run"))


def with_broker(folder: Path, act: Callable[[Client], object]) -> None:
    """Act on a run's broker."""

    async def body() -> None:
        async with Run(folder).connect("test") as client:
            await act(client)  # type: ignore[misc]

    asyncio.run(body())


def delete_messages(folder: Path, *sequences: int) -> None:
    async def delete(client: Client) -> None:
        for sequence in sequences:
            await client.jetstream().delete_msg("LEAGUE", sequence)

    with_broker(folder, delete)


def delete_blob(folder: Path, name: str) -> None:
    with_broker(folder, lambda client: BrokerBlobStore(client, "league").delete(name))


def verify(run: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", "--run", str(run), *options], catch_exceptions=False)
    return result.exit_code, result.stdout


def damage_of(run: Path) -> list[dict]:
    code, out = verify(run, "--json")
    assert code == ExitCode.DAMAGED
    return json.loads(out)["damage"]


def test_an_archived_history_is_sound_and_the_tail_is_stated(run: Path) -> None:
    code, out = verify(run)
    assert code == ExitCode.SUCCESS, out
    assert "archive: 2 segments to event 200" in out
    assert f"blobs: {len(ADAPTERS)} intact" in out
    assert "other records of how far the history reached: the newest archive 200" in out
    assert "replay: 207 events folded" in out
    assert out.endswith("sound: as archived up to event 200; the broker's checksums vouch for later events\n")


def test_a_history_without_an_archive_is_sound_and_says_so(tmp_path: Path) -> None:
    async def fill(client: Client) -> None:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await store_adapters(BrokerBlobStore(client, "league"), HISTORY)
        await JetStreamLog(client, "league", "test").copy(HISTORY[:50])

    with_broker(tmp_path, fill)
    code, out = verify(tmp_path)
    assert code == ExitCode.SUCCESS
    assert "nothing is archived yet" in out
    assert json.loads(verify(tmp_path, "--json")[1])["sound"] is True


def test_foreign_bytes_on_the_historys_subjects_are_counted_and_named_and_no_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def litter(client: Client) -> None:
        for subject in ("league.league.history.sealed", "league.league.rating.updated"):
            for data in (b"", b"junk", b"\xff"):
                await client.jetstream().publish(subject, data)

    with_broker(run, litter)
    code, said = verify(run)
    assert code == 0, said
    assert "6 messages are no events" in said
    assert "on league.league.history.sealed" in said

    async def archive(client: Client) -> None:
        blobs = Run(run).open_blob_store(client, "league", ARCHIVE_AREA)
        await archive_history(JetStreamLog(client, "league", "test"), blobs, 10)

    with_broker(run, archive)
    assert verify(run)[0] == 0
    # They name no schema version; what was archived of them is the same to a reader of a newer one.
    monkeypatch.setattr("league.log.jetstream.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    code, said = verify(run)
    assert code == 0, said


def test_a_stream_whose_metadata_is_lost_is_named_and_no_league_is_opened_over_it(run: Path) -> None:
    (stream,) = (run / "nats" / "store").glob("jetstream/*/streams/LEAGUE")
    (stream / "meta.inf").unlink()
    for command in (["status"], ["up", "--config", str(CONFIG)]):
        with pytest.raises(LogError, match=r"lost the history's stream, whose metadata .* `league restore`"):
            CliRunner().invoke(app, [*command, "--run", str(run)], catch_exceptions=False)
    assert sorted((stream / "msgs").glob("*.blk"))


def test_a_rating_that_a_replay_does_not_give_is_damage(run: Path) -> None:
    changed = [e.RatingChange(agent="base_model", before=1000.0, after=1001.0)]
    rated = next(r.event for r in reversed(HISTORY[:ARCHIVED]) if isinstance(r.event, e.RatingUpdated))
    forged = e.RatingUpdated(
        match_id="m", match_sequence=ARCHIVED + 1, game=rated.game, system=rated.system, changes=changed
    )
    with_broker(run, lambda client: JetStreamLog(client, "league", "evil").append(forged))
    code, out = verify(run, "--no-blobs")
    assert (code, "1 DIFFERENCES" in out) == (ExitCode.DAMAGED, True), out
    assert verify(run, "--no-blobs", "--no-replay")[0] == ExitCode.SUCCESS


def test_missing_blobs_are_named_with_their_events(run: Path) -> None:
    gone = list(ADAPTERS)[:2]
    for name in gone:
        delete_blob(run, name)
    code, out = verify(run)
    assert code == ExitCode.DAMAGED
    assert f"blobs: {len(ADAPTERS) - 2} intact" in out
    for name in gone:
        assert f"MISSING: blob {name}: main@" in out
    found = json.loads(verify(run, "--json")[1])
    faults = {fault["name"]: fault for fault in found["blobs"]["faults"]}
    assert faults.keys() == set(gone)
    assert all(ADAPTERS[name] in faults[name]["events"] for name in gone)
    assert found["sound"] is False
    assert verify(run, "--no-blobs")[0] == ExitCode.SUCCESS


def test_a_blob_with_other_bytes_is_damaged_and_the_cache_may_have_it(run: Path) -> None:
    name, other = list(ADAPTERS)[:2]

    async def swap(client: Client) -> None:
        await BrokerBlobStore(client, "league").delete(name)
        chunk = blob_subject(BLOB_BUCKET, "C", "league", "blob", "test", f"{name}.other")
        place = (await client.jetstream().publish(chunk, b"main@9")).seq
        entry = {"name": name, "size": 6, "chunks": 1, "subject": chunk, "first": place, "last": place}
        entry_subject = blob_subject(BLOB_BUCKET, "M", "league", "blob", "test", name)
        await client.jetstream().publish(entry_subject, json.dumps(entry).encode())
        await Run(run).open_blob_store(client).cache.put(f"main@{list(ADAPTERS).index(name)}".encode())

    with_broker(run, swap)
    code, out = verify(run)
    assert code == ExitCode.DAMAGED
    assert f"DAMAGED: blob {name}" in out
    assert "this machine's cache has an intact copy" in out
    assert other not in out


def test_all_blobs_gone_at_once_are_all_named(run: Path) -> None:
    def purge(client: Client) -> object:
        return client.jetstream().purge_stream(f"OBJ_{BLOB_BUCKET}", subject=f"$O.{BLOB_BUCKET}.*.league.blob.>")

    with_broker(run, purge)
    code, out = verify(run, "--json")
    assert code == ExitCode.DAMAGED
    assert len(json.loads(out)["blobs"]["faults"]) == len(ADAPTERS)


@pytest.mark.parametrize("gone", [[45], [2], [100], [45, 46, 52]])
def test_deleted_messages_of_a_segment_are_located(run: Path, gone: list[int]) -> None:
    delete_messages(run, *gone)
    (damage,) = damage_of(run)
    assert (damage["first"], damage["last"]) == (1, 100)
    assert [sequence for loc in damage["located"] for sequence in range(loc["first"], loc["last"] + 1)] == gone
    assert f"missing: event {gone[-1]}" in verify(run)[1]


def test_a_deletion_over_several_segments_is_reported_for_each(run: Path) -> None:
    delete_messages(run, *range(95, 110))
    found = [(d["first"], d["last"], d["located"][0]["first"], d["located"][0]["last"]) for d in damage_of(run)]
    assert found == [(1, 100, 95, 100), (101, 200, 101, 109)]


def test_a_deleted_archiving_is_reported_and_the_archive_before_it_is_used(run: Path) -> None:
    delete_messages(run, ARCHIVED + 2)
    found = damage_of(run)
    assert [(d["where"], d["first"], d["last"]) for d in found] == [("stream", ARCHIVED + 2, ARCHIVED + 2)]


@pytest.mark.parametrize("gone", [[FIRST_OF_TAIL + 1], [FIRST_OF_TAIL + 3, FIRST_OF_TAIL + 4]])
def test_messages_deleted_from_the_tail_are_located(run: Path, gone: list[int]) -> None:
    delete_messages(run, *gone)
    (damage,) = damage_of(run)
    assert (damage["first"], damage["last"], damage["located"]) == (gone[0], gone[-1], [])
    assert "were deleted from the stream" in damage["what"]


def test_a_deletion_hides_no_unreadable_message(run: Path) -> None:
    """A message deleted from a segment, and one in the tail whose bytes are damaged: both are found."""
    delete_messages(run, 45)
    victim = b'"agent-2"'
    for block in (run / "nats" / "store").rglob("streams/LEAGUE/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(victim)) >= 0:
            stored[at + 3] ^= 4
            block.write_bytes(stored)
    found = [(d["first"], d["last"]) for d in damage_of(run)]
    assert found == [(1, 100), (FIRST_OF_TAIL + 2, FIRST_OF_TAIL + 2)]


def test_a_cut_end_is_found_by_what_else_knows_it(run: Path) -> None:
    last = FIRST_OF_TAIL + len(TAIL) - 1
    assert verify(run, "--reached", str(last))[0] == ExitCode.SUCCESS
    code, out = verify(run, "--reached", str(last + 7))
    assert code == ExitCode.DAMAGED
    assert f"events {last + 1} to {last + 7}: the history ends at event {last}" in out
    with Projection(Run(run).projection) as projection:
        projection.apply([RecordedEvent(last + 3, 1, "s", "w", b"{}")])
    (damage,) = damage_of(run)
    assert (damage["first"], damage["last"]) == (last + 1, last + 3)
    assert "this machine's tables" in damage["what"]


def test_a_history_that_cannot_be_read_has_no_verdict(run: Path) -> None:
    with_broker(run, lambda client: client.jetstream().delete_stream("LEAGUE"))
    result = CliRunner().invoke(app, ["verify", "--run", str(run), "--league", "league"])
    assert result.exit_code == ExitCode.UNREADABLE, result.output


def test_a_store_in_a_folder_is_scrubbed_blob_by_blob(tmp_path: Path) -> None:
    async def body() -> None:
        blobs = CachedBlobStore(FolderBlobStore(tmp_path / "store"), FolderBlobStore(tmp_path / "cache"))
        await store_adapters(blobs.store, HISTORY)
        references = BlobReferences()
        references.apply_batch(HISTORY)
        gone, spoilt = sorted(ADAPTERS)[:2]
        await blobs.store.delete(gone)
        FolderBlobStore(tmp_path / "store").path(spoilt).write_bytes(b"other")
        told: list[tuple[int, int]] = []
        found = await scrub_blobs(blobs, references, on_progress=lambda done, total: told.append((done, total)))
        assert [(fault.name, fault.what) for fault in found.faults] == [(gone, "missing"), (spoilt, "damaged")]
        assert found.checked == len(references.required_blobs()) - 2
        assert told[-1][0] == told[-1][1]

    asyncio.run(body())


def test_a_trainers_superseded_states_and_those_before_a_branch_may_be_gone() -> None:
    states = [f"{number:064d}" for number in range(3)]
    steps = [gradient_step(number, state=state) for number, state in enumerate(states, 1)]
    assert wanted(*steps[:2]) == {states[1]}
    branch = e.LeagueBranched(origin="o", at=2, digest="")
    assert wanted(*steps[:2], branch) == set()
    assert wanted(*steps[:2], branch, steps[2]) == {states[2]}


def wanted(*events: e.Event) -> set[str]:
    references = BlobReferences()
    references.apply_batch(record_events(events))
    return set(references.required_blobs())
