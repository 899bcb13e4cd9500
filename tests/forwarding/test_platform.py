"""A log platform that misbehaves: nothing is lost, order stays, and its token is told to nobody else."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from league.log.base import RecordedEvent
from schemas.errors import BusyError, ConfigError, RemoteError, UsageError
from workers.log_export import make_target
from workers.log_export.lines import LogLine, LogLineWriter
from workers.log_export.platform import ExportPosition, HttpTarget

WRITER = LogLineWriter("league", "0123456789abcdef")
TOKEN = "xaat-4711-secret"
Start = Callable[..., Any]


def position(folder: Path) -> ExportPosition:
    return ExportPosition(folder / "forwarding", "here")


def lines(history: Sequence[RecordedEvent], count: int, first: int = 1) -> list[LogLine]:
    return [WRITER.make_line(recorded) for recorded in history[first - 1 : first - 1 + count]]


def sent(
    url: str, folder: Path, batches: Sequence[Sequence[LogLine]], timeout_s: float = 60.0, token: str = TOKEN
) -> int:
    """Send batches with one connection after another process's; returns the position that it found."""

    async def body() -> int:
        target = HttpTarget(url, token, position(folder), timeout_s, first_pause_s=0.01)
        try:
            before = await target.open(WRITER.history)
            for batch in batches:
                await target.send(batch, batch[-1].sequence)
            return before
        finally:
            await target.close()

    return asyncio.run(body())


def reached(folder: Path) -> int:
    return sent("http://127.0.0.1:9/", folder, [])


def test_a_batch_is_an_array_with_a_bearers_token_and_a_key_that_stays(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(503 if number == 1 else 200))
    sent(server.url, tmp_path, [lines(history, 3)])
    first, second = server.got
    assert first.sequences == [1, 2, 3]
    assert first.body == second.body
    assert first.headers["Authorization"] == f"Bearer {TOKEN}"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"] == "league-01234567-1-3"
    assert reached(tmp_path) == 3


