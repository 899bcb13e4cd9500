"""Leagues in a new run folder, which appears whole or not at all: branches, and restorations of damaged runs."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.blobs import (
    BlobLocations,
    BlobStore,
    BrokerBlobStore,
    CachedBlobStore,
    FolderBlobStore,
    TieredBlobStore,
    copy_location,
    find_locations,
    open_blobs,
)
from league.history.branch import (
    CopyReport,
    TrainerStart,
    check_league_open,
    copy_blobs,
    copy_history,
    last_step_boundary,
    trainer_starts,
)
from league.integrity.recovery import DiscardedEvents, RecoveredHistory, append_stream, fetch_archive, find_manifests
from league.integrity.snapshots import load_state_at
from league.log.base import EventLog
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from league.state import LeagueState
from schemas.errors import LogError, LogUnavailableError, UsageError
from schemas.events import LeagueBranched
from schemas.files import atomic_folder
from schemas.subjects import BLOB_BUCKET
from workers.progress import ProgressReporter, progress_callback

_PRODUCER = "branch"


class BranchResult(msgspec.Struct, frozen=True):
    """Summary of a finished branch."""

    league: str
    origin: str
    asked: int
    at: int
    """Sequence of the branch point: the newest event at or before ``asked`` that is not inside a gradient step."""
    digest: str
    """Digest of the state at ``at``."""
    trainers: list[TrainerStart]
    left_behind: int
    """Training matches in play or waiting for the trainer at ``at``; the branch continues without them."""
    copied: CopyReport


async def make_branch(
    source: Run, history: JetStreamLog, at: int, target: Path, report: ProgressReporter
) -> BranchResult:
    """Make a run in a new folder ``target``, whose league starts as a copy of another's up to the event ``at``."""
    state = await load_state_at(history, source.open_blob_store(history.client), await last_step_boundary(history, at))
    check_league_open(state, at)
    with make_new_folder(target) as draft:
        run = Run(draft, name=history.league)
        async with run.connect(_PRODUCER) as client:
            artifacts = source.open_blob_store(history.client)
            # The broker first: reading through the cache would fill the other run's folder.
            stores = [artifacts.store, artifacts.cache]
            copied = await _copy_league(_origin_name(source), history, state, client, stores, report, artifacts)
    names = {stored.name for stored in await artifacts.stored()}
    trainers = await trainer_starts(history, state, state.sequence, names)
    left_behind = sum(state.in_play.matches_ahead(policy) for policy in state.policies)
    return BranchResult(
        history.league, _origin_name(source), at, state.sequence, state.digest(), trainers, left_behind, copied
    )


@contextlib.contextmanager
def make_new_folder(target: Path, option: str = "--run") -> Iterator[Path]:
    """Yield a draft folder and move it to ``target`` when the block succeeds; messages name the command's ``option``.

    Raises:
        UsageError: the folder exists already, or cannot be made.
    """
    if target.exists():
        raise UsageError(f"{option} {target.resolve()}: exists already; expected a new folder")
    with contextlib.ExitStack() as drafts:
        try:
            draft = drafts.enter_context(atomic_folder(target))
        except OSError as error:
            raise UsageError(f"{option} {target.resolve()}: cannot be made ({error.strerror})") from None
        yield draft


async def _copy_league(
    name: str,
    history: EventLog,
    state: LeagueState,
    client: Client,
    stores: Sequence[BlobStore],
    report: ProgressReporter,
    archive: CachedBlobStore | None = None,
) -> CopyReport:
    """Copy everything up to ``state`` to an empty broker, and append the event that names the origin.

    ``name`` is that of the origin in this event. ``stores`` are searched in their order; ``archive`` is the store with
    the archive of ``history``, if there is one. Large blobs are copied to a folder of the branch's own, where the
    configuration names a store for them.
    """
    assert state.config is not None
    steps = [step for policy in state.policies if (step := state.last_step(policy)) is not None]
    consumed = max((step.experience_to for step in steps), default=0)
    await ensure_streams(client.jetstream(), state.config.experience, consumed)
    target = JetStreamLog(client, history.league, _PRODUCER)
    last = state.sequence
    events, references = await copy_history(history, target, last, progress_callback(report, "copying", last), archive)
    broker, locations = BrokerBlobStore(client, history.league), await find_locations(history, last)
    locations.branch(f"{history.league}-{secrets.token_hex(6)}")

    async def branched() -> list[BlobLocations]:
        return [locations]

    progress = progress_callback(report, "copying", len(references), "artifacts")
    copied = await copy_blobs(references, stores, TieredBlobStore(broker, branched), progress, broker)
    copied.events = events
    folder = locations.current.folder if locations.current is not None else ""
    await target.append(LeagueBranched(origin=name, at=last, digest=state.digest(), blobs=folder))
    return copied


