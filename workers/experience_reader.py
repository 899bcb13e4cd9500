"""Trajectories from the stream into a trainer's buffer, and their release once they are used."""

import asyncio
from collections.abc import Callable

from league.log.queues import ReceivedTrajectory
from league.state.consumption import ExperienceConsumption, ExperiencePosition
from models.model_config import ModelShape
from schemas.events import GradientStepTaken
from schemas.ids import derive_seed
from schemas.loggers import get_logger
from schemas.numbers import expand_ranges
from schemas.trajectories import Trajectory
from trainer.admission import is_stale, rejection_reason
from trainer.buffer import BatchItem
from trainer.buffer.buffer import BufferCapacity, TrajectoryBuffer
from trainer.buffer.groups import is_grouped
from trainer.learner import Learner
from workers.runtime import Context

log = get_logger()


class ExperienceReader:
    """Reader of one policy's trajectories; those that do not fit the model's ``shape`` are rejected."""

    def __init__(self, context: Context, policy: str, shape: ModelShape) -> None:
        self._context = context
        self._config = context.config.trainer
        self._policy = policy
        self._shape = shape
        self._consumed = ExperiencePosition()
        self._released = ExperiencePosition()
        self._unrecorded = ExperienceConsumption()
        """Consumption of the step that is being recorded."""
        self.buffer = self._make_buffer()
        ahead = (self._config.buffer.capacity or 0) - self.buffer.window
        # Trajectories read ahead use memory twice, so only about one step's worth are.
        self._received: asyncio.Queue[ReceivedTrajectory] = asyncio.Queue(
            ahead if ahead > 0 else self._config.rollouts_per_step
        )

    def _make_buffer(self) -> TrajectoryBuffer:
        seed = derive_seed(self._context.config.seed, "buffer", self._policy)
        consumed = self._consumed
        return TrajectoryBuffer(self._config, seed, consumed.looked_at, consumed.gathered, self._make_capacity())

    def resume(self) -> None:
        """Restore the position that the history records for the policy's trainer."""
        self._consumed = self._context.state.consumption.position(self._policy)
        self.buffer = self._make_buffer()

    async def receive(self) -> None:
        """Read trajectories from the stream, unaccounted earlier ones included; runs until cancelled."""
        async for received in self._context.experience.follow(self._policy, self._consumed.floor + 1):
            if not self._consumed.is_accounted(received.sequence):
                await self._received.put(received)

    async def fill(self, version: int, is_over: Callable[[], bool]) -> bool:
        """Admit trajectories in stream order until a batch can be drawn; False if ``is_over`` ended the wait.

        ``version`` is the policy's, from which the next step starts.
        """
        stopping = asyncio.create_task(self._context.wait_until(is_over))
        try:
            # Checked again once full: matches may have been voided in the meantime.
            while self._is_short(version):
                getting = asyncio.create_task(self._received.get())
                await asyncio.wait((getting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    return False
                self._admit(getting.result(), version)
        finally:
            stopping.cancel()
        return True

    async def draw(self, learner: Learner, is_over: Callable[[], bool]) -> list[BatchItem] | None:
        """Draw the batch of the learner's next step; None if ``is_over`` ended the wait.

        Trajectories with zero advantage, where the learner filters them, are replaced by further ones: the dynamic
        sampling of DAPO (Yu et al. 2025, section 3.2), bounded by ``refills`` and by how many may be played before the
        step is recorded. The result is reproducible, since ``Learner.assign_credit`` depends on the learner's state
        and the batch alone.
        """
        version = learner.steps
        replaces = learner.config.filter_zero_advantage and self._config.buffer.level == "episode"
        for refill in range(learner.config.refills + 1):
            drawn = self.buffer.draw_batch(version + 1, version)
            if not replaces or refill == learner.config.refills:
                break
            credited = await asyncio.to_thread(learner.assign_credit, [item.trainable_trajectory for item in drawn])
            # Waiting trajectories that can be released and replaced before the next step is recorded.
            replaceable = min(self._make_capacity()) - self.buffer.unsettled_count - self.buffer.window
            useless = [drawn[index] for index in credited.filtered][: max(replaceable, 0)]
            if not useless:
                break
            self.buffer.release(useless)
            if not await self.fill(version, is_over):
                return None
        return drawn

    def _make_capacity(self) -> BufferCapacity:
        config = self._context.config
        most = max(round(config.rollout.ahead_steps * self._config.rollouts_per_step), 1)
        return BufferCapacity(most, config.experience.max_messages)

    def _is_short(self, version: int) -> bool:
        self.buffer.advance(version)
        while self.buffer.is_ready:
            left = self.buffer.unsettled_count
            self.buffer.drop_rejected(lambda trajectory: self._drop_reason(trajectory, version), version)
            if self.buffer.unsettled_count == left:
                return False
            self.buffer.advance(version)
        return True

    def _admit(self, received: ReceivedTrajectory, version: int) -> None:
        trajectory = received.trajectory
        if trajectory is not None and self.buffer.was_held(received.sequence):
            # Checked before the restart; later changes are seen by ``drop_rejected``.
            self.buffer.add(received.sequence, trajectory, self._consumed.steps_of(received.sequence))
            return
        if trajectory is not None and not trajectory.steps and is_grouped(trajectory):
            self.buffer.drop(received.sequence, trajectory.match_id, trajectory.seat, "failed", trajectory)
            return
        damage: str | None = received.error
        if trajectory is not None:
            damage = rejection_reason(trajectory, self._shape.vocab_size, self._shape.max_positions)
        if trajectory is None or damage:
            log.warning("trajectory rejected", sequence=received.sequence, reason=damage)
            match_id = received.match_id or (trajectory.match_id if trajectory is not None else f"#{received.sequence}")
            seat = received.seat if trajectory is None or received.match_id else trajectory.seat
            self.buffer.drop(received.sequence, match_id, seat, "refused", trajectory)
        elif (
            self.buffer.is_waiting(match_id := trajectory.match_id, seat := trajectory.seat)
            or self._context.state.consumption.is_accounted(match_id, seat)
            or self._unrecorded.is_accounted(match_id, seat)
        ):
            log.warning("duplicate trajectory dropped", sequence=received.sequence, match=match_id, seat=seat)
            self.buffer.drop(received.sequence, match_id, seat, "copy")
        elif (reason := self._drop_reason(trajectory, version)) is not None:
            self.buffer.drop(received.sequence, match_id, seat, reason, trajectory)
        else:
            self.buffer.add(received.sequence, trajectory, self._consumed.steps_of(received.sequence))

    def _drop_reason(self, trajectory: Trajectory, version: int) -> str | None:
        """Reason for which the step from ``version`` must not train on a valid trajectory; None if it may."""
        state = self._context.state
        if trajectory.match_id in state.voided:
            return "voided"
        # Where old model calls are dropped one by one, a trajectory is stale once its newest call is.
        judged_by = "newest" if self._config.buffer.drop_old_steps else self._config.buffer.staleness
        first = state.training_start(self._policy)
        return "stale" if is_stale(trajectory, version, self._config.max_lag_steps, first, judged_by) else None

    def start_next_step(self, step: GradientStepTaken) -> None:
        """Begin with the trajectories of the next step, while ``step`` is being recorded."""
        self._unrecorded.apply_step(step)
        self.buffer.start_next_step()

    def mark_recorded(self) -> None:
        """The step of the last ``start_next_step`` is in the folded history."""
        self._unrecorded = ExperienceConsumption()

    async def release(self, consumed: ExperiencePosition) -> None:
        """Delete from the stream what recorded steps have accounted for, up to ``consumed``."""
        fresh = [sequence for sequence in expand_ranges(consumed.above) if not self._released.is_accounted(sequence)]
        self._released = consumed
        experience = self._context.experience
        await self._context.persistently(lambda: experience.purge_through(self._policy, consumed.floor))
        await self._context.persistently(lambda: experience.delete(fresh))
