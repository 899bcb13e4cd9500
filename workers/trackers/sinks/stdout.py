"""Rows as lines of JSON on standard output, from the first event on: no position is kept."""

import sys
from collections.abc import Mapping

import msgspec

from workers.trackers.charts import Row
from workers.trackers.sinks import SINKS, Place
from workers.trackers.sinks.jsonl import written


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
        """See ``Sink.open``."""
        return self._position

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Print a row as one line.

        Raises:
            OSError: standard output is closed.
        """
        sys.stdout.write(written(row, now).decode() + "\n")
        sys.stdout.flush()
        self._position = row.sequence

    def close(self) -> None:
        """See ``Sink.close``; nothing to release."""
