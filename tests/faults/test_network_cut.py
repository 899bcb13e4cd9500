"""The network between workers and their broker is cut and comes back: workers wait, nothing is lost or doubled.

With the right to make network namespaces, packets vanish on a link between two of them; everywhere, a relay refuses,
ends or freezes connections. A frozen one is half open: nobody is told that the other side is gone.
"""

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from league.log.server import EmbeddedServer

MATCHES = int(os.environ.get("LEAGUE_CUT_MATCHES", "400"))
CUTS = int(os.environ.get("LEAGUE_CUTS", "4"))

pytestmark = pytest.mark.slow


class Relay:
    """Passes connections on to a broker, until told otherwise."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port = port
        self._open: list[socket.socket] = []
        self._frozen = threading.Event()
        self._refusing = threading.Event()
        self._listener = socket.create_server((host, 0))
        self.url = f"nats://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(near)
            if self._refusing.is_set():
                _shut(near)
            elif not self._frozen.is_set():
                with suppress(OSError):
                    far = socket.create_connection(("127.0.0.1", self._port))
                    self._open.append(far)
                    for source, sink in ((near, far), (far, near)):
                        threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self._frozen.is_set():
                    # What was on its way is lost, and nobody hears of it.
                    return
                sink.sendall(data)
        _shut(source)
        _shut(sink)

    def cut(self, seconds: float, frozen: bool) -> None:
        """No connection works for a while: ended and refused, or frozen as if packets vanished."""
        block = self._frozen if frozen else self._refusing
        block.set()
        if not frozen:
            self._end_all()
        time.sleep(seconds)
        block.clear()
        # Frozen ones stay dead: as after a firewall that forgot them.

    def _end_all(self) -> None:
        ended, self._open = self._open, []
        for end in ended:
            _shut(end)

    def close(self) -> None:
        self._listener.close()
        self._frozen.clear()
        self._end_all()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[int]:
    """Port of a broker that is not the run's own."""
    with EmbeddedServer(tmp_path / "elsewhere") as server:
        yield int(server.url.rpartition(":")[2])


@pytest.fixture
def relay(broker: int) -> Iterator[Relay]:
    """Between workers and that broker."""
    between = Relay(broker)
    yield between
    between.close()


@pytest.mark.parametrize("frozen", [False, True], ids=["refused", "frozen"])
def test_workers_wait_while_connections_are_cut_and_go_on(
    relay: Relay, harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str], frozen: bool
) -> None:
    league = harassed(relay.url, seed=3)

    def cut() -> bool:
        relay.cut(league.random.uniform(1.0, 8.0), frozen)
        league.kills["frozen connections" if frozen else "refused connections"] += 1
        return True

    league.harass(MATCHES, 4.0, {"network": cut}, times=CUTS)
    league.finish()
    with capsys.disabled():
        league.assert_nothing_is_lost_or_doubled()
    assert not league.said_to_have_ended()


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


class Link(NamedTuple):
    """A network namespace for workers, and the cable to it."""

    space: str
    device: str
    """Our end."""
    host: str
    """Our address, as the workers see it."""

    def cut(self, seconds: float) -> None:
        """Packets vanish."""
        assert _ip("link", "set", self.device, "down")
        time.sleep(seconds)
        assert _ip("link", "set", self.device, "up")


@pytest.fixture
def link() -> Iterator[Link]:
    """A namespace that reaches us over a cable."""
    chosen = random.SystemRandom()
    tag, net = f"{chosen.randrange(16**6):06x}", chosen.randrange(1, 250)
    made = Link(f"workers-{tag}", f"us{tag}", f"10.213.{net}.1")
    try:
        if not _ip("netns", "add", made.space):
            pytest.skip("no right to make network namespaces")
        assert _ip("link", "add", made.device, "type", "veth", "peer", "name", f"them{tag}", "netns", made.space)
        assert _ip("addr", "add", f"{made.host}/24", "dev", made.device)
        assert _ip("link", "set", made.device, "up")
        assert _ip("-n", made.space, "addr", "add", f"10.213.{net}.2/24", "dev", f"them{tag}")
        for device in ("lo", f"them{tag}"):
            assert _ip("-n", made.space, "link", "set", device, "up")
        yield made
    finally:
        _ip("link", "del", made.device)
        _ip("netns", "del", made.space)


def test_workers_wait_while_packets_vanish_between_network_namespaces_and_go_on(
    link: Link, broker: int, harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    between = Relay(broker, link.host)
    league = harassed(between.url, seed=4, inside=("ip", "netns", "exec", link.space))

    def cut() -> bool:
        # Longer than a connection may be silent, and shorter.
        link.cut(league.random.choice((3.0, 10.0, 30.0)))
        league.kills["network"] += 1
        return True

    try:
        league.harass(MATCHES, 4.0, {"network": cut}, times=CUTS)
        league.finish()
        with capsys.disabled():
            league.assert_nothing_is_lost_or_doubled()
        assert not league.said_to_have_ended()
    finally:
        league.end()
        between.close()
