"""Which places of ``EXPERIENCE`` the trainers have consumed, and how far play runs ahead of training.

The outcome of every trajectory is a question to the tables: ``rollout_ledger`` and ``ledger`` of
``league/projections/schema.sql``.
"""

from collections.abc import Sequence
from itertools import repeat

import msgspec
from msgspec.structs import replace

from league.fold_primitives import SeenIds, SeenIdsSnapshot
from schemas.events import MAX_CLOSED_GROUPS, BufferContents, GradientStepTaken, MatchFinished, OpponentsSampled
from schemas.ids import policy_of
from schemas.numbers import Ranges, in_ranges, merge_ranges, ranges_above


class PartlyTrainedTrajectory(msgspec.Struct, frozen=True):
    """A pending trajectory, some of whose steps were trained on."""

    sequence: int
    steps: Ranges


class ExperiencePosition(msgspec.Struct, frozen=True):
    """A policy trainer's position in ``EXPERIENCE``."""

    floor: int = 0
    """Sequence up to which all of the policy's trajectories are accounted for."""
    looked_at: int = 0
    """The trainer has read up to this sequence; those above the floor and not in ``above`` wait in its buffer."""
    above: Ranges = []
    """Sequences above the floor that are accounted for."""
    begun: list[PartlyTrainedTrajectory] = []
    """Ordered by sequence."""
    gathered: BufferContents | None = None
    """Contents of the buffer after the last step; ``over`` names the newest closed groups over all steps."""

    def is_accounted(self, sequence: int) -> bool:
        """Whether a trajectory's outcome is recorded."""
        return sequence <= self.floor or in_ranges(self.above, sequence)

    def steps_of(self, sequence: int) -> Ranges:
        """Steps of a pending trajectory that were trained on."""
        return next((trajectory.steps for trajectory in self.begun if trajectory.sequence == sequence), [])

    def advance(self, step: GradientStepTaken) -> "ExperiencePosition":
        """The position after a step."""
        floor = max(self.floor, step.floor)
        left = ranges_above(merge_ranges(self.above, step.trained, *(group.sequences for group in step.dropped)), floor)
        trained_steps = {trajectory.sequence: trajectory.steps for trajectory in self.begun}
        for part in step.parts:
            trained_steps[part.sequence] = merge_ranges(trained_steps.get(part.sequence, []), part.steps)
        begun = [
            PartlyTrainedTrajectory(at, trained_steps[at])
            for at in sorted(trained_steps)
            if at > floor and not in_ranges(left, at)
        ]
        gathered = step.gathered
        if gathered is not None:
            over = self.gathered.over if self.gathered is not None else []
            gathered = replace(gathered, over=[*over, *gathered.over][-MAX_CLOSED_GROUPS:])
        return ExperiencePosition(floor, max(self.looked_at, step.experience_to, floor), left, begun, gathered)


class ConsumptionSnapshot(msgspec.Struct, frozen=True):
    """The fold in a snapshot."""

    positions: dict[str, ExperiencePosition] = {}
    ended: SeenIdsSnapshot = SeenIdsSnapshot({}, [])


class ExperienceConsumption:
    """A pure, total fold of the trainers' positions, and of the trajectories that are accounted for."""

    def __init__(self) -> None:
        self._positions: dict[str, ExperiencePosition] = {}
        self._ended = SeenIds()

    def position(self, policy: str) -> ExperiencePosition:
        """A policy trainer's position in ``EXPERIENCE``."""
        return self._positions.get(policy, ExperiencePosition())

    def is_accounted(self, match_id: str, seat: int) -> bool:
        """Whether a seat's trajectory is accounted for; another one of the same match and seat is then a duplicate."""
        return match_id in self._ended or _trajectory_key(match_id, seat) in self._ended

    def apply_step(self, step: GradientStepTaken) -> None:
        """Record the trajectories that a gradient step used or dropped; call once per step."""
        self._positions[step.policy] = self.position(step.policy).advance(step)
        unfinished = {_trajectory_key(part.match_id, part.seat) for part in step.parts if part.left > 0}
        for name in _trajectory_keys(step.matches, step.seats):
            if name not in unfinished:
                self._ended.add(name)
        for group in step.dropped:
            for name in _trajectory_keys(group.matches, group.seats):
                self._ended.add(name)

    def abandon(self) -> None:
        """Empty the buffers: the history branches here, and pending trajectories stay with its origin."""
        for policy, position in sorted(self._positions.items()):
            if position.gathered is not None:
                self._positions[policy] = replace(position, gathered=BufferContents([], [], position.gathered.over))

    def to_snapshot(self) -> ConsumptionSnapshot:
        """The fold as a snapshot."""
        return ConsumptionSnapshot(dict(self._positions), self._ended.to_snapshot())

    @classmethod
    def from_snapshot(cls, saved: ConsumptionSnapshot) -> "ExperienceConsumption":
        """Restore the fold from a snapshot."""
        fold = cls()
        fold._positions = dict(saved.positions)
        fold._ended = SeenIds.from_snapshot(saved.ended)
        return fold


