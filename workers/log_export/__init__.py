"""Exports events as lines of JSON: to standard output, to a file, or to a log platform over HTTP.

Export is one more subscriber of the history: a slow or failed destination delays no other process. Lines are sent in
order and at least once; a line's ``id`` identifies copies.

- ``lines``      an event as a line; the interface of a destination (``ExportTarget``); standard output, and a file
                 whose last line is its position
- ``platform``   a log platform that accepts events over HTTP, and its position on disk

Here are the destinations of a command or the configuration, the export to one of them, in order, in batches, and the
exports that run in the background.
"""

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from league.log.base import EventLog, RecordedEvent
from schemas.config import LogExportConfig, parse_http_url
from schemas.errors import ConfigError, UsageError
from schemas.ids import digest
from schemas.loggers import get_logger
from schemas.retry import Backoff
from workers.log_export.lines import ExportTarget, FileTarget, LogLine, LogLineWriter, StdoutTarget
from workers.runtime import SequenceProgress

log = get_logger()

_RETRY_S = 5.0
_MAX_RETRY_S = 300.0
TOKEN_VARIABLE = "LEAGUE_FORWARD_TOKEN"
"""The environment variable with a platform's token where no other is named."""

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 1_000_000
"""Size of a batch's lines from which it is sent."""
BATCH_LINGER_S = 0.5
"""Time for a batch to fill, after its first event."""

_MAX_READ_AHEAD = 1_000
"""Maximum events read while a batch is sent."""


def make_target(to: str, variable: str, folder: Path, history: str, where: str = "--to") -> ExportTarget:
    """Make a destination, unopened: ``-`` for standard output, an address, or a file.

    An address gets arrays of events, or JSON lines where it begins with ``lines+https://``.

    ``variable`` names the environment variable with the platform's token; empty for ``LEAGUE_FORWARD_TOKEN``, if it is
    set. Position files go into ``folder``, under names that hold the ``history``'s. ``where`` is for messages.

    Raises:
        UsageError: the destination is invalid, or a token would be sent unencrypted.
        ConfigError: the named variable holds no token.
    """
    if "://" not in to:
        if variable:
            raise UsageError(f"{where} {to}: accepts no token; expected an address (https://…) with it")
        if not to:
            raise UsageError(f"{where}: empty; expected '-', a file or an address (https://…)")
        return StdoutTarget() if to == "-" else FileTarget(Path(to))
    url = to.removeprefix("lines+")
    parts = parse_http_url(url)
    if parts is None or "@" in parts.netloc:
        # Not quoted in the message: it may hold a secret.
        raise UsageError(f"{where}: expected an address like 'https://host/path', without user and password")
    token = os.environ.get(variable or TOKEN_VARIABLE, "")
    if variable and not token:
        raise ConfigError(f"{variable}: not set; expected the platform's token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{variable or TOKEN_VARIABLE}: holds no token; expected visible ASCII without spaces")
    if token and parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise UsageError(f"{where}: a token would be sent unencrypted to {parts.hostname}; expected https://…")
    # Imported here, since the HTTP client takes a while to import.
    from workers.log_export.platform import ExportPosition, HttpTarget

    name = f"{history}-{digest(to.encode())[:12]}"
    return HttpTarget(url, token, ExportPosition(folder, name), as_lines=to != url)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class LogExporter:
    """Exports a history to one destination.

    The target must be open. Without ``kinds`` all types of events are sent; undecodable messages have the type ``""``.
    It begins at the sequence ``first``, and keeps ``progress`` up to date.
    """

    def __init__(
        self,
        target: ExportTarget,
        writer: LogLineWriter,
        kinds: Collection[str],
        first: int,
        progress: SequenceProgress | None = None,
    ) -> None:
        self._target = target
        self._writer = writer
        self._kinds = frozenset(kinds)
        self._first = max(first, 1)
        self._progress = progress or SequenceProgress()
        self._waiting: asyncio.Queue[RecordedEvent | None] = asyncio.Queue(_MAX_READ_AHEAD)
        """Events read and not yet sent; None marks the end."""
        self._stopped = self._ended = False

    async def run(self, history: EventLog, last: int | None = None) -> None:
        """Send all events up to ``last``; with None, continue with new events until ``stop``.

        ``LeagueError`` if the destination does not accept events, or the history cannot be read.
        """
        reading = asyncio.create_task(self._read(history, last))
        try:
            await self._progress.advance(self._first - 1)
            while (batch := await self._next_batch()) is not None:
                lines, upto = batch
                await self._target.send(lines, upto)
                await self._progress.advance(upto)
            if not self._stopped:
                await reading
                await self._progress.advance(last or 0)
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def stop(self) -> None:
        """Make ``run`` return after the current batch."""
        self._stopped = self._ended = True
        with contextlib.suppress(asyncio.QueueFull):
            # Wakes a waiting ``_next_batch``; where the queue is full, none waits.
            self._waiting.put_nowait(None)

    async def _read(self, history: EventLog, last: int | None) -> None:
        try:
            if last is None or self._first <= last:
                events = history.follow(self._first) if last is None else history.read(self._first, last)
                async for recorded in events:
                    await self._waiting.put(recorded)
        except Exception:
            # Ends ``_next_batch``; ``run`` then awaits this task, which raises.
            await self._waiting.put(None)
            raise
        await self._waiting.put(None)

    async def _next_batch(self) -> tuple[list[LogLine], int] | None:
        """Lines and last sequence of the next batch, once it is full or ``BATCH_LINGER_S`` is over; None at the end."""
        recorded = None if self._ended else await self._waiting.get()
        if recorded is None or self._stopped:
            return None
        lines: list[LogLine] = []
        upto = size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BATCH_LINGER_S):
                while recorded is not None:
                    upto = recorded.sequence
                    kind = "" if recorded.event is None else type(recorded.event).__name__
                    if not self._kinds or kind in self._kinds:
                        lines.append(self._writer.make_line(recorded))
                        size += len(lines[-1].data)
                    if len(lines) >= MAX_BATCH_EVENTS or size >= MAX_BATCH_BYTES:
                        return lines, upto
                    recorded = await self._waiting.get()
                self._ended = True
        return lines, upto


