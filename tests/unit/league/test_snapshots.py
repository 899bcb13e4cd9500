"""Snapshots: a fold that begins at one is the fold that began at the first event; a bad one is passed over."""

import asyncio
from pathlib import Path

import pytest

from league.blobs import FolderBlobStore
from league.integrity import snapshots
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import DecodeError
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
).run(8, 1)


def folded(until: int) -> tuple[LeagueState, RatingFold]:
    state, ratings = LeagueState(), RatingFold()
    for recorded in HISTORY[:until]:
        state.apply(recorded.sequence, recorded.event)
        ratings.apply(recorded.sequence, recorded.event)
    return state, ratings


async def with_snapshots(store: FolderBlobStore, *places: int) -> MemoryLog:
    log = MemoryLog()
    await log.copy(HISTORY)
    for place in places:
        await log.append(await snapshots.take_snapshot(*folded(place), store))
    return log


def test_the_newest_snapshot_up_to_a_sequence_is_taken(tmp_path: Path) -> None:
    async def body() -> None:
        store = FolderBlobStore(tmp_path)
        log = await with_snapshots(store, 20, 60)
        for at, begun in ((None, 60), (60, 60), (59, 20), (19, 0)):
            state, ratings = await snapshots.load_folds(log, store, at)
            assert (state.sequence, ratings.sequence) == (begun, begun)
            assert state.digest() == folded(begun)[0].digest()
            assert ratings.to_snapshot() == folded(begun)[1].to_snapshot()
        assert (await snapshots.load_state_at(log, store, 75)).digest() == folded(75)[0].digest()

    asyncio.run(body())


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_a_snapshot_that_cannot_be_used_is_passed_over(tmp_path: Path, damage: str) -> None:
    async def body() -> None:
        store = FolderBlobStore(tmp_path)
        log = await with_snapshots(store, 20, 60)
        newest = (await log.newest(snapshots.SnapshotTaken)).event  # type: ignore[union-attr]
        path = store.path(newest.artifact)  # type: ignore[union-attr]
        if damage == "missing":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(path.read_bytes()[:-10])
        else:
            path.write_bytes(b"something else")
        state, _ = await snapshots.load_folds(log, store)
        assert state.sequence == 20

    asyncio.run(body())


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    with pytest.raises(DecodeError, match="not a snapshot"):
        snapshots.decode_snapshot(b"no")
