"""The embedded broker ends with those who use it."""

from pathlib import Path

import psutil
import pytest

from league.log.server import EmbeddedServer


def brokers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "nats-server"]


def test_a_start_that_is_interrupted_leaves_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: EmbeddedServer, pid: int) -> None:
        assert [broker.pid for broker in brokers()] == [pid]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedServer, "_wait_until_up", interrupted)
        with pytest.raises(KeyboardInterrupt), EmbeddedServer(tmp_path):
            pass
    assert brokers() == []
    with EmbeddedServer(tmp_path) as server:
        assert server.url
    assert brokers() == []
