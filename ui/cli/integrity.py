"""``league verify``, ``archive`` and ``gc``: whether a history and its blobs are whole, and how large they are."""

import re
import time
from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from typer import Option

from league.blobs import ARCHIVE_AREA
from league.history.replay import VerifyReport, verify_log
from league.integrity.archive import archive_history, copy_archive
from league.integrity.blob_scrub import ScrubCallback, ScrubReport
from league.integrity.garbage import GarbageReport
from league.integrity.snapshots import load_state_at
from league.integrity.verify import Damage, IntegrityReport, verify_history
from league.queries.tables import recorded_position
from league.queries.terminal import Console, say
from league.run import DEFAULT_RUN, Run
from lifecycle.maintenance import collect_garbage
from schemas.config import HistoryConfig
from schemas.errors import ConflictError, ExitCode, LogError, UsageError
from ui.cli.options import JsonOption, ManifestOption, NatsOption, RunOption, check_manifest
from ui.output import format_bytes, format_count, print_error, print_json, print_omitted
from workers.progress import ProgressReporter, progress_callback, show_progress

_MAX_SHOWN, _MAX_EVENTS = 20, 5
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


async def verify(
    *,
    run: Run,
    expect: ManifestOption = "",
    reached: Annotated[int, Option(help="An event that the history had reached, as you know from elsewhere.")] = 0,
    blobs: Annotated[
        bool, Option("--blobs/--no-blobs", help="Whether to read every blob that an event refers to.")
    ] = True,
    replay: Annotated[
        bool, Option("--replay/--no-replay", help="Whether to compute the ratings again and compare them.")
    ] = True,
    copy: Annotated[
        str, Option(help="Where the archive was copied to; by default history.copy_to. Not read with --no-blobs.")
    ] = "",
    reads: Annotated[
        int, Option(help="How often to read the stream; each time from a random node of the cluster.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Check the history against its archive, the blobs that events refer to, and the ratings against a replay.

    Exits 0 if sound, 1 if anything is missing, damaged or differs, 2 if the history cannot be read to its end.
    """
    check_manifest(expect)
    HistoryConfig(copy_to=copy)
    if reads < 1:
        raise UsageError(f"--reads {reads}: expected 1 or more")
    if reached < 0:
        raise UsageError(f"--reached {reached}: expected the sequence of an event, 1 or more")
    try:
        is_sound = await _verify(run, expect, reached, blobs, replay, reads, copy, as_json)
    except LogError as error:
        print_error(error)
        raise typer.Exit(ExitCode.UNREADABLE) from None
    raise typer.Exit(ExitCode.SUCCESS if is_sound else ExitCode.DAMAGED)


async def _verify(
    run: Run, expect: str, reached: int, blobs: bool, replay: bool, reads: int, copy: str, as_json: bool
) -> bool:
    replayed: VerifyReport | None = None
    async with run.open_log() as history:
        store = run.open_blob_store(history.client)
        # How far the history reached according to others than its store.
        positions = {"this machine's tables": recorded_position(run), "the event of --reached": reached}
        stored = await history.stored_count()
        with show_progress(Console(stderr=True), "verifying") as report:
            found = await verify_history(
                history,
                store,
                expect,
                progress_callback(report, "verified", stored),
                reads,
                client=history.client,
                scrubbed=_scrub_progress(report) if blobs else None,
                known={what: sequence for what, sequence in positions.items() if sequence},
                copy=copy,
            )
            if replay:
                replayed = await verify_log(history, found.last, progress_callback(report, "replayed", found.last))
    is_sound = found.is_sound and (replayed is None or replayed.is_identical)
    if as_json:
        print_json({"sound": is_sound} | msgspec.structs.asdict(found) | {"replay": replayed})
    else:
        _print_report(found)
        say(f"replay: {'not checked' if replayed is None else replayed.summary()}")
        say(_verdict(found, is_sound))
    return is_sound


def _scrub_progress(report: ProgressReporter) -> ScrubCallback:
    """Report how many bytes of blobs are read, with the rate."""
    began = time.monotonic()

    def update(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-6)
        text = f"read blobs, {format_bytes(done)} of {format_bytes(total)}, {format_bytes(rate)}/s,"
        report(text, min(done / max(total, 1), 1.0))

    return update


def _print_report(report: IntegrityReport) -> None:
    say(f"{format_count(report.events, 'event')} to sequence {report.last:,}")
    size = format_bytes(report.archive_bytes)
    say(f"archive: {format_count(report.segments, 'segment')} to event {report.archived_to:,}, {size}")
    if report.copy:
        say(f"copy of the archive: to event {report.copied_to:,}, {report.copy}")
    _print_blobs(report.blobs)
    for note in report.notes:
        say(f"note: {note}")
    for damage in report.damage[:_MAX_SHOWN]:
        _print_damage(damage)
    print_omitted(len(report.damage), _MAX_SHOWN, "damaged ranges")
    positions = ", ".join(f"{what} {sequence:,}" for what, sequence in sorted(report.known.items())) or "none"
    say(f"other records of how far the history reached: {positions}; a cut beyond all of them cannot be detected")
    say(f"newest manifest: {report.manifest or 'none'}")


def _verdict(report: IntegrityReport, is_sound: bool) -> str:
    if not is_sound:
        return "DAMAGED: not everything is there, and as it was recorded"
    if not report.segments:
        return "sound; nothing is archived yet, so only the broker's checksums vouch for the events"
    return f"sound: as archived up to event {report.archived_to:,}; the broker's checksums vouch for later events"


def _print_blobs(report: ScrubReport | None) -> None:
    if report is None:
        say("blobs: not checked")
        return
    faults = ", ".join(f"{report.count(what):,} {what}" for what in ("missing", "damaged") if report.count(what))
    say(f"blobs: {report.checked:,} intact ({format_bytes(report.bytes)}){faults and f', {faults}'}")
    for fault in report.faults[:_MAX_SHOWN]:
        events = ", ".join(f"{sequence:,}" for sequence in fault.events[:_MAX_EVENTS])
        more = f" and {len(fault.events) - _MAX_EVENTS:,} more" if len(fault.events) > _MAX_EVENTS else ""
        cached = "; this machine's cache has an intact copy" if fault.cached else ""
        needed_by = f"{fault.wanted_by}, event {events}{more}" if events else fault.wanted_by
        say(f"{fault.what.upper()}: blob {fault.name}: {needed_by}{cached}")
    print_omitted(len(report.faults), _MAX_SHOWN, "blobs")


def _print_damage(damage: Damage) -> None:
    say(f"DAMAGED in the {damage.where}, events {damage.first:,} to {damage.last:,}: {damage.what}")
    for located in damage.located[:_MAX_SHOWN]:
        where = f"{located.what}: events {located.first:,} to {located.last:,}"
        if located.first == located.last:
            where = f"{located.what}: event {located.first:,}"
        say(f"  {where}")
    print_omitted(len(damage.located), _MAX_SHOWN, "places", indent="  ")


async def archive(
    *,
    run: Run,
    copy_to: Annotated[
        str, Option(help="Folder or s3://bucket/prefix for a copy; by default history.copy_to, if set.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Archive everything up to the newest event; an archivist does so by itself, in segments."""
    HistoryConfig(copy_to=copy_to)
    try:
        async with run.open_log() as history:
            artifacts = run.open_blob_store(history.client, history.league, ARCHIVE_AREA)
            state = await load_state_at(history, artifacts)
            assert state.config is not None
            settings = state.config.history
            last = await history.last_sequence()
            with show_progress(Console(stderr=True), "archiving") as report:
                update = progress_callback(report, "archived", last)
                done = await archive_history(history, artifacts, settings.archive_events, rest=True, progress=update)
            copied = await copy_archive(history, artifacts, copy_to)
    except ConflictError as error:
        raise LogError(f"an archivist is archiving this league just now ({error}); try again") from None
    if as_json:
        print_json(done)
        return
    for event in done:
        say(f"events {event.first:,} to {event.last:,}: {format_bytes(event.bytes)}, manifest {event.manifest}")
    print(f"archived up to event {done[-1].last:,}" if done else "nothing new to archive")
    if copied is not None:
        added = f"{format_count(copied.files, 'file')} added, {format_bytes(copied.bytes)}"
        say(f"copied up to event {copied.last:,} to {copied.where} ({added})")


async def gc(
    run: RunOption = DEFAULT_RUN,
    nats: NatsOption = None,
    delete: Annotated[bool, Option("--delete", help="Delete the unreferenced artifacts.")] = False,
    older_than: Annotated[str, Option(help="Keep what was stored more recently: 30m, 1h, 2d.")] = "1h",
    keep_snapshots: Annotated[int, Option(help="Newest snapshots to keep, beside every tenth.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """List artifacts that no event refers to, and missing ones; --delete deletes the first."""
    if keep_snapshots < 1:
        raise UsageError(f"--keep-snapshots {keep_snapshots}: expected 1 or more")
    # With more digits than any age has, the time before it is no finite number.
    age = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([smhd])", older_than)
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
        say(f"adapters of {count} of {dropped.policy} are among these: blobs.keep_versions is {dropped.keep}")
    for decisions in garbage.store.dropped_decisions:
        count = format_count(len(decisions.artifacts), "segment")
        say(f"{count} of decisions are among these ({format_bytes(decisions.bytes)}), by history.decisions")
    for missing in garbage.store.missing[:_MAX_SHOWN]:
        say(f"MISSING {missing.name}: {missing.wanted_by}")
    print_omitted(len(garbage.store.missing), _MAX_SHOWN, "missing")
    if not delete and (garbage.store.unreferenced or garbage.cache.unreferenced):
        say("nothing was deleted; --delete does")


def _print_garbage(where: str, report: GarbageReport, deleted: bool) -> None:
    for artifact in report.unreferenced[:_MAX_SHOWN]:
        age = timedelta(seconds=round(time.time() - artifact.time_ns / 1e9))
        print(f"  {artifact.name}  {format_bytes(artifact.bytes):>10}  {age} old  {artifact.note}".rstrip())
    print_omitted(len(report.unreferenced), _MAX_SHOWN)
    verb = "deleted" if deleted else "could go"
    say(
        f"{where}: {format_count(len(report.unreferenced), 'artifact')} that no event refers to {verb} "
        f"({format_bytes(report.bytes)}), {report.kept:,} in use ({format_bytes(report.kept_bytes)}), "
        f"{report.young:,} too young to tell"
    )
