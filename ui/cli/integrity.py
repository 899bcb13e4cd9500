"""``league verify``, ``archive`` and ``gc``: whether a history and its blobs are whole, and how large they are."""

import re
import time
from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from typer import Option

from league.blobs import ARCHIVE_AREA
from league.integrity.archive import archive_sealed, copy_archive, newest_manifest
from league.integrity.audit import IntegrityReport, audit_integrity
from league.integrity.blob_scrub import ScrubCallback, ScrubReport
from league.integrity.garbage import GarbageReport
from league.integrity.references import ReferenceReport
from league.integrity.seals import seal_through
from league.integrity.snapshots import load_state_at
from league.integrity.verification import Damage
from league.queries.tables import recorded_position
from league.run import DEFAULT_RUN, Run
from lifecycle.maintenance import collect_garbage
from schemas.config import HistoryConfig
from schemas.errors import ConflictError, ExitCode, LogError, UsageError
from ui.cli.options import JsonOption, NatsOption, RunOption, SealOption, check_seal
from ui.output import format_bytes, format_count, print_error, print_json, print_omitted
from workers.progress import ProgressReporter, progress_callback, show_progress

_MAX_SHOWN, _MAX_EVENTS = 20, 5
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OUTCOMES = {
    ExitCode.SUCCESS: "sound",
    ExitCode.DAMAGED: "damaged",
    ExitCode.INCONSISTENT: "inconsistent",
    ExitCode.BLOBS: "blobs",
    ExitCode.NOT_SEALED: "not sealed",
}


