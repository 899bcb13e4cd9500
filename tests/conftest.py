"""Fixtures of all suites: small models without training, and an HTTP server with a hosted model's chat interface."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import structlog
from hypothesis import settings

# The same examples in every run, however slow the machine is: a failure is the code's.
settings.register_profile("league", deadline=None, derandomize=True, database=None)
settings.load_profile("league")

# Before torch is imported anywhere: threads fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Turn SIGTERM, as ``timeout`` sends it, into an interrupt, so that fixtures stop the brokers they started."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> None:
    # ``timeout`` sends the signal twice: the second one must not interrupt the fixtures' teardown.
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt


@pytest.fixture(scope="session", autouse=True)
def _loggers() -> Iterator[None]:
    """Loggers that write to stderr, as those of commands do, and follow each new configuration.

    ``capture_logs`` does not see loggers that keep an earlier configuration.
    """
    configure, reset_defaults = structlog.configure, structlog.reset_defaults

    def reset() -> None:
        reset_defaults()
        configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **fields: configure(**fields | {"cache_logger_on_first_use": False})
        )
        patch.setattr(structlog, "reset_defaults", reset)
        reset()
        yield


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes small models of random weights whose tokenizer can write any text."""

    def make(texts: Sequence[str], vocabulary: int = 400, longest: int = 1024, marks: Sequence[str] = ()) -> Path:
        from models.make import BaseShape, make_text_base

        shape = BaseShape(hidden=16, mlp=32, layers=1, heads=2, kv_heads=1, head_dim=8, max_positions=longest)
        folder = tmp_path_factory.mktemp("speaker")
        return make_text_base(folder, texts, marks, "<eos>", shape, seed=0, vocabulary=vocabulary)

    return make


class Answer(NamedTuple):
    """The response of a chat server to a request."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    after_s: float = 0.0
    endless: bool = False
    """Whether the body is sent again and again until the client disconnects."""


def saying(text: str | None, tokens: int = 10) -> Answer:
    """A chat completion."""
    return Answer(json.dumps({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}).encode())


class Asked(NamedTuple):
    """A request that a chat server received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def question(self) -> str:
        return str(self.body["messages"][-1]["content"])


class ChatServer:
    """A real HTTP server on a loopback port with OpenAI's chat interface."""

    def __init__(self, answer: Callable[[Asked, int], Answer]) -> None:
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._answer = answer
        self._at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            number = len(self.asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self._answer(asked, number)
            time.sleep(answer.after_s)
            return answer
        finally:
            with self._lock:
                self._at_once -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = server._take(Asked(self.path, dict(self.headers), body))
                # The client may have timed out and disconnected.
                with suppress(ConnectionError):
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer.body)
                    while answer.endless:
                        self.wfile.write(answer.body)

            def do_GET(self) -> None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def chat_server() -> Iterator[Callable[[Callable[[Asked, int], Answer]], ChatServer]]:
    """Starts chat servers whose response is a function of the request and its number, counted from 1."""
    started: list[ChatServer] = []

    def start(answer: Callable[[Asked, int], Answer]) -> ChatServer:
        started.append(ChatServer(answer))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def say() -> Callable[..., Answer]:
    """Makes a chat completion of a text, or with ``raw`` a response of any bytes."""

    def make(text: str | None = None, raw: bytes | None = None, tokens: int = 10, **other: Any) -> Answer:
        return (saying(text, tokens) if raw is None else Answer(raw))._replace(**other)

    return make
