"""Protocols of play: how roles interact, when an episode ends, and the facts for its rubric.

Here is the contract of an episode, and the boundary at which a failure becomes a recorded one.

- ``chat``  roles that take turns in a conversation, with private observations
- ``game``  any game, each seat a role or a bot
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from arena.arena import Arena
from arena.model_call import EpisodeContext, RunningEpisode, run_within
from arena.rubrics import Rubric, Scores
from schemas.episodes import EpisodeRequest, EpisodeState, GenerateResult, Messages, ModelResponse, Rollout
from schemas.errors import EpisodeError, LeagueError, UsageError, describe_error
from schemas.trajectories import ModelCall


class Episode(ABC):
    """A protocol of play. It has no state between episodes, so that many can run concurrently."""

    episode_type: str
    """Name of the episodes of this kind."""
    rubric: Rubric
    """Scores the episodes."""

    @abstractmethod
    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Play about an artifact: call the model and run other episodes through the arena.

        The state is filled and returned; model calls enter its trajectory automatically. Results of other episodes that
        are to be trained on must be added to its ``child_results``. What it raises is recorded as its failure.
        """

    def new_state(self) -> EpisodeState:
        """An empty state; overridden by episodes with further fields."""
        return EpisodeState()

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Facts for the rubric beside the model calls, and nothing else; none by default."""
        return {}

    async def call_model(
        self,
        role_id: str = "",
        prompt: str | Messages = (),
        arena: Arena | None = None,
        *,
        actor_id: str = "",
        messages: Messages = (),
    ) -> ModelResponse:
        """Call the model for a role; ``EpisodeError`` for an unknown role or an unusable reply.

        The prompt is the user's message, which follows the role's system prompt, or a whole conversation.
        ``actor_id`` and ``messages`` are other names for ``role_id`` and ``prompt``.
        """
        if arena is None:
            raise UsageError(f"{self.episode_type}: call_model without an arena; expected arena=arena")
        role_id, prompt = role_id or actor_id, prompt or messages
        conversation = arena.role(role_id).build_messages(prompt) if isinstance(prompt, str) else prompt
        return await arena.call_model(conversation, role_id)

    async def generate(
        self,
        arena: Arena,
        request: EpisodeRequest | Any,
        context: EpisodeContext | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> GenerateResult:
        """Run one episode at a position among others, by default the next one: play, record, score.

        The request may be the artifact alone, with ``meta``. A failed episode holds the reason and no rewards, and its
        children that ended before the failure.
        """
        if not isinstance(request, EpisodeRequest):
            request = EpisodeRequest(self.episode_type, request, meta=dict(meta or {}))
        context = context or arena.new_context(request)
        running = RunningEpisode(context, EpisodeState())
        record = Rollout(
            id=context.id,
            episode_type=self.episode_type,
            artifact=request.artifact,
            steps=[],
            policy_version=context.policy_version,
            meta=request.meta or {},
            parent=context.parent,
            depth=context.depth,
            group=request.group,
            group_size=request.group_size,
            is_trainable=context.is_trainable,
            started_at=time.time(),
        )
        if arena.observer is not None:
            arena.observer.episode_started(context, self.episode_type, request)
        with run_within(running):
            rollout = await self._run_with_limits(arena, request, record, running)
        if arena.observer is not None:
            arena.observer.episode_ended(rollout)
        return GenerateResult(rollout, list(_unique_children(running.state).values()))

    async def _run_with_limits(
        self, arena: Arena, request: EpisodeRequest, record: Rollout, running: RunningEpisode
    ) -> Rollout:
        """The finished record, with the reason if anything was raised."""
        limit = asyncio.timeout(arena.limits.episode_s)
        try:
            async with limit:
                state = self.new_state()
                state.rollout_id, state.seed = running.context.id, running.context.seed
                state.role_ids = tuple(arena.roles)
                running.state = state
                record = msgspec.structs.replace(record, artifact=await arena.resolve_artifact(request))
                if await self.rollout(arena, record.artifact, state) is not state:
                    raise EpisodeError(f"{self.episode_type}: rollout returned another state; expected the given one")
                if len(_unique_children(state)) != len(state.child_results):
                    raise EpisodeError(
                        f"{self.episode_type}: child_results; expected results of other episodes, each once"
                    )
                played = msgspec.structs.replace(record, steps=list(state.trajectory), extras=self.get_extras(state))
                return _apply_scores(played, await self.rubric.score(played, arena))
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            # A script may exit and a client may be cancelled on its own: neither is meant to stop this worker.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0):
                raise
            late = isinstance(error, TimeoutError) and limit.expired()
            reason = f"not over after {arena.limits.episode_s:g} s" if late else failure_reason(error)
            steps = list(running.state.trajectory)
            return msgspec.structs.replace(record, steps=steps, failure=reason, ended_at=time.time())


def _apply_scores(rollout: Rollout, scores: Scores) -> Rollout:
    """The rollout with its scores; each step with its role's, and its tokens with what ``info`` adds to them."""
    steps = []
    for step in rollout.steps:
        tokens = step.tokens
        reward = scores.rewards.get(step.role_id, 0.0)
        data = {name: value for name, value in step.info.items() if name not in ModelCall.__struct_fields__}
        if tokens is not None and data:
            # As values that can be published.
            values = msgspec.msgpack.decode(msgspec.msgpack.encode(data, enc_hook=repr))
            tokens = msgspec.structs.replace(tokens, info=values)
        steps.append(msgspec.structs.replace(step, reward=reward, tokens=tokens))
    return msgspec.structs.replace(
        rollout, steps=steps, rewards=scores.rewards, metrics=scores.metrics, ended_at=time.time()
    )


def _unique_children(state: EpisodeState) -> dict[str, GenerateResult]:
    """Results of child episodes by id: no call may be in a batch twice."""
    return {child.rollout.id: child for child in state.child_results if isinstance(child, GenerateResult)}


def failure_reason(error: BaseException) -> str:
    """Reason for an episode's failure, in one line: the first of several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, LeagueError) else describe_error(error)
