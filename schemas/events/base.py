"""The base of all events."""

from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    KEY: ClassVar[str]
    """Form of ``key``, in which ``e`` is the event."""

    @property
    def key(self) -> str:
        """Deterministic id of the event."""
        return self.KEY.format(e=self)
