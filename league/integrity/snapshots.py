"""Snapshots of folds: a new worker starts from the newest one instead of the first event.

A snapshot is a blob; ``SnapshotTaken`` has its sequence. Snapshots are disposable: one that is missing, damaged or of
another version is skipped for an older one, and finally for the first event.
"""

from operator import attrgetter
from typing import Protocol

import msgspec
import zstandard

from league.blobs import BlobStore
from league.log.base import EventReader
from league.ratings.fold import RatingFold, RatingsSnapshot
from league.state import LeagueState, LeagueStateSnapshot
from schemas.codec import DECODE_ERRORS
from schemas.errors import ArtifactError, ConfigError, DecodeError
from schemas.events import SnapshotTaken
from schemas.loggers import get_logger

log = get_logger()
VERSION = 11
"""Increases whenever the folds' state, or their handling of an event, changes."""


class BlobReader(Protocol):
    """A source of blobs: a store, or a client of one."""

    async def get(self, name: str) -> bytes:
        """The bytes of a blob; raises ArtifactError if it is missing or damaged."""


class Snapshot(msgspec.Struct, frozen=True):
    """The folds that workers start from, at one sequence."""

    state: LeagueStateSnapshot
    ratings: RatingsSnapshot


def encode_snapshot(state: LeagueState, ratings: RatingFold) -> bytes:
    """Both folds as compressed msgpack; they must be at the same sequence."""
    assert state.sequence == ratings.sequence
    return zstandard.compress(msgspec.msgpack.encode(Snapshot(state.to_snapshot(), ratings.to_snapshot())))


def decode_snapshot(data: bytes) -> tuple[LeagueState, RatingFold]:
    """Decode a snapshot; DecodeError if the bytes are none of this version."""
    try:
        snapshot = msgspec.msgpack.decode(zstandard.decompress(data), type=Snapshot)
        return LeagueState.from_snapshot(snapshot.state), RatingFold.from_snapshot(snapshot.ratings)
    except (*DECODE_ERRORS, zstandard.ZstdError, ConfigError, MemoryError) as error:
        # MemoryError: a damaged frame may claim any size.
        raise DecodeError(f"not a snapshot of this version: {error}") from error


async def take_snapshot(state: LeagueState, ratings: RatingFold, artifacts: BlobStore) -> SnapshotTaken:
    """Store both folds; the caller appends the returned event."""
    # Encoded completely before the first await: the folds may move on meanwhile.
    data, sequence, digest = encode_snapshot(state, ratings), state.sequence, state.digest()
    name = await artifacts.put(data, f"snapshot of {state.league} at {sequence}")
    return SnapshotTaken(sequence=sequence, artifact=name, state=digest, version=VERSION)


async def load_folds(
    history: EventReader, artifacts: BlobReader, at: int | None = None
) -> tuple[LeagueState, RatingFold]:
    """Load the newest usable snapshot's folds, none later than ``at``; empty folds when there is none."""
    snapshots = [event async for _, event in history.read_events(SnapshotTaken) if event.version == VERSION]
    for event in sorted(snapshots, key=attrgetter("sequence"), reverse=True):
        if at is None or event.sequence <= at:
            try:
                state, ratings = decode_snapshot(await artifacts.get(event.artifact))
                if state.digest() != event.state:
                    raise DecodeError(f"its state has the digest {state.digest()[:12]}…; expected {event.state[:12]}…")
                return state, ratings
            except (ArtifactError, DecodeError) as error:
                log.warning("snapshot passed over", sequence=event.sequence, error=str(error))
    return LeagueState(), RatingFold()


async def load_state_at(history: EventReader, artifacts: BlobReader, at: int | None = None) -> LeagueState:
    """The state at a sequence, by default at the newest event, folded from the nearest snapshot before it."""
    state, _ = await load_folds(history, artifacts, at)
    async for recorded in history.read(state.sequence + 1, at):
        state.apply(recorded.sequence, recorded.event)
    return state
