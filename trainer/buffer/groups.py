"""Trajectories of a buffer that wait for the rest of their group, with their state recorded across restarts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.config import TrainerConfig
from schemas.events import MAX_CLOSED_GROUPS, BufferContents, OpenGroup
from schemas.numbers import expand_ranges, to_ranges
from schemas.trajectories import Trajectory
from trainer.group_assembler import GroupAssembler, GroupMembership, GroupUpdate, PendingGroup

COUNT_METRICS = {
    "complete": "groups_complete",
    "given_up": "groups_given_up",
    "handed_on": "groups_handed_on",
    "late": "members_late",
    "missing": "members_missing",
}
"""Metric names of the group counts."""


@dataclass(eq=False)
class BufferedTrajectory:
    """A trajectory and its model calls that are still to be trained on."""

    sequence: int
    rollout: Trajectory
    steps: list[int]


def is_grouped(rollout: Trajectory) -> bool:
    """Whether the trajectory belongs to a group of several."""
    return rollout.group_size > 1 and bool(rollout.group)


def _membership(rollout: Trajectory) -> GroupMembership:
    # Without model calls it is the tombstone of a failed match, whose version is not known.
    version = rollout.version if rollout.steps else None
    return GroupMembership(f"{rollout.match_id}:{rollout.seat}", rollout.group, rollout.group_size, version)


class BufferedGroups:
    """The open groups of a buffer.

    A restarted trainer reads the waiting trajectories from the stream again. Which of them waited to be drawn and which
    for their group is recorded, so nothing is decided twice: until all of them are back, no group is given up.
    """

    def __init__(self, config: TrainerConfig, recorded: BufferContents | None = None) -> None:
        """Start empty, or as the last step recorded the contents, with the groups closed by all steps."""
        rule = config.gathering
        self._assembler: GroupAssembler[BufferedTrajectory] = GroupAssembler(
            lambda one: _membership(one.rollout), config.max_lag_steps, rule.max_open, rule.least, MAX_CLOSED_GROUPS
        )
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
        return [*self._assembler.items, *(one for group in self._restored.values() for one in group.values() if one)]

    def was_waiting(self, sequence: int) -> bool:
        """Whether a trajectory was in the buffer after the last step, and has thus been accepted before."""
        return sequence in self._expected

    def add(self, one: BufferedTrajectory) -> GroupUpdate[BufferedTrajectory]:
        """Add a valid trajectory."""
        if one.sequence in self._expected:
            name = self._expected.pop(one.sequence)
            if name:
                self._restored[name][_membership(one.rollout).id] = one
            if not self._expected:
                self._resume()
            return _release_update([] if name else [one])
        self._resume()
        if not is_grouped(one.rollout):
            return _release_update([one])
        self.is_used = True
        return self._assembler.add(one)

    def mark_missing(self, rollout: Trajectory) -> GroupUpdate[BufferedTrajectory]:
        """Record that a trajectory will not be trained on, so that its group can complete without it."""
        if not is_grouped(rollout):
            return _release_update([])
        self._resume()
        self.is_used = True
        return self._assembler.mark_missing(_membership(rollout))

    def advance(self, version: int) -> GroupUpdate[BufferedTrajectory]:
        """Set the version that the next step starts from."""
        return _release_update([]) if self.is_resuming else self._assembler.advance(version)

    def release_oldest(self) -> GroupUpdate[BufferedTrajectory] | None:
        """Release the oldest group as it is, when no further members can arrive; None where none is open."""
        return _release_update(self._assembler.release_oldest()) if self._assembler.open_groups else None

    def _resume(self) -> None:
        """Resume from the record, without the trajectories that the stream has lost."""
        if self._recorded is None:
            return
        opened = [PendingGroup(g.name, g.version, g.size, self._restored[g.name]) for g in self._recorded.open]
        self._assembler.resume(opened, self._recorded.over)
        self._recorded, self._expected, self._restored = None, {}, {}

    def contents(self, waiting: Iterable[int]) -> BufferContents | None:
        """Buffer contents to record with a step, ``waiting`` to be drawn included; None without any group so far."""
        if not self.is_used:
            return None
        opened = [
            OpenGroup(
                group.name,
                group.version,
                group.size,
                to_ranges(one.sequence for one in group.usable_members),
                sorted(id for id, one in group.members.items() if one is None),
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


def _release_update(members: list[BufferedTrajectory]) -> GroupUpdate[BufferedTrajectory]:
    return GroupUpdate([members] if members else [], [], [])
