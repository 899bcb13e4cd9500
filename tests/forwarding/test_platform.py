"""A log platform that misbehaves: nothing is lost, order stays, and its token is told to nobody else."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from schemas.errors import BusyError, ConfigError, RemoteError, UsageError
from schemas.files import try_lock
from workers.log_export import LogExport

IDENTITY = "0123456789abcdef"
TOKEN = "xaat-4711-secret"
Start = Callable[..., Any]


class Recorded:
    """Events in memory, as an export reads a history."""

    league = "league"

    def __init__(self, events: Sequence[RecordedEvent]) -> None:
        self._events = events

    async def read(self, first: int, last: int) -> AsyncIterator[RecordedEvent]:
        for recorded in self._events[first - 1 : last]:
            yield recorded


def send(
    url: str, folder: Path, history: Sequence[RecordedEvent], last: int, kinds: Sequence[str] = (), token: str = TOKEN
) -> None:
    """Send events up to ``last``, in one batch, as one process does."""
    export = LogExport(url, folder, "LOG_TOKEN" if token else "", kinds, first_pause_s=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOG_TOKEN", token)
        asyncio.run(export.run(cast(JetStreamLog, Recorded(history)), IDENTITY, last))


def position(folder: Path) -> int:
    [path] = folder.glob("league-01234567-*.position")
    return int(path.read_bytes() or b"0")


def test_a_batch_is_lines_of_json_with_a_bearers_token(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(503 if number == 1 else 200))
    send(server.url, tmp_path, history, 3)
    first, second = server.got
    assert [json.loads(line)["sequence"] for line in first.body.splitlines()] == [1, 2, 3]
    assert first.body == second.body
    assert first.headers["Authorization"] == f"Bearer {TOKEN}"
    assert first.headers["Content-Type"] == "application/x-ndjson"
    assert position(tmp_path) == 3


def test_a_damaged_position_is_wrong_usage(platform: Start, history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    server = platform()
    send(server.url, tmp_path, history, 3)
    [path] = tmp_path.glob("*.position")
    for held in (b"{", b"\xff"):
        path.write_bytes(held)
        with pytest.raises(UsageError, match=r"\.position: .*expected the sequence.*remove it to send all again"):
            send(server.url, tmp_path, history, 3)


def test_without_a_token_none_is_sent(platform: Start, history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    server = platform()
    send(server.url, tmp_path, history, 1, token="")
    assert "Authorization" not in server.got[0].headers


@pytest.mark.parametrize(
    "trouble",
    [
        {"status": 500, "body": b"boom"},
        {"status": 429, "headers": {"Retry-After": "0"}},
        {"status": 408},
        {"status": 0},
        {"after_s": 600.0, "status": 200},
    ],
    ids=["500", "429", "408", "closes", "slow"],
)
def test_trouble_that_passes_is_waited_out(
    trouble: dict[str, Any],
    platform: Start,
    said: Any,
    history: Sequence[RecordedEvent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = platform(lambda got, number: said(**trouble) if number in (1, 2, 4) else said())
    if is_slow := "after_s" in trouble:
        monkeypatch.setattr("workers.log_export._TIMEOUT_S", 0.5)
    send(server.url, tmp_path, history, 2)
    send(server.url, tmp_path, history, 4)
    got, expected = [got.sequences for got in server.got], [[1, 2], [1, 2], [1, 2], [3, 4], [3, 4]]
    # On a busy machine an answer that was given at once may come too late as well.
    assert got == expected or (is_slow and got == sorted(got) and len(got) > len(expected))
    assert position(tmp_path) == 4


def test_retry_after_is_kept_to(platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    server = platform(lambda got, number: said(429, headers={"Retry-After": "1"}) if number == 1 else said())
    begun = time.monotonic()
    send(server.url, tmp_path, history, 1)
    assert time.monotonic() - begun >= 1.0


@pytest.mark.parametrize("how", ["drips", "garbled"])
def test_what_was_taken_counts_though_its_answer_is_no_good(
    how: str,
    platform: Start,
    said: Any,
    garbled: bytes,
    history: Sequence[RecordedEvent],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("workers.log_export._BODY_TIMEOUT_S", 0.05)
    odd = said(drips=True) if how == "drips" else said(body=garbled, headers={"Content-Encoding": "gzip"})
    server = platform(lambda got, number: odd)
    send(server.url, tmp_path, history, 2)
    assert len(server.got) == 1
    assert position(tmp_path) == 2


def test_a_refused_event_is_named_and_skipped_and_the_rest_of_its_batch_is_taken_in_order(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    bad = {5, 17}
    why = f"field limit\x1b[31m exceeded for {TOKEN}".encode()
    server = platform(lambda got, number: said(400, why) if bad & set(got.sequences) else said())
    with capture_logs() as logs:
        send(server.url, tmp_path, history, 22)
    assert server.taken == [n for n in range(1, 23) if n not in bad]
    assert position(tmp_path) == 22
    told = [entry for entry in logs if entry["event"] == "a platform rejected an event; skipping it"]
    assert [entry["sequence"] for entry in told] == sorted(bad)
    assert told[0]["response"] == "400 field limit\\u001b[31m exceeded for …"
    assert TOKEN not in str(logs)


def test_a_platform_that_refuses_everything_ends_it_and_nothing_counts_as_sent(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(200 if number == 1 else 422, b"no such column"))
    send(server.url, tmp_path, history, 2)
    with pytest.raises(RemoteError, match=r"rejects every event, 20 in a row up to event 22: 422 no such column"):
        send(server.url, tmp_path, history, 62)
    assert position(tmp_path) == 2


def test_events_that_are_filtered_out_move_the_position_unless_the_last_ones_sent_were_refused(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    send(platform().url, tmp_path / "taken", history, 300, ["LeagueBranched"])
    assert position(tmp_path / "taken") == 300
    server = platform(lambda got, number: said(400))
    send(server.url, tmp_path / "refused", history, 300, ["LeagueOpened"])
    assert position(tmp_path / "refused") == 0
    assert [got.sequences for got in server.got] == [[1]]


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_wrong_token_or_address_ends_it_and_is_said_without_the_token(
    status: int, platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    headers = {"Location": "http://127.0.0.1:1/steal"} if status == 302 else {}
    server = platform(lambda got, number: said(status, f"bad token {TOKEN}".encode(), headers))
    with pytest.raises(RemoteError) as failed:
        send(server.url, tmp_path, history, 3)
    assert str(failed.value).startswith(f"127.0.0.1 takes no events: {status} bad token …; expected")
    assert len(server.got) == 1
    assert position(tmp_path) == 0


def test_an_address_that_is_none_ends_it(history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"takes no events: no valid address, InvalidURL"):
        send("https://host\x00/x", tmp_path, history, 1)


def test_a_batch_that_is_taken_but_for_one_is_told(platform: Start, said: Any, tmp_path: Path) -> None:
    garbage = [RecordedEvent(n, n * 10**9, "", "", b"garbage") for n in (1, 2, 3)]
    ingested = {"ingested": 2, "failed": 1, "failures": [{"timestamp": "1970-01-01T00:00:02Z", "error": "too old"}]}
    server = platform(lambda got, number: said(body=json.dumps(ingested).encode()))
    with capture_logs() as logs:
        send(server.url, tmp_path, garbage, 3)
    assert position(tmp_path) == 3
    assert len(server.got) == 1
    assert "too old" in str(logs)


@pytest.mark.parametrize(
    "body", [b'{"failed":1,"failures":[{"timestamp":7},3]}', b'{"failed":2,"failures":null}', b"[[", b'{"failed":"x"}']
)
def test_a_strange_answer_to_what_was_taken_harms_nothing(
    body: bytes, platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(body=body))
    send(server.url, tmp_path, history, 3)
    assert position(tmp_path) == 3


def test_two_processes_do_not_send_to_one_address_from_one_folder(
    platform: Start, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform()
    send(server.url, tmp_path, history, 1)
    [path] = tmp_path.glob("*.position")
    with path.open() as held:
        assert try_lock(held)
        with pytest.raises(BusyError, match="another process forwards to"):
            send(server.url, tmp_path, history, 2)
    assert server.taken == [1]


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("https://user:secret@host/x", "without user and password"),
        ("ftp://host/x", "expected an address like"),
        ("https://[::1/secret", "expected an address like"),
        ("http://logs.example/x", "would be sent unencrypted to logs.example"),
        ("events.jsonl", "accepts no token"),
        ("", "accepts no token"),
    ],
)
def test_addresses_that_cannot_be_sent_to_are_wrong_usage_and_show_no_secret(
    to: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as failed:
        send(to, tmp_path, [], 1)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "é"])
def test_a_variable_without_a_token_is_named_and_its_value_is_not(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_TOKEN", value)
    export = LogExport("https://logs.example/x", tmp_path, "LOG_TOKEN")
    with pytest.raises(ConfigError, match="LOG_TOKEN: ") as failed:
        asyncio.run(export.run(cast(JetStreamLog, Recorded([])), IDENTITY, 1))
    assert not value or value not in str(failed.value)
