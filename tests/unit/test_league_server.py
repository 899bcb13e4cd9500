"""The embedded broker ends with those who use it."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from league.log.server import EmbeddedServer


@pytest.fixture
def brokers() -> Callable[[], list[int]]:
    """The brokers started since: the tests before may share one that goes on."""
    before = {child.pid for child in psutil.Process().children()}

    def started() -> list[int]:
        children = psutil.Process().children()
        return [child.pid for child in children if child.name() == "nats-server" and child.pid not in before]

    return started


def test_a_start_that_is_interrupted_leaves_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: Callable[[], list[int]]
) -> None:
    def interrupted(self: EmbeddedServer, pid: int) -> None:
        assert brokers() == [pid]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedServer, "_wait_until_up", interrupted)
        with pytest.raises(KeyboardInterrupt), EmbeddedServer(tmp_path):
            pass
    assert brokers() == []
    with EmbeddedServer(tmp_path) as server:
        assert server.url
    assert brokers() == []