def _trajectory_key(match_id: str, seat: int) -> str:
    """The match id alone, for all its seats, where the seat is unknown; ``SeenIds`` needs the number at the end."""
    return match_id if seat < 0 else f"{seat}/{match_id}"


def _trajectory_keys(matches: Sequence[str], seats: Sequence[int]) -> list[str]:
    padded = [*seats[: len(matches)], *repeat(-1, len(matches) - len(seats))]
    return [_trajectory_key(match_id, seat) for match_id, seat in zip(matches, padded, strict=True)]


_DROP_REASONS = ("stale", "filtered", "refused", "voided", "given_up", "late")
"""Reasons for which a trajectory leaves a trainer's buffer untrained."""


class MatchesInPlay(msgspec.Struct):
    """Counts, per policy, matches in play and trajectories waiting for the trainer; snapshots hold them as they are."""

    playing: dict[str, dict[str, str]] = {}
    """``playing[worker][match]`` is the hero's policy."""
    waiting: dict[str, int] = {}
    early: dict[str, dict[str, int]] = {}
    """``early[match][policy]``: trajectories that a step used before the end of their match was recorded. A trajectory
    is published first, so a trainer may be faster than the match's record."""
    unfinished: dict[str, str] = {}
    """Worker, by match, of matches that had not ended when their worker left or restarted."""

    def matches_ahead(self, policy: str) -> int:
        """Number of a policy's matches begun and not yet used, stale or rejected."""
        playing = sum(hero == policy for matches in self.playing.values() for hero in matches.values())
        return playing + self.waiting.get(policy, 0)

    def begin_match(self, event: OpponentsSampled) -> None:
        """Count a match as in play."""
        if policy := policy_of(event.hero):
            self.playing.setdefault(event.worker, {})[event.match_id] = policy

    def end_match(self, worker: str, match_id: str, finished: MatchFinished | None) -> None:
        """End a match; ``finished`` is None when it failed."""
        policy = self.playing.get(worker, {}).pop(match_id, None)
        self.unfinished.pop(match_id, None)
        if finished is not None and finished.experience and policy is not None:
            trainable = [policy_of(seat.agent) for seat in finished.seats if seat.trainable]
            early = self.early.get(match_id, {})
            for hero in list(filter(None, trainable)) or [policy]:
                if early.get(hero, 0) > 0:
                    early[hero] -= 1
                else:
                    self.waiting[hero] = self.waiting.get(hero, 0) + 1
        self.early.pop(match_id, None)

    def apply_step(self, step: GradientStepTaken) -> None:
        """Remove the trajectories that a step consumed."""
        used = step.accepted + step.stale + step.filtered + step.refused + step.voided
        used += step.dropped_count("given_up") + step.dropped_count("late")
        dropped = [match for group in step.dropped if group.reason in _DROP_REASONS for match in group.matches]
        # A match is named by its worker and a number.
        early = [m for m in [*step.matches, *dropped] if m in self.playing.get(m.rpartition("-")[0], {})]
        for match in early:
            counted = self.early.setdefault(match, {})
            counted[step.policy] = counted.get(step.policy, 0) + 1
        self.waiting[step.policy] = max(self.waiting.get(step.policy, 0) - max(used - len(early), 0), 0)

    def forget_worker(self, worker: str, ended: SeenIds) -> None:
        """Count the matches of a worker that left or restarted as unfinished instead of in play, unless they ended."""
        for match in self.playing.pop(worker, {}):
            self.early.pop(match, None)
            if match not in ended:
                self.unfinished[match] = worker
