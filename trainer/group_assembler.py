"""Groups whose members come from different workers, in any order, some never.

The rule, by counts and versions only, so that the same arrivals give the same outcomes on every day:

1. A group is *complete* once as many different members have arrived as it is to have; those that failed, or cannot be
   used, are members too. It is then handed on, whole. What has no group is complete by itself.
2. A group is *given up* when the newest policy version seen is more than ``max_lag`` ahead of its first member's, or
   when it is the oldest of more than ``max_open``. What it has is handed on where at least ``least`` members are
   there; otherwise nothing of it is.
3. A member that arrives after its group was complete or given up is *late*, and dropped; one that arrived before is a
   *duplicate*. Of groups that are over, the newest ``remembered`` are known; a member of an older one opens it again,
   and the group is given up by rule 2.
4. Where nothing can arrive any more, because all that may wait does, the owner has the oldest group handed on as it is
   (``release_oldest``).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from schemas.errors import ConfigError

T = TypeVar("T")


class GroupMembership(NamedTuple):
    """Group membership of an arrival."""

    id: str
    group: str
    """Empty for none."""
    size: int
    """Members that the group is to have; 1 or less for no group."""
    version: int | None
    """Of the policy, when it was asked for; None, where that is not known, for the newest seen."""


class GroupUpdate(NamedTuple, Generic[T]):
    """Effect of an arrival, or of a version, on groups."""

    released: list[list[T]]
    """Groups that are ready to be trained on, oldest first, members in the order of their ids."""
    given_up: list[T]
    """Members of groups of which nothing is."""
    late: list[T]
    """What came too late."""


class PendingGroup(NamedTuple, Generic[T]):
    """A group that is waited for."""

    name: str
    version: int
    """Of its first member."""
    size: int
    members: dict[str, T | None]
    """By id; None for those that failed or cannot be used."""

    @property
    def usable_members(self) -> list[T]:
        """Members that can be used, in the order of their ids."""
        return [item for _, item in sorted(self.members.items()) if item is not None]


class GroupAssembler(Generic[T]):
    """Waits for groups."""

    def __init__(
        self,
        membership_of: Callable[[T], GroupMembership],
        max_lag: int = 4,
        max_open: int = 1_000,
        least: int | None = None,
        remembered: int = 10_000,
    ):
        """Set the numbers of the rule; ``membership_of`` is what an arrival says of its group."""
        for name, value, lowest in (("max_lag", max_lag, 0), ("max_open", max_open, 1), ("remembered", remembered, 1)):
            if value < lowest:
                raise ConfigError(f"gathering.{name}: {value}; expected {lowest} or more")
        if least is not None and least < 1:
            raise ConfigError(f"gathering.least: {least}; expected 1 or more, or nothing")
        self.counts: Counter[str] = Counter()
        """Groups ``complete``, ``given_up`` and, of these, ``handed_on``; members
        ``members_complete``, ``members_handed_on``, ``members_given_up``, ``late``, ``duplicate`` and ``missing``.
        With those that still wait, the members add up to the arrivals."""
        self._membership = membership_of
        self._max_lag = max_lag
        self._max_open = max_open
        self._least = least
        self._remembered = remembered
        self._open: dict[str, PendingGroup[T]] = {}
        self._closed: dict[str, None] = {}
        self._newest = 0
        self.newly_closed: list[str] = []
        """Names of groups that ended, in this order, until the owner empties it."""

    @property
    def open_groups(self) -> list[PendingGroup[T]]:
        """Groups that are waited for, the oldest first."""
        return list(self._open.values())

    @property
    def items(self) -> list[T]:
        """Items that wait in open groups."""
        return [item for group in self._open.values() for item in group.members.values() if item is not None]

    def resume(self, opened: Iterable[PendingGroup[T]], over: Iterable[str]) -> None:
        """Restore groups as they were recorded, the oldest first."""
        self._open = {group.name: group for group in opened}
        self._closed = dict.fromkeys(over)

    def add(self, item: T) -> GroupUpdate[T]:
        """Add one arrival."""
        membership = self._membership(item)
        is_late = self._is_closed(membership)
        self.counts["late"] += is_late
        released = [] if is_late else self._add_member(membership, item)
        return self._close_stale(membership.version, released, [item] if is_late else [])

    def mark_missing(self, membership: GroupMembership) -> GroupUpdate[T]:
        """Count an arrival that failed or cannot be used: its group completes without it."""
        released = [] if self._is_closed(membership) or membership.size <= 1 else self._add_member(membership, None)
        return self._close_stale(membership.version, released)

    def advance(self, version: int) -> GroupUpdate[T]:
        """Note a published policy version, and close the groups that are too old for it."""
        return self._close_stale(version)

    def release_oldest(self) -> list[T]:
        """End the oldest group, and hand it on as it is; nothing where none is open."""
        if not self._open:
            return []
        group = self._close(next(iter(self._open)))
        self.counts["given_up"] += 1
        self.counts["handed_on"] += 1
        self.counts["members_handed_on"] += len(group)
        return group

    def _is_closed(self, membership: GroupMembership) -> bool:
        return membership.size > 1 and membership.group in self._closed

    def _add_member(self, membership: GroupMembership, item: T | None) -> list[list[T]]:
        """Groups that the arrival completes."""
        if not membership.group or membership.size <= 1:
            self.counts["complete"] += 1
            self.counts["members_complete"] += 1
            return [] if item is None else [[item]]
        version = self._newest if membership.version is None else membership.version
        pending: PendingGroup[T] = PendingGroup(membership.group, version, membership.size, {})
        group = self._open.setdefault(membership.group, pending)
        if membership.id in group.members:
            self.counts["duplicate"] += 1
            return []
        group.members[membership.id] = item
        self.counts["missing"] += item is None
        if len(group.members) < group.size:
            return []
        self.counts["complete"] += 1
        self.counts["members_complete"] += len(group.usable_members)
        return [self._close(membership.group)]

    def _close_stale(
        self, version: int | None, completed: Iterable[list[T]] = (), late: Iterable[T] = ()
    ) -> GroupUpdate[T]:
        """Close the groups that end now; the update has them behind those that an arrival ``completed``."""
        self._newest = max(self._newest, version or 0)
        stale = [name for name, group in self._open.items() if self._newest - group.version > self._max_lag]
        rest = [name for name in self._open if name not in set(stale)]
        released = list(completed)
        dropped: list[T] = []
        for name in [*stale, *rest[: max(0, len(rest) - self._max_open)]]:
            members = self._close(name)
            self.counts["given_up"] += 1
            if self._least is None or len(members) < self._least:
                self.counts["members_given_up"] += len(members)
                dropped += members
            else:
                self.counts["handed_on"] += 1
                self.counts["members_handed_on"] += len(members)
                released.append(members)
        return GroupUpdate([group for group in released if group], dropped, list(late))

    def _close(self, name: str) -> list[T]:
        group = self._open.pop(name)
        self._closed[name] = None
        self.newly_closed.append(name)
        if len(self._closed) > self._remembered:
            del self._closed[next(iter(self._closed))]
        return group.usable_members