async def verify(
    *,
    run: Run,
    expect: SealOption = "",
    reached: Annotated[int, Option(help="An event that the history had reached, as you know from elsewhere.")] = 0,
    blobs: Annotated[
        bool, Option("--blobs/--no-blobs", help="Whether to read every blob that an event refers to.")
    ] = True,
    copy: Annotated[
        str, Option(help="Where the archive was copied to; by default history.copy_to. Not read with --no-blobs.")
    ] = "",
    reads: Annotated[
        int, Option(help="How often to read the stream; each time from a random node of the cluster.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Check the history, its archive and its blobs: seals, references between events, digests.

    Exits 0 if sound, 1 if anything is not as it was sealed, 5 if events
    contradict those before them, 4 if blobs are missing or damaged, 3 if nothing is sealed, 6 if the history cannot be
    read to its end: the first of these that holds.
    """
    check_seal(expect)
    HistoryConfig(copy_to=copy)
    if reads < 1:
        raise UsageError(f"--reads {reads}: expected 1 or more")
    if reached < 0:
        raise UsageError(f"--reached {reached}: expected the sequence of an event, 1 or more")
    try:
        outcome = await _verify(run, expect, reached, blobs, reads, copy, as_json)
    except LogError as error:
        print_error(error)
        outcome = ExitCode.UNREADABLE
    raise typer.Exit(outcome)


async def _verify(run: Run, expect: str, reached: int, blobs: bool, reads: int, copy: str, as_json: bool) -> ExitCode:
    async with run.open_log() as history:
        artifacts = run.open_blob_store(history.client)
        manifest = await newest_manifest(history, artifacts)
        archived = sum(segment.events for segment in manifest.segments) if manifest is not None else 0
        # How far the history reached according to others than its store.
        places = {"this machine's tables": recorded_position(run), "the event of --reached": reached}
        with show_progress(Console(stderr=True), "verifying") as report:
            audit = await audit_integrity(
                history,
                artifacts,
                expect,
                progress_callback(report, "verified", await history.stored_count() + archived),
                reads,
                client=history.client,
                scrubbed=_scrub_progress(report) if blobs else None,
                known={what: sequence for what, sequence in places.items() if sequence},
                copy=copy,
            )
    if as_json:
        outcome = {"sound": audit.outcome is ExitCode.SUCCESS, "outcome": _OUTCOMES[audit.outcome]}
        print_json(outcome | msgspec.structs.asdict(audit))
    else:
        _print_audit(audit)
    return audit.outcome


def _scrub_progress(report: ProgressReporter) -> ScrubCallback:
    """Reports how many bytes of blobs are read, with the rate."""
    began = time.monotonic()

    def update(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-6)
        text = f"read blobs, {format_bytes(done)} of {format_bytes(total)}, {format_bytes(rate)}/s,"
        report(text, min(done / max(total, 1), 1.0))

    return update


def _print_audit(report: IntegrityReport) -> None:
    print(f"{format_count(report.events, 'event')} to sequence {report.last:,}")
    sealed = f"{format_count(report.seals, 'seal')} up to event {report.sealed_to:,}" if report.seals else "no seals"
    print(f"{sealed}; a tail of {format_count(report.unsealed, 'event')} is not sealed")
    if report.segments:
        size = format_bytes(report.archive_bytes)
        print(f"archive: {format_count(report.segments, 'segment')} to event {report.archived_to:,}, {size}")
    if report.copy:
        print(f"copy of the archive: to event {report.copied_to:,}, {report.copy}")
    _print_references(report.references)
    _print_blobs(report.blobs)
    for note in report.notes:
        print(f"note: {note}")
    for damage in report.damage[:_MAX_SHOWN]:
        _print_damage(damage)
    print_omitted(len(report.damage), _MAX_SHOWN, "damaged ranges")
    known = ", ".join(f"{what} {sequence:,}" for what, sequence in sorted(report.known.items())) or "none"
    print(f"other records of how far the history reached: {known}; a cut beyond all of them cannot be detected")
    print(f"newest seal: {report.seal or 'none'}")
    print(_verdict(report))


def _verdict(report: IntegrityReport) -> str:
    match report.outcome:
        case ExitCode.DAMAGED:
            return "DAMAGED: not everything is as it was sealed"
        case ExitCode.INCONSISTENT:
            return "INCONSISTENT: events contradict the events before them"
        case ExitCode.BLOBS if report.copy and report.copied_to < report.archived_to:
            return f"COPY BEHIND: the archive reaches event {report.archived_to:,}, its copy {report.copied_to:,}"
        case ExitCode.BLOBS:
            return "BLOBS: events refer to blobs that are missing or damaged"
        case ExitCode.NOT_SEALED:
            return "NOT SEALED: nothing is wrong, but no seal vouches for any event"
    unsealed = f"; no seal vouches for the {format_count(report.unsealed, 'event')} after it" if report.unsealed else ""
    return f"sound: as sealed up to event {report.sealed_to:,}{unsealed}"


def _print_references(report: ReferenceReport) -> None:
    counts = ", ".join(f"{rule} {count:,}" for rule, count in report.by_rule.items())
    found = f"references: {report.events:,} events checked, {counts or 'all consistent'}"
    if report.without_result:
        found += f", {format_count(report.without_result, 'trained match', 'trained matches')} without a result"
    if report.undecodable:
        found += f", {report.undecodable:,} not decodable"
    print(found)
    for one in report.first[:_MAX_SHOWN]:
        print(f"INCONSISTENT: event {one.sequence:,}: {one.what}")
    print_omitted(report.inconsistent, _MAX_SHOWN, "inconsistencies")


def _print_blobs(report: ScrubReport | None) -> None:
    if report is None:
        print("blobs: not checked")
        return
    faults = ", ".join(f"{report.count(what):,} {what}" for what in ("missing", "damaged") if report.count(what))
    print(f"blobs: {report.checked:,} intact ({format_bytes(report.bytes)}){faults and f', {faults}'}")
    for fault in report.faults[:_MAX_SHOWN]:
        events = ", ".join(f"{sequence:,}" for sequence in fault.events[:_MAX_EVENTS])
        more = f" and {len(fault.events) - _MAX_EVENTS:,} more" if len(fault.events) > _MAX_EVENTS else ""
        cached = "; this machine's cache has an intact copy" if fault.cached else ""
        needed_by = f"{fault.wanted_by}, event {events}{more}" if events else fault.wanted_by
        print(f"{fault.what.upper()}: blob {fault.name}: {needed_by}{cached}")
    print_omitted(len(report.faults), _MAX_SHOWN, "blobs")


def _print_damage(damage: Damage) -> None:
    seal = f" (seal at event {damage.seal:,})" if damage.seal else ""
    print(f"DAMAGED in the {damage.where}, events {damage.first:,} to {damage.last:,}: {damage.what}{seal}")
    for located in damage.located[:_MAX_SHOWN]:
        place = f"{located.what}: events {located.first:,} to {located.last:,}"
        if located.what == "missing" and located.last - located.first + 1 > located.events:
            place = f"{located.events:,} missing between {located.first - 1:,} and {located.last + 1:,}"
        elif located.first == located.last:
            place = f"{located.what}: event {located.first:,}"
        print(f"  {place}")
    print_omitted(len(damage.located), _MAX_SHOWN, "places", indent="  ")


async def archive(
    *,
    run: Run,
    copy_to: Annotated[
        str, Option(help="Folder or s3://bucket/prefix for a copy; by default that of history.copy_to, if any.")
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
            settings = state.config.history
            last = await history.last_sequence()
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
