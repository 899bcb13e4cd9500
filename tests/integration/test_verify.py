"""``league verify`` states its evidence: what is sealed, which blobs are there, what else knows of the end."""

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
from league.blobs import BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.integrity.blob_scrub import scrub_blobs
from league.integrity.garbage import BlobReferences
from league.integrity.seals import seal_through
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.projections.projection import Projection
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import ExitCode
from schemas.subjects import BLOB_BUCKET, blob_subject
from tests.builders import gradient_step, record_events, store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)), registers=True
).run(8, 1)
SEALED = 200
TAIL = [e.AgentRegistered(agent=f"agent-{n}", kind="bot", baseline=False, rating=0.0) for n in range(5)]
FIRST_OF_TAIL = SEALED + 10 + 1
"""After ten seals."""
ADAPTERS = {r.event.adapter: r.sequence for r in HISTORY[:SEALED] if isinstance(r.event, e.PolicyPublished)}


@pytest.fixture(scope="module")
def sealed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run in a stream that permits deletion: ten seals over 200 events, and five events after them."""
    folder = tmp_path_factory.mktemp("sealed")

    async def fill(client: Client) -> None:
        stream = StreamConfig(name="LEAGUE", subjects=["league.>"], allow_direct=True, allow_atomic=True)
        await client.jetstream().add_stream(stream)
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log = JetStreamLog(client, "league", "test")
        await store_adapters(BrokerBlobStore(client, "league"), HISTORY)
        await log.copy(HISTORY[:SEALED])
        await seal_through(log, SEALED, 20)
        await log.append_batch(TAIL)

    with_broker(folder, fill)
    return folder


@pytest.fixture
def run(sealed_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sealed_run, tmp_path / "run"))


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


def test_a_sealed_history_is_sound_and_the_tail_is_stated(run: Path) -> None:
    code, out = verify(run)
    assert code == ExitCode.SUCCESS, out
    assert "10 seals up to event 200; a tail of 15 events is not sealed" in out
    assert f"blobs: {len(ADAPTERS)} intact" in out
    assert "other records of how far the history reached: none; a cut beyond all of them cannot be detected" in out
    assert out.endswith("sound: as sealed up to event 200; no seal vouches for the 15 events after it\n")


def test_a_history_without_a_seal_is_not_sound(tmp_path: Path) -> None:
    async def fill(client: Client) -> None:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await store_adapters(BrokerBlobStore(client, "league"), HISTORY)
        await JetStreamLog(client, "league", "test").copy(HISTORY[:50])

    with_broker(tmp_path, fill)
    code, out = verify(tmp_path)
    assert code == ExitCode.NOT_SEALED
    assert "NOT SEALED" in out
    assert json.loads(verify(tmp_path, "--json")[1])["sound"] is False


def test_forged_events_of_the_tail_are_named(run: Path) -> None:
    finished = [r.event for r in HISTORY if isinstance(r.event, e.MatchFinished)]
    match = next(match for match in finished if match.purpose == "training")
    forged: list[e.Event] = [
        e.CheckpointAdded(agent="main@99", policy="main", version=99, parent="", reason="elite", adapter="f" * 64),
        e.AgentRetired(agent="ghost", reason="forged"),
        e.MatchFinished(
            **{**{f: getattr(match, f) for f in match.__struct_fields__}, "match_id": "g-1", "worker": "g"}
        ),
    ]
    with_broker(run, lambda client: JetStreamLog(client, "league", "evil").append_batch(forged))
    code, out = verify(run, "--no-blobs")
    assert code == ExitCode.INCONSISTENT
    first = FIRST_OF_TAIL + len(TAIL)
    assert f"INCONSISTENT: event {first}: main@99 was added, but that version was never published" in out
    assert f"INCONSISTENT: event {first + 1}: AgentRetired of ghost, which is not in the league" in out
    assert f"INCONSISTENT: event {first + 2}: result of match g-1 by g, which never registered before" in out


def test_missing_blobs_are_named_with_their_events(run: Path) -> None:
    gone = list(ADAPTERS)[:2]
    for name in gone:
        delete_blob(run, name)
    code, out = verify(run)
    assert code == ExitCode.BLOBS
    assert f"blobs: {len(ADAPTERS) - 2} intact" in out
    for name in gone:
        assert f"MISSING: blob {name}: main@" in out
    found = json.loads(verify(run, "--json")[1])
    faults = {fault["name"]: fault for fault in found["blobs"]["faults"]}
    assert faults.keys() == set(gone)
    assert all(ADAPTERS[name] in faults[name]["events"] for name in gone)
    assert (found["sound"], found["outcome"]) == (False, "blobs")
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
    assert code == ExitCode.BLOBS
    assert f"DAMAGED: blob {name}" in out
    assert "this machine's cache has an intact copy" in out
    assert other not in out


def test_all_blobs_gone_at_once_are_all_named(run: Path) -> None:
    def purge(client: Client) -> object:
        return client.jetstream().purge_stream(f"OBJ_{BLOB_BUCKET}")

    with_broker(run, purge)
    code, out = verify(run, "--json")
    assert code == ExitCode.BLOBS
    assert len(json.loads(out)["blobs"]["faults"]) == len(ADAPTERS)


@pytest.mark.parametrize("gone", [[45], [41], [60], [45, 46, 52]])
def test_deleted_messages_of_a_sealed_range_are_located_with_the_seal_that_fails(run: Path, gone: list[int]) -> None:
    delete_messages(run, *gone)
    (damage,) = damage_of(run)
    # The third range; seals follow the events that they cover.
    assert (damage["first"], damage["last"], damage["seal"]) == (41, 60, SEALED + 3)
    assert [sequence for loc in damage["located"] for sequence in range(loc["first"], loc["last"] + 1)] == gone
    assert f"(seal at event {SEALED + 3})" in verify(run)[1]


def test_a_deletion_over_several_ranges_is_reported_for_each(run: Path) -> None:
    delete_messages(run, *range(55, 90))
    found = [(d["first"], d["last"], d["located"][0]["first"], d["located"][0]["last"]) for d in damage_of(run)]
    assert found == [(41, 60, 55, 60), (61, 80, 61, 80), (81, 100, 81, 89)]


def test_a_deleted_seal_is_reported_with_its_range_and_its_place(run: Path) -> None:
    delete_messages(run, SEALED + 3)
    found = damage_of(run)
    assert [(d["first"], d["last"]) for d in found] == [(41, 60), (SEALED + 3, SEALED + 3)]
    assert "the seal of this range is lost" in found[0]["what"]


@pytest.mark.parametrize("gone", [[FIRST_OF_TAIL + 1], [FIRST_OF_TAIL + 3, FIRST_OF_TAIL + 4]])
def test_messages_deleted_from_the_unsealed_tail_are_located(run: Path, gone: list[int]) -> None:
    delete_messages(run, *gone)
    (damage,) = damage_of(run)
    assert (damage["first"], damage["last"], damage["seal"]) == (gone[0], gone[-1], 0)
    assert "were deleted from the stream" in damage["what"]


def test_a_deletion_hides_no_unreadable_message(run: Path) -> None:
    """A message deleted under a seal, and one in the tail whose bytes are damaged: both are found."""
    delete_messages(run, 45)
    victim = b'"agent-2"'
    for block in (run / "nats" / "store").rglob("streams/LEAGUE/msgs/*.blk"):
        stored = bytearray(block.read_bytes())
        if (at := stored.find(victim)) >= 0:
            stored[at + 3] ^= 4
            block.write_bytes(stored)
    found = [(d["first"], d["last"]) for d in damage_of(run)]
    assert found == [(41, 60), (FIRST_OF_TAIL + 2, FIRST_OF_TAIL + 2)]


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
