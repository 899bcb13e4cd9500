"""Events written by every version of the schema are read for ever, under the same keys."""

from pathlib import Path

import msgspec
import pytest

from league.state import LeagueState
from schemas.codec import FIRST_SCHEMA_VERSION, SCHEMA_VERSION, UnknownEventError, decode_event, encode_event
from schemas.errors import DecodeError
from schemas.events import EVENT_TYPES, AgentRetired

GOLDEN = Path(__file__).parents[2] / "golden" / "events"


class Line(msgspec.Struct):
    key: str
    event: msgspec.Raw


def lines(version: int) -> list[Line]:
    text = (GOLDEN / f"v{version}.jsonl").read_bytes()
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


@pytest.mark.parametrize("version", range(FIRST_SCHEMA_VERSION, SCHEMA_VERSION + 1))
def test_every_event_type_of_the_present_has_a_golden_line_and_keeps_its_key(version: int) -> None:
    decoded = [(line, decode_event(bytes(line.event), version)) for line in lines(version)]
    assert [event.key for _, event in decoded] == [line.key for line, _ in decoded]
    if version == SCHEMA_VERSION:
        assert {type(event).__name__ for _, event in decoded} == set(EVENT_TYPES), (
            "tests/golden/events lacks a line for some event type, or has one too many"
        )


def test_golden_events_survive_a_round_trip() -> None:
    for line in lines(SCHEMA_VERSION):
        event = decode_event(bytes(line.event))
        assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("line", lines(SCHEMA_VERSION), ids=lambda line: line.key)
def test_fields_that_a_later_version_adds_are_tolerated(line: Line) -> None:
    fields = msgspec.json.decode(line.event)
    with_more = msgspec.json.encode({**fields, "added_later": {"x": [1, 2]}})
    assert decode_event(with_more) == decode_event(bytes(line.event))


def test_an_unknown_type_is_told_apart_from_damage() -> None:
    with pytest.raises(UnknownEventError, match="SeasonBegun"):
        decode_event(b'{"type": "SeasonBegun", "season": 2}')
    with pytest.raises(DecodeError, match="not a JSON object"):
        decode_event(b"\xff\xfe")
    with pytest.raises(DecodeError, match="AgentRetired"):
        decode_event(b'{"type": "AgentRetired", "agent": 5}')


def test_a_newer_schema_version_says_which_side_to_upgrade() -> None:
    with pytest.raises(DecodeError, match="upgrade the reader"):
        decode_event(encode_event(AgentRetired(agent="a", reason="b")), SCHEMA_VERSION + 1)


def test_the_state_folds_every_golden_history() -> None:
    state = LeagueState()
    for sequence, line in enumerate(lines(SCHEMA_VERSION), start=1):
        state.apply(sequence, decode_event(bytes(line.event)))
    assert state.sequence == len(lines(SCHEMA_VERSION))
    assert state.agents["main@1"].reason == "elite"
    assert state.rating("main@1") == 1001.5
