"""Turns of the trainer and the inference process on one GPU (``inference.colocate``).

    inference   sampling ─▶ draining ─▶ asleep ─▶ waking ─▶ loading the adapter ─▶ sampling
    trainer     waiting for a batch ─▶ waiting for its turn ─▶ training ─▶ waiting for a batch

The turn is a lock on a file of the run's folder; a process that waits for it holds a second one, the queue's, by which
the process that has the turn sees that another one waits for it. The kernel releases both when their holder ends, at
whichever of these states that is, and the other process goes on. A stopped process keeps its turn, as it keeps its
memory on the GPU: a lease that expires would let two processes allocate what only one of them can have.
"""

import asyncio
import contextlib
import fcntl
import os
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.files import try_lock

if TYPE_CHECKING:
    from trainer.backends import OffloadedBase

POLL_S = 0.05


class DeviceTurns:
    """One process's access to the turns of the processes that share a GPU and a run's folder.

    A turn ends with the object.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._turn = self._open(folder / "device.turn")
        self._queue = self._open(folder / "device.queue")

    def _open(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, file)
        return file

    def is_requested(self) -> bool:
        """Whether another process waits for its turn; asked by the one that has it."""
        if not try_lock(self._queue, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False

    async def acquire(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the turn; False if ``is_over`` ended the wait."""
        try:
            for file in (self._queue, self._turn):
                while not try_lock(file):
                    if is_over():
                        return False
                    await asyncio.sleep(POLL_S)
            return True
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)

    def release(self) -> None:
        """Hand the turn to the next process."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    @contextlib.asynccontextmanager
    async def train(self, base: "OffloadedBase") -> AsyncIterator[None]:
        """Have the turn, and the base model on the GPU, during a block.

        The turn of a block that fails ends with the process, which holds memory until then.
        """
        await self.acquire()
        await asyncio.to_thread(base.load)
        yield
        await asyncio.to_thread(base.offload)
        self.release()
