"""Sinks for rows of charts: interface and registry; a file each beside it, with ``@SINKS.register("name")``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from schemas.config import Plugin
from schemas.plugins import Registry
from workers.trackers.charts import Row


class Place(msgspec.Struct, frozen=True):
    """The history that rows belong to, and the folder for files."""

    folder: Path
    """For the sink's own files; it may not exist yet."""
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
        ...

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Write a row.

        Its metrics are from the history; ``now`` holds current ones that the history does not have, and is empty for
        rows of the past.
        """
        ...

    def close(self) -> None:
        """Flush and close files and connections; may be called after a failure, and more than once."""
        ...


SINKS: Registry[Sink] = Registry("tracker.sinks", "workers.trackers.sinks")


def make_sink(plugin: Plugin) -> Sink:
    """Make the configured sink, unopened.

    Raises:
        ConfigError: an unknown name, a bad setting, or a package that is not installed.
    """
    return SINKS.build(plugin)
