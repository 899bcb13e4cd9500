"""The trace of a run: a digest of everything that happened, and the lines that a reader of a failure wants."""

import hashlib
import sys
import traceback
import zlib
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.network import Connection


class Trace:
    """Collects a run's digest: all bytes on the network with their times, ends of processes, faults."""

    def __init__(self, loop: SimulatedLoop, is_verbose: bool) -> None:
        self._loop = loop
        self._sha = hashlib.sha256()
        self._is_verbose = is_verbose
        self.lines: list[str] = []
        self.unexpected: list[str] = []
        """Errors that no process should have had."""
        self.observe_error: Callable[[Process, str], None] = lambda process, error: None
        """Called with a process and the error that ends it."""

    def observe_data(self, connection: Connection, data: bytes) -> None:
        """Bytes have arrived at one end of a connection."""
        self._sha.update(f"{self._loop.time():.9f} {connection.number} {len(data)} {zlib.crc32(data)}\n".encode())

    def note(self, text: str) -> None:
        """Something has happened that belongs to the trace."""
        self._sha.update(f"{self._loop.time():.9f} {text}\n".encode())
        self._add(text)

    def log_event(self, logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        """A processor of structlog: the last one, which writes."""
        process = current_process()
        error = event.pop("exc_info", None)
        facts = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        name = process.name if process is not None else "?"
        if process is not None and method == "error":
            self.observe_error(process, str(event.get("error") or event.get("reason", "")))
        self._add(f"{name}: [{method}] {event.get('event')} {facts}".rstrip())
        if error:
            self._add_exception(name)
        raise structlog.DropEvent

    def _add_exception(self, name: str) -> None:
        kind, error, stack = sys.exc_info()
        if error is None:
            return
        text = "".join(traceback.format_exception(kind, error, stack))
        self.unexpected.append(f"{name}: {text.strip().splitlines()[-1]}")
        for line in text.splitlines():
            self._add(f"    {line}")

    def _add(self, text: str) -> None:
        if self._is_verbose:
            self.lines.append(f"{self._loop.time():12.6f} {text}")

    def digest(self) -> str:
        """Of everything so far."""
        return self._sha.hexdigest()[:16]
