"""``league void`` and ``dead-letters``: results that should not count, and unreadable messages."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from league.log.dead_letters import DeadLetterEntry, DeadLetters
from league.queries.status import dead_letter_fields
from league.queries.terminal import Console, say
from league.queries.text_table import number_columns, print_table
from league.run import Run
from schemas.errors import UsageError
from ui.cli.options import JsonOption
from ui.output import format_count, print_answer, print_json, print_omitted

_MAX_SHOWN = 20
_MAX_SHOWN_CHARS = 4_000


async def void(
    matches: Annotated[list[str] | None, Argument(metavar="MATCH…", help="Ids of matches.")] = None,
    worker: Annotated[str | None, Option(help="All matches of this worker.")] = None,
    since: Annotated[str | None, Option(help="Only from this sequence or time on (ISO 8601, UTC by default).")] = None,
    until: Annotated[str | None, Option(help="Only up to this sequence or time.")] = None,
    reason: Annotated[str, Option(help="Reason; recorded with each match.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Only print the consequences.")] = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """Void results: they no longer count, and ratings are corrected as if they had never been.

    Prints the gradient steps that used them, and how ratings move. The matches themselves stay in the history.
    """
    from lifecycle.void_matches import VoidRequest, execute_request

    request = VoidRequest(matches or [], worker, since, until, reason.strip(), dry_run)
    if bool(matches) == (worker is not None):
        raise UsageError("void: expected either ids of matches or --worker NAME")
    if matches and (since or until):
        raise UsageError("void: --since and --until go with --worker")
    if not request.reason and not dry_run:
        raise UsageError("--reason: empty; expected the reason why these results are voided")
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
    if worker is not None and not dry_run:
        say(f"new results of {worker} still count: `league auth revoke {worker}` revokes its credentials")


def _format_rating(rating: float | None) -> str:
    return "unrated" if rating is None else f"{rating:.2f}"


async def dead_letters(
    numbers: Annotated[list[int] | None, Argument(metavar="[NUMBER…]", help="Letters to show, by number.")] = None,
    retry: Annotated[bool, Option("--retry", help="Put jobs back on the work queue, as new matches.")] = False,
    drop: Annotated[bool, Option("--drop", help="Delete letters.")] = False,
    everything: Annotated[bool, Option("--all", help="With --retry: all jobs. With --drop: all letters.")] = False,
    *,
    run: Run,
    as_json: JsonOption = False,
) -> None:
    """List undecodable messages and jobs that failed too often; show, retry or drop some.

    A retried match gets a new id, since its evaluation has ended without it. A damaged event stays in the history: the
    next worker that reads it files a new letter.
    """
    if retry and drop:
        raise UsageError("--retry and --drop: expected one of them")
    if (retry or drop) and bool(numbers) == everything:
        raise UsageError("--retry, --drop: expected either numbers of letters or --all")
    async with run.open_log() as history:
        dead = DeadLetters(history.client, history.league)
        letters = [await dead.get(number) for number in numbers] if numbers else await dead.list_all()
        if retry:
            chosen = [letter for letter in letters if numbers or letter.letter.is_retriable]
            print_answer([(letter.number, await dead.retry(letter)) for letter in chosen], as_json, _print_retried)
        elif drop:
            for letter in letters:
                await dead.delete(letter)
            print_answer([letter.number for letter in letters], as_json, lambda them: say(f"{len(them):,} dropped"))
        elif numbers:
            shown = [(letter, await dead.original_message(letter.letter)) for letter in letters]
            fields = [_letter_fields(letter) | {"payload": message} for letter, message in shown]
            print_answer(fields, as_json, _print_messages)
        else:
            print_answer(list(map(_letter_fields, letters)), as_json, _print_letters)


def _print_letters(letters: Sequence[dict[str, Any]]) -> None:
    if not letters:
        say("no dead letters")
        return
    number, sequence, tries = number_columns("number", "sequence", "tries")
    columns = [number, "set aside (UTC)", "stream", sequence, tries, "reason"]
    rows = [[letter[name] for name in ("number", "time", "stream", "sequence", "tries", "error")] for letter in letters]
    print_table(Console(), columns, rows, ("tries", "set aside (UTC)"))


def _print_messages(letters: Sequence[dict[str, Any]]) -> None:
    for letter in letters:
        message = letter.pop("payload")
        for name, value in letter.items():
            say(f"{name}: {value}")
        text = b"gone" if message is None else message[:_MAX_SHOWN_CHARS]
        more = f" … {len(message):,} bytes" if message is not None and len(message) > len(text) else ""
        say(f"message: {text.decode() if text.isascii() else repr(text)}{more}")


def _print_retried(retried: Sequence[tuple[int, str]]) -> None:
    for number, match_id in retried:
        print(f"{number}: back on the queue" + (f" as match {match_id}" if match_id else ""))


def _letter_fields(letter: DeadLetterEntry) -> dict[str, Any]:
    filed = datetime.fromtimestamp(letter.time_ns // 1_000_000_000, UTC)
    return dead_letter_fields(letter) | {"time": f"{filed:%Y-%m-%dT%H:%M:%SZ}"}
