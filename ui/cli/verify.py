"""``league verify``: everything that can be checked of a history, and a verdict."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from league.integrity.archive import newest_manifest
from league.integrity.audit import IntegrityReport, audit_integrity
from league.integrity.blob_scrub import ScrubCallback, ScrubReport
from league.integrity.references import ReferenceReport
from league.integrity.signatures import SignatureChecker, SignatureReport
from league.integrity.verification import Damage
from league.queries.tables import recorded_position
from league.run import Run
from schemas.config import HistoryConfig
from schemas.errors import ExitCode, LogError, UsageError
from ui.cli.options import JsonOption, SealOption, check_seal
from ui.output import format_bytes, format_count, print_answer, print_error, print_json, print_omitted
from workers.progress import ProgressReporter, progress_callback, show_progress

_MAX_SHOWN, _MAX_EVENTS = 20, 5
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
    reached: Annotated[
        int, typer.Option(help="An event that the history had reached, as you know from elsewhere.")
    ] = 0,
    blobs: Annotated[
        bool, typer.Option("--blobs/--no-blobs", help="Whether to read every blob that an event refers to.")
    ] = True,
    copy: Annotated[
        str, typer.Option(help="Where the archive was copied to; by default history.copy_to. Not read with --no-blobs.")
    ] = "",
    events: Annotated[
        Path | None, typer.Option(help="Check the signatures of an export instead: of `export`, or `events --json`.")
    ] = None,
    reads: Annotated[
        int, typer.Option(help="How often to read the stream; each time from a random node of the cluster.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Check the history, its archive and its blobs: seals, signatures, references between events, digests.

    Exits 0 if sound, 1 if anything is not as it was sealed or a result counts that its worker did not sign, 5 if events
    contradict those before them, 4 if blobs are missing or damaged, 3 if nothing is sealed, 6 if the history cannot be
    read to its end: the first of these that holds.
    """
    if events is not None:
        # The signatures of an export are checked without a broker.
        from league.projections.export import read_exported

        checker = SignatureChecker()
        for batch in read_exported(events):
            checker.apply_batch(batch)
        results = checker.finish()
        print_answer(results, as_json, _print_results)
        raise typer.Exit(ExitCode.DAMAGED if results.forged else ExitCode.SUCCESS)
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


def _print_results(report: SignatureReport) -> None:
    harmless = f", {report.harmless:,} forged that count for nothing" if report.harmless else ""
    print(f"results: {report.signed:,} signed by their workers, {report.unsigned:,} of workers without a key{harmless}")
    for forged in report.forged[:_MAX_SHOWN]:
        print(f"FORGED: event {forged.sequence:,}, match {forged.match_id}: {forged.worker} did not sign it")
    print_omitted(len(report.forged), _MAX_SHOWN, "forged results")


def _print_audit(report: IntegrityReport) -> None:
    print(f"{format_count(report.events, 'event')} to sequence {report.last:,}")
    sealed = f"{format_count(report.seals, 'seal')} up to event {report.sealed_to:,}" if report.seals else "no seals"
    print(f"{sealed}; a tail of {format_count(report.unsealed, 'event')} is not sealed")
    if report.segments:
        size = format_bytes(report.archive_bytes)
        print(f"archive: {format_count(report.segments, 'segment')} to event {report.archived_to:,}, {size}")
    if report.copy:
        print(f"copy of the archive: to event {report.copied_to:,}, {report.copy}")
    _print_results(report.results)
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
        case ExitCode.DAMAGED if report.damage:
            return "DAMAGED: not everything is as it was sealed"
        case ExitCode.DAMAGED:
            return "FORGED: results count that their workers did not sign"
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
    missing = (
        f", {format_count(report.without_result, 'trained match')} without a result" if report.without_result else ""
    )
    skipped = f", {report.undecodable:,} not decodable" if report.undecodable else ""
    print(f"references: {report.events:,} events checked, {counts or 'all consistent'}{missing}{skipped}")
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
