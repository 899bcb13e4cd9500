"""``league void``, ``workers`` and ``dead-letters``: results that should not count, and unreadable messages."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from typer import Argument, Option

from league.log.dead_letters import DeadLetterEntry, DeadLetters
from league.queries.status import dead_letter_fields
from league.queries.terminal import Console, say
from league.queries.text_table import number_columns, print_table
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import format_count, print_json, print_omitted

if TYPE_CHECKING:
    from lifecycle.void_matches import VoidRequest

_MAX_SHOWN = 20
_MAX_SHOWN_CHARS = 4_000

DryRunOption = Annotated[bool, Option("--dry-run", help="Only print the consequences.")]
NumberArgument = Annotated[int, Argument(help="Number of the letter in the list.")]
NumbersArgument = Annotated[list[int] | None, Argument(metavar="NUMBER…", help="Numbers of letters in the list.")]
AllOption = Annotated[bool, Option("--all", help="All letters.")]


async def void(
    matches: Annotated[list[str] | None, Argument(metavar="MATCH…", help="Ids of matches.")] = None,
    worker: Annotated[str | None, Option(help="All matches of this worker.")] = None,
    since: Annotated[str | None, Option(help="Only from this sequence or time on (ISO 8601, UTC by default).")] = None,
    until: Annotated[str | None, Option(help="Only up to this sequence or time.")] = None,
    reason: Annotated[str, Option(help="Reason; recorded with each match.")] = "",
    dry_run: DryRunOption = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Void results: they no longer count, and ratings are corrected as if they had never been.

    Prints the gradient steps that used them, and how ratings move. The matches themselves stay in the history.
    """
    from lifecycle.void_matches import VoidRequest

    request = VoidRequest(matches or [], worker, since, until, reason.strip(), dry_run)
    if bool(matches) == (worker is not None):
        raise UsageError("void: expected either ids of matches or --worker NAME")
    if matches and (since or until):
        raise UsageError("void: --since and --until go with --worker")
    if not request.reason and not dry_run:
        raise UsageError("--reason: empty; expected the reason why these results are voided")
    await _void_and_print(run, request, as_json)


async def _void_and_print(run: Run, request: "VoidRequest", as_json: bool) -> None:
    from lifecycle.void_matches import execute_request

    impact, moves = await execute_request(run, request)
    if as_json:
        print_json({**msgspec.to_builtins(impact), "moves": moves, "dry_run": request.dry_run})
        return
    already = f", {impact.already:,} were void already" if impact.already else ""
    voided = format_count(len(impact.matches), "match", "matches")
    say(f"{voided} {'would be voided' if request.dry_run else 'voided'}{already}")
    if impact.tainted:
        say(f"{format_count(len(impact.tainted), 'gradient step')} had used them:")
        for step in impact.tainted[:_MAX_SHOWN]:
            say(f"  {step.policy} step {step.step}: {step.voided:,} of its {step.matches:,} matches")
        print_omitted(len(impact.tainted), _MAX_SHOWN, "(--json lists all)", indent="  ")
    moved = [move for move in moves if move.rating != move.recorded_rating]
    say(f"{format_count(len(moved), 'rating')} {'would move' if request.dry_run else 'moved'}")
    for move in moved:
        say(f"  {move.agent}: {_format_rating(move.recorded_rating)} → {_format_rating(move.rating)}")


def _format_rating(rating: float | None) -> str:
    return "unrated" if rating is None else f"{rating:.2f}"


async def quarantine(
    worker: Annotated[str, Argument(help="Name of the worker.")],
    reason: Annotated[str, Option(help="Reason; recorded with each match.")] = "",
    since: Annotated[str | None, Option(help="From a sequence or time on.")] = None,
    dry_run: DryRunOption = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Void all results of a worker, as `league void --worker` does; `league auth revoke` keeps it out."""
    if not reason.strip() and not dry_run:
        raise UsageError("--reason: empty; expected the reason why this worker's results are voided")
    from lifecycle.void_matches import VoidRequest

    await _void_and_print(run, VoidRequest([], worker, since, None, reason.strip(), dry_run), as_json)
    if not as_json and not dry_run:
        say(f"new results of {worker} still count: `league auth revoke {worker}` revokes its credentials")


async def list_letters(*, run: Run, as_json: JsonOption = False) -> None:
    """List dead letters: message and stream, reason, time and number of tries."""
    async with _open_letters(run, everything=True) as (_, letters):
        if as_json:
            print_json([_letter_fields(letter) for letter in letters])
            return
        if not letters:
            say("no dead letters")
            return
        number, sequence, tries = number_columns("number", "sequence", "tries")
        columns = [number, "set aside (UTC)", "stream", sequence, tries, "reason"]
        rows = [
            (
                filed.number,
                _filed_time(filed),
                filed.letter.stream,
                filed.letter.sequence,
                filed.letter.tries,
                filed.letter.error,
            )
            for filed in letters
        ]
        print_table(Console(), columns, rows, ("tries", "set aside (UTC)"))


async def show(number: NumberArgument, *, run: Run, as_json: JsonOption = False) -> None:
    """Show one letter and its message."""
    async with _open_letters(run, [number]) as (dead, [letter]):
        message = await dead.original_message(letter.letter)
    if as_json:
        print_json(_letter_fields(letter) | {"payload": message})
        return
    for name, value in _letter_fields(letter).items():
        say(f"{name}: {value}")
    text = b"gone" if message is None else message[:_MAX_SHOWN_CHARS]
    more = f" … {len(message):,} bytes" if message is not None and len(message) > len(text) else ""
    say(f"message: {text.decode() if text.isascii() else repr(text)}{more}")


async def retry(numbers: NumbersArgument = None, everything: AllOption = False, *, run: Run) -> None:
    """Put jobs back on the work queue.

    The match gets a new id, since its evaluation has ended without it. With --all, letters about anything but jobs
    stay.
    """
    async with _open_letters(run, numbers, everything) as (dead, chosen):
        for letter in chosen:
            if everything and not letter.letter.is_retriable:
                continue
            match_id = await dead.retry(letter)
            print(f"{letter.number}: back on the queue" + (f" as match {match_id}" if match_id else ""))


async def drop(numbers: NumbersArgument = None, everything: AllOption = False, *, run: Run) -> None:
    """Delete letters.

    A damaged event stays in the history; the next worker that reads it files a new letter.
    """
    async with _open_letters(run, numbers, everything) as (dead, chosen):
        for letter in chosen:
            await dead.delete(letter)
    say(f"{len(chosen):,} dropped")


@contextlib.asynccontextmanager
async def _open_letters(
    run: Run, numbers: list[int] | None = None, everything: bool = False
) -> AsyncIterator[tuple[DeadLetters, list[DeadLetterEntry]]]:
    """Yield the letters of a league, and those that are chosen."""
    async with run.open_log() as history:
        dead = DeadLetters(history.client, history.league)
        if bool(numbers) == everything:
            raise UsageError("dead-letters: expected either numbers of letters or --all")
        yield dead, await dead.list_all() if everything else [await dead.get(number) for number in numbers or []]


def _letter_fields(letter: DeadLetterEntry) -> dict[str, object]:
    return dead_letter_fields(letter) | {"time": _filed_time(letter)}


def _filed_time(letter: DeadLetterEntry) -> str:
    return datetime.fromtimestamp(letter.time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
