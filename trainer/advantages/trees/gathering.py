"""Groups whose members come from different workers, in any order, some never.

The rule, by counts and versions only, so that the same arrivals give the same outcomes on every day:

1. A group is *complete* once as many different members have arrived as its requests say (``Rollout.group_size``);
   failed ones are members too. It is then handed on, whole. An episode without a group is complete by itself.
2. A group is *given up* when the newest policy version seen is more than ``max_lag`` ahead of the version that its
   first member was asked for with, or when it is the oldest of more than ``max_open``. What it has is handed on where
   at least ``least`` members are there; otherwise nothing of it is.
3. A member that arrives after its group was complete or given up is *late*, and dropped; one that arrived before is a
   *duplicate*. Of groups that are over, the newest ``remembered`` are known; a member of an older one opens it anew,
   and the group is given up by rule 2.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from schemas.episodes import GenerateResult
from schemas.errors import ConfigError


class Outcome(msgspec.Struct, frozen=True):
    """What came of an arrival."""

    released: list[list[GenerateResult]] = []
    """Groups that are ready to be trained on, oldest first, members in the order of their ids."""
    counts: dict[str, int] = {}
    """Changes of ``Gathering.counts``."""


class Gathering:
    """Waits for groups."""

    def __init__(self, max_lag: int = 4, max_open: int = 1_000, least: int | None = None, remembered: int = 10_000):
        """Set the rule.

        Args:
            max_lag: Policy versions for which a group is waited for.
            max_open: Groups that are waited for at once.
            least: Members that a group needs to be handed on when it is given up; None hands none on.
            remembered: Groups that are over whose late members are known as such.

        Raises:
            ConfigError: a number below what makes sense.
        """
        for name, value, lowest in (("max_lag", max_lag, 0), ("max_open", max_open, 1), ("remembered", remembered, 1)):
            if value < lowest:
                raise ConfigError(f"gathering.{name}: {value}; expected {lowest} or more")
        if least is not None and least < 1:
            raise ConfigError(f"gathering.least: {least}; expected 1 or more, or nothing")
        self.counts: Counter[str] = Counter()
        """Groups ``complete``, ``given_up`` and, of these, ``handed_on``; members ``members_complete``,
        ``members_handed_on``, ``members_given_up``, ``late`` and ``duplicate``. With those that still wait, the members
        add up to the arrivals."""
        self._max_lag = max_lag
        self._max_open = max_open
        self._least = least
        self._remembered = remembered
        self._open: dict[str, _Group] = {}
        self._over: dict[str, None] = {}
        self._newest = 0

    @property
    def waiting(self) -> int:
        """Members of groups that are waited for."""
        return sum(len(group.members) for group in self._open.values())

    def add(self, result: GenerateResult) -> Outcome:
        """Take one arrival: an episode without a parent, with all its children."""
        before = Counter(self.counts)
        released = self._added(result)
        released += self.advance(result.rollout.policy_version).released
        return Outcome(released, {name: n for name, n in (self.counts - before).items() if n})

    def advance(self, version: int) -> Outcome:
        """Hear of a policy version, which may be the end of groups that are too far behind."""
        before = Counter(self.counts)
        self._newest = max(self._newest, version)
        released = [self._give_up(name) for name in self._too_old()]
        return Outcome([group for group in released if group], dict(self.counts - before))

    def _added(self, result: GenerateResult) -> list[list[GenerateResult]]:
        """Groups that the arrival completes."""
        rollout = result.rollout
        if not rollout.group or rollout.group_size <= 1:
            self.counts["complete"] += 1
            self.counts["members_complete"] += 1
            return [[result]]
        if rollout.group in self._over:
            self.counts["late"] += 1
            return []
        group = self._open.setdefault(rollout.group, _Group(rollout.policy_version, rollout.group_size))
        if rollout.id in group.members:
            self.counts["duplicate"] += 1
            return []
        group.members[rollout.id] = result
        if len(group.members) < group.size:
            return []
        self.counts["complete"] += 1
        self.counts["members_complete"] += len(group.members)
        return [self._close(rollout.group)]

    def _too_old(self) -> Sequence[str]:
        """Names of the groups to be given up now, oldest first."""
        late = [name for name, group in self._open.items() if self._newest - group.version > self._max_lag]
        rest = [name for name in self._open if name not in set(late)]
        return [*late, *rest[: max(0, len(rest) - self._max_open)]]

    def _give_up(self, name: str) -> list[GenerateResult]:
        """What is handed on of a group that is given up."""
        members = self._close(name)
        self.counts["given_up"] += 1
        if self._least is None or len(members) < self._least:
            self.counts["members_given_up"] += len(members)
            return []
        self.counts["handed_on"] += 1
        self.counts["members_handed_on"] += len(members)
        return members

    def _close(self, name: str) -> list[GenerateResult]:
        group = self._open.pop(name)
        self._over[name] = None
        if len(self._over) > self._remembered:
            del self._over[next(iter(self._over))]
        return [result for _, result in sorted(group.members.items())]


class _Group:
    """A group that is waited for."""

    def __init__(self, version: int, size: int) -> None:
        self.version = version
        self.size = size
        self.members: dict[str, GenerateResult] = {}
