"""One worker process of this machine: starts, restarts and stops it."""

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from league.log.access import BrokerCredentials
from league.run import Run
from schemas.codec import DECODE_ERRORS
from schemas.errors import DiskError, ExitCode, LeagueError, StoreFullError, UsageError, escape_unprintable
from schemas.events import WorkerLeft
from schemas.files import LockedError, hold_lock
from schemas.interpreter import module_command
from schemas.loggers import get_logger
from schemas.retry import Backoff
from schemas.subjects import check_name
from workers.compatibility import POLICY_ROLES
from workers.runtime import Context

log = get_logger()

Announce = Callable[[str], None]

ROLES = ("archivist", "tracker", "rater", "inference", "trainer", "evaluator", "rollout")
"""Roles in starting order; stopping goes backward, so that played matches are still trained on, rated and archived."""

THREAD_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Environment of workers, below that of the supervisor: threads of numeric libraries must not compete for the cores of
a machine with several workers, nor spin while they wait for each other (``trainer.threads`` above 1): beside a busy
process one of them always waits."""

_DRAIN_TIMEOUTS_S = dict.fromkeys(ROLES, 120.0) | {"rater": 60.0}
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_MAX_BACKOFF_KILLED_S = 2.0
_STABLE_AFTER_S = 60.0
_LOG_TAIL_BYTES = 65_536


def read_reason_to_leave(log_file: Path) -> str:
    """The reason that a worker logged with its last line, when it left; empty if it logged none, as when killed."""
    with contextlib.suppress(OSError, *DECODE_ERRORS, IndexError, KeyError):
        with log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            line = msgspec.json.decode(file.read().splitlines()[-1], type=dict[str, Any])
        if line["event"] == "left":
            return escape_unprintable(str(line["reason"]))
    return ""


class WorkerSpec(NamedTuple):
    """A worker process to be started."""

    role: str
    name: str
    policy: str | None = None
    """The policy of a rollout worker or trainer where it is not ``trainer.policy``."""
    creds: Path | None = None
    """Credentials of this worker; None for the environment's, if any."""


