"""Processes forked from one that has imported torch, the workers and the ``league`` command: they start at once."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# One list for all: a test process has one such server.
FORKS.set_forkserver_preload(
    ["pytest", "workers.trainer", "workers.rollout", "lifecycle.run_league", "lifecycle.open", "ui.cli.machines"]
)


class ForkedCommand:
    """A ``league`` command, as ``subprocess.Popen`` has it. Its output goes to files.

    Args:
        arguments: Behind ``league``.
        out: File for its output.
        err: File for its errors; may be that of its output.
    """

    def __init__(self, arguments: list[str], out: Path, err: Path) -> None:
        self.arguments = arguments
        self._process = FORKS.Process(
            target=_run_command, args=(arguments, out, err, os.getcwd(), dict(os.environ)), daemon=False
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code of a command that was waited for; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout_s or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to a command that still runs."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def run_forked(arguments: list[str], folder: Path, timeout_s: float = 600) -> "subprocess.CompletedProcess[str]":
    """Run a ``league`` command to its end, with files for its output in ``folder``."""
    out, err = (folder / f"command-{time.monotonic_ns()}.{kind}" for kind in ("out", "err"))
    command = ForkedCommand(arguments, out, err)
    try:
        code = command.wait(timeout_s)
    finally:
        command.kill()
    return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def _run_command(arguments: list[str], out: Path, err: Path, folder: str, environment: dict[str, str]) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["league", *arguments]
    from ui.cli.main import main

    main()
