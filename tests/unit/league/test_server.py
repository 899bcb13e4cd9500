"""The embedded broker ends with those who use it."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer, check_port_is_free, free_port
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig
from schemas.errors import LogUnavailableError, UsageError
from schemas.events import PolicyPublished


@pytest.fixture
def brokers() -> Callable[[], list[psutil.Process]]:
    """The brokers started since that run: the tests before may share one that goes on."""
    before = {child.pid for child in psutil.Process().children()}

    def runs(child: psutil.Process) -> bool:
        # A child may end at any moment.
        with contextlib.suppress(psutil.NoSuchProcess):
            return child.name() == "nats-server" and child.status() != psutil.STATUS_ZOMBIE
        return False

    return lambda: [child for child in psutil.Process().children() if child.pid not in before and runs(child)]


def test_a_start_that_is_interrupted_leaves_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: Callable[[], list[psutil.Process]]
) -> None:
    def interrupted(self: EmbeddedServer) -> str | None:
        running = self._read_running()
        if running is not None:
            assert running.pid in {child.pid for child in psutil.Process().children()}
            raise KeyboardInterrupt
        return None

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedServer, "_find_url", interrupted)
        with pytest.raises(KeyboardInterrupt), EmbeddedServer(tmp_path):
            pass
    wait_until_gone(brokers())
    with EmbeddedServer(tmp_path) as server:
        assert server.url
    wait_until_gone(brokers())


def test_a_broker_that_gets_too_little_memory_to_start_says_so(tmp_path: Path) -> None:
    code = (
        "import pathlib, resource, sys; from league.log.server import EmbeddedServer;"
        "resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20));"
        "EmbeddedServer(pathlib.Path(sys.argv[1])).__enter__()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert "did not start: fatal error: " in done.stderr


def test_free_ports_are_none_that_an_outgoing_connection_may_take() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert first - 10_000 <= port < first or first <= 20_000
        check_port_is_free(port)


@pytest.mark.parametrize("port", [-1, 65_536, 10**20])
def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(UsageError, match="expected 1 to 65535"), EmbeddedServer(tmp_path, port=port):
        pass


def test_a_killed_broker_is_started_again_where_its_clients_look_for_it(
    tmp_path: Path, brokers: Callable[[], list[psutil.Process]]
) -> None:
    with EmbeddedServer(tmp_path) as server:
        assert not server.has_died
        brokers()[0].kill()
        while not server.has_died:
            pass
        before = server.url
        server.restart_if_dead()
        assert (server.url, server.has_died) == (before, False)
        server.restart_if_dead()
        assert len(brokers()) == 1
    wait_until_gone(brokers())


def test_a_broker_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: Callable[[], list[psutil.Process]]
) -> None:
    sound, killed = EmbeddedServer._find_url, list[int]()

    def murdered(self: EmbeddedServer) -> str | None:
        running = self._read_running()
        if running is not None and len(killed) < at_most:
            killed.append(running.pid)
            psutil.Process(running.pid).kill()
            return None
        return sound(self)

    monkeypatch.setattr(EmbeddedServer, "_find_url", murdered)
    at_most = 2
    with EmbeddedServer(tmp_path) as server:
        assert len(set(killed)) == 2
        assert not server.has_died
    wait_until_gone(brokers())
    at_most = 5
    with pytest.raises(LogUnavailableError, match="did not start: its log holds no error"), EmbeddedServer(tmp_path):
        pass
    assert len(set(killed)) == 5
    wait_until_gone(brokers())


USER = """
import sys, time
from pathlib import Path
from league.log.server import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def use() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts processes that use the broker of a folder until they are killed; returns each once it has the broker."""
    users: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> subprocess.Popen[str]:
        users.append(subprocess.Popen([sys.executable, "-c", USER, str(folder)], stdout=subprocess.PIPE, text=True))
        assert users[-1].stdout is not None
        assert users[-1].stdout.readline().startswith("nats://")
        return users[-1]

    yield start
    for user in users:
        user.kill()
        user.communicate()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    """A broker that still runs after a minute fails the test, and is ended."""
    _, alive = psutil.wait_procs(processes, timeout=600)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_broker_ends_with_its_last_user_however_that_one_ends(
    tmp_path: Path, use: Callable[[Path], subprocess.Popen[str]], number: signal.Signals
) -> None:
    first, second = use(tmp_path), use(tmp_path)
    pid = msgspec.json.decode((tmp_path / "server.json").read_bytes())["pid"]
    broker = psutil.Process(pid)
    started = [broker, *broker.children()]
    assert broker.name() == "nats-server"
    first.send_signal(number)
    first.wait()
    # The one that started it has gone, and the other one still uses it.
    with EmbeddedServer(tmp_path) as server:
        assert server.url
    assert broker.is_running()
    second.send_signal(number)
    second.wait()
    wait_until_gone(started)
    with EmbeddedServer(tmp_path) as server:
        assert not server.has_died


async def appended(history: JetStreamLog, version: int) -> int:
    """Sequence of an event, however long the broker takes to come back."""
    event = PolicyPublished(policy="main", version=version, adapter="", parent="")
    while True:
        try:
            return await history.append(event)
        except LogUnavailableError:
            await asyncio.sleep(0.05)


def test_whoever_uses_a_run_goes_on_after_its_broker_was_killed(
    tmp_path: Path, brokers: Callable[[], list[psutil.Process]]
) -> None:
    async def body() -> list[int]:
        run, sequences = Run(tmp_path), []
        async with run.connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            history = JetStreamLog(client, "nim", "test")
            for version in range(3):
                async with asyncio.timeout(300):
                    sequences.append(await appended(history, version))
                if version < 2:
                    brokers()[0].kill()
        return sequences

    assert asyncio.run(body()) == [1, 2, 3]
    wait_until_gone(brokers())
