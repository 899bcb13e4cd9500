"""The trajectories of one policy that wait to be trained on.

Everything here follows from the order of the stream, the recorded steps and the seed, never from when a
trajectory arrived: a batch is drawn once exactly ``window`` trajectories wait, and the next ones are examined after
that. So a trainer that was killed and has read the same stream again draws the same batch again.

Trajectories of a group wait for the others of the group first (``groups``), and become available together.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from schemas.config import TrainerConfig
from schemas.events import BufferContents
from schemas.ids import derive_seed
from schemas.numbers import Ranges, in_ranges
from schemas.trajectories import Trajectory
from trainer.admission import fresh_step_indices
from trainer.buffer import (
    STRATEGIES,
    UNCOUNTED_REASONS,
    BatchAccounting,
    BatchItem,
    DroppedItem,
    Unit,
    make_accounting,
    select_units,
    trainable_steps,
)
from trainer.buffer.groups import BufferedGroups, BufferedTrajectory, GroupUpdate, is_grouped

RejectionRule = Callable[[Trajectory], str | None]
"""Gives the reason why a trajectory can no longer be trained on, or None."""

_QUANTILES = (0.1, 0.5, 0.9)


class BufferCapacity(NamedTuple):
    """Limits on trajectories until the next step is recorded."""

    ahead: int
    """Trajectories after which rollout workers wait."""
    stream: int
    """Messages that the stream holds, tombstones included."""


class TrajectoryBuffer:
    """The trajectories of one policy that its trainer holds."""

    def __init__(
        self,
        config: TrainerConfig,
        seed: int,
        looked_at: int = 0,
        gathered: BufferContents | None = None,
        capacity: BufferCapacity | None = None,
    ) -> None:
        """Make an empty buffer; the seed and a step's number decide what is drawn.

        A recorded step had looked at ``EXPERIENCE`` up to ``looked_at``, and ``gathered`` were the contents then, if
        trajectories come in groups.
        """
        self._config = config
        self._buffer = config.buffer
        self._seed = seed
        self._strategy = STRATEGIES.build(config.buffer.strategy)
        self._capacity = capacity
        self._groups = BufferedGroups(config, gathered)
        self._waiting: dict[int, BufferedTrajectory] = {}
        self._unsettled: list[DroppedItem] = []
        self._last_settled = looked_at
        self._last_examined = looked_at
        self._lengths: list[int] = []
        self.window = config.buffer.window(config.rollouts_per_step)
        """Trajectories that must wait before a batch is drawn, and that it is drawn from."""

    def __len__(self) -> int:
        """Trajectories that wait to be drawn."""
        return len(self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether a batch can be drawn, though an empty one: the window is full, or nothing more can arrive."""
        return not self._groups.is_resuming and (len(self) >= self.window or self._is_blocked)

    @property
    def _is_blocked(self) -> bool:
        """Whether there is no room for more until a step is recorded: in the stream or, for groups, ahead of it."""
        if self._capacity is None:
            return False
        lying = len(self) + len(self._groups.waiting) + self.unsettled_count
        uncounted = sum(item.reason in UNCOUNTED_REASONS for item in self._unsettled)
        is_ahead = self._groups.is_used and lying - uncounted >= self._capacity.ahead
        return is_ahead or lying >= self._capacity.stream

    @property
    def unsettled_count(self) -> int:
        """Trajectories that left since the last recorded step."""
        return len(self._unsettled)

    @property
    def examined_range(self) -> tuple[int, int]:
        """First and last sequence examined since the last step; the last may be before the first."""
        return self._last_settled + 1, self._last_examined

    @property
    def floor(self) -> int:
        """Highest sequence up to which every trajectory has left."""
        sequences = (*self._waiting, *(buffered.sequence for buffered in self._groups.waiting))
        return min(sequences, default=self._last_examined + 1) - 1

    @property
    def contents(self) -> BufferContents | None:
        """Contents of the buffer, for a step to record; None where there never was a group."""
        return self._groups.contents(self._waiting)

    def was_held(self, sequence: int) -> bool:
        """Whether a trajectory was held after the last step, and is to be restored."""
        return self._groups.was_waiting(sequence)

    def is_waiting(self, match_id: str, seat: int) -> bool:
        """Whether the trajectory of a match's seat waits."""
        waiting = (*self._waiting.values(), *self._groups.waiting)
        return any((buffered.trajectory.match_id, buffered.trajectory.seat) == (match_id, seat) for buffered in waiting)

    def add(self, sequence: int, trajectory: Trajectory, done: Ranges) -> None:
        """Add a valid trajectory; recorded gradient steps have trained on its steps ``done``."""
        self._mark_examined(sequence, trajectory)
        steps = [step for step in trainable_steps(trajectory) if not in_ranges(done, step)]
        self._apply_group_update(self._groups.add(BufferedTrajectory(sequence, trajectory, steps, begun=bool(done))))

    def _apply_group_update(self, update: GroupUpdate) -> None:
        """Make members of complete groups available, and drop those whose group was given up or is closed."""
        for buffered in (buffered for group in update.released for buffered in group):
            self._waiting[buffered.sequence] = buffered
        for reason, members in (("given_up", update.given_up), ("late", update.late)):
            for buffered in members:
                self._note_dropped(buffered, reason)

    def _note_dropped(self, item: BufferedTrajectory | BatchItem, reason: str) -> None:
        self._unsettled.append(DroppedItem(item.sequence, item.trajectory.match_id, reason, item.trajectory.seat))

    def advance(self, version: int) -> None:
        """Give up groups that have waited too long, or that cannot be completed before the next step."""
        self._apply_group_update(self._groups.advance(version))
        while not self._waiting and self._is_blocked and (update := self._groups.release_oldest()) is not None:
            self._apply_group_update(update)

    def drop(self, sequence: int, match_id: str, seat: int, reason: str, trajectory: Trajectory | None = None) -> None:
        """Drop a trajectory for one of ``DROP_REASONS``; with ``trajectory``, count it among those examined."""
        self._mark_examined(sequence, trajectory)
        self._unsettled.append(DroppedItem(sequence, match_id, reason, seat))
        if trajectory is not None:
            self._apply_group_update(self._groups.mark_missing(trajectory))

    def _mark_examined(self, sequence: int, trajectory: Trajectory | None) -> None:
        # A lower sequence was examined, and counted, before the trainer restarted.
        if sequence > self._last_examined:
            self._last_examined = sequence
            if trajectory is not None:
                self._lengths.append(len(trajectory.steps))

    def drop_rejected(self, judge: RejectionRule, version: int) -> None:
        """Drop trajectories that have become too old, or otherwise unusable, while they waited."""
        for sequence, buffered in list(self._waiting.items()):
            if self._buffer.drop_old_steps:
                fresh = set(fresh_step_indices(buffered.trajectory, version, self._config.max_lag_steps))
                buffered.steps = [step for step in buffered.steps if step in fresh]
            reason = judge(buffered.trajectory)
            if reason is None and not buffered.steps:
                if trainable_steps(buffered.trajectory):
                    reason = "stale"
                elif self._buffer.level != "episode":
                    reason = "filtered"
            if reason is not None:
                del self._waiting[sequence]
                self._note_dropped(buffered, reason)

    def draw_batch(self, number: int, version: int) -> list[BatchItem]:
        """Draw the batch of a step, by sequence; nothing leaves the buffer before it is settled.

        ``number`` is the step's, ``version`` the policy's that it starts from.
        """
        rng = Random(derive_seed(self._seed, "batch", number))
        count = self._buffer.steps_per_batch or self._config.rollouts_per_step
        bundles = {
            at: buffered.trajectory.group
            for at, buffered in self._waiting.items()
            if self._buffer.level == "episode" and is_grouped(buffered.trajectory)
        }
        chosen: dict[int, list[int]] = {}
        for unit in select_units(self._strategy(self._units(version), rng), count, self._buffer.shares, bundles):
            chosen.setdefault(unit.sequence, []).append(unit.step)
        items = []
        for sequence, steps in chosen.items():
            buffered = self._waiting[sequence]
            taken = buffered.steps if steps == [-1] else steps
            items.append(
                BatchItem(sequence, buffered.trajectory, taken, len(buffered.steps) - len(taken), buffered.begun)
            )
        return items

    def _units(self, version: int) -> list[Unit]:
        units = []
        for sequence in sorted(self._waiting):
            buffered = self._waiting[sequence]
            r = buffered.trajectory
            if self._buffer.level == "episode":
                units.append(Unit(sequence, -1, r.game, r.role, version - r.version, r.score))
            else:
                lags = [(at, version - r.steps[at].version) for at in buffered.steps]
                units += [Unit(sequence, at, r.game, r.role, lag, r.score) for at, lag in lags]
        return units

    def release(self, batch: Sequence[BatchItem]) -> None:
        """Drop trajectories of a batch that teach nothing, so that others can take their place."""
        for item in batch:
            del self._waiting[item.sequence]
            self._note_dropped(item, "filtered")

    def settle_batch(
        self, batch: Sequence[BatchItem], filtered: Sequence[int], refused: Sequence[int]
    ) -> BatchAccounting:
        """Release a batch that was trained on; returns the accounting of everything that left since the last one.

        There was nothing to learn from what is at the places ``filtered``, and what is at ``refused`` is damaged.
        """
        trained = []
        for index, item in enumerate(batch):
            reason = "refused" if index in refused else "filtered" if index in filtered else None
            waiting = self._waiting[item.sequence]
            waiting.steps = [step for step in waiting.steps if step not in item.steps]
            waiting.begun = True
            if reason is not None:
                self._note_dropped(item, reason)
            else:
                trained.append(item)
            if reason is not None or not item.left:
                del self._waiting[item.sequence]
        accounting, self._unsettled = make_accounting(trained, self._unsettled), []
        return accounting

    def start_next_step(self) -> None:
        """A step was recorded: from here on, what is looked at counts for the next one."""
        self._last_settled = self._last_examined
        self._lengths = []
        self._groups.start_next_step()

    def metrics(self, batch: Sequence[BatchItem], version: int) -> dict[str, float]:
        """Metrics of a batch's origin: lags in versions; lengths in model calls of arrivals and of what is trained."""
        lags = [version - item.trajectory.steps[at].version for item in batch for at in item.steps]
        numbers = {"buffer_waiting": float(len(self)), "lag_mean": float(np.mean(lags)) if lags else 0.0}
        numbers["lag_max"] = float(max(lags, default=0))
        numbers |= self._groups.metrics()
        for kind, lengths in (
            ("generated", self._lengths),
            ("trained", [len(item.trajectory.steps) for item in batch]),
        ):
            if lengths:
                numbers[f"length_{kind}_mean"] = float(np.mean(lengths))
                for share in _QUANTILES:
                    numbers[f"length_{kind}_p{round(100 * share)}"] = float(np.quantile(lengths, share))
        return numbers
