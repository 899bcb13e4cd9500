"""Branching: what is copied, what it leads to for training, and where a history can be cut."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from league.blobs import FolderBlobStore
from league.history.branch import (
    BlobReference,
    copy_blobs,
    copy_history,
    describe_trainer_start,
    event_references,
    last_step_boundary,
    manifest_references,
    trainer_starts,
)
from league.integrity.archive import ArchiveFile, ArchiveManifest, ArchiveSegment
from league.integrity.snapshots import load_state_at
from league.log.connection import connect
from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from league.state import LeagueState
from lifecycle.branch import make_branch
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.ids import digest
from tests.builders import checkpoint_added, gradient_step
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

SMALL = EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)


def step(number: int, state: str, policy: str = "main") -> e.GradientStepTaken:
    return gradient_step(number, policy=policy, batch="b", experience_to=3 * number, state=state)


def published(version: int, policy: str = "main") -> e.PolicyPublished:
    return e.PolicyPublished(policy=policy, version=version, adapter=f"a{version}", parent="base_model")


async def log_of(*events: e.Event) -> MemoryLog:
    log = MemoryLog()
    await log.append_batch(events)
    return log


STEPS = (
    published(0),
    published(1),
    step(1, "s1"),
    checkpoint_added(1),
    published(2),
    step(2, "s2"),
    published(3),
    step(3, "s3"),
)


@pytest.mark.parametrize(("at", "whole"), [(1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 6), (7, 6), (8, 8)])
def test_a_history_is_never_cut_inside_a_gradient_step(at: int, whole: int) -> None:
    async def main() -> int:
        return await last_step_boundary(await log_of(*STEPS), at)

    assert asyncio.run(main()) == whole


def test_a_checkpoint_of_another_version_is_no_part_of_the_step_before_it() -> None:
    async def main() -> int:
        return await last_step_boundary(await log_of(published(2), step(2, "s2"), checkpoint_added(1)), 2)

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize(
    ("at", "available", "expected"),
    [
        (1, set(), (0, True, None, None)),
        (4, {"s1"}, (1, True, None, None)),
        (6, {"s1"}, (2, False, 4, 1)),
        (8, {"s1"}, (3, False, 4, 1)),
        (8, {"s1", "s2"}, (3, False, 6, 2)),
        (8, {"s3"}, (3, True, None, None)),
        (8, set(), (3, False, None, None)),
    ],
)
def test_it_is_said_how_training_would_go_on_and_where_it_would_be_exact(
    at: int, available: set[str], expected: tuple[object, ...]
) -> None:
    async def main() -> None:
        log, state = await log_of(*STEPS), LeagueState()
        async for recorded in log.read(1, at):
            state.apply(recorded.sequence, recorded.event)
        (start,) = await trainer_starts(log, state, at, available)
        assert (start.step, start.exact, start.nearest, start.nearest_step) == expected
        text = describe_trainer_start(start)
        assert ("fresh optimiser moments" in text) == (not start.exact)
        if start.nearest is not None:
            # What is offered is a whole place whose state is there.
            assert await last_step_boundary(log, start.nearest) == start.nearest
            assert f"--at {start.nearest}" in text

    asyncio.run(main())


def test_every_artifact_that_an_event_names_is_found() -> None:
    opened = e.LeagueOpened(league="x", config={}, model="artifact:m")
    hub = e.LeagueOpened(league="x", config={}, model="some/model")
    snapshot = e.SnapshotTaken(sequence=1, artifact="p", state="d", version=1)
    archived = e.HistoryArchived(first=1, last=2, manifest="f", bytes=1)
    cases: list[tuple[e.Event | None, list[str]]] = [
        (opened, ["m"]),
        (hub, []),
        (published(4), ["a4"]),
        (checkpoint_added(1, adapter="a"), ["a"]),
        (step(1, "s"), ["s"]),
        (step(1, ""), []),
        (snapshot, ["p"]),
        (archived, ["f"]),
        (None, []),
        (e.AgentRetired(agent="x", reason="y"), []),
    ]
    for event, names in cases:
        assert [reference.digest for reference in event_references(event)] == names


def test_artifacts_are_copied_with_what_their_manifests_list(tmp_path: Path) -> None:
    async def main() -> None:
        first, second, target = (FolderBlobStore(tmp_path / name) for name in ("first", "second", "target"))
        part, marks = await first.put(b"part"), await second.put(b"marks")
        segment = ArchiveSegment(1, 9, 9, {"events": ArchiveFile(part, 4)}, ArchiveFile(marks, 5))
        manifest = await first.put(msgspec.json.encode(ArchiveManifest(1, "x", [segment])))
        wanted = [
            BlobReference("manifest", manifest),
            BlobReference("game record", await second.put(b"record")),
            BlobReference("game record", digest(b"never stored")),
            BlobReference("trainer state", digest(b"superseded")),
        ]
        copied = await copy_blobs(wanted, [first, second], target, lambda done: None)
        assert {stored.name for stored in await target.stored()} == {manifest, part, marks, digest(b"record")}
        assert (copied.artifacts, copied.missing) == (4, {"game record": 1})

    asyncio.run(main())


def test_a_manifest_of_an_unknown_form_lists_nothing() -> None:
    assert list(manifest_references(b"what is this")) == list(manifest_references(b'{"version": 9}')) == []


def test_a_league_among_others_on_a_broker_is_branched_alone_with_its_sequences(tmp_path: Path) -> None:
    """Places that the other league's events took are filled, so every reference to a sequence holds."""
    config = LeagueConfig(name="one", seed=4, evaluation=SMALL)
    one, two = Simulation(config).run(4, 2), Simulation(msgspec.structs.replace(config, name="two")).run(2, 2)

    async def main() -> None:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "test")
            await ensure_streams(client.jetstream(), ExperienceConfig())
            logs = JetStreamLog(client, "one", "w"), JetStreamLog(client, "two", "w")
            for start in range(0, len(one), 40):
                for log, records in zip(logs, (one, two), strict=True):
                    await log.append_batch([r.event for r in records[start : start + 40] if r.event is not None])
            history = logs[0]
            source = Run(tmp_path, nats=server.url, name="one")
            last = await history.last_sequence()
            made = await make_branch(source, history, last, tmp_path / "new", lambda text, share: None)
            expected = [(r.sequence, r.time_ns, r.payload) async for r in history.read()]
            assert expected[-1][0] > len(expected)
            await client.close()
        run = Run(tmp_path / "new")
        async with run.open_log() as copy:
            copied = [(r.sequence, r.time_ns, r.payload) async for r in copy.read()]
            assert copied[:-1] == expected
            assert copied[-1][0] == last + 1
            state = await load_state_at(copy, run.open_blob_store(copy.client), last)
        assert made.digest == state.digest()
        assert made.origin == source.nats

    asyncio.run(main())


def test_a_copy_into_a_history_that_has_begun_is_refused() -> None:
    async def main() -> None:
        source, target = await log_of(*STEPS), await log_of(published(9))
        with pytest.raises(OSError, match="the history is at 1 already"):
            await copy_history(source, target, 8, lambda done: None)

    asyncio.run(main())
