"""A log platform on a loopback port that misbehaves as it is told, and a history to send to it."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from league.log.base import RecordedEvent
from schemas.config import EvaluationConfig, LeagueConfig
from tests.simulated_history import Simulation


class Said(NamedTuple):
    """What the platform answers; status 0 closes the connection without a word."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = MappingProxyType({})
    after_s: float = 0.0
    drips: bool = False
    """Whether a byte is sent now and then, without end."""


class Got(NamedTuple):
    """A request."""

    headers: Mapping[str, str]
    events: list[dict[str, Any]]
    body: bytes

    @property
    def sequences(self) -> list[int]:
        return [event["sequence"] for event in self.events]


def _events(body: bytes) -> list[dict[str, Any]]:
    """Events of an array, or of JSON lines."""
    return json.loads(body) if body.startswith(b"[") else [json.loads(line) for line in body.splitlines()]


class LogPlatform:
    """Answers each request by a function of it and its number, counted from 1; remembers all of them."""

    def __init__(self, answer: Callable[[Got, int], Said]) -> None:
        self.got: list[Got] = []
        self.taken: list[int] = []
        """Sequences in the order of requests that were answered with 200."""
        self._answer = answer
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/datasets/league/ingest"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self, condition: Callable[["LogPlatform"], bool]) -> None:
        # Processes take long to start on a busy machine.
        deadline = time.monotonic() + 300
        while not condition(self):
            assert time.monotonic() < deadline, f"not in time; {len(self.got)} requests, {len(self.taken)} taken"
            time.sleep(0.01)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with platform._lock:
                    got = Got(dict(self.headers), _events(body), body)
                    platform.got.append(got)
                    said = platform._answer(got, len(platform.got))
                platform._ended.wait(said.after_s)
                with suppress(ConnectionError):
                    self._say(said)
                if said.status == 200:
                    with platform._lock:
                        platform.taken += got.sequences

            def _say(self, said: Said) -> None:
                self.close_connection = True
                if not said.status:
                    return
                self.send_response(said.status)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said.body)
                while said.drips and not platform._ended.wait(0.01):
                    self.wfile.write(b" ")

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def platform() -> Iterator[Callable[..., LogPlatform]]:
    """Starts platforms; by default one that takes everything."""
    started: list[LogPlatform] = []

    def start(answer: Callable[[Got, int], Said] = lambda got, number: Said()) -> LogPlatform:
        started.append(LogPlatform(answer))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="session")
def said() -> type[Said]:
    return Said


@pytest.fixture(scope="session")
def garbled() -> bytes:
    """The beginning of something compressed."""
    return gzip.compress(b"x" * 10_000)[:20]


CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=6, benchmark_games=6))


@pytest.fixture(scope="session")
def config() -> LeagueConfig:
    return CONFIG


@pytest.fixture(scope="session")
def history() -> list[RecordedEvent]:
    """A league's first thousand events or so."""
    return list(Simulation(CONFIG).run(20, 3))
