"""``league events --to`` and a tracker that forwards, on a real broker: ended, killed and refused, nothing is lost."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from league.log.base import MAX_BATCH, RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig, LeagueConfig, LogExportConfig, TrackerConfig, convert
from schemas.errors import ConfigError, RemoteError, UsageError
from schemas.events import EVENT_TYPES, AgentRegistered, Event, LeagueOpened
from ui.cli import app
from workers.log_export import LogExport
from workers.runtime import beside
from workers.tracker import make_exports

Start = Callable[..., Any]
IDENTITY = "0123456789abcdef"


@pytest.fixture
def broker(tmp_path: Path, history: Sequence[RecordedEvent]) -> Iterator[str]:
    """Of a league with 300 events."""
    with EmbeddedServer(tmp_path / "nats") as server:
        add(server.url, [recorded.event for recorded in history[:300] if recorded.event is not None])
        yield server.url


def on(url: str, work: Callable[[JetStreamLog], Any]) -> Any:
    async def body() -> Any:
        client = await connect(url, "test")
        try:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            return await work(JetStreamLog(client, "league", "test"))
        finally:
            await flush_and_close(client)

    return asyncio.run(body())


def add(url: str, events: Sequence[Event]) -> int:
    batches = [events[first : first + MAX_BATCH] for first in range(0, len(events), MAX_BATCH)]
    return max(int(on(url, lambda log, batch=batch: log.append_batch(batch))[-1]) for batch in batches)


def agents(count: int, of: str = "more") -> list[Event]:
    return [AgentRegistered(agent=f"{of}-{n}", kind="bot", baseline=False, rating=1000.0) for n in range(count)]


def command(url: str, folder: Path, to: str, *more: str) -> list[str]:
    return ["events", "--nats", url, "--run", str(folder / "run"), "--to", to, *more]


def invoke(url: str, folder: Path, to: str, *more: str) -> Any:
    return CliRunner().invoke(app, command(url, folder, to, *more))


def process(url: str, folder: Path, to: str, *more: str) -> "subprocess.Popen[bytes]":
    with (folder / "forward.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ui", *command(url, folder, to, *more)], stdout=output, stderr=output
        )


def printed(url: str, folder: Path, *more: str) -> str:
    words = [sys.executable, "-m", "ui", *command(url, folder, "-", *more)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout


def sequences(text: str) -> list[int]:
    return [json.loads(line)["sequence"] for line in text.splitlines()]


def test_everything_up_to_now_is_printed_in_order(broker: str, tmp_path: Path) -> None:
    assert sequences(printed(broker, tmp_path)) == list(range(1, 301))


def test_a_reader_that_stops_reading_keeps_nobody_from_ending_the_command(
    broker: str, tmp_path: Path, history: Sequence[RecordedEvent]
) -> None:
    add(broker, agents(1_000))
    words = [sys.executable, "-m", "ui", *command(broker, tmp_path, "-", "--follow")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        try:
            assert running.stdout is not None
            # Something has come, and more than a pipe holds is to come.
            first = running.stdout.readline()
            time.sleep(1.0)
            running.send_signal(signal.SIGTERM)
            assert running.wait(300) == 0
            rest = running.stdout.read()
        finally:
            running.kill()
    told = sequences((first + rest).rpartition(b"\n")[0].decode())
    assert told == list(range(1, len(told) + 1))
    assert len(told) < 1_300


def test_only_the_types_that_are_asked_for_are_sent_from_where_is_asked(broker: str, tmp_path: Path) -> None:
    told = printed(broker, tmp_path, "--type", "MatchFinished", "--type", "RatingUpdated", "--from", "50")
    found = [json.loads(line) for line in told.splitlines()]
    assert {each["type"] for each in found} == {"MatchFinished", "RatingUpdated"}
    assert 50 <= found[0]["sequence"] < found[-1]["sequence"]
    assert len(found) > 10


def test_a_file_goes_on_where_its_last_line_stands_and_a_torn_one_is_mended(broker: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert invoke(broker, tmp_path, str(path), "--from", "11").exit_code == 0
    whole = path.read_text()
    path.write_text(whole[:-40])
    add(broker, agents(5))
    assert invoke(broker, tmp_path, str(path)).exit_code == 0
    assert sequences(path.read_text()) == list(range(11, 306))
    assert path.read_text().startswith(whole)


@pytest.mark.parametrize("content", ["a,b,c\n1,2,3\n", "no line end", '{"id":"league-ffffffff-7","sequence":7}\n'])
def test_a_file_that_holds_something_else_is_left_as_it_is(content: str, broker: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    told = invoke(broker, tmp_path, str(path))
    assert isinstance(told.exception, UsageError)
    assert "holds something else" in str(told.exception)
    assert path.read_text() == content


def test_a_full_disk_is_said_in_a_line_and_leaves_whole_lines_to_go_on_from(broker: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert invoke(broker, tmp_path, str(path), "--type", "AgentRegistered").exit_code == 0
    before = path.read_bytes()
    words = [sys.executable, "-m", "ui", *command(broker, tmp_path, str(path))]
    limited = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh", *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path}: file too large")
    assert path.read_bytes().startswith(before)
    assert invoke(broker, tmp_path, str(path)).exit_code == 0
    assert sequences(path.read_text()) == [*sequences(before.decode()), *range(sequences(before.decode())[-1] + 1, 301)]


@pytest.mark.parametrize("to", ["taken/events.jsonl", "."])
def test_what_cannot_be_a_file_is_wrong_usage(to: str, broker: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    told = invoke(broker, tmp_path, str(tmp_path / to))
    assert isinstance(told.exception, UsageError)


def test_a_file_of_other_bytes_is_refused_and_stays_as_it_is(broker: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for held in (b'{"sequence":1,"id":"\xff"}\n', b'{"x":' + b"[" * 50_000 + b"\n"):
        path.write_bytes(held)
        with pytest.raises(UsageError, match="holds something else"):
            on(broker, lambda log: LogExport(str(path), tmp_path).run(log, IDENTITY, 1))
        assert path.read_bytes() == held


def test_a_platform_is_sent_what_it_was_not(broker: str, tmp_path: Path, platform: Start) -> None:
    server = platform()
    for more in ([], [], ["--from", "299"], ["--from", "305"]):
        assert invoke(broker, tmp_path, server.url, *more).exit_code == 0
    assert server.taken == list(range(1, 301))
    add(broker, agents(10))
    assert invoke(broker, tmp_path, server.url, "--from", "305").exit_code == 0
    assert server.taken[300:] == list(range(305, 311))


def test_new_events_are_sent_as_they_happen_and_a_stop_is_in_good_order(
    broker: str, tmp_path: Path, platform: Start
) -> None:
    server = platform()
    running = process(broker, tmp_path, server.url, "--follow")
    try:
        server.wait(lambda s: len(s.taken) == 300)
        add(broker, agents(3))
        [position] = (tmp_path / "run" / "forwarding").iterdir()
        server.wait(lambda _: int(position.read_bytes()) == 303)
        running.send_signal(signal.SIGTERM)
        assert running.wait(300) == 0
    finally:
        running.kill()
        running.wait()
    assert server.taken == list(range(1, 304))
    assert invoke(broker, tmp_path, server.url).exit_code == 0
    assert len(server.taken) == 303


def test_killed_in_the_middle_of_trouble_nothing_is_lost_and_order_stays(
    broker: str, tmp_path: Path, platform: Start, said: Any
) -> None:
    """The platform takes the first batch, then only has trouble; the process is killed, and another one goes on."""
    trouble = threading.Event()
    trouble.set()
    server = platform(lambda got, number: said(503) if trouble.is_set() and number > 1 else said())
    add(broker, agents(400))
    running = process(broker, tmp_path, server.url, "--follow", "--from", "1")
    try:
        server.wait(lambda s: len(s.got) >= 2)
    finally:
        running.kill()
        running.wait()
    trouble.clear()
    assert invoke(broker, tmp_path, server.url).exit_code == 0
    assert sorted(set(server.taken)) == list(range(1, 701))
    assert server.taken == sorted(server.taken)


def test_a_wrong_token_ends_the_command_and_shows_no_token(
    broker: str, tmp_path: Path, platform: Start, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_TOKEN", "xaat-4711")
    server = platform(lambda got, number: said(401, b"no such token: xaat-4711"))
    told = invoke(broker, tmp_path, server.url, "--token-variable", "LOG_TOKEN")
    assert isinstance(told.exception, RemoteError)
    assert "127.0.0.1 takes no events: 401 no such token: …" in str(told.exception)
    assert server.got[0].headers["Authorization"] == "Bearer xaat-4711"
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"xaat" not in kept


def test_unknown_types_are_wrong_usage(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["events", "--type", "Nonsense", "--run", str(tmp_path)])
    assert isinstance(told.exception, UsageError)
    assert "--type Nonsense: no such event; expected 'AdapterSlotsReduced'" in str(told.exception)


def test_a_dead_destination_of_a_tracker_holds_up_no_other(broker: str, tmp_path: Path, platform: Start) -> None:
    server = platform()
    configs = [
        LogExportConfig(to="http://127.0.0.1:9/dead"),
        LogExportConfig(to=server.url, types=["MatchFinished"]),
        LogExportConfig(to="out/events.jsonl", first=101),
        LogExportConfig(to="https://logs.example/x", token_variable="NO_SUCH_VARIABLE"),
    ]

    async def body(log: JetStreamLog) -> None:
        exports = make_exports(configs, tmp_path)
        async with beside(*(export.run(log, IDENTITY) for export in exports)), asyncio.timeout(300):
            await exports[1].progress.wait_for_sequence(300)
            await exports[2].progress.wait_for_sequence(300)

    on(broker, body)
    assert {event["type"] for got in server.got for event in got.events} == {"MatchFinished"}
    assert sequences((tmp_path / "out" / "events.jsonl").read_text()) == list(range(101, 301))


def test_a_platform_that_refuses_everything_is_tried_again_by_a_tracker(
    broker: str, tmp_path: Path, platform: Start, said: Any
) -> None:
    server = platform(lambda got, number: said(403 if number < 3 else 200))

    async def body(log: JetStreamLog) -> None:
        [export] = make_exports([LogExportConfig(to=server.url)], tmp_path)
        export.first_pause_s = 0.01
        async with beside(export.run(log, IDENTITY)), asyncio.timeout(300):
            await export.progress.wait_for_sequence(300)

    on(broker, body)
    assert server.taken == list(range(1, 301))


@pytest.mark.slow
def test_a_tracker_forwards_as_it_is_configured(
    history: Sequence[RecordedEvent], config: LeagueConfig, tmp_path: Path, platform: Start
) -> None:
    server = platform()
    opened = history[0].event
    assert isinstance(opened, LeagueOpened)
    settings = {**opened.config, "tracker": {"forward": [{"to": server.url, "types": ["MatchFinished"]}]}}
    first = LeagueOpened(league=opened.league, config=settings, model=opened.model)
    with EmbeddedServer(tmp_path / "nats") as broker:
        add(broker.url, [first, *(recorded.event for recorded in history[1:300] if recorded.event is not None)])
        words = ["worker", "tracker", "--nats", broker.url, "--run", str(tmp_path / "run"), "--supervised"]
        with (tmp_path / "tracker.log").open("wb") as output:
            running = subprocess.Popen([sys.executable, "-m", "ui", *words], stdout=output, stderr=output)
        try:
            played = sum(type(recorded.event).__name__ == "MatchFinished" for recorded in history[:300])
            server.wait(lambda s: len(s.taken) >= played)
            running.send_signal(signal.SIGTERM)
            assert running.wait(300) == 0
        finally:
            running.kill()
            running.wait()
    assert len(server.taken) == played
    assert server.taken == sorted(server.taken)


@pytest.mark.parametrize(
    "to", ["", "-", "/etc/cron.d/x", "../x", "a/../b", "https://u:p@host/x", "https://host/x?key=1", "ftp://host"]
)
def test_what_a_tracker_may_not_forward_to_is_a_wrong_setting(to: str) -> None:
    with pytest.raises(ConfigError, match=r"tracker\.forward\.to: expected an address like"):
        LogExportConfig(to=to)


def test_the_settings_that_the_documentation_shows_are_settings() -> None:
    page = Path(__file__).parents[2] / "docs" / "watching.md"
    shown = page.read_text().partition("```toml\n[tracker]\n")[2].partition("```")[0]
    tracker = convert(tomllib.loads(shown), TrackerConfig, "tracker")
    assert [target.to for target in tracker.forward] == [
        "https://api.axiom.co/v1/datasets/league/ingest",
        "events.jsonl",
    ]
    assert not {kind for target in tracker.forward for kind in target.types} - set(EVENT_TYPES)
