"""The pages of a run, served by the command that people use, in a process of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEAGUE = Path(sys.executable).parent / "league"
_STARTUP_TIMEOUT_S = 300.0
_SHUTDOWN_TIMEOUT_S = 20.0


class PageServer(NamedTuple):
    """A page server."""

    url: str
    """Without a slash at its end."""
    pid: int


@contextlib.contextmanager
def start_page_server(folder: Path, log: Path, *others: Path) -> Iterator[PageServer]:
    """``league web`` over a run, for the length of a block.

    Args:
        folder: The run's.
        log: What the process says goes there.
        others: Folders of runs that are shown beside it.

    Raises:
        RuntimeError: it ended, or said nothing for minutes.
    """
    runs = [word for each in (folder, *others) for word in ("--run", str(each))]
    command = [str(LEAGUE), "web", *runs, "--listen", "127.0.0.1:0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield PageServer(_wait_for_address(process, log), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """What it says once it listens."""
    until = time.monotonic() + _STARTUP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        addresses = [line for line in log.read_text().splitlines() if line.startswith("http://")]
        if addresses:
            return addresses[0].rstrip("/")
        time.sleep(0.02)
    raise RuntimeError(f"league web: expected an address, it said {log.read_text()!r}")
