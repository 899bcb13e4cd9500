"""Rebuilds a league in a new run folder, from its archive and what a damaged broker still holds."""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.blobs import (
    BlobStore,
    BrokerBlobStore,
    CachedBlobStore,
    FolderBlobStore,
    copy_location,
    find_locations,
    open_blobs,
)
from league.history.branch import CopyReport, TrainerStart, check_league_open, last_step_boundary, trainer_starts
from league.integrity.recovery import (
    DiscardedEvents,
    RecoveredHistory,
    append_stream,
    check_recovered,
    fetch_archive,
    find_manifests,
)
from league.integrity.snapshots import load_state_at
from league.integrity.verification import Damage
from league.log.jetstream import JetStreamLog
from league.run import Run
from lifecycle.branch import PRODUCER, copy_league, make_new_folder, origin_name
from schemas.errors import LogError, LogUnavailableError, UsageError
from schemas.subjects import BLOB_BUCKET
from workers.progress import ProgressReporter


class RestoreResult(msgspec.Struct, frozen=True):
    """Summary of a rebuilt league."""

    league: str
    origin: str
    archived_to: int
    """Sequence of the last event that comes from the archive."""
    at: int
    """Sequence of the last event: the newest that is not inside a gradient step."""
    sealed_to: int
    """Sequence of the last sealed event; later ones rest on the archive's digests or on the stream alone."""
    seal: str
    """Digest of the newest known seal."""
    digest: str
    """Digest of the state at ``at``."""
    damage: list[Damage]
    """Events after the archive that the stream has lost."""
    left: DiscardedEvents | None
    """Events of the stream that were discarded."""
    trainers: list[TrainerStart]
    copied: CopyReport


async def restore_run(
    source: Run, archives: Sequence[str], league: str | None, expect: str, target: Path, report: ProgressReporter
) -> RestoreResult:
    """Make a run from what is left of a damaged one.

    Without a damaged run in ``source``, ``archives`` has to suffice: folders or buckets with blobs, such as another
    machine's ``artifacts`` or a copy of the archive. ``expect`` is the digest of a seal that the history must contain,
    if not empty. ``target`` must not exist.

    Raises:
        UsageError: the folder exists, no archive was found, or the expected seal is not in it.
        ArtifactError: no archive can be read from its beginning.
        LogError: the history does not match its seals.
    """
    for where in archives:
        if "://" not in where and not os.path.isdir(where):  # noqa: ASYNC240 - before anything else runs
            raise UsageError(f"--archive {where}: no such folder; expected one of artifacts, as runs have them")
    with make_new_folder(target) as draft:
        async with _connect_source(source) as client:
            stores = await _candidate_stores(client, [str(source.folder / "artifacts"), *archives])
            recovered, left = await _recover(client, stores, league, draft)
            return await _rebuild(recovered, left, origin_name(source), stores, expect, draft, report)


@contextlib.asynccontextmanager
async def _connect_source(source: Run) -> AsyncIterator[Client | None]:
    """Yield a connection to a run's broker, if there is one."""
    if source.nats is None and not source.exists():
        yield None
        return
    async with source.connect("restore") as client:
        yield client


async def _recover(
    client: Client | None, stores: Sequence[BlobStore], league: str | None, draft: Path
) -> tuple[RecoveredHistory, DiscardedEvents | None]:
    cache = FolderBlobStore(draft / "artifacts")
    manifests = await find_manifests(stores, league)
    recovered = await fetch_archive(manifests, [CachedBlobStore(store, cache) for store in stores])
    if client is None:
        return recovered, None
    stream = JetStreamLog(client, recovered.league, "restore")
    return recovered, await append_stream(recovered, stream) if await _has_events(stream) else None


async def _has_events(stream: JetStreamLog) -> bool:
    try:
        return await stream.last_sequence() > 0
    except LogUnavailableError:
        raise
    except LogError:
        # The stream no longer exists.
        return False


async def _candidate_stores(client: Client | None, places: Sequence[str]) -> list[BlobStore]:
    """Stores that may contain the league's blobs."""
    stores: list[BlobStore] = [copy_location(place).open() for place in places]
    if client is not None:
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await client.jetstream().stream_info(f"OBJ_{BLOB_BUCKET}")
            stores.insert(0, BrokerBlobStore(client, "*"))
    return stores


async def _rebuild(
    recovered: RecoveredHistory,
    left: DiscardedEvents | None,
    name: str,
    stores: Sequence[BlobStore],
    expect: str,
    draft: Path,
    report: ProgressReporter,
) -> RestoreResult:
    chain, sealed_to = await recovered.seal_chain(), await recovered.sealed_to()
    seal = chain.digest if chain.last >= recovered.archived_to else recovered.seal
    if expect not in ("", seal, *(closed.expected for closed in chain.ranges)):
        raise UsageError(f"--expect {expect[:16]}…: no seal has this digest; the newest is {seal[:16]}…")
    cached = CachedBlobStore(stores[0], FolderBlobStore(draft / "artifacts"))
    # The last recoverable event may be inside a gradient step: the archive ends at a seal.
    at = await last_step_boundary(recovered.as_log, await recovered.last_sequence())
    state = await load_state_at(recovered.as_log, cached, at)
    check_league_open(state, at)
    locations = await find_locations(recovered.as_log, at)
    stores = [*stores, *(place.open() for place in locations.readable())]
    run = Run(draft, name=recovered.league)
    async with run.connect(PRODUCER) as client:
        copied = await copy_league(name, recovered.as_log, state, client, stores, report)
        names = {stored.name for stored in await open_blobs(client, recovered.league).stored()}
    damage = await check_recovered(recovered)
    trainers = await trainer_starts(recovered.as_log, state, at, names)
    return RestoreResult(
        recovered.league,
        name,
        recovered.archived_to,
        at,
        sealed_to,
        seal,
        state.digest(),
        damage,
        left,
        trainers,
        copied,
    )
