"""Checks of this machine and of a run's folder or broker; deletion of blobs that no event on a broker refers to."""

import importlib.util
import math
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop

from league.blobs import BlobInfo, BlobStore
from league.integrity.garbage import GarbageReport, collect_references, find_garbage
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, find_league, flush_and_close, list_leagues
from league.log.metrics import broker_time
from league.log.server import EmbeddedServer
from league.run import Run
from schemas.errors import LeagueError, UsageError

_MIN_FREE_GB = 2.0


class Finding(msgspec.Struct, frozen=True):
    """Result of one check."""

    what: str
    ok: bool
    found: str


def run_checks(run: Run) -> Iterator[Finding]:
    """Check Python, packages, disk, broker and league, one after the other."""
    yield Finding("Python", sys.version_info >= (3, 11), platform.python_version())
    uses = {"torch": "models", "diplomacy": "the Diplomacy game; pip install 'event-sourced-league[diplomacy]'"}
    for package, why in uses.items():
        there = importlib.util.find_spec(package) is not None
        yield Finding(package, there, "installed" if there else f"not installed, needed for {why}")
    # The run may not be made yet, nor the folder that it will be in.
    folder = next(path for path in (run.folder, *run.folder.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    yield Finding("disk", free_gb > _MIN_FREE_GB, f"{free_gb:.1f} GB free")
    if run.nats is None:
        yield _run_check("nats-server", _start_server)
    if run.nats is not None or run.exists():
        yield _run_check("league", lambda: uvloop.run(_describe_league(run)))
    else:
        yield Finding("league", True, f"none yet in {run.folder}; `league config init` begins one")


def _run_check(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, check())
    except LeagueError as error:
        return Finding(what, False, str(error))


def _start_server() -> str:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        return f"starts, here at {server.url}"


async def _describe_league(run: Run) -> str:
    if run.nats is not None:
        client = await connect(run.nats, "doctor", run.access)
        resolved = await find_league(client)
        await flush_and_close(client)
        return f"{resolved or 'none yet'} at {run.nats}"
    async with run.open_log("doctor") as history:
        return f"{history.league}, {await history.last_sequence():,} events in {run.folder}"


class StoreGarbage(msgspec.Struct):
    """Garbage in the store and in this machine's cache."""

    store: GarbageReport
    cache: GarbageReport
    deleted: bool


async def collect_garbage(run: Run, delete: bool, age_s: float, keep_snapshots: int) -> StoreGarbage:
    """Find unreferenced blobs, and delete them on request.

    Blobs younger than ``age_s`` are spared: an event that refers to them may be on its way. Beside the newest snapshots
    every tenth is kept.
    """
    if run.nats is None and not run.exists():
        raise UsageError(
            f"{run.folder}: no league here; expected the --run folder of a `league up` "
            "(to begin one: `league config init`)"
        )
    async with run.connect("gc") as client:
        leagues = await list_leagues(client)
        if not leagues:
            raise UsageError(f"{run.nats or run.folder}: no league was opened here; start one with `league up`")
        blobs = run.open_blob_store(client)
        # Of two clocks the earlier one: no clock that is ahead makes young blobs old.
        now_s = min(time.time(), await broker_time(client) or math.inf)
        before_ns = round((now_s - age_s) * 1e9)
        # Blobs are listed before the events are read: what is stored in between is not on the list.
        stored, cached = await blobs.stored(), await blobs.cache.stored()
        references = [
            await collect_references(JetStreamLog(client, name, "gc"), blobs, keep_snapshots, before_ns)
            for name in leagues
        ]
        in_cache = find_garbage(cached, references, before_ns, missing=False)
        garbage = StoreGarbage(find_garbage(stored, references, before_ns), in_cache, delete)
        garbage.store.dropped = [event for reference in references for event in reference.dropped_now]
        garbage.store.dropped_decisions = [
            event for reference in references for event in reference.decisions_dropped_now
        ]
        if delete:
            # Recorded first: what is recorded and not deleted yet is garbage that the next collection finds.
            for name, reference in zip(leagues, references, strict=True):
                for event in (*reference.dropped_now, *reference.decisions_dropped_now):
                    await JetStreamLog(client, name, "gc").append(event)
            await _delete_unreferenced(blobs, garbage.store.unreferenced, before_ns)
            await _delete_unreferenced(blobs.cache, garbage.cache.unreferenced, before_ns)
        return garbage


async def _delete_unreferenced(blobs: BlobStore, garbage: Sequence[BlobInfo], before_ns: int) -> None:
    """Delete only what is still old: a blob that was stored again meanwhile is about to be referred to."""
    still_old = {stored.name for stored in await blobs.stored() if stored.time_ns < before_ns}
    for blob in garbage:
        if blob.name in still_old:
            await blobs.delete(blob.name)
