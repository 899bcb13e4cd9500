"""Many seeds, each in a process forked from one that has loaded everything."""

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.simulation.faults import Fault, draw_faults
from tests.simulation.run import Outcome, simulate

_WALL_LIMIT_S = 1200.0
"""Real seconds after which a seed counts as stuck: busy machines grant its up to 25 s of processor time late."""

_PRELOADED = [Fault(number, kind, 10.0 + number) for number, kind in enumerate(("void", "configure"), 1)]
"""Faults whose code is imported on use."""


class Bug(NamedTuple):
    """A defect that the simulator has to find."""

    name: str
    reintroduce: Callable[[], None]
    """Puts it into this process."""
    kinds: tuple[str, ...]
    """Faults that show it; empty where none is needed."""
    seeds: int
    """Number of seeds within which it has to be found."""


def preload(model: Path) -> None:
    """Import what a league imports while it runs, so that forked processes need not."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        simulate(0, model, steps=1, faults=_PRELOADED)
        names = sorted(name for name in sys.modules if name != "__main__")
        os.write(sending, msgspec.json.encode(names))
        os._exit(0)
    os.close(sending)
    names = msgspec.json.decode(_read_all(receiving, child), type=list[str])
    os.waitpid(child, 0)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Shared pages stay shared.
    gc.freeze()


def run_isolated(
    seed: int,
    model: Path,
    steps: int,
    faults: Sequence[Fault] | None = None,
    is_verbose: bool = False,
    prepare: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run one seed in a forked process, after ``prepare``."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        code = 1
        try:
            prepare()
            data = msgspec.json.encode(simulate(seed, model, steps, faults, is_verbose))
            with os.fdopen(sending, "wb") as out:
                out.write(data)
            code = 0
        finally:
            sys.stderr.flush()
            # No clean-up: it would run the ``finally`` blocks of killed processes.
            os._exit(code)
    os.close(sending)
    data = _read_all(receiving, child)
    os.waitpid(child, 0)
    if not data:
        return Outcome(seed, ["the simulator itself has failed, or ran too long: see the standard error"], "")
    return msgspec.json.decode(data, type=Outcome)


def _read_all(receiving: int, child: int) -> bytes:
    deadline = time.monotonic() + _WALL_LIMIT_S
    chunks: list[bytes] = []
    with os.fdopen(receiving, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                os.kill(child, signal.SIGKILL)
                return b""
            chunk = pipe.read(1 << 20)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)


def run_seeds(seeds: Sequence[int], model: Path, steps: int, kinds: tuple[str, ...] | None = None) -> Iterator[Outcome]:
    """Run seeds one after another, with faults of some kinds or (None) of all."""
    for seed in seeds:
        yield run_isolated(seed, model, steps, draw_faults(seed, steps, kinds))


def find_bug(bug: Bug, model: Path, steps: int) -> Outcome | None:
    """The first seed that shows a defect; None when its number of seeds does not."""
    for seed in range(1, bug.seeds + 1):
        faults = draw_faults(seed, steps, bug.kinds)
        outcome = run_isolated(seed, model, steps, faults, prepare=bug.reintroduce)
        if not outcome.is_sound:
            return outcome
    return None
