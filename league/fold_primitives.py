"""Building blocks of folds: versioned mappings, sets of seen ids, facts by key, and the configuration in force."""

import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, get_args

import msgspec

from league.log.base import RecordedEvent
from schemas import events as e
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError

V = TypeVar("V")
F = TypeVar("F")
_MAX_VERSIONS = 1024
"""Longest chain of versions: a reference to an old version keeps at most so many alive."""


class PersistentMap(Mapping[str, V]):
    """An immutable mapping in insertion order, of which new versions are cheap.

    The newest version holds the rows; each older one holds its successor and an undo log. A new version thus costs as
    much as its changes, the newest is read like a dict, and an old one is materialised when it is read.

    Source: shallow binding as in Baker 1978, "Shallow binding in Lisp 1.5", which made arrays persistent.
    """

    __slots__ = ("_age", "_next", "_rows", "_undo")

    def __init__(self, rows: dict[str, V] | None = None) -> None:
        """Make a first version; it takes ownership of ``rows``."""
        self._rows: dict[str, V] | None = {} if rows is None else rows
        self._next: PersistentMap[V] | None = None
        self._undo: dict[str, V | None] = {}
        """Rows of this version that the next one changed; None for keys that this version lacks."""
        self._age = 0

    def with_changes(self, changes: Mapping[str, V]) -> "PersistentMap[V]":
        """Return the version with these rows replaced or added. Rows are never None and never removed."""
        if not changes:
            return self
        if self._next is not None or self._rows is None or self._age >= _MAX_VERSIONS:
            return PersistentMap({**self._materialise(), **changes})
        rows = self._rows
        self._undo = {key: rows.get(key) for key in changes}
        rows.update(changes)
        self._next = after = PersistentMap(rows)
        after._age = self._age + 1
        self._rows = None
        return after

    def keys_changed_since(self, before: Mapping[str, V]) -> list[str] | None:
        """Keys of rows that may differ from an older version's, each once.

        None when ``before`` is no earlier version of this mapping, or when so many rows changed in between that
        comparing everything is as fast.
        """
        keys: dict[str, None] = {}
        at: object = before
        while at is not self:
            if not isinstance(at, PersistentMap) or at._next is None or 4 * len(keys) > len(self) + 64:
                return None
            keys.update(dict.fromkeys(at._undo))
            at = at._next
        return list(keys)

    def get(self, key: str, default: V | None = None) -> V | None:  # type: ignore[override]
        """See ``Mapping.get``."""
        return (self._rows or self._materialise()).get(key, default)

    def __getitem__(self, key: str) -> V:
        return (self._rows or self._materialise())[key]

    def __contains__(self, key: object) -> bool:
        return key in (self._rows or self._materialise())

    def __len__(self) -> int:
        return len(self._rows or self._materialise())

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def keys(self) -> KeysView[str]:
        """All keys, in order."""
        return self.to_dict().keys()

    def values(self) -> ValuesView[V]:
        """All rows, in order."""
        return self.to_dict().values()

    def items(self) -> ItemsView[str, V]:
        """All keys and rows, in order."""
        return self.to_dict().items()

    def to_dict(self) -> dict[str, V]:
        """A copy of all rows, which stays valid when a next version takes over the rows during iteration."""
        return dict(self._materialise())

    def __repr__(self) -> str:
        return repr(self._materialise())

    def _materialise(self) -> dict[str, V]:
        if self._rows is None:
            older: list[PersistentMap[V]] = []
            at = self
            while at._rows is None:
                older.append(at)
                assert at._next is not None
                at = at._next
            rows = dict(at._rows)
            for version in reversed(older):
                for key, row in version._undo.items():
                    if row is None:
                        del rows[key]
                    else:
                        rows[key] = row
            self._rows = rows
        return self._rows


_NUMBERED_ID = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})", re.DOTALL)
"""Only the canonical spelling ("7", not "07"), so that different ids never share a bit; bounded, so that one odd id
cannot ask for a huge bitmap."""


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
        """Equal sets give equal snapshots."""
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
            f"{producer}, which holds; expected one account of a fact"
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
    """The configuration in force: that of the event at ``since``, 0 for none; ``opened`` if the league has been."""

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
