"""Runs a command that ends with its users: ``python bound_process.py LOCK COMMAND …``.

A user holds a shared lock on the file LOCK. This process becomes the command. Its child, the watcher, waits until no
process holds the lock, which the kernel releases also after SIGKILL, then terminates the command, with SIGKILL after 20
s. Meanwhile it holds the lock alone: a new user waits, and then starts a command of its own. Run as a file, with little
of the standard library, it takes 20 ms to start.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
TERMINATION_TIMEOUT_S = 20.0
"""Seconds between SIGTERM and SIGKILL, in which a broker flushes its store."""


def main(lock: str, command: list[str]) -> None:
    """Become the command, with a child that ends it after its last user."""
    bound = os.getpid()
    if os.fork() == 0:
        try:
            _end_after_last_user(lock, bound)
        finally:
            os._exit(0)
    os.execv(command[0], command)


def _end_after_last_user(lock: str, bound: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        # Only Linux has it. Elsewhere this process notices the end of the command once its users have ended too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != bound:
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + TERMINATION_TIMEOUT_S
            # A process that has lost its parent gets another one: the number is never that of an unrelated process.
            if os.getppid() == bound:
                os.kill(bound, number)
            while os.getppid() == bound and time.monotonic() < deadline:
                time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
