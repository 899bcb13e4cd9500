"""What is sent of an event: one line, under the names of the outside, whatever the event holds."""

import json
import re
from collections.abc import Sequence

import msgspec
import pytest

from league.log.base import RecordedEvent
from schemas.codec import decode_event, encode_event
from schemas.events import EVENT_TYPES, AgentRegistered, Event, RatingChange, RatingUpdated
from schemas.subjects import event_subject
from workers.log_export import EXTERNAL_NAMES, make_line


def line_of(found: RecordedEvent) -> bytes:
    return make_line(found, "nim", "nim-01234567").data


def recorded(event: Event | None = None, payload: bytes = b"", sequence: int = 7, subject: str = "") -> RecordedEvent:
    data = payload if event is None else encode_event(event)
    where = subject or (event_subject("nim", event) if event is not None else "league.nim.match.training.finished.w")
    return RecordedEvent(sequence, 1_700_000_000_123_456_789, where, "rollout-1", data)


def agent(name: str) -> AgentRegistered:
    return AgentRegistered(agent=name, kind="bot", baseline=True, rating=1000.0)


def test_a_line_tells_place_time_kind_and_all_fields_of_its_event() -> None:
    line = json.loads(line_of(recorded(agent("greedy"))))
    assert line == {
        "_time": "2023-11-14T22:13:20.123456Z",
        "event": "league.agent_registered",
        "type": "AgentRegistered",
        "league": "nim",
        "sequence": 7,
        "id": "nim-01234567-7",
        "producer": "rollout-1",
        "data": {"agent": "greedy", "kind": "bot", "baseline": True, "rating": 1000.0},
    }


def test_the_three_events_that_the_seed_names_have_its_names() -> None:
    def rated(system: str) -> str:
        change = RatingChange(agent="a", before=1000.0, after=1001.0)
        event = RatingUpdated(match_id="m", match_sequence=3, game="nim", system=system, changes=[change])
        return str(json.loads(line_of(recorded(event)))["event"])

    assert EXTERNAL_NAMES["CheckpointAdded"] == "league.checkpoint_added"
    assert EXTERNAL_NAMES["OpponentsSampled"] == "league.opponent_sampled"
    assert EXTERNAL_NAMES["LeagueOpened"] == "league.opened"
    assert rated("elo") == "league.elo_updated"
    assert rated("trueskill") == "league.rating_updated"


def test_every_type_has_a_name_of_its_own() -> None:
    assert set(EXTERNAL_NAMES) == set(EVENT_TYPES)
    assert len(set(EXTERNAL_NAMES.values())) == len(EXTERNAL_NAMES)
    assert all(re.fullmatch(r"league\.[a-z]+(_[a-z]+)*", name) for name in EXTERNAL_NAMES.values())


HOSTILE = [
    "<script>alert(1)</script>",
    "a\nb\r\x1b[31m",
    "\x7f\x9b2J",
    "\u202egnp.exe",
    "\u2028\u2029",
    "\U000e0041",
    "é日本",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_one_line_of_visible_characters_and_mean_the_same(name: str) -> None:
    line = line_of(recorded(agent(name)))
    assert line.decode().isprintable()
    assert json.loads(line)["data"]["agent"] == name


def test_fields_are_written_anew_so_that_line_breaks_between_them_make_no_second_line() -> None:
    written = encode_event(agent("greedy"))
    spread = json.dumps(json.loads(written), indent=1).encode()
    assert b"\n" in spread
    assert decode_event(spread) == decode_event(written)
    again = recorded(payload=spread, subject=event_subject("nim", agent("greedy")))
    assert line_of(again) == line_of(recorded(agent("greedy")))


@pytest.mark.parametrize("payload", [b"\xff\x00 garbage\n", b'{"type":"Tomorrow","x":1}', b"[" * 100_000])
def test_what_cannot_be_decoded_is_sent_as_text_with_the_reason(payload: bytes) -> None:
    line = line_of(recorded(payload=payload))
    found = json.loads(line)
    assert (found["event"], found["type"], found["sequence"]) == ("league.unreadable", "", 7)
    assert found["data"]["error"]
    assert found["data"]["bytes"] == len(payload)
    assert found["data"]["payload"][:4] == payload.decode(errors="replace")[:4]
    assert line.decode().isprintable()
    assert len(line) < 20_000


def test_every_event_of_a_league_becomes_a_line_that_holds_it_whole(history: Sequence[RecordedEvent]) -> None:
    for each in history:
        found = json.loads(line_of(each))
        assert msgspec.convert(found["data"] | {"type": found["type"]}, EVENT_TYPES[found["type"]]) == each.event
