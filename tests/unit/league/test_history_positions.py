"""Places in a history as people write them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.queries.tables import is_sequence, parse_sequence, parse_time, progress_lines, sequence_at_time
from schemas.errors import UsageError
from tests.memory_log import MemoryLog

SECOND = 1_000_000_000
NOON = 1_769_860_800 * SECOND
"""2026-01-31, 12:00 UTC."""


def place(text: str, *times_ns: int) -> int:
    """Where ``text`` leads in a history of events at these times."""
    records = [RecordedEvent(n, time_ns, "s", "w", b"{}") for n, time_ns in enumerate(times_ns, 1)]

    async def main() -> int:
        log = MemoryLog("x")
        await log.copy(records)
        if is_sequence(text):
            return await parse_sequence(log, text, "--at")
        with Projection() as projection:
            projection.apply(records)

            async def query(statement: str) -> Sequence[tuple[Any, ...]]:
                return projection.query(statement)

            return await sequence_at_time(query, parse_time(text, "--at"), "--at")

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "sequence"),
    [
        ("1", 1),
        ("4", 4),
        ("2026-01-31T12:00:00", 1),
        ("2026-01-31 12:00", 1),
        ("2026-01-31T13:00:01+01:00", 2),
        ("2026-01-31T12:00:01.000001Z", 3),
        ("2027-01-01", 4),
    ],
)
def test_a_sequence_is_itself_and_a_time_the_newest_event_until_then(text: str, sequence: int) -> None:
    times = (NOON, NOON + SECOND, NOON + SECOND + 1_000, NOON + SECOND + 2_000)
    assert place(text, *times) == sequence


def test_an_event_within_the_named_microsecond_counts() -> None:
    assert place("2026-01-31T12:00:00.000001", NOON, NOON + 1_999, NOON + 2_000) == 2


def test_the_order_is_that_of_sequences_where_clocks_are_apart() -> None:
    assert place("2026-01-31T12:00:00", NOON - 5, NOON + SECOND, NOON - 3, NOON + 2 * SECOND) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "--at 0: no such event; the history of 'x' holds 1 to 2"),
        ("3", "holds 1 to 2"),
        ("-1", "neither a sequence nor a time"),
        ("²", "neither a sequence nor a time"),
        ("9" * 5000, "neither a sequence nor a time"),
        ("noon", "expected a number, or ISO 8601"),
        (
            "2026-01-31T11:59:59",
            "before the first event; the history spans 2026-01-31 12:00:00 to 2026-01-31 12:00:01 UTC",
        ),
    ],
)
def test_a_place_that_the_history_does_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        place(text, NOON, NOON + SECOND)
    assert message in str(error.value)


def test_tables_that_are_brought_up_to_date_for_long_report_their_position(capsys: pytest.CaptureFixture[str]) -> None:
    report = progress_lines(2_000, after_s=0.0, interval_s=1_000.0)
    report(500)
    report(1_000)
    progress_lines(2_000, after_s=1_000.0)(500)
    assert capsys.readouterr().err == "bringing the tables up to date: event 500 of 2,000\n"
