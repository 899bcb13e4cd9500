"""Groups whose members come from different workers, in any order, some never; a buffer's groups survive restarts.

The rule, by counts and versions only, so that the same arrivals give the same outcomes on every day:

1. A group is *complete* once as many different members have arrived as it is to have; those that failed, or cannot be
   used, are members too. It is then handed on, whole.
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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from schemas.config import TrainerConfig
from schemas.errors import ConfigError
from schemas.events import MAX_CLOSED_GROUPS, BufferContents, OpenGroup
from schemas.numbers import expand_ranges, to_ranges
from schemas.trajectories import Trajectory

COUNT_METRICS = {
    "complete": "groups_complete",
    "given_up": "groups_given_up",
    "handed_on": "groups_handed_on",
    "late": "members_late",
    "missing": "members_missing",
}


@dataclass(eq=False)
class BufferedTrajectory:
    """A trajectory and its model calls that are still to be trained on."""

    sequence: int
    trajectory: Trajectory
    steps: list[int]
    begun: bool = False
    """Whether a batch has trained on some of its model calls."""


def is_grouped(trajectory: Trajectory) -> bool:
    """Whether the trajectory belongs to a group of several."""
    return trajectory.group_size > 1 and bool(trajectory.group)


def _member_id(trajectory: Trajectory) -> str:
    return f"{trajectory.match_id}:{trajectory.seat}"


def _known_version(trajectory: Trajectory) -> int | None:
    # Without model calls it is the tombstone of a failed match, whose version is not known.
    return trajectory.version if trajectory.steps else None


class GroupUpdate(NamedTuple):
    """Effect of an arrival, or of a version, on groups."""

    released: list[list[BufferedTrajectory]]
    """Groups that are ready to be trained on, oldest first, members in the order of their ids."""
    given_up: list[BufferedTrajectory]
    """Members of groups of which nothing is."""
    late: list[BufferedTrajectory]


class PendingGroup(NamedTuple):
    """A group that is waited for."""

    name: str
    version: int
    """Policy version of the first member."""
    size: int
    members: dict[str, BufferedTrajectory | None]
    """Members by id; None for those that failed or cannot be used."""

    @property
    def usable_members(self) -> list[BufferedTrajectory]:
        """Members that can be used, in the order of their ids."""
        return [member for _, member in sorted(self.members.items()) if member is not None]


class GroupAssembler:
    """Waits for groups, by the rule of this module."""

    def __init__(
        self, max_lag: int = 4, max_open: int = 1_000, least: int | None = None, remembered: int = MAX_CLOSED_GROUPS
    ):
        if max_lag < 0:
            raise ConfigError(f"gathering.max_lag: {max_lag}; expected 0 or more")
        self.counts: Counter[str] = Counter()
        """Groups ``complete``, ``given_up`` and, of these, ``handed_on``; members
        ``members_complete``, ``members_handed_on``, ``members_given_up``, ``late``, ``duplicate`` and ``missing``.
        With those that still wait, the members add up to the arrivals."""
        self.newly_closed: list[str] = []
        """Names of groups that ended, in this order, until the owner empties it."""
        self._max_lag = max_lag
        self._max_open = max_open
        self._least = least
        self._remembered = remembered
        self._open: dict[str, PendingGroup] = {}
        self._closed: dict[str, None] = {}
        self.newest_version = 0
        """The newest policy version seen."""

    @property
    def open_groups(self) -> list[PendingGroup]:
        """Groups that are waited for, the oldest first."""
        return list(self._open.values())

    @property
    def items(self) -> list[BufferedTrajectory]:
        """Trajectories that wait in open groups."""
        return [member for group in self._open.values() for member in group.members.values() if member is not None]

    def resume(self, opened: Iterable[PendingGroup], over: Iterable[str]) -> None:
        """Restore groups as they were recorded, the oldest first."""
        self._open = {group.name: group for group in opened}
        self._closed = dict.fromkeys(over)

    def add(self, member: BufferedTrajectory) -> GroupUpdate:
        """Add a trajectory of a group."""
        is_late = member.trajectory.group in self._closed
        self.counts["late"] += is_late
        released = [] if is_late else self._add_member(member.trajectory, member)
        return self._close_stale(_known_version(member.trajectory), released, [member] if is_late else [])

    def mark_missing(self, trajectory: Trajectory) -> GroupUpdate:
        """Count a trajectory of a group that failed or cannot be used: the group completes without it."""
        released = [] if trajectory.group in self._closed else self._add_member(trajectory, None)
        return self._close_stale(_known_version(trajectory), released)

    def advance(self, version: int) -> GroupUpdate:
        """Note a published policy version, and close the groups that are too old for it."""
        return self._close_stale(version)

    def release_oldest(self) -> list[BufferedTrajectory]:
        """End the oldest group, and hand it on as it is."""
        group = self._close(next(iter(self._open)))
        self.counts["given_up"] += 1
        self.counts["handed_on"] += 1
        self.counts["members_handed_on"] += len(group)
        return group

    def _add_member(self, trajectory: Trajectory, member: BufferedTrajectory | None) -> list[list[BufferedTrajectory]]:
        """The group that the arrival completes, if it does; a version that is not known counts as the newest seen."""
        version = _known_version(trajectory)
        pending = PendingGroup(
            trajectory.group, self.newest_version if version is None else version, trajectory.group_size, {}
        )
        group = self._open.setdefault(trajectory.group, pending)
        if _member_id(trajectory) in group.members:
            self.counts["duplicate"] += 1
            return []
        group.members[_member_id(trajectory)] = member
        self.counts["missing"] += member is None
        if len(group.members) < group.size:
            return []
        self.counts["complete"] += 1
        self.counts["members_complete"] += len(group.usable_members)
        return [self._close(group.name)]

    def _close_stale(
        self,
        version: int | None,
        completed: Iterable[list[BufferedTrajectory]] = (),
        late: Iterable[BufferedTrajectory] = (),
    ) -> GroupUpdate:
        """Close the groups that end now; the update has them behind those that an arrival ``completed``."""
        self.newest_version = max(self.newest_version, version or 0)
        stale = [name for name, group in self._open.items() if self.newest_version - group.version > self._max_lag]
        rest = [name for name in self._open if name not in set(stale)]
        released = list(completed)
        dropped: list[BufferedTrajectory] = []
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

    def _close(self, name: str) -> list[BufferedTrajectory]:
        group = self._open.pop(name)
        self._closed[name] = None
        self.newly_closed.append(name)
        if len(self._closed) > self._remembered:
            del self._closed[next(iter(self._closed))]
        return group.usable_members


class BufferedGroups:
    """The open groups of a buffer.

    A restarted trainer reads the waiting trajectories from the stream again. Which of them waited to be drawn and which
    for their group is recorded, so nothing is decided twice: until all of them are back, no group is given up.
    """

    def __init__(self, config: TrainerConfig, recorded: BufferContents | None = None) -> None:
        """Start empty, or as the last step recorded the contents, with the groups closed by all steps."""
        rule = config.gathering
        self._assembler = GroupAssembler(config.max_lag_steps, rule.max_open, rule.least)
        self._reported: Counter[str] = Counter()
        self._recorded = recorded
        self._expected: dict[int, str] = {}
        self._restored: dict[str, dict[str, BufferedTrajectory | None]] = {}
        self.is_used = recorded is not None
        """Whether there has been any group."""
        if recorded is None:
            return
        self._expected = dict.fromkeys(expand_ranges(recorded.waiting), "")
        for group in recorded.open:
            self._expected |= dict.fromkeys(expand_ranges(group.sequences), group.name)
            self._restored[group.name] = dict.fromkeys(group.missing)
        if not self._expected:
            self._resume()

    @property
    def is_resuming(self) -> bool:
        """Whether recorded trajectories are not back from the stream yet."""
        return bool(self._expected)

    @property
    def waiting(self) -> list[BufferedTrajectory]:
        """Trajectories that wait for their group."""
        return [
            *self._assembler.items,
            *(member for group in self._restored.values() for member in group.values() if member),
        ]

    def was_waiting(self, sequence: int) -> bool:
        """Whether a trajectory was in the buffer after the last step, and has thus been accepted before."""
        return sequence in self._expected

    def add(self, member: BufferedTrajectory) -> GroupUpdate:
        """Add a valid trajectory."""
        if member.sequence in self._expected:
            name = self._expected.pop(member.sequence)
            if name:
                self._restored[name][_member_id(member.trajectory)] = member
            if not self._expected:
                self._resume()
            return _release_update([] if name else [member])
        self._resume()
        if not is_grouped(member.trajectory):
            return _release_update([member])
        self.is_used = True
        return self._assembler.add(member)

    def mark_missing(self, trajectory: Trajectory) -> GroupUpdate:
        """Record that a trajectory will not be trained on, so that its group can complete without it."""
        if not is_grouped(trajectory):
            return _release_update([])
        self._resume()
        self.is_used = True
        return self._assembler.mark_missing(trajectory)

    def advance(self, version: int) -> GroupUpdate:
        """Set the version that the next step starts from."""
        if self.is_resuming:
            # Nothing is given up yet; but a group that begins with a failure is to be as old as this version.
            self._assembler.newest_version = max(self._assembler.newest_version, version)
            return _release_update([])
        return self._assembler.advance(version)

    def release_oldest(self) -> GroupUpdate | None:
        """Release the oldest group as it is, when no further members can arrive; None where none is open."""
        return _release_update(self._assembler.release_oldest()) if self._assembler.open_groups else None

    def _resume(self) -> None:
        """Resume from the record, without the trajectories that the stream has lost."""
        if self._recorded is None:
            return
        opened = [PendingGroup(g.name, g.version, g.size, self._restored[g.name]) for g in self._recorded.open]
        self._assembler.resume(opened, self._recorded.over)
        self._recorded = None
        self._expected = {}
        self._restored = {}

    def contents(self, waiting: Iterable[int]) -> BufferContents | None:
        """Buffer contents to record with a step, ``waiting`` to be drawn included; None without any group so far."""
        if not self.is_used:
            return None
        opened = [
            OpenGroup(
                group.name,
                group.version,
                group.size,
                to_ranges(member.sequence for member in group.usable_members),
                sorted(id for id, member in group.members.items() if member is None),
            )
            for group in self._assembler.open_groups
        ]
        return BufferContents(to_ranges(waiting), opened, list(self._assembler.newly_closed))

    def start_next_step(self) -> None:
        """Start counting for the next step, once a step is recorded."""
        self._assembler.newly_closed.clear()
        self._reported = Counter(self._assembler.counts)

    def metrics(self) -> dict[str, float]:
        """Counts of closed groups since the last step, and of open ones; empty where there never was a group."""
        if not self.is_used:
            return {}
        now = self._assembler.counts
        counts = {name: float(now[key] - self._reported[key]) for key, name in COUNT_METRICS.items()}
        counts["groups_open"] = float(len(self._assembler.open_groups))
        counts["members_waiting"] = float(len(self._assembler.items))
        return counts


def _release_update(members: list[BufferedTrajectory]) -> GroupUpdate:
    return GroupUpdate([members] if members else [], [], [])
