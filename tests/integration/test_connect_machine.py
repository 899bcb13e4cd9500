"""Machines that join a league by one line, each with a folder of its own, at a broker that asks for credentials."""

import asyncio
import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from league.auth.authority import Authority
from league.history.replay import verify_events
from league.log.access import BrokerCredentials
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer, find_nats_server, free_port, has_ended, spawn, terminate
from league.log.streams import ensure_streams
from lifecycle.connect_machine import ConnectOptions, connect_machine
from schemas import events as e
from schemas.config import ExperienceConfig, LeagueConfig, Plugin, load_config, to_builtins
from schemas.errors import AccessError, LeagueError, LogError, LogUnavailableError, UsageError
from tests.forks import run_forked

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Lets in anybody, and holds two leagues."""
    with EmbeddedServer(tmp_path_factory.mktemp("open")) as server:
        asyncio.run(opened(server.url, "nim", "other"))
        yield server.url


async def opened(url: str, *names: str, config: LeagueConfig | None = None) -> None:
    """Leagues that have been opened, without a model."""
    client = await connect(url, "opener")
    await ensure_streams(client.jetstream(timeout=10), ExperienceConfig())
    for name in names:
        settings = to_builtins(config or load_config(CONFIG))
        await JetStreamLog(client, name, "opener").append(e.LeagueOpened(name, settings | {"name": name}, "./nowhere"))
    await flush_and_close(client)


def refused(url: str, folder: Path, league: str | None = None, **asked: object) -> None:
    """Tries to join, in vain."""
    told = ConnectOptions(**({"role": "rollout", "workers": None, "folder": folder, "room_gb": 0.0} | asked))
    asyncio.run(connect_machine(url, league, None, told, Console(stderr=True)))


def test_where_there_is_no_broker_or_not_the_league_it_says_so(open_broker: str, tmp_path: Path) -> None:
    with pytest.raises(LogUnavailableError, match=r"no NATS broker at nats://127\.0\.0\.1:1"):
        refused("nats://127.0.0.1:1", tmp_path)
    with pytest.raises(LogError, match=r"several leagues \(nim, other\); say which one with --league"):
        refused(open_broker, tmp_path)
    with pytest.raises(UsageError, match=r"--league chess: no such league at .*; expected 'nim' or 'other'"):
        refused(open_broker, tmp_path, "chess")


def test_before_the_league_is_open_it_waits(tmp_path: Path) -> None:
    async def join(url: str, console: Console, said: io.StringIO) -> None:
        told = ConnectOptions("rollout", None, folder=tmp_path / "joined", room_gb=0.0)
        joining = asyncio.create_task(connect_machine(url, None, None, told, console))
        while "waiting for `league up`" not in said.getvalue():  # noqa: ASYNC110 - a console tells nobody
            await asyncio.sleep(0.02)
        assert not joining.done()
        await opened(url, "nim")
        with pytest.raises(LeagueError, match=r"\./nowhere"):
            await joining

    with EmbeddedServer(tmp_path / "empty") as server:
        said = io.StringIO()
        asyncio.run(join(server.url, Console(file=said, width=500), said))
    assert "ok   league: nim" in said.getvalue()


class Machine:
    """A ``league join`` with a folder of its own; what it says goes to a file."""

    def __init__(self, url: str, folder: Path, *words: str) -> None:
        self.folder = folder
        self._said = folder.with_suffix(".said")
        command = [sys.executable, "-m", "ui", "join", url, "--folder", str(folder), "--room-gb", "0", *words]
        with self._said.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    @property
    def said(self) -> str:
        return " ".join(self._said.read_text().split())

    def ended(self, timeout_s: float = 600) -> int:
        return self.process.wait(timeout_s)

    def workers(self) -> dict[str, int]:
        """Process ids of its workers by name."""
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    words = child.cmdline()
                    if "--name" in words:
                        found[words[words.index("--name") + 1]] = child.pid
        return found


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    """Joins machines, which end with the test."""
    joined: list[Machine] = []

    def join(url: str, folder: Path, *words: str) -> Machine:
        joined.append(Machine(url, folder, *words))
        return joined[-1]

    yield join
    for one in joined:
        for pid in one.workers().values() if one.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        one.process.kill()
        one.process.wait()


def test_a_machine_without_room_is_told_so_before_any_worker_is_started(
    open_broker: str, tmp_path: Path, machine: Callable[..., Machine]
) -> None:
    one = machine(open_broker, tmp_path / "a", "--league", "nim", "--room-gb", "1e9")
    assert one.ended() == 2
    assert "GB of disk are free; expected 1e+09 or more (--room-gb)" in one.said
    assert not list((one.folder / "logs").glob("rollout*"))


@pytest.mark.slow
def test_what_this_machine_lacks_is_said_before_any_worker_is_started(
    open_broker: str, tmp_path: Path, machine: Callable[..., Machine]
) -> None:
    chess = LeagueConfig(name="chess", game=Plugin(name="chess_of_tomorrow"), agents=load_config(CONFIG).agents)
    asyncio.run(opened(open_broker, "chess", config=chess))
    wanted = {
        "--policy nobody: not trained in this league; expected 'main'": ["--league", "nim", "--policy", "nobody"],
        "base model: no folder ./nowhere": ["--league", "nim"],
        "nothing is called 'chess_of_tomorrow'": ["--league", "chess"],
    }
    tried = [machine(open_broker, tmp_path / f"{k}", *words) for k, words in enumerate(wanted.values())]
    for one, why in zip(tried, wanted, strict=True):
        assert one.ended() in (1, 2)
        assert why in one.said
        assert not list((one.folder / "logs").glob("rollout*"))


class Broker:
    """Lets in who has credentials, and can be told of those that were revoked."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.authority, self.url = authority, f"nats://127.0.0.1:{free_port()}"
        self._config = folder / "broker-here.conf"
        self._own = f'listen: "{self.url.removeprefix("nats://")}"\nmax_payload: 8MB\n'
        self._own += f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
        self._configure()
        self._pid = spawn([find_nats_server(), "-c", str(self._config)], folder / "broker.log")

    def _configure(self) -> None:
        self._config.write_text(self._own + self.authority.broker_config_path.read_text())

    def revoke(self, name: str) -> None:
        self.authority.revoke(name)
        self._configure()
        self.reload()

    def reload(self) -> None:
        """Have the broker read its configuration anew; one that is still starting may refuse to."""
        os.kill(self._pid, signal.SIGHUP)

    def stop(self) -> None:
        if not has_ended(self._pid):
            terminate(self._pid)

    def history(self, wait_s: float = 300.0) -> list[RecordedEvent]:
        return asyncio.run(self._history(time.monotonic() + wait_s))

    async def _history(self, until_s: float) -> list[RecordedEvent]:
        while True:
            try:
                client = await connect(self.url, "boss", BrokerCredentials(self.authority.credentials_path("boss")))
                break
            except LogUnavailableError:
                assert time.monotonic() < until_s
                await asyncio.sleep(0.1)
        try:
            return [recorded async for recorded in JetStreamLog(client, "nim", "boss").read()]
        finally:
            await flush_and_close(client)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    authority = Authority.create(tmp_path / "auth")
    for role, name in (("operator", "boss"), ("trainer", "trainer-1"), ("rater", "rater-1")):
        authority.add(role, [name], days=1)
    for number in range(1, 4):
        authority.add("rollout", [f"rollout-{number}"], days=1)
    running = Broker(tmp_path, authority)
    yield running
    running.stop()


