"""Branching of a league into a new run folder, which appears whole or not at all."""

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from nats.aio.client import Client

from league.blobs import BlobLocations, BlobStore, BrokerBlobStore, CachedBlobStore, TieredBlobStore, find_locations
from league.history.branch import (
    CopyReport,
    ProgressCallback,
    TrainerStart,
    check_league_open,
    copy_blobs,
    copy_history,
    last_step_boundary,
    trainer_starts,
)
from league.integrity.snapshots import load_state_at
from league.log.base import EventLog
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from league.state import LeagueState
from schemas.errors import UsageError
from schemas.events import LeagueBranched
from schemas.files import atomic_folder
from workers.progress import ProgressReporter

PRODUCER = "branch"


class BranchResult(msgspec.Struct, frozen=True):
    """Summary of a finished branch."""

    league: str
    origin: str
    asked: int
    """Requested sequence."""
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
    """Make a run whose league starts as a copy of another's.

    It begins after the event ``at`` of ``history``; the folder ``target`` must not exist.

    Raises:
        UsageError: the folder exists, or the league was not open yet at ``at``.
    """
    state = await load_state_at(history, source.open_blob_store(history.client), await last_step_boundary(history, at))
    check_league_open(state, at)
    with make_new_folder(target) as draft:
        run = Run(draft, name=history.league)
        async with run.connect(PRODUCER) as client:
            artifacts = source.open_blob_store(history.client)
            # The broker first: reading through the cache would fill the other run's folder.
            stores = [artifacts.store, artifacts.cache]
            copied = await copy_league(origin_name(source), history, state, client, stores, report, artifacts)
    names = {stored.name for stored in await artifacts.stored()}
    trainers = await trainer_starts(history, state, state.sequence, names)
    left_behind = sum(state.matches_ahead(policy) for policy in state.policies)
    return BranchResult(
        history.league, origin_name(source), at, state.sequence, state.digest(), trainers, left_behind, copied
    )


@contextlib.contextmanager
def make_new_folder(target: Path, option: str = "--run") -> Iterator[Path]:
    """Yield a draft folder and move it to ``target`` when the block succeeds; messages name the command's ``option``.

    Raises:
        UsageError: the folder exists already, or cannot be made.
    """
    if target.exists():
        raise UsageError(f"{option} {target.resolve()}: exists already; expected a folder that does not")
    with contextlib.ExitStack() as drafts:
        try:
            draft = drafts.enter_context(atomic_folder(target))
        except OSError as error:
            raise UsageError(f"{option} {target.resolve()}: cannot be made ({error.strerror})") from None
        yield draft


async def copy_league(
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
    target, last = JetStreamLog(client, history.league, PRODUCER), state.sequence
    events, references = await copy_history(
        history, target, last, _progress_callback(report, "copying events", last), archive
    )
    broker, locations = BrokerBlobStore(client, history.league), await find_locations(history, last)
    locations.branch(f"{history.league}-{secrets.token_hex(6)}")

    async def branched() -> list[BlobLocations]:
        return [locations]

    copied = await copy_blobs(
        references,
        stores,
        TieredBlobStore(broker, branched),
        _progress_callback(report, "copying artifacts", len(references)),
        broker,
    )
    copied.events = events
    folder = locations.current.folder if locations.current is not None else ""
    await target.append(LeagueBranched(origin=name, at=last, digest=state.digest(), blobs=folder))
    return copied


def _progress_callback(report: ProgressReporter, label: str, total: int) -> ProgressCallback:
    """Returns a callback that reports the number done of ``total``, the rate and the time left."""
    began = time.monotonic()

    def update(done: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-3)
        left_s = max(total - done, 0) / rate if rate else 0.0
        report(f"{label}, {done:,} of {total:,} ({rate:,.0f}/s, {left_s:.0f} s left)", min(done / max(total, 1), 1.0))

    return update


def origin_name(source: Run) -> str:
    """Name by which a branch refers to the run it was made from."""
    return source.nats or source.folder.name
