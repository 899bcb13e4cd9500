"""The pages of a run, served by the command that people use, in a process of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEAGUE = Path(sys.executable).parent / "league"
_PATIENCE_S = 300.0
_END_S = 20.0


class Served(NamedTuple):
    """A page server."""

    url: str
    """Without a slash at its end."""
    pid: int


@contextlib.contextmanager
def served(folder: Path, log: Path) -> Iterator[Served]:
    """``league web`` over a run, for the length of a block.

    Args:
        folder: The run's.
        log: What the process says goes there.

    Raises:
        RuntimeError: it ended, or said nothing for minutes.
    """
    command = [str(LEAGUE), "web", "--run", str(folder), "--listen", "127.0.0.1:0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Served(_address(process, log), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """What it says once it listens."""
    until = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < until:
        said = [line for line in log.read_text().splitlines() if line.startswith("http://")]
        if said:
            return said[0].rstrip("/")
        time.sleep(0.02)
    raise RuntimeError(f"league web: expected an address, it said {log.read_text()!r}")
