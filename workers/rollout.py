"""The rollout worker: plays training matches and publishes the trajectories of the trained seat."""

import asyncio
import contextlib
import math
from functools import partial

from league.matchmaking.matchmaker import make_match
from league.matchmaking.pool import free_slots
from league.matchmaking.roles import sampler_of
from league.state import LeagueState
from players.remote.remote_player import check_api_keys, remote_agents_in_training
from schemas.config import LeagueConfig
from schemas.errors import BackpressureError, MessageTooLargeError
from schemas.events import OpponentsSampled
from schemas.jobs import PlayMatch
from schemas.loggers import get_logger
from schemas.trajectories import Trajectory
from workers.compatibility import required_policies, resolve_policy
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

log = get_logger()

_LOST_AFTER_S = 60.0
"""Time without a gradient step after which other workers' matches in play count as lost."""
_FIRST_STEP_S = 600.0
"""Time that a trainer is given for a first step, which loads and compiles."""
_STEP_FACTOR = 4.0
"""The same for later steps, in durations of the one before."""
_OTHERS_S = 600.0
"""Time that other workers' matches are given. Those of a silent worker are recorded as failed much sooner
(``workers.silence_s``), unless no rater is there to do it."""


async def serve(context: Context, policy: str | None = None) -> None:
    """Play training matches of a policy until its training has finished or the worker is stopped.

    A stopped worker plays its matches in flight to their end.
    """
    policy = resolve_policy(context.config, policy)
    needed = required_policies(context.config, policy)
    await context.wait_until(lambda: needed <= context.state.standings().live.keys())
    if context.stopping.is_set():
        return
    check_api_keys(context.config, remote_agents_in_training(context.config))
    models = await ModelManager.load(context, policy, routed=True)
    if context.stopping.is_set():
        await models.close()
        return
    await models.load_newest()
    worker = RolloutWorker(context, models, policy)
    async with beside(models.follow(), worker.executor.report_costs()):
        await asyncio.gather(*(worker.play_matches() for _ in range(context.config.rollout.games_in_flight)))
    await worker.executor.close()
    await models.close()