class WorkerProcess:
    """One worker process, kept alive until it is done."""

    def __init__(self, context: Context, process: WorkerSpec, announce: Announce) -> None:
        self.role = process.role
        self.name = process.name
        self.policy = process.policy
        self.has_ended = False
        """Whether it has finished its work, or the broker rejects it."""
        self.is_refused = False
        self.is_stopping = False
        self._creds = process.creds
        self._announce = announce
        self._context = context
        self._log_hint = f"why: {context.run.logs / self.name}.log and .out"
        self._process: asyncio.subprocess.Process | None = None

    async def supervise(self) -> None:
        """Run the worker; restart it when it fails, after a pause that grows with each failure.

        Raises:
            StoreFullError: the worker found the broker's store, or a disk of this machine, full or read-only.
        """
        restarts = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        restarts.next_s()
        while not self.is_stopping:
            started = time.monotonic()
            code = await self._run()
            if self.is_stopping or code == ExitCode.REFUSED:
                self._mark_ended(refused=code == ExitCode.REFUSED)
                return
            if code == 0 and await self._is_work_done():
                self._mark_ended(refused=False)
                if not await self._has_more_work():
                    return
                continue
            if code == ExitCode.DISK_UNWRITABLE:
                what = f"{self.name} found a disk of this machine full or read-only ({self._log_hint})"
                raise DiskError.at(self._context.run.folder, what)
            if code == ExitCode.STORE_FULL:
                raise StoreFullError(
                    f"{self._context.run.nats or self._context.run.folder}: the broker's store is at its limit, or the "
                    f"one of large blobs (see the log of {self.name}), so nothing new can be recorded. What was "
                    "recorded is safe: give it more room (--max-store-mb for the broker's, or on its disk), then run "
                    "the same command again"
                )
            # A killed worker did not fail by itself, so its pause stays short.
            most_s = _MAX_BACKOFF_KILLED_S if code == -signal.SIGKILL else _MAX_BACKOFF_S
            if time.monotonic() - started > _STABLE_AFTER_S:
                restarts.reset()
            pause_s = restarts.next_s(at_most_s=most_s)
            log.error("worker ended, restarting it", name=self.name, code=code, pause_s=pause_s)
            left = read_reason_to_leave(self._context.run.logs / f"{self.name}.log") if code > 0 else ""
            reason = f": {left}" if left else ""
            self._announce(f"{self.name} ended with code {code}{reason}; again in {pause_s:g} s ({self._log_hint})")
            await self._record_departure(code)
            await asyncio.sleep(pause_s)

    async def _is_work_done(self) -> bool:
        """Whether a worker that ended in order had reason to: those of a policy end with its training, no others do.

        One that got a SIGTERM from elsewhere ends in order too, and the league would wait for it without end.
        """
        if self.role not in POLICY_ROLES:
            return False
        context = self._context
        await context.wait_for_sequence(await context.persistently(context.log.last_sequence))
        return self._is_training_finished()

    def _is_training_finished(self) -> bool:
        context = self._context
        return context.state.training_finished(self.policy or context.config.trainer.policy) is not None

    async def _has_more_work(self) -> bool:
        """Wait, after the end of training, until a new configuration lets it go on; False once all work has ended."""
        context = self._context
        await context.wait_until(lambda: self.is_stopping or not self._is_training_finished())
        self.has_ended = self.is_stopping or context.stopping.is_set()
        if not self.has_ended:
            log.info("training goes on under a new configuration, starting the worker again", name=self.name)
        return not self.has_ended

    def _mark_ended(self, refused: bool) -> None:
        self.has_ended, self.is_refused = True, refused
        if refused:
            log.error("credentials rejected; not restarting", name=self.name)
            self._announce(f"{self.name}: credentials rejected; not restarting ({self._log_hint})")
        self._context.wake()

    async def _run(self) -> int:
        run = self._context.run
        command = module_command("ui", "worker", self.role, "--run", str(run.folder), "--name", self.name)
        command += ["--league", self._context.log.league, "--supervised", "--supervisor", str(os.getpid())]
        if run.nats is not None:
            command += ["--nats", run.nats]
        if self.policy is not None:
            command += ["--policy", self.policy]
        creds = {} if self._creds is None else {"LEAGUE_CREDS": str(self._creds)}
        environment = {**THREAD_ENVIRONMENT, **os.environ, **creds}
        run.logs.mkdir(parents=True, exist_ok=True)
        with (run.logs / f"{self.name}.out").open("ab") as output:
            # Its own session: Ctrl-C at the terminal reaches us alone, and we stop the workers in order.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        if self.is_stopping:
            # Stopped while it was being started: it has no work to finish yet.
            self.kill()
        return await self._process.wait()

    async def _record_departure(self, code: int) -> None:
        """Append ``WorkerLeft`` for a worker that was killed before it could; not for another process of its name."""
        worker, process = self._context.state.workers.get(self.name), self._process
        if worker is None or worker.left is not None or process is None:
            return
        if (worker.joined.pid, worker.joined.host) != (process.pid, platform.node()):
            return
        left = WorkerLeft(self.name, worker.joined.incarnation, f"ended with code {code}")
        with contextlib.suppress(LeagueError):
            if self._creds is None:
                await self._context.log.append(left)
                return
            # With its own credentials: no other process may append in its name.
            run, league = self._context.run, self._context.log.league
            own = Run(run.folder, nats=run.nats, name=league, access=BrokerCredentials(self._creds, run.access.ca))
            async with own.open_log(self.name) as history:
                await history.append(left)

    async def stop(self) -> None:
        """Tell the worker to finish its work in progress; kill it if that takes too long."""
        self.is_stopping = True
        if (process := self._process) is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUTS_S[self.role]):
                await process.wait()
        except TimeoutError:
            log.error("worker did not drain in time, killing it", name=self.name)
            self.kill()

    def kill(self) -> None:
        """Kill the worker."""
        self.is_stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def memory_limit_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this machine has, or the limit of the container (cgroup v2 or v1) if that is smaller."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            total = min(total, int((groups / name).read_text()))
    return total


def read_credentials(path: Path, role: str) -> dict[str, Path]:
    """Paths of credential files by worker name, from a file or a folder of ``*.creds`` for workers of a role.

    Raises:
        UsageError: there are none, or two for one name, or they are for another role.
        AccessError: a file holds no credentials.
    """
    files = sorted(path.glob("*.creds"), key=lambda file: (len(file.name), file.name)) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise UsageError(
            f"--creds {path}: found none; expected a file that `league auth add` wrote, or a folder of them"
        )
    paths: dict[str, Path] = {}
    for file in files:
        bearer = BrokerCredentials(file).identity()
        assert bearer is not None
        if bearer.role not in (None, role, "operator"):
            raise UsageError(
                f"--creds {file}: for a worker {bearer.role!r}; expected a worker {role!r}, as --role says"
            )
        if bearer.name in paths:
            raise UsageError(f"--creds {path}: {paths[bearer.name].name} and {file.name} are both for {bearer.name!r}")
        paths[check_name("--creds", bearer.name)] = file.resolve()
    return paths


@contextlib.contextmanager
def lock_folder(folder: Path, role: str) -> Iterator[None]:
    """Lock a folder, so that no other process of this machine connects workers with the same names.

    Raises:
        UsageError: the folder is locked or not writable.
    """
    with contextlib.ExitStack() as locks:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            locks.enter_context(hold_lock(folder / f"join-{role}.lock"))
        except OSError as error:
            raise UsageError(f"--folder {folder}: {error.strerror}; expected one that this user can write to") from None
        except LockedError as holder:
            raise UsageError(
                f"--folder {folder}: workers {role!r} have joined from here already ({holder}); expected another "
                "folder, or more --workers there"
            ) from None
        yield


def read_machine_token(folder: Path) -> str:
    """Read or create the folder's token for generated names: workers keep their names across restarts."""
    file = folder / "machine"
    if not file.exists():
        draft = file.with_suffix(".draft")
        draft.write_text(secrets.token_hex(3))
        draft.replace(file)
    return file.read_text().strip()