def test_a_generic_platform_gets_a_json_object_a_line(
    platform: Start, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform()

    async def body() -> None:
        target = make_target(f"lines+{server.url}", "", tmp_path, WRITER.history)
        await target.open(WRITER.history)
        await target.send(lines(history, 3), 3)
        await target.close()

    asyncio.run(body())
    assert server.got[0].headers["Content-Type"] == "application/x-ndjson"
    assert [json.loads(line)["sequence"] for line in server.got[0].body.splitlines()] == [1, 2, 3]


def test_a_damaged_position_is_wrong_usage(tmp_path: Path) -> None:
    path = position(tmp_path).path
    path.parent.mkdir()
    for held in (b"{", b'{"sequence":"\xff"}'):
        path.write_bytes(held)
        with pytest.raises(UsageError, match=r"here\.json: .*expected the sequence"):
            reached(tmp_path)


def test_without_a_token_none_is_sent(platform: Start, history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    server = platform()
    sent(server.url, tmp_path, [lines(history, 1)], token="")
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
    trouble: dict[str, Any], platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(**trouble) if number in (1, 2, 4) else said())
    is_slow = "after_s" in trouble
    sent(server.url, tmp_path, [lines(history, 2), lines(history, 2, 3)], timeout_s=0.5 if is_slow else 60.0)
    got, expected = [got.sequences for got in server.got], [[1, 2], [1, 2], [1, 2], [3, 4], [3, 4]]
    # On a busy machine an answer that was given at once may come too late as well.
    assert got == expected or (is_slow and got == sorted(got) and len(got) > len(expected))
    assert reached(tmp_path) == 4


def test_retry_after_is_kept_to(platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    waited: list[float] = []

    async def body(server: Any) -> None:
        loop = asyncio.get_running_loop()
        target = HttpTarget(server.url, TOKEN, position(tmp_path), 5.0, first_pause_s=0.001)
        await target.open(WRITER.history)
        begun = loop.time()
        await target.send(lines(history, 1), 1)
        waited.append(loop.time() - begun)
        await target.close()

    asyncio.run(body(platform(lambda got, number: said(429, headers={"Retry-After": "1"}) if number == 1 else said())))
    assert waited[0] >= 1.0


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
    monkeypatch.setattr("workers.log_export.platform._BODY_TIMEOUT_S", 0.05)
    odd = said(drips=True) if how == "drips" else said(body=garbled, headers={"Content-Encoding": "gzip"})
    server = platform(lambda got, number: odd)
    sent(server.url, tmp_path, [lines(history, 2)])
    assert len(server.got) == 1
    assert reached(tmp_path) == 2


def test_a_refused_event_is_named_and_skipped_and_the_rest_of_its_batch_is_taken_in_order(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    bad = {5, 17}
    why = f"field limit\x1b[31m exceeded for {TOKEN}".encode()
    server = platform(lambda got, number: said(400, why) if bad & set(got.sequences) else said())
    with capture_logs() as logs:
        sent(server.url, tmp_path, [lines(history, 20), lines(history, 2, 21)])
    assert server.taken == [n for n in range(1, 23) if n not in bad]
    assert reached(tmp_path) == 22
    told = [entry for entry in logs if entry["event"] == "a platform rejected an event; skipping it"]
    assert [entry["sequence"] for entry in told] == sorted(bad)
    assert told[0]["said"] == "400 field limit\\u001b[31m exceeded for …"
    assert TOKEN not in str(logs)


def test_a_platform_that_refuses_everything_ends_it_and_nothing_counts_as_sent(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(200 if number == 1 else 422, b"no such column"))
    with pytest.raises(RemoteError, match=r"rejects every event, 20 in a row up to event 22 .*422 no such column"):
        sent(server.url, tmp_path, [lines(history, 2), lines(history, 60, 3)])
    assert reached(tmp_path) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_wrong_token_or_address_ends_it_and_is_said_without_the_token(
    status: int, platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    headers = {"Location": "http://127.0.0.1:1/steal"} if status == 302 else {}
    server = platform(lambda got, number: said(status, f"bad token {TOKEN}".encode(), headers))
    with pytest.raises(RemoteError) as failed:
        sent(server.url, tmp_path, [lines(history, 3)])
    assert str(failed.value).startswith(f"127.0.0.1 takes no events: {status} bad token …; expected")
    assert len(server.got) == 1
    assert reached(tmp_path) == 0


def test_an_address_that_is_none_ends_it(history: Sequence[RecordedEvent], tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"takes no events: no valid address, InvalidURL"):
        sent("https://host\x00/x", tmp_path, [lines(history, 1)])


def test_a_batch_that_is_taken_but_for_one_is_told(
    platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    batch = [WRITER.make_line(RecordedEvent(n, n * 10**9, "", "", b"garbage")) for n in (1, 2, 3)]
    ingested = {"ingested": 2, "failed": 1, "failures": [{"timestamp": "1970-01-01T00:00:02Z", "error": "too old"}]}
    server = platform(lambda got, number: said(body=json.dumps(ingested).encode()))
    with capture_logs() as logs:
        sent(server.url, tmp_path, [batch])
    assert reached(tmp_path) == 3
    assert len(server.got) == 1
    assert "too old" in str(logs)


@pytest.mark.parametrize(
    "body", [b'{"failed":1,"failures":[{"timestamp":7},3]}', b'{"failed":2,"failures":null}', b"[[", b'{"failed":"x"}']
)
def test_a_strange_answer_to_what_was_taken_harms_nothing(
    body: bytes, platform: Start, said: Any, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    server = platform(lambda got, number: said(body=body))
    sent(server.url, tmp_path, [lines(history, 3)])
    assert reached(tmp_path) == 3


def test_two_processes_do_not_send_to_one_address_from_one_folder(
    platform: Start, history: Sequence[RecordedEvent], tmp_path: Path
) -> None:
    first, second = position(tmp_path), position(tmp_path)
    first.open()
    with pytest.raises(BusyError, match="another process forwards to"):
        second.open()
    first.close()
    assert second.open() == 0
    second.close()


def test_a_damaged_position_is_said_and_not_guessed(tmp_path: Path) -> None:
    found = position(tmp_path)
    found.path.parent.mkdir()
    found.path.write_text("{")
    with pytest.raises(UsageError, match="remove it to send all again"):
        found.open()
    found.close()


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
    to: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_TOKEN", TOKEN)
    with pytest.raises(UsageError, match=message) as failed:
        make_target(to, "LOG_TOKEN", tmp_path, WRITER.history)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "é"])
def test_a_variable_without_a_token_is_named_and_its_value_is_not(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_TOKEN", value)
    with pytest.raises(ConfigError, match="LOG_TOKEN: ") as failed:
        make_target("https://logs.example/x", "LOG_TOKEN", tmp_path, WRITER.history)
    assert not value or value not in str(failed.value)
