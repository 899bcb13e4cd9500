"""The trainer: trajectories become gradient steps, published policies and checkpoints.

Its state is in the history: the last ``GradientStepTaken`` names the learner state to load and the trajectories used.
A step's events are appended as one atomic batch, so a killed trainer either took the step or did not. Its adapter and
state are stored before that, while the next step is computed; that one is recorded only afterwards.

One class: every method reads or moves the one step that is taken while the one before is recorded.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import torch

from league.blobs import STATE_AREA
from league.matchmaking import schedule
from league.matchmaking.roles import reset_reason
from league.matchmaking.schedule import StopReason, budget_share_used, stop_reason
from schemas.decisions import CreditRow
from schemas.events import Event, GradientStepTaken, PolicyPublished, TrainingFinished
from schemas.ids import agent_name, digest
from schemas.loggers import get_logger
from schemas.metrics import MOSTLY_ZERO
from trainer.backends import LearnerBackend, OffloadedBase, load_backend, make_adapter_spec
from trainer.backends.native import resolve_backend
from trainer.buffer import BatchAccounting, BatchItem
from trainer.learner import Learner
from trainer.rank_processes import RankGroup, RankSpec, TorchrunRank, run_torchrun_rank
from trainer.report import StepReport, count_still_steps, make_credit_rows, write_batch
from workers.compatibility import resolve_policy
from workers.decisions import CreditWriter
from workers.device_turns import DeviceTurns
from workers.experience_reader import ExperienceReader
from workers.learner_state import LearnerFactory, append_published, pack_written
from workers.monitoring.metrics import make_training_metrics
from workers.policy_weights import fetch_base_model
from workers.runtime import Context, beside, run_in

log = get_logger()


async def serve(context: Context, policy: str | None = None) -> None:
    """Train a policy until a stop condition is met or the worker is stopped."""
    policy = resolve_policy(context.config, policy)
    torch.set_num_threads(context.config.trainer.threads)
    context.gauges.training = partial(make_training_metrics, context.state, policy)
    backend = await load_policy_base(context)
    # In a thread: ranks wait for each other.
    base = await fetch_base_model(context)
    plan = RankSpec(base, make_adapter_spec(context.config.model), resolve_backend(context.config, base)[0])
    group = await asyncio.to_thread(RankGroup, plan, backend)
    try:
        worker = TrainerWorker(context, backend, policy, group, _device_turn(context, backend))
        await worker.resume()
        async with beside(worker.experience_reader.receive(), worker.watch_ranks()):
            await worker.train()
    finally:
        await asyncio.to_thread(group.close)


def serve_as_rank() -> bool:
    """Compute as a rank above 0, where ``torchrun`` started this process as one; return whether it did.

    ``ModelError`` if rank 0 did not come, or was lost.
    """
    torchrun = TorchrunRank.read()
    if torchrun is None or torchrun.rank == 0:
        return False
    log.info("computing for rank 0", rank=torchrun.rank, of=torchrun.count, host=torchrun.host)
    run_torchrun_rank(torchrun)
    return True


async def load_policy_base(context: Context) -> LearnerBackend:
    """The base model of the policies, held by the configured backend on the trainer's device and in its data type."""
    folder = await fetch_base_model(context)
    config, reason = resolve_backend(context.config, folder)
    log.info("learner backend", backend=config.backend.name, reason=reason or "configured")
    # On a shared GPU, this process comes to its turn later.
    device = "cpu" if context.config.inference.colocate else config.device
    return load_backend(config.backend, folder, device, config.dtype)


