"""Building blocks of folds: sets of seen ids, facts by key, and the configuration in force."""

import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from league.log.base import RecordedEvent
from schemas import events as e
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError

F = TypeVar("F")
_NUMBERED_ID = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})", re.DOTALL)
"""Ids with a number in its canonical spelling ("7", not "07"), so that different ids never share a bit; bounded, so
that one odd id cannot require a huge bitmap."""


class SeenIdsSnapshot(msgspec.Struct, frozen=True):
    """A set of ids for a snapshot: bitmaps by prefix, and the ids without a number."""

    bitmaps: dict[str, bytes]
    others: list[str]


class SeenIds:
    """A growing set of ids.

    Ids of the form ``<prefix>-<n>``, as all match ids are, take one bit each in a bitmap per prefix, so that a fold can
    remember every match of a long history. Other ids are kept as they are. Plain bitmaps, since snapshots store exactly
    these bytes: roaring bitmaps (pyroaring 1.2) take the same memory and time for a million ids of 20 workers, and 25
    to 1,000 times as long to write a snapshot.
    """

    def __init__(self) -> None:
        self._bitmaps: dict[str, bytearray] = {}
        self._others: set[str] = set()

    def add(self, name: str) -> bool:
        """Add an id; returns whether it is new."""
        if name in self:
            return False
        numbered = _NUMBERED_ID.fullmatch(name)
        if numbered is None:
            self._others.add(name)
            return True
        byte, bit = divmod(int(numbered[2]), 8)
        bitmap = self._bitmaps.setdefault(numbered[1], bytearray())
        bitmap.extend(bytes(max(byte + 1 - len(bitmap), 0)))
        bitmap[byte] |= 1 << bit
        return True

    def __contains__(self, name: str) -> bool:
        numbered = _NUMBERED_ID.fullmatch(name)
        if numbered is None:
            return name in self._others
        byte, bit = divmod(int(numbered[2]), 8)
        bitmap = self._bitmaps.get(numbered[1], b"")
        return byte < len(bitmap) and bool(bitmap[byte] >> bit & 1)

    def to_snapshot(self) -> SeenIdsSnapshot:
        """The set as a snapshot; equal sets give equal ones."""
        return SeenIdsSnapshot({prefix: bytes(bits) for prefix, bits in self._bitmaps.items()}, sorted(self._others))

    @classmethod
    def from_snapshot(cls, saved: SeenIdsSnapshot) -> "SeenIds":
        """Restore a set."""
        seen = cls()
        seen._bitmaps = {prefix: bytearray(bits) for prefix, bits in saved.bitmaps.items()}
        seen._others = set(saved.others)
        return seen


_SINGLE_WRITER_EVENTS = (
    e.LeagueOpened,
    e.PolicyPublished,
    e.PolicyReset,
    e.GradientStepTaken,
    e.CheckpointAdded,
    e.TrainingFinished,
)


class FactIndex:
    """Facts with one writer each, by key: finds a second account of a fact that differs from the first.

    Folds take the first account, so the second one changes nothing; but only a fault, a second trainer of a policy or a
    forgery writes it. Results of matches and requests are no such facts: several workers may give an account of them.
    Only the newest ``limit`` facts are remembered; None for all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._first: dict[str, tuple[int, str, int]] = {}
        """Sequence, producer and hash of the first account."""

    def add(self, recorded: RecordedEvent) -> str | None:
        """Add an event; returns a description that names both accounts if another one was added before."""
        event = recorded.event
        if not isinstance(event, _SINGLE_WRITER_EVENTS):
            return None
        account = (recorded.sequence, recorded.producer, hash(recorded.payload))
        sequence, producer, content = self._first.setdefault(event.key, account)
        if self._limit is not None and len(self._first) > self._limit:
            del self._first[next(iter(self._first))]
        if content == account[2]:
            return None
        return (
            f"{event.key}: event {recorded.sequence} from {recorded.producer} differs from event {sequence} from "
            f"{producer}, which stands; expected one account per fact"
        )


def handlers_by_type(fold: type[F]) -> dict[type, Callable[[F, Any], Any]]:
    """A fold's methods ``_on_…``, by the types of event in the signature of each."""
    handlers: dict[type, Callable[[F, Any], Any]] = {}
    for name, method in vars(fold).items():
        if name.startswith("_on_"):
            kind = method.__annotations__["event"]
            handlers |= dict.fromkeys(get_args(kind) or [kind], method)
    return handlers


def takes_effect(event: e.LeagueOpened | e.LeagueConfigured, *, opened: bool, since: int) -> bool:
    """Whether a configuration replaces the one before.

    The log drops duplicates only within its duplicate window. A later duplicate would put an old configuration in force
    again; its ``after`` shows that what it replaces is older than the configuration in force, that of the event
    ``since`` (0 for none). A league is opened once, by an event that names a league.
    """
    if isinstance(event, e.LeagueOpened):
        return bool(event.league) and not opened
    return event.after >= since


class ConfigFold:
    """The configuration in force, set by the event at ``since`` (0 for none); ``opened`` if the league has been."""

    def __init__(self, *, opened: bool = False, since: int = 0) -> None:
        self.opened = opened
        self.since = since

    def apply(self, sequence: int, event: e.LeagueOpened | e.LeagueConfigured) -> LeagueConfig | None:
        """Fold one event; returns the configuration that takes effect with it, if one does.

        A configuration of a newer version, which this one cannot read, leaves the one before in force: folds are total.
        """
        if not takes_effect(event, opened=self.opened, since=self.since):
            return None
        self.opened = self.opened or isinstance(event, e.LeagueOpened)
        try:
            config = convert(event.config, LeagueConfig, "")
        except ConfigError:
            return None
        self.since = sequence
        return config