class RolloutWorker:
    """Keeps a number of training matches of one policy in flight."""

    def __init__(self, context: Context, models: ModelManager, policy: str) -> None:
        self._context = context
        self._models = models
        self._policy = policy
        self.executor = MatchExecutor.between_agents(context, models)
        # A group that a killed worker had begun stays as it is: its standings are gone.
        self._next_match_index = context.state.next_match_index(context.name)
        self._begin_group()
        self._first_match_index = self._next_match_index
        sampler = sampler_of(context.config, policy)
        opponents = len(self.executor.environment.seats) - 1
        free = free_slots(context.config, context.state.standings())
        if free < min(opponents, sampler.settings.get("max_distinct") or opponents):
            log.info("fewer adapter slots than opponents: checkpoints are cloned over seats", slots=free)

    async def play_matches(self) -> None:
        """Play one match after another, as long as training is not too far behind."""
        while not self._is_done():
            if self._is_paused():
                await self._context.wait_until(lambda: self._is_training_finished() or not self._is_paused())
            elif self._has_room():
                await self.play_training_match()
            else:
                await self._wait_for_room()

    async def play_training_match(self) -> None:
        """Sample opponents, play the match, publish the hero's trajectory, append the result."""
        job, sampled = self._make_match()
        hero = sampled.hero_seat
        recording = asyncio.create_task(self._context.append(sampled))
        # Mirrors play the newest version too. Another policy's version stays the one that was drawn and recorded.
        live = {hero} | {pick.seat for pick in sampled.picks if pick.bucket == "mirror"}
        match = await self.executor.run(job, live)
        tombstone = self.executor.runner.make_tombstone(job, hero, self._policy)
        await recording
        trajectory = self._make_trajectory(match, hero)
        experience = "" if trajectory is None else await self._publish(trajectory)
        if trajectory is None and tombstone is not None:
            await self._publish(tombstone)
        if match is not None:
            trainable = [hero] if experience else []
            await self.executor.append_result(match, trainable, experience, kept_seats=[hero])

    def _begin_group(self) -> None:
        """Fix the standings and configuration of all matches of the next group, which begins at a multiple of its size.

        Smaller indices are left out after a change of ``rollout.group_size``.
        """
        self._group_standings, self._group_config = self._context.state.standings(), self._context.config
        size = self._group_config.rollout.group_size
        self._next_match_index = -(-self._next_match_index // size) * size

    def _make_match(self) -> tuple[PlayMatch, OpponentsSampled]:
        """The next match; all matches of a group are drawn from the same standings and configuration."""
        if self._begins_group:
            self._begin_group()
        index = self._next_match_index
        self._next_match_index += 1
        counts = self.executor.seat_counts
        return make_match(self._group_standings, self._group_config, self._context.name, index, counts, self._policy)

    def _make_trajectory(self, match: CompletedMatch | None, seat: int) -> Trajectory | None:
        """The hero's trajectory; None when the match failed or an opponent's invalid move disqualifies it."""
        if match is None:
            return None
        others = (metrics for other, metrics in enumerate(match.outcome.metrics) if other != seat)
        is_filtered = self._context.config.rollout.filter_opponent_invalid
        if is_filtered and any(metrics.get("ended_by_invalid") for metrics in others):
            return None
        return match.make_trajectory(seat, self._policy)

    async def _publish(self, trajectory: Trajectory) -> str:
        """Publish a trajectory; return its digest, or "" when it is dropped.

        It is dropped when the stream is full and the trainer has finished, and when it is too large for the broker; the
        match counts without it.
        """
        context = self._context
        try:
            publish = partial(context.experience.publish, trajectory)
            return await context.persistently(publish, give_up=self._is_training_finished)
        except BackpressureError:
            return ""
        except MessageTooLargeError as error:
            log.error("trajectory dropped", error=str(error))
            return ""

    def _has_room(self) -> bool:
        """Whether to start a match now: not too far ahead of training, nor with a version about to be replaced."""
        config, state = self._context.config, self._context.state
        recorded = max(state.next_match_index(self._context.name), self._first_match_index)
        unrecorded = self._next_match_index - recorded
        limit = max(round(config.rollout.ahead_steps * config.trainer.rollouts_per_step), 1)
        has_lead = state.in_play.matches_ahead(self._policy) + unrecorded >= limit
        return self._models.is_current(self._policy) and not (has_lead and self._begins_group)

    @property
    def _begins_group(self) -> bool:
        """Whether the next match is the first of its group; one that has begun is played to its end."""
        return self._next_match_index % self._group_config.rollout.group_size == 0

    async def _wait_for_room(self) -> None:
        """Wait for the trainer, up to a limit: a worker that died leaves matches that never end."""
        context = self._context
        began, step = asyncio.get_running_loop().time(), context.state.last_step(self._policy)
        while not (self._has_room() or self._is_paused() or self._is_done()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOST_AFTER_S):
                    await context.wait_until(
                        lambda: self._has_room() or self._is_training_finished() or self._is_paused()
                    )
                    return
            waited_s = asyncio.get_running_loop().time() - began
            if context.state.last_step(self._policy) is not step:
                return
            if waited_s >= stall_patience_s(context.config, context.state, self._policy, context.name):
                log.warning("no gradient step for a long time, playing on", seconds=round(waited_s))
                await self.play_training_match()
                return

    def _is_done(self) -> bool:
        return self._context.stopping.is_set() or self._is_training_finished()

    def _is_training_finished(self) -> bool:
        return self._context.state.training_finished(self._policy) is not None

    def _is_paused(self) -> bool:
        return self._context.state.pauses.active_pause(self._policy) is not None


def stall_patience_s(config: LeagueConfig, state: LeagueState, policy: str, worker: str) -> float:
    """Time without a gradient step after which a worker plays on, though play is as far ahead as it may be.

    Where a step's trajectories wait, the trainer is at work, or has dropped some of them; where matches of the worker
    itself are still to fill it, there is no such time; those of others may have lost their worker.
    """
    window = config.trainer.buffer.window(config.trainer.rollouts_per_step)
    waiting = state.in_play.waiting.get(policy, 0)
    if waiting >= window:
        last = state.last_step(policy)
        return _FIRST_STEP_S if last is None else max(_LOST_AFTER_S, _STEP_FACTOR * last.metrics.get("seconds", 0.0))
    own = sum(hero == policy for hero in state.in_play.playing.get(worker, {}).values())
    if waiting + own >= window:
        return math.inf
    return _OTHERS_S if state.in_play.matches_ahead(policy) >= window else _LOST_AFTER_S
