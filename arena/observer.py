"""Log of an arena's events while it plays."""

from collections.abc import Sequence
from typing import Any

import msgspec

from arena.model_call import EpisodeContext
from schemas.batches import TrainingBatch
from schemas.episodes import EpisodeRequest, GenerateResult, Message, ModelResponse, Rollout
from schemas.loggers import get_logger

LOGGER_NAME = "arena"


class LoggingObserver:
    """Logs all events at level ``debug``. Lines of one episode share ``episode``, of one step ``step``.

    The arena calls it in its own thread: an observer in its place that is slow delays play.
    """

    def __init__(self, log: Any = None, texts: int = 2_000) -> None:
        """Use this process's logger by default; cut texts longer than ``texts`` in the middle."""
        self._log = get_logger(LOGGER_NAME) if log is None else log
        self._texts = texts
        self._step: dict[str, int] = {}

    def run_started(self, arena: str, num_steps: int | None, roles: Sequence[str], seed: int) -> None:
        """A run begins, of ``num_steps`` steps or without end."""
        self._log.debug("run started", arena=arena, steps=num_steps, roles=list(roles), seed=seed)

    def step_started(self, step: int, requests: Sequence[EpisodeRequest]) -> None:
        """A batch begins; steps count from 0."""
        self._step = {"step": step}
        self._debug("step started", requests=len(requests))

    def step_ended(self, results: Sequence[GenerateResult], batch: TrainingBatch) -> None:
        """A batch was played, with its credit assigned: its trees, a summary, and each training record."""
        for result in results:
            self.log_result(result)
        counts = msgspec.structs.asdict(batch.counts)
        self._debug("batch", **counts, rewards=batch.rewards, version=batch.policy_version)
        for record in batch.records:
            self._debug(
                "training record",
                episode=record.rollout_id,
                call=record.step_index,
                role=record.role_id,
                group=record.group,
                reward=record.reward,
                advantage=record.advantage,
                prompt_tokens=len(record.step.prompt_ids),
                completion_tokens=len(record.step.completion_ids),
                actions=len(record.step.branches),
                version=record.step.version,
            )
        self._debug("step ended", records=len(batch.records), failed=batch.counts.failed)

    def log_result(self, result: GenerateResult, depth: int = 0) -> None:
        """Log a tree of episodes, parents before their children."""
        rollout, calls, children = result.rollout, len(result.rollout.steps), len(result.children)
        facts = {"failure": rollout.failure} if rollout.failure else {"rewards": rollout.rewards}
        kind = rollout.episode_type
        self._debug("result", rollout, depth=depth, kind=kind, calls=calls, children=children, **facts)
        for child in result.children:
            self.log_result(child, depth + 1)

    def episode_started(self, context: EpisodeContext, episode_type: str, request: EpisodeRequest) -> None:
        """An episode begins; ``context`` is its position among others."""
        about = {} if request.artifact is None else {"artifact": self._truncate(str(request.artifact))}
        about |= {"store": request.store} if request.store else {}
        self._debug("episode started", context, kind=episode_type, **about)

    def episode_ended(self, rollout: Rollout) -> None:
        """An episode was scored, or failed."""
        self._debug(
            "episode ended",
            rollout,
            kind=rollout.episode_type,
            calls=len(rollout.steps),
            rewards=rollout.rewards,
            metrics=rollout.metrics,
            failure=rollout.failure,
            seconds=round(rollout.ended_at - rollout.started_at, 6),
        )

    def model_called(
        self,
        context: EpisodeContext | None,
        number: int,
        role_id: str | None,
        messages: Sequence[Message],
        response: ModelResponse,
        seconds: float,
    ) -> None:
        """A model gave a usable reply to a role, or to a judge (None)."""
        tokens = response.tokens
        self._debug(
            "model call",
            context,
            call=number,
            role=role_id or "judge",
            prompt=[f"{message.role}: {self._truncate(message.content)}" for message in messages],
            reply=self._truncate(response.text),
            finish=response.finish_reason,
            tokens=0 if tokens is None else len(tokens.completion_ids),
            version=None if tokens is None else tokens.version,
            seconds=round(seconds, 6),
        )

    def _debug(self, event: str, of: EpisodeContext | Rollout | None = None, **facts: Any) -> None:
        place = {} if of is None else {"episode": of.id} | ({"parent": of.parent} if of.parent else {})
        self._log.debug(event, **self._step, **place, **facts)

    def _truncate(self, text: str) -> str:
        half = self._texts // 2
        return text if len(text) <= self._texts else f"{text[:half]} … {text[-half:]}"
