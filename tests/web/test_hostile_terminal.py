"""The terminal over the same hostile names: nothing that they say reaches it as a command."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web import story
from tests.web.served import LEAGUE

PATIENCE_S = 300.0
VIEWS = "1234567"
OWN = re.compile("\x1b\\]22;[a-z]*\x07")
"""What textual says of the pointer."""
COMMANDS = re.compile("[\x07\u200f\u202a-\u202e\u2066-\u2069\u0080-\u009f]|\x1b\\]0;|\x1b\\[2J")


class Terminal:
    """A process in a terminal of 80 × 24 cells.

    Args:
        process: Started with the terminal's other end.
        end: Of ours.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", end: int) -> None:
        self.process = process
        self.said = ""
        self._end = end

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def shows(self, *texts: str, after: int = 0) -> None:
        """Wait until all of these were written since a place of what was said."""
        until = time.monotonic() + PATIENCE_S
        while not all(text in self.said[after:] for text in texts):
            assert time.monotonic() < until, f"{texts} not in {self.said[after:]!r}"
            assert self.process.poll() is None, self.said
            self.read(0.05)

    def read(self, patience_s: float) -> None:
        while select.select([self._end], [], [], patience_s)[0]:
            try:
                self.said += os.read(self._end, 65536).decode(errors="surrogateescape")
            except OSError:
                return


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    story.make(tmp_path / "run", story.HOSTILE, double=True)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [str(LEAGUE), "dash", "--run", str(tmp_path / "run")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.terminate()
        process.wait(300)
        os.close(ours)


def test_no_name_commands_the_terminal(terminal: Terminal) -> None:
    terminal.shows("random_bot")
    for view in VIEWS:
        place = len(terminal.said)
        terminal.press(view)
        terminal.shows("\x1b[", after=place)
        terminal.read(0.3)
    assert "<img src=x" in terminal.said
    said = OWN.sub("", terminal.said)
    assert [said[max(found.start() - 60, 0) : found.end()] for found in COMMANDS.finditer(said)] == []
    terminal.press("q")
    terminal.read(0.2)