DeviceTurn = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""A block in which the model may be used on its device."""


def _device_turn(context: Context, backend: LearnerBackend) -> DeviceTurn:
    if not context.config.inference.colocate or backend.base is None:
        return contextlib.nullcontext
    base = OffloadedBase(backend.base, context.config.trainer.device)
    return partial(DeviceTurns(context.run.folder).train, base)


class TrainerWorker:
    """One policy's trainer."""

    def __init__(
        self,
        context: Context,
        backend: LearnerBackend,
        policy: str,
        group: RankGroup | None = None,
        device_turn: DeviceTurn = contextlib.nullcontext,
    ) -> None:
        self._context = context
        self._device_turn = device_turn
        self._policy = policy
        self._config = context.config.trainer
        self._group = group or RankGroup()
        self._states = context.run.open_blob_store(context.client, context.log.league, STATE_AREA)
        self._learner_factory = LearnerFactory(context, backend, policy, self._group.ranks)
        self.learner: Learner
        """Set by ``resume``; each reset makes another one."""
        self.experience_reader = ExperienceReader(context, policy, backend.shape)
        self._old_step: GradientStepTaken | None = None
        self._recording: asyncio.Task[None] | None = None
        self._credit_writer = CreditWriter(context)
        self._thread = ThreadPoolExecutor(1, "learner")
        """Computes all steps: what one thread has freed, the C library keeps for it, gigabytes with a large model."""
        self._stepped_at = time.monotonic()

    async def resume(self) -> None:
        """Continue after the last recorded step; without any, publish the version that training starts from."""
        self.experience_reader.resume()
        self._old_step = self._context.state.last_step(self._policy)
        async with self._device_turn():
            self.learner = await self._learner_factory.resume()
        if self._old_step is not None:
            consumed = self._context.state.consumption.position(self._policy)
            # The process may have been killed before it released what its last step had accounted for.
            await self.experience_reader.release(consumed)
            log.info("resumed", step=self.learner.steps, experience=consumed.floor)

    async def watch_ranks(self) -> None:
        """Check that all ranks are alive; runs until cancelled."""
        while True:
            self._group.check_alive()
            await asyncio.sleep(1.0)

    async def train(self) -> None:
        """Take one step after another, until training finishes or the worker is stopped."""
        try:
            while not self._context.stopping.is_set() and not await self._finish_if_due():
                await self._start_next_step()
            await self._wait_until_recorded()
            await self._credit_writer.close()
        finally:
            if self._recording is not None:
                self._recording.cancel()
                await asyncio.wait([self._recording])
            # In the log: an event's content depends on nothing but what was trained on and the clock.
            log.info("memory of the learner, in bytes", **self.learner.adapter.memory()._asdict())

    async def take_next_step(self) -> None:
        """Wait for a batch, take a gradient step and record it; no step while paused or once the hero has finished."""
        await self._start_next_step()
        await self._wait_until_recorded()

    async def _start_next_step(self) -> None:
        """Take the next step and begin to record it, once the step before is recorded."""
        reader, learner = self.experience_reader, self.learner
        filled = await reader.fill(learner.steps, self._is_wait_over)
        # Checked with a batch at hand: no step starts after the pause.
        if self._is_paused():
            await self._wait_until_recorded()
            await self._pause()
        elif not filled:
            await self._wait_until_recorded()
        elif (batch := await reader.draw(learner, self._has_hero_finished)) is not None:
            await self._take_step(batch)

    def _is_wait_over(self) -> bool:
        """Whether no batch is to be waited for, or a step was recorded, or could not be, meanwhile."""
        is_recorded = self._recording is not None and self._recording.done()
        return is_recorded or self._has_hero_finished() or self._is_paused()

    async def _wait_until_recorded(self) -> None:
        """Wait for the recording of the newest step; raises its error."""
        if self._recording is not None:
            await self._recording
            self._recording = None

    async def _take_step(self, batch: Sequence[BatchItem]) -> None:
        """Step the learner; once the step before is recorded, account for the batch and begin to record this step.

        A step that ends in a reset is waited for, since training continues with another learner.
        """
        learner, buffer = self.learner, self.experience_reader.buffer
        waited_s = time.monotonic() - self._stepped_at
        metrics = buffer.metrics(batch, learner.steps)
        if self._config.dump:
            await asyncio.to_thread(self._dump, batch)
        trajectories = [item.trainable_trajectory for item in batch]
        async with self._device_turn():
            # In a thread: the connection to the broker must stay alive while the cores compute.
            take_step = partial(self._group.step, learner, trajectories, self._budget_used())
            report = await run_in(self._thread, take_step)
            adapter = await run_in(self._thread, partial(pack_written, learner.save_adapter))
            state = await run_in(self._thread, partial(pack_written, learner.save_state))
        if report.skipped:
            log.error("step skipped, weights untouched", step=report.step, reason=report.skipped)
        if report.alarm:
            log.error("samples do not look as recorded", step=report.step, alarm=report.alarm)
        if report.zero_advantage_share > MOSTLY_ZERO:
            log.warning(
                "most advantages are 0, so little is learned; rollout.group_size or trainer.advantage may help",
                step=report.step,
                share=round(report.zero_advantage_share, 2),
            )
        await self._wait_until_recorded()
        now = time.monotonic()
        metrics |= {"wait_s": round(waited_s, 3), "wall_s": round(now - self._stepped_at, 3)}
        self._stepped_at = now
        accounting = buffer.settle_batch(batch, report.filtered, report.refused_at)
        step = self._make_step_event(accounting, report, metrics)
        self.experience_reader.start_next_step(step)
        reset = None
        if not self._has_hero_finished():
            age = report.step - self._start_version()
            reset = reset_reason(self._context.state.standings(), self._context.config, self._policy, age)
        credit = list[CreditRow]()
        if self._credit_writer.is_enabled:
            share = self._context.config.history.decisions.share
            credit = make_credit_rows(self._policy, batch, report, step.dropped, share, learner.config)
        self._recording = asyncio.create_task(self._record(step, adapter, state, reset, credit))
        self._recording.add_done_callback(lambda _: self._context.wake())
        if reset is not None:
            await self._wait_until_recorded()

    async def _record(
        self,
        step: GradientStepTaken,
        adapter_data: bytes,
        state_data: bytes,
        reset: str | None,
        credit: Sequence[CreditRow],
    ) -> None:
        """Store a step's adapter and state, append its events as one batch, release what it used.

        A step that ends in a reset publishes the reset policy too.
        """
        began = time.monotonic()
        adapter = await self._context.persistently(lambda: self._context.blobs.put(adapter_data))
        halfway = time.monotonic()
        name = await self._context.persistently(lambda: self._states.put(state_data))
        stored = {
            "store_bytes": float(len(adapter_data) + len(state_data)),
            "store_s": round(time.monotonic() - began, 3),
            "adapter_bytes": float(len(adapter_data)),
            "adapter_store_s": round(halfway - began, 3),
            "state_bytes": float(len(state_data)),
            "state_store_s": round(time.monotonic() - halfway, 3),
        }
        step = msgspec.structs.replace(step, state=name, metrics=step.metrics | stored)
        parent = agent_name(self._policy, step.step - 1)
        published = PolicyPublished(policy=self._policy, version=step.step, adapter=adapter, parent=parent)
        events: list[Event] = [published, step]
        admitted = schedule.admission_reason(self._context.state, self._policy, step.step)
        if reset is not None and admitted in (None, schedule.RECENT):
            # The last version before a reset is never retired, as in AlphaStar; recent ones are.
            admitted = schedule.RESET
        if admitted is not None:
            league = self._context.state
            events.append(schedule.make_checkpoint_added(league, self._policy, step.step, adapter, admitted))
        learner = self.learner
        if reset is not None:
            learner, first_version, first = await self._learner_factory.make_reset(step.step + 1, reset)
            events += [first_version, first]
        await append_published(self._context, events)
        self.learner = learner
        self._credit_writer.add(credit)
        await self._release(step)

    def _dump(self, batch: Sequence[BatchItem]) -> None:
        folder = self._context.run.folder / self._config.dump
        try:
            write_batch(folder, self._policy, self.learner, batch, self._config)
        except OSError as error:
            # The dump is for inspection; training does not depend on it.
            log.warning("the batch could not be written", folder=str(folder), error=str(error))

    def _make_step_event(
        self, accounting: BatchAccounting, report: StepReport, metrics: dict[str, float]
    ) -> GradientStepTaken:
        buffer = self.experience_reader.buffer
        first, last = buffer.examined_range
        metrics = report.metrics() | metrics
        metrics |= count_still_steps(self._old_step.metrics if self._old_step is not None else {}, metrics)
        return GradientStepTaken(
            policy=self._policy,
            step=report.step,
            batch=digest("\n".join(accounting.matches).encode()),
            matches=accounting.matches,
            experience_from=first,
            experience_to=last,
            accepted=accounting.accepted,
            stale=accounting.dropped_count("stale"),
            refused=accounting.dropped_count("refused"),
            voided=accounting.dropped_count("voided"),
            filtered=accounting.dropped_count("filtered"),
            floor=buffer.floor,
            trained=accounting.trained,
            dropped=accounting.dropped,
            parts=accounting.parts,
            seats=accounting.seats,
            state="",
            skipped=bool(report.skipped),
            skip_reason=report.skipped,
            metrics=metrics,
            gathered=buffer.contents,
        )

    async def _release(self, step: GradientStepTaken) -> None:
        """Release the trajectories that the recorded step used, and the state before it.

        States of versions in the league are kept: a branch can start there with the optimiser's moments.
        """
        old, self._old_step = self._old_step, step
        self.experience_reader.mark_recorded()
        await self.experience_reader.release(self._context.state.consumption.position(self._policy))
        if old is None or old.state == step.state or agent_name(self._policy, old.step) in self._context.state.agents:
            return
        await self._context.persistently(lambda: self._states.delete(old.state))

    def _budget_used(self) -> float:
        """Share of the training budget that is used up, 0 to 1; an exploiter's lasts from reset to reset."""
        role = self._context.config.trained_policies.get(self._policy)
        if role is not None and role.is_exploiter:
            return min((self.learner.steps - self._start_version()) / role.reset_steps, 1.0)
        stop = self._context.config.stop
        return budget_share_used(self._context.state, self._config.policy, stop, self._unrecorded_step())

    def _unrecorded_step(self) -> int:
        """Number of the hero's step that is being recorded here, and that the folded history may lack; 0 for none."""
        return self.learner.steps if self._policy == self._config.policy and self._recording is not None else 0

    def _start_version(self) -> int:
        return self._context.state.training_start(self._policy)

    def _is_paused(self) -> bool:
        return self._context.state.pauses.active_pause(self._policy) is not None

    async def _pause(self) -> None:
        began = time.monotonic()
        log.info("paused")
        await self._context.wait_until(lambda: self._has_hero_finished() or not self._is_paused())
        # The pause is no part of the next step's time, which stop.minutes counts.
        self._stepped_at += time.monotonic() - began
        log.info("resumed after a pause", seconds=round(time.monotonic() - began, 1))

    async def _finish_if_due(self) -> bool:
        """Whether training has finished; appends that it has when a stop condition is met."""
        state = self._context.state
        if state.training_finished(self._policy) is not None:
            return True
        if (reason := self._stop_reason()) is None:
            return False
        await self._wait_until_recorded()
        finished = TrainingFinished(
            self._policy, self.learner.steps, reason.text, state.config_sequence, reason.is_criterion
        )
        await self._context.wait_for_sequence(await self._context.append(finished))
        if state.training_finished(self._policy) is None:
            # A configuration that was appended meanwhile may let training go on.
            return await self._finish_if_due()
        log.info("training finished", reason=reason.text, version=finished.version)
        return True

    def _stop_reason(self) -> StopReason | None:
        """Stop conditions apply to the hero's policy; the others train for as long as it does."""
        state, hero = self._context.state, self._config.policy
        if self._policy == hero:
            return stop_reason(state, hero, self._context.config.stop, self._unrecorded_step())
        finished = state.training_finished(hero)
        return None if finished is None else StopReason(f"training of {hero} has finished", finished.criterion_met)

    def _has_hero_finished(self) -> bool:
        """Whether this policy is not the hero and the hero's training has finished: then no batch is waited for."""
        return self._policy != self._config.policy and self._stop_reason() is not None
