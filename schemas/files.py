"""Files and folders that several processes share: locks that end with their holder, folders that appear whole.

Locks are ``flock``'s: the kernel releases them when their holder ends, however it ends.
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from schemas.errors import FileContentError

_DRAFT = re.compile(r"\..+\.draft-[a-z0-9_]{8}", re.DOTALL)
_REMOVALS = 50
_REMOVAL_PAUSE_S = 0.1
"""A broker that was using a killed process's draft may write to it until it has stopped."""


def try_lock(file: IO[Any] | int, mode: int = fcntl.LOCK_EX) -> bool:
    """Whether a lock on an open file could be taken at once; ``LOCK_SH`` is one that several processes can hold."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_SPARSE_BYTES = 64 * 1024 * 1024


def check_file(path: Path, max_bytes: int | None = None) -> None:
    """Check a file of unknown origin before it is read.

    Raises:
        FileContentError: it is no regular file, has more than ``max_bytes``, or is large and mostly holes, which would
            fill the disk or the memory of whoever copies them.
        OSError: there is no such file.
    """
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise FileContentError(f"{path}: not a regular file")
    if max_bytes is not None and state.st_size > max_bytes:
        raise FileContentError(f"{path}: {state.st_size:,} bytes; expected at most {max_bytes:,}")
    if state.st_size > _SPARSE_BYTES and state.st_blocks * 512 < state.st_size / 100:
        raise FileContentError(f"{path}: {state.st_size:,} bytes, of which {state.st_blocks * 512:,} are on the disk")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file of unknown origin; raises as ``check_file``."""
    check_file(path, max_bytes)
    with path.open("rb") as file:
        return file.read(max_bytes)


class LockHolder(msgspec.Struct, frozen=True):
    """The process that holds a lock, as its file names it."""

    pid: int
    host: str
    since: str
    """Time of ISO 8601, in UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class LockedError(Exception):
    """A lock that another process holds; the text names the process."""


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file during a block; the file names this process.

    Raises:
        LockedError: another process holds it.
        OSError: the file cannot be written.
    """
    with path.open("a+b") as file:
        if not try_lock(file):
            holder = "a process that has just begun"
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                holder = str(msgspec.json.decode(path.read_bytes(), type=LockHolder))
            raise LockedError(holder)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        file.truncate(0)
        file.write(msgspec.json.encode(LockHolder(os.getpid(), platform.node(), since)))
        file.flush()
        yield


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a draft beside ``target`` and move it there, durably, when the block succeeds; else remove it.

    A draft is locked by its process. Drafts beside ``target`` whose process was killed are removed first. Raises as
    ``move_durably``.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned_drafts(target.parent)
    draft, lock = _make_draft(target)
    try:
        yield draft
        draft.chmod(0o755)
        move_durably(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(lock)


def _make_draft(target: Path) -> tuple[Path, int]:
    """A locked draft, and the open file that holds its lock."""
    while True:
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.draft-", dir=target.parent))
        # Another process may find it between its making and its lock, and remove it.
        try:
            lock = os.open(draft, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):
            if not try_lock(lock) or not draft.exists():
                os.close(lock)
                continue
        # Where a file system has no locks of folders, drafts are never removed by others.
        return draft, lock


def remove_abandoned_drafts(folder: Path) -> None:
    """Remove the drafts in a folder whose processes were killed; drafts of live processes are locked."""
    try:
        names = [entry.name for entry in os.scandir(folder) if _DRAFT.fullmatch(entry.name)]
    except OSError:
        return
    for name in names:
        # Another process may be moving or removing it.
        with contextlib.suppress(OSError):
            _remove_abandoned(folder / name)


def _remove_abandoned(draft: Path) -> None:
    lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not try_lock(lock) or not os.path.samestat(os.fstat(lock), draft.lstat()):
            return
        for _ in range(_REMOVALS):
            shutil.rmtree(draft, ignore_errors=True)
            if not draft.exists():
                return
            time.sleep(_REMOVAL_PAUSE_S)
    finally:
        os.close(lock)


def move_durably(draft: Path, folder: Path) -> None:
    """Move a folder to its place once all its files are on the disk.

    A move alone may reach the disk before the files that were moved: after a loss of power their names exist, without
    content.

    Raises:
        OSError: the target is there and not an empty folder, or the disk rejects the write.
    """
    for path in sorted(draft.rglob("*")):
        fsync_path(path)
    fsync_path(draft)
    draft.rename(folder)
    fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
