"""Local disks of simulated workers: real files in the seed's folder, which faults make full, failing or slow.

A full disk refuses writes and leaves empty files behind; a failing one fails a share of all operations; a slow one
makes the process stand still.
"""

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.simulation.loop import Process, SimulatedLoop, current_process


class _Trouble(NamedTuple):
    kind: str
    until: float
    amount: float


class LocalDisks:
    """The disks of all processes.

    Args:
        loop: Virtual time.
        root: Folder below which operations are affected, relative to the working directory.
        seed: Seed of the draws.
    """

    def __init__(self, loop: SimulatedLoop, root: str, seed: int) -> None:
        self._loop = loop
        self._root = os.path.join(root, "")
        self._rng = Random(f"disks:{seed}")
        self._troubles: dict[str, list[_Trouble]] = {}

    def disturb(self, name: str, kind: str, seconds: float, amount: float) -> None:
        """Make the disk of a process ``full``, ``failing`` (amount: share) or ``slow`` (amount: mean delay in s)."""
        self._troubles.setdefault(name, []).append(_Trouble(kind, self._loop.time() + seconds, amount))

    def patches(self) -> dict[tuple[Any, str], Callable[..., Any]]:
        """Replacements of the functions through which files are opened, made, renamed, flushed and located."""
        opened = self._opening(io.open)
        return {
            (builtins, "open"): opened,
            (io, "open"): opened,
            (os, "open"): self._creating(os.open),
            (os, "mkdir"): self._changing(os.mkdir),
            (os, "replace"): self._changing(os.replace),
            (os, "fsync"): self._flushing(os.fsync),
            (Path, "resolve"): self._resolving(Path.resolve),
            (os.path, "abspath"): self._resolving(os.path.abspath),
        }

    def _resolving(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Paths below the seed's folder stay relative: errors name them, and a trace must not depend on its place."""
        return lambda path, *args, **kwargs: path if self._is_below(path) else plain(path, *args, **kwargs)

    def _opening(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_writing = any(letter in mode for letter in "wax+")
            if self._is_below(file) and self._is_full_after_trouble(is_writing):
                plain(file, mode, *args, **kwargs).close()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
            return plain(file, mode, *args, **kwargs)

        return opened

    def _creating(self, plain: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_CREAT and self._is_below(path) and self._is_full_after_trouble(True):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return plain(path, flags, *args, **kwargs)

        return opened

    def _changing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_below(path) and self._is_full_after_trouble(plain is os.mkdir):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return plain(path, *args, **kwargs)

        return changed

    def _flushing(self, plain: Callable[[int], None]) -> Callable[[int], None]:
        def flushed(handle: int) -> None:
            if self._is_full_after_trouble(True):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            plain(handle)

        return flushed

    def _is_below(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(self._root)

    def _is_full_after_trouble(self, is_writing: bool) -> bool:
        """Delay or fail an operation of the current process; returns whether it finds the disk full."""
        process, now = current_process(), self._loop.time()
        found = self._troubles.get(process.name, ()) if process is not None else ()
        active = [trouble for trouble in found if trouble.until > now]
        for trouble in active:
            self._meet(process, trouble)  # type: ignore[arg-type]
        return is_writing and any(trouble.kind == "full" for trouble in active)

    def _meet(self, process: Process, trouble: _Trouble) -> None:
        if trouble.kind == "slow":
            self._loop.pause(process, self._rng.expovariate(1.0) * trouble.amount)
        elif trouble.kind == "failing" and self._rng.random() < trouble.amount:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
