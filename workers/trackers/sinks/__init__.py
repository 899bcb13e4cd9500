"""Sinks for rows of charts: interface, registry, and rows as lines of JSON, in a file or on standard output.

To add a sink: a file beside this one, with ``@SINKS.register("name")``.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from schemas.codec import DECODE_ERRORS
from schemas.errors import BusyError
from schemas.files import try_lock
from schemas.plugins import Registry
from workers.trackers import Row


class Place(msgspec.Struct, frozen=True):
    """The history that rows belong to, and the folder for files."""

    folder: Path
    """Folder for the sink's own files; it may not exist yet."""
    league: str
    identity: str
    """Distinguishes the history from others of the same league name."""
    config: dict[str, Any]
    """The league's current configuration, without secrets."""


class Sink(Protocol):
    """Writes rows, in order, each once.

    Methods block, and are called from threads, one at a time. Any exception is logged, and the sink is closed and
    reopened after a pause; the failed row is then written first, unless ``open`` reports that the sink has it.
    """

    def open(self, place: Place) -> int:
        """Open; return the sequence of the last row written, by this process or an earlier one; 0 for none."""

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Write a row.

        Its metrics are from the history; ``now`` holds current ones that the history does not have, and is empty for
        rows of the past.
        """

    def close(self) -> None:
        """Flush and close files and connections; may be called after a failure, and more than once."""


SINKS: Registry[Sink] = Registry("tracker.sinks", "workers.trackers.sinks")
"""Builds sinks, unopened."""


class Line(Row, frozen=True):
    """A row as it is written."""

    now: dict[str, float] = msgspec.field(default_factory=dict)
    """Metrics that the history does not hold, from a tracker that ran at that time."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def written(row: Row, now: Mapping[str, float]) -> bytes:
    """A row as a line, without its line break."""
    return _encoder.encode(Line(row.sequence, row.time_ns, row.step, row.values, row.full, dict(now)))


def read(path: Path) -> list[Line]:
    """The whole lines of a file."""
    with path.open("rb") as file:
        return [line for line, _ in _whole(file)]


@SINKS.register("jsonl")
class JsonlSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink; there are none."""

    def build(self) -> "JsonlSink":
        """The sink."""
        return JsonlSink()


class JsonlSink:
    """Appends to one file, whose last line is the position.

    Args:
        prefix: Start of the file's name, which names the history besides.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._file: BinaryIO | None = None
        self._end = 0
        """End of the last whole line; remains of a failed write after it are cut off."""

    def open(self, place: Place) -> int:
        """Find the last whole line; a torn line after it is cut off by the next write."""
        place.folder.mkdir(parents=True, exist_ok=True)
        path = place.folder / f"{self._prefix}{place.league}-{place.identity[:8]}.jsonl"
        self._file = path.open("a+b", buffering=0)
        if not try_lock(self._file):
            self.close()
            raise BusyError(f"{path}: another tracker is writing it; this one waits for it to end")
        self._file.seek(0)
        position = self._end = 0
        for line, end in _whole(self._file):
            position, self._end = line.sequence, end
        return position

    def lines(self) -> Iterator[Line]:
        """The whole lines of the open file."""
        assert self._file is not None
        self._file.seek(0)
        return (line for line, _ in _whole(self._file))

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Append a line; on return the operating system has it. A partial line is cut off by the next write."""
        assert self._file is not None
        self._file.truncate(self._end)
        data = written(row, now) + b"\n"
        done = self._file.write(data)
        if done != len(data):
            raise OSError(f"{self._file.name}: {done} of {len(data)} bytes written; expected free space")
        self._end += len(data)

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _whole(file: BinaryIO) -> Iterator[tuple[Line, int]]:
    """Lines up to the first torn or damaged one, each with its end offset."""
    end = 0
    for data in file:
        try:
            line = _decoder.decode(data)
        except DECODE_ERRORS:
            return
        if not data.endswith(b"\n"):
            return
        end += len(data)
        yield line, end


@SINKS.register("stdout")
class StdoutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink; there are none."""

    def build(self) -> "StdoutSink":
        """The sink."""
        return StdoutSink()


class StdoutSink:
    """Prints rows."""

    def __init__(self) -> None:
        self._position = 0

    def open(self, place: Place) -> int:
        """Resume after the last row that this sink printed."""
        return self._position

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Print a row as one line."""
        sys.stdout.write(written(row, now).decode() + "\n")
        sys.stdout.flush()
        self._position = row.sequence

    def close(self) -> None:
        """Nothing to release."""