def test_credentials_that_are_refused_or_missing_say_so(broker: Broker, tmp_path: Path) -> None:
    for wait in range(2_000):
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port_of(broker.url))):
            break
        assert wait < 1_999
        time.sleep(0.05)
    with pytest.raises(AccessError, match="rejects the credentials of join: none, unknown, expired or revoked"):
        refused(broker.url, tmp_path / "a")
    broker.revoke("rollout-3")
    creds, said = broker.authority.credentials_path("rollout-3"), ""
    deadline = time.monotonic() + 300
    while "rejects the credentials of rollout-3" not in said and time.monotonic() < deadline:
        # Until the broker has read anew whose were revoked, it lets them in, and there is no league.
        with pytest.raises((AccessError, UsageError)) as failure:
            refused(broker.url, tmp_path / "a", creds=creds)
        said = str(failure.value)
        broker.reload()
    assert "rejects the credentials of rollout-3" in said
    with pytest.raises(UsageError, match="--workers 2: found credentials for 1; expected a file for each worker"):
        refused(broker.url, tmp_path / "a", creds=creds, workers=2)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.slow
def test_two_machines_work_for_a_league_and_lose_workers_in_every_way(
    broker: Broker, tmp_path: Path, machine: Callable[..., Machine]
) -> None:
    """One is killed and started again, one is revoked, one machine is told to leave: the others go on."""
    config, steps = tmp_path / "league.toml", 600
    config.write_text(CONFIG.read_text().replace("steps = 3", f"steps = {steps}"))
    opening = [
        "up",
        "--no-workers",
        "--config",
        str(config),
        "--run",
        str(tmp_path / "run"),
        "--nats",
        broker.url,
        "--creds",
    ]
    creds = broker.authority.credentials_path
    subprocess.run([sys.executable, "-m", "ui", *opening, str(creds("boss"))], check=True, timeout=600)
    many = tmp_path / "many"
    many.mkdir()
    for name in ("rollout-1", "rollout-2"):
        shutil.copy(creds(name), many)
    deciders = [
        machine(broker.url, tmp_path / role, "--role", role, "--creds", str(creds(f"{role}-1")))
        for role in ("trainer", "rater")
    ]
    first = machine(broker.url, tmp_path / "first", "--creds", str(many), "--workers", "2")
    second = machine(broker.url, tmp_path / "second", "--creds", str(creds("rollout-3")))

    def until(reached: Callable[[list[RecordedEvent]], bool], timeout_s: float = 400) -> list[RecordedEvent]:
        deadline = time.monotonic() + timeout_s
        while not reached(history := broker.history()):
            assert time.monotonic() < deadline, "\n".join(m.said for m in (*deciders, first, second))
            time.sleep(0.3)
        return history

    until(lambda history: finished_by(history) == {"rollout-1", "rollout-2", "rollout-3"})
    os.kill(first.workers()["rollout-1"], signal.SIGKILL)
    until(lambda history: joined(history).count("rollout-1") == 2)
    broker.revoke("rollout-2")
    until(lambda _: "rollout-2: credentials rejected; not restarting" in first.said)
    second.process.send_signal(signal.SIGTERM)
    assert second.ended() == 0
    assert "stopped" in second.said
    before = len(steps_of(broker.history()))
    history = until(lambda history: len(steps_of(history)) > before + 5)
    for one in (first, *deciders):
        one.process.send_signal(signal.SIGTERM)
    assert [one.ended() for one in deciders] == [0, 0]
    assert first.ended() == 1
    assert "rejects the credentials of rollout-2" in first.said
    history = broker.history()
    left = [(r.event.worker, r.event.reason) for r in history if isinstance(r.event, e.WorkerLeft)]
    assert ("rollout-1", "ended with code -9") in left
    assert left.count(("rollout-3", "done")) == 1
    assert left.count(("rollout-1", "done")) == 1
    assert verify_events(history).is_identical
    assert not [r for r in history if r.error is not None]


def finished_by(history: list[RecordedEvent]) -> set[str]:
    ids = [r.event.match_id for r in history if isinstance(r.event, e.MatchFinished)]
    return {found[0] for match_id in ids if (found := re.match(r"rollout-\d+", match_id)) is not None}


def joined(history: list[RecordedEvent]) -> list[str]:
    return [r.event.worker for r in history if isinstance(r.event, e.WorkerJoined)]


def steps_of(history: list[RecordedEvent]) -> list[int]:
    return [r.event.step for r in history if isinstance(r.event, e.GradientStepTaken)]


@pytest.mark.slow
def test_one_league_of_several_on_a_broker_is_played_and_reported(tmp_path: Path) -> None:
    text = CONFIG.read_text().replace('name = "nim"', 'name = "third"', 1).replace("steps = 3", "steps = 1")
    (tmp_path / "third.toml").write_text(text)
    with EmbeddedServer(tmp_path / "nats") as server:
        asyncio.run(opened(server.url, "nim", "other"))
        words = ["up", "--config", str(tmp_path / "third.toml"), "--run", str(tmp_path / "run"), "--nats", server.url]
        done = run_forked(words, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replay --verify" in done.stdout
