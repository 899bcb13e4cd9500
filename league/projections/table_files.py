"""The files that a query may read, under names without a path: DuckDB's only file system in the process of a query."""

import fcntl
import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from league.projections.tables import connect_duckdb

_LOGS = ("", ".wal", ".wal.checkpoint", ".wal.recovery")


class _OpenFile(io.RawIOBase):
    """A place in a file that stays open: closing any descriptor of it would release DuckDB's lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._place)
        self._place += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: os.fstat(self._descriptor).st_size}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place


class TableFiles(AbstractFileSystem):  # type: ignore[misc]
    """A projection's file, which is locked against writers, and its segments: ``league://NAME``.

    Raises:
        BusyError: another process is writing the file; the message names it.
    """

    protocol = "league"
    cachable = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._folder = path.parent
        self._paths = {path.name + suffix: path.with_name(path.name + suffix) for suffix in _LOGS}
        self._descriptors: dict[str, int] = {}
        try:
            fcntl.lockf(self._descriptor(path.name), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # It says who has the file; if nobody has any more, the caller's next attempt succeeds.
            connect_duckdb(path, {}, read_only=True).close()
            fcntl.lockf(self._descriptor(path.name), fcntl.LOCK_SH)

    def add(self, name: str) -> str:
        """Add a segment's file, relative to the folder of the tables; returns its address."""
        self._paths[name.strip("/")] = self._folder / name
        return self.address(name)

    def address(self, name: str) -> str:
        """The address of a file for DuckDB."""
        return f"{self.protocol}://{name.strip('/')}"

    def addresses(self) -> list[str]:
        """Addresses of all files."""
        return [self.address(name) for name in self._paths]

    def _path(self, address: str) -> Path:
        name = address.removeprefix(f"{self.protocol}://").strip("/")
        if name not in self._paths:
            raise FileNotFoundError(name)
        return self._paths[name]

    def _descriptor(self, address: str) -> int:
        path = self._path(address)
        if str(path) not in self._descriptors:
            self._descriptors[str(path)] = os.open(path, os.O_RDONLY)
        return self._descriptors[str(path)]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase:
        return _OpenFile(self._descriptor(path))

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a file is there."""
        try:
            return self._path(path).exists()
        except FileNotFoundError:
            return False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of a file."""
        return {"name": path, "size": self._path(path).stat().st_size, "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """The file of that address, if it is there: addresses have no wildcards."""
        return [path] if self.exists(path) else []

    def modified(self, path: str) -> datetime:
        """Time of the last change."""
        return datetime.fromtimestamp(self._path(path).stat().st_mtime, UTC)