def _origin_name(source: Run) -> str:
    return source.nats or source.folder.name


class RestoreResult(msgspec.Struct, frozen=True):
    """Summary of a rebuilt league."""

    league: str
    origin: str
    archived_to: int
    """Sequence of the last event that comes from the archive."""
    at: int
    """Sequence of the last event: the newest that is not inside a gradient step."""
    manifest: str
    """Digest of the manifest up to ``archived_to``."""
    digest: str
    """Digest of the state at ``at``."""
    left: DiscardedEvents | None
    """Events of the stream that were discarded."""
    trainers: list[TrainerStart]
    copied: CopyReport


async def restore_run(
    source: Run, archives: Sequence[str], league: str | None, expect: str, target: Path, report: ProgressReporter
) -> RestoreResult:
    """Make a run from what is left of a damaged one.

    Without a damaged run in ``source``, ``archives`` has to suffice: folders or buckets with blobs, such as another
    machine's ``artifacts`` or a copy of the archive. ``expect`` is the digest of a manifest that
    the archive must continue, if not empty. ``target`` must not exist.

    Raises:
        ArtifactError: no archive can be read from its beginning.
        UsageError: there is no archive, or it does not continue ``expect``.
    """
    for where in archives:
        if "://" not in where and not os.path.isdir(where):  # noqa: ASYNC240 - before anything else runs
            raise UsageError(f"--archive {where}: no such folder; expected a run's folder of artifacts")
    with make_new_folder(target) as draft:
        async with contextlib.AsyncExitStack() as connection:
            is_there = source.nats is not None or source.exists()
            client = await connection.enter_async_context(source.connect("restore")) if is_there else None
            locations = (str(source.folder / "artifacts"), *archives)
            stores: list[BlobStore] = [copy_location(location).open() for location in locations]
            if client is not None:
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    await client.jetstream().stream_info(f"OBJ_{BLOB_BUCKET}")
                    stores.insert(0, BrokerBlobStore(client, "*"))
            cache = FolderBlobStore(draft / "artifacts")
            left = None
            manifests = await find_manifests(stores, league)
            recovered = await fetch_archive(manifests, [CachedBlobStore(store, cache) for store in stores])
            if client is not None:
                stream = JetStreamLog(client, recovered.league, "restore")
                try:
                    has_events = await stream.last_sequence() > 0
                except LogUnavailableError:
                    raise
                except LogError:
                    # The stream no longer exists.
                    has_events = False
                left = await append_stream(recovered, stream) if has_events else None
            return await _rebuild(recovered, left, _origin_name(source), stores, expect, draft, report)


async def _rebuild(
    recovered: RecoveredHistory,
    left: DiscardedEvents | None,
    name: str,
    stores: Sequence[BlobStore],
    expect: str,
    draft: Path,
    report: ProgressReporter,
) -> RestoreResult:
    manifest = next(name for name, last in recovered.manifests.items() if last == recovered.archived_to)
    if expect and expect not in recovered.manifests:
        raise UsageError(f"--expect {expect[:16]}…: no manifest has this digest; the newest is {manifest[:16]}…")
    cached = CachedBlobStore(stores[0], FolderBlobStore(draft / "artifacts"))
    # The last recoverable event may be inside a gradient step: the archive ends anywhere.
    at = await last_step_boundary(recovered.as_log, await recovered.last_sequence())
    state = await load_state_at(recovered.as_log, cached, at)
    check_league_open(state, at)
    locations = await find_locations(recovered.as_log, at)
    stores = [*stores, *([] if locations.current is None else [locations.current.open()])]
    run = Run(draft, name=recovered.league)
    async with run.connect(_PRODUCER) as client:
        copied = await _copy_league(name, recovered.as_log, state, client, stores, report)
        names = {stored.name for stored in await open_blobs(client, recovered.league).stored()}
    trainers = await trainer_starts(recovered.as_log, state, at, names)
    archived_to = recovered.archived_to
    return RestoreResult(recovered.league, name, archived_to, at, manifest, state.digest(), left, trainers, copied)
