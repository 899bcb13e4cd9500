"""``league archive`` and ``gc``: the size of a league's history and of its blobs."""

import re
import time
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console

from league.blobs import ARCHIVE_AREA
from league.integrity.archive import archive_sealed, copy_archive
from league.integrity.garbage import GarbageReport
from league.integrity.seals import seal_through
from league.integrity.snapshots import load_state_at
from league.run import DEFAULT_RUN, Run
from lifecycle.maintenance import collect_garbage
from schemas.config import HistoryConfig
from schemas.errors import ConflictError, LogError, UsageError
from ui.cli.options import JsonOption, NatsOption, RunOption
from ui.output import format_bytes, format_count, print_json, print_omitted
from workers.progress import progress_callback, show_progress

_MAX_SHOWN = 20
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


async def archive(
    *,
    run: Run,
    copy_to: Annotated[
        str, typer.Option(help="Folder or s3://bucket/prefix for a copy; by default that of history.copy_to, if any.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Seal and archive everything up to the newest event; an archivist does so by itself, in larger pieces."""
    HistoryConfig(copy_to=copy_to)
    try:
        async with run.open_log() as history:
            artifacts = run.open_blob_store(history.client, history.league, ARCHIVE_AREA)
            state = await load_state_at(history, artifacts)
            assert state.config is not None
            settings, last = state.config.history, await history.last_sequence()
            with show_progress(Console(stderr=True), "sealing") as report:
                await seal_through(history, last, settings.seal_events, progress_callback(report, "sealed", last))
            with show_progress(Console(stderr=True), "archiving") as report:
                update = progress_callback(report, "archived", last)
                done = await archive_sealed(history, artifacts, settings.archive_events, rest=True, progress=update)
            copied = await copy_archive(history, artifacts, copy_to)
    except ConflictError as error:
        raise LogError(f"an archivist is sealing or archiving this league just now ({error}); try again") from None
    if as_json:
        print_json(done)
        return
    for event in done:
        print(f"events {event.first:,} to {event.last:,}: {format_bytes(event.bytes)}, manifest {event.manifest}")
    print(f"archived up to event {done[-1].last:,}" if done else "nothing new to archive")
    if copied is not None:
        added = f"{format_count(copied.files, 'file')} added, {format_bytes(copied.bytes)}"
        print(f"copied up to event {copied.last:,} to {copied.where} ({added})")


async def gc(
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the unreferenced artifacts.")] = False,
    older_than: Annotated[str, typer.Option(help="Keep what was stored more recently: 30m, 1h, 2d.")] = "1h",
    keep_snapshots: Annotated[int, typer.Option(help="Newest snapshots to keep, beside every tenth.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """List artifacts that no event refers to, and missing ones; --delete deletes the first."""
    if keep_snapshots < 1:
        raise UsageError(f"--keep-snapshots {keep_snapshots}: expected 1 or more")
    age = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", older_than)
    if age is None:
        raise UsageError(f"--older-than {older_than!r}: expected a number and one of s, m, h, d, e.g. 1h")
    age_s = float(age[1]) * _UNITS[age[2]]
    garbage = await collect_garbage(Run(run, nats=nats), delete, age_s, keep_snapshots)
    if as_json:
        print_json(garbage)
        return
    _print_garbage("in the store", garbage.store, delete)
    _print_garbage("in this machine's cache", garbage.cache, delete)
    for dropped in garbage.store.dropped:
        count = format_count(sum(last - first + 1 for first, last in dropped.versions), "version")
        print(f"adapters of {count} of {dropped.policy} are among these: blobs.keep_versions is {dropped.keep}")
    for missing in garbage.store.missing[:_MAX_SHOWN]:
        print(f"MISSING {missing.name}: {missing.wanted_by}")
    print_omitted(len(garbage.store.missing), _MAX_SHOWN, "missing")
    if not delete and (garbage.store.unreferenced or garbage.cache.unreferenced):
        print("nothing was deleted; --delete does")


def _print_garbage(where: str, report: GarbageReport, deleted: bool) -> None:
    for artifact in report.unreferenced[:_MAX_SHOWN]:
        age = timedelta(seconds=round(time.time() - artifact.time_ns / 1e9))
        print(f"  {artifact.name}  {format_bytes(artifact.bytes):>10}  {age} old  {artifact.note}".rstrip())
    print_omitted(len(report.unreferenced), _MAX_SHOWN)
    verb = "deleted" if deleted else "could go"
    print(
        f"{where}: {format_count(len(report.unreferenced), 'artifact')} that no event refers to {verb} "
        f"({format_bytes(report.bytes)}), {report.kept:,} in use ({format_bytes(report.kept_bytes)}), "
        f"{report.young:,} too young to tell"
    )