class LogExports:
    """All destinations of a configuration.

    ``folder`` is the run's: for positions, and for files with relative paths. After its first failure a destination
    pauses for ``retry_s``, doubled for each further one.
    """

    def __init__(
        self, configs: Sequence[LogExportConfig], folder: Path, writer: LogLineWriter, retry_s: float = _RETRY_S
    ) -> None:
        self._exports = [(config, SequenceProgress()) for config in configs]
        self._folder = folder
        self._writer = writer
        self._retry_s = retry_s

    async def run(self, history: EventLog) -> None:
        """Export to all destinations until cancelled. A failed one is retried and does not delay the others."""
        await asyncio.gather(*(self._run(history, *export) for export in self._exports))

    async def wait_for_sequence(self, sequence: int) -> None:
        """Wait until all destinations have the event at ``sequence``."""
        await asyncio.gather(*(progress.wait_for_sequence(sequence) for _, progress in self._exports))

    async def _run(self, history: EventLog, config: LogExportConfig, progress: SequenceProgress) -> None:
        backoff = Backoff(self._retry_s, _MAX_RETRY_S)
        name = self._writer.history
        to = config.to if "://" in config.to else str(self._folder / config.to)
        positions = self._folder / "forwarding"
        while True:
            pause_s = backoff.next_s()
            before = progress.sequence
            try:
                target = make_target(to, config.token_variable, positions, name, "tracker.forward.to")
                try:
                    first = max(await target.open(name) + 1, config.first)
                    await LogExporter(target, self._writer, config.types, first, progress).run(history)
                finally:
                    await target.close()
            except Exception as error:  # a destination's failure concerns only itself
                log.warning("events are not forwarded, trying again", error=str(error), retry_s=pause_s)
            await asyncio.sleep(pause_s)
            if progress.sequence > before:
                backoff.reset()
