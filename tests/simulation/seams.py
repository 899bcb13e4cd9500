"""The seam of clock, ids, randomness and machine: everything that would differ between two runs of one seed.

Production code reads time through ``time``, draws ids through ``os.urandom`` and ``secrets``, and runs threads through
the event loop. Within ``simulated_machine`` all of these are functions of the seed and of virtual time.
"""

import contextlib
import datetime as datetimes
import itertools
import os
import platform
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest import mock

import nats.js.object_store
import psutil

import workers.membership
from tests.simulation.loop import BOOT_S, EPOCH_S, SimulatedLoop, current_process


class _ProcessStatus:
    """A process as the operating system shows it; the figures that heartbeats report are constants."""

    def __init__(self, loop: SimulatedLoop, pid: int | None = None) -> None:
        if pid is not None and all(process.pid != pid for process in loop.processes):
            raise psutil.NoSuchProcess(pid)

    def status(self) -> str:
        return str(psutil.STATUS_RUNNING)

    def create_time(self) -> float:
        return float(EPOCH_S)

    def cpu_times(self) -> Any:
        return mock.Mock(user=0.0, system=0.0)

    def memory_info(self) -> Any:
        return mock.Mock(rss=1 << 28)

    def num_fds(self) -> int:
        return 32


def _patches(loop: SimulatedLoop, seed: int) -> dict[tuple[Any, str], Callable[..., Any]]:
    entropy = random.Random(f"entropy:{seed}")
    names = (entropy.randbytes(4).hex() for _ in itertools.count())

    def wall_s() -> float:
        process = current_process()
        return EPOCH_S + loop.time() + (process.skew_s if process is not None else 0.0)

    def monotonic_s() -> float:
        return BOOT_S + loop.time()

    class Datetime(datetimes.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetimes.datetime.fromtimestamp(wall_s(), tz)

    def process_id() -> int:
        process = current_process()
        return process.pid if process is not None else 1

    def parent_id() -> int:
        process = current_process()
        parent = process.parent if process is not None else None
        return parent.pid if parent is not None and parent.is_alive else 1

    return {
        (os, "getppid"): parent_id,
        (time, "time"): wall_s,
        (time, "time_ns"): lambda: round(wall_s() * 1e9),
        (time, "monotonic"): monotonic_s,
        (time, "monotonic_ns"): lambda: round(monotonic_s() * 1e9),
        (time, "perf_counter"): monotonic_s,
        (time, "sleep"): loop.advance,
        (os, "urandom"): entropy.randbytes,
        (random, "_urandom"): entropy.randbytes,
        (tempfile, "_get_candidate_names"): lambda: names,
        (os, "getpid"): process_id,
        (os, "setpriority"): lambda *_: None,
        (platform, "node"): lambda: "simulated",
        (psutil, "Process"): partial(_ProcessStatus, loop),
        (workers.membership, "machine_digest"): lambda: "simulated",
        (nats.js.object_store, "datetime"): Datetime,
    }


def _on_this_thread(replacement: Callable[..., Any], module: Any, name: str) -> Callable[..., Any]:
    """The replacement when this thread calls it, the original when another one does."""
    original, thread = getattr(module, name), threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        return (replacement if threading.get_ident() == thread else original)(*args, **kwargs)

    return call


@contextlib.contextmanager
def simulated_machine(
    loop: SimulatedLoop, seed: int, further: Mapping[tuple[Any, str], Callable[..., Any]] = MappingProxyType({})
) -> Iterator[None]:
    """Replace the sources of time, ids and randomness for a block, and ``further`` names of modules.

    Other threads of this process keep the real ones: one that sleeps now and then would move the virtual clock.
    """
    state = random.getstate()
    random.seed(f"global:{seed}")
    with contextlib.ExitStack() as stack:
        own = {
            (module, name): replacement if isinstance(replacement, type) else _on_this_thread(replacement, module, name)
            for (module, name), replacement in _patches(loop, seed).items()
        }
        for (module, name), replacement in {**own, **further}.items():
            stack.enter_context(mock.patch.object(module, name, replacement))
        try:
            yield
        finally:
            random.setstate(state)
