"""The base of all events."""

from typing import ClassVar

import msgspec

MAX_EVENT_BYTES = 4 * 2**20 - 2**14
"""Largest event of any type, as JSON: with its headers it fits a message of 4 MiB."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    KEY: ClassVar[str]
    """Form of ``key``, in which ``e`` is the event."""
    MAX_BYTES: ClassVar[int] = 65_536
    """Largest event of the type, as JSON: larger ones are not recorded, and readers skip them. DuckDB reads 2,048 rows
    at a time, so what anybody may write in any number has to fit its memory that often."""

    @property
    def key(self) -> str:
        """Deterministic id of the event."""
        return self.KEY.format(e=self)
