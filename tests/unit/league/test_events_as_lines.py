"""What `league events --json` prints: one line an event, however its payload was written."""

import json

from league.log.base import RecordedEvent
from ui.cli.history import _event_json


def recorded(payload: bytes) -> RecordedEvent:
    return RecordedEvent(7, 1_700_000_000_000_000_000, "test.control", "somebody", payload)


def test_a_payload_that_was_written_in_lines_is_printed_in_one() -> None:
    payload = b'{\n  "type": "LeagueResumed",\r\n  "reason": "two\\nlines"\n}'
    line = _event_json(recorded(payload))
    assert "\n" not in line
    assert "\r" not in line
    assert json.loads(line)["event"] == {"type": "LeagueResumed", "reason": "two\nlines"}


def test_a_payload_in_one_line_is_printed_as_it_was_recorded() -> None:
    payload = b'{"reason": "as it was",  "type":"LeagueResumed"}'
    assert payload.decode() in _event_json(recorded(payload))
