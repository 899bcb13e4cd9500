"""The opponent pool of an inference worker: sessions live in the history alone, so that every server continues them.

A session's opponent is what the first ``SessionOpened`` of its match id in the history says, and its result the first
end of that match; what a server appends counts only once its own fold of the history has it.
"""

import asyncio
import heapq
import itertools
import time
import weakref
from bisect import bisect_left
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from arena.environments import make_environment
from inference.http_server import RefusedError
from inference.server.openai_types import ChatCompletionRequest
from inference.server.opponent_pool import (
    DEFAULT_AGENT,
    ResultReply,
    ResultRequest,
    SessionReply,
    SessionRequest,
    VersionReply,
    VersionRequest,
)
from league.matchmaking.schedule import external_version
from league.matchmaking.sessions import (
    draw_session,
    session_distribution,
    session_expiry,
    session_result,
    virtual_models,
)
from league.state.saved_state import EndedSession, SessionTable
from schemas.episodes import ModelResponse
from schemas.errors import UsageError, format_choices
from schemas.events import Event, SessionOpened
from schemas.ids import agent_name, session_match_id, split_agent
from schemas.loggers import get_logger
from workers.opponent_replies import OpponentReplies
from workers.policy_weights import ModelManager
from workers.runtime import Context

log = get_logger()

_EXPIRY_INTERVAL_S = 1.0
_MAX_APPENDS = 16
"""Batches under way at once: the broker takes 50 of a stream, and abandons more without an answer."""
_DEFAULT_ROLES = ("seat 0", "seat 1")

T = TypeVar("T")


class LeagueOpponents:
    """Sessions against the agents of a league; see ``inference.server.opponent_pool.OpponentPool``.

    The context's state must be at the end of the history at this moment.
    """

    def __init__(self, context: Context, models: ModelManager) -> None:
        self._context = context
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """Heap of futures by the sequence that they wait for."""
        self._ticket = itertools.count()
        self._appends = asyncio.Semaphore(_MAX_APPENDS)
        self._running: set[asyncio.Task[Any]] = set()
        spec = make_environment(context.config.game.name, context.config.game.settings)
        self._roles: Sequence[str] = spec.seats
        self._replies = OpponentReplies(context, spec, models)

    def names(self) -> Sequence[str]:
        """Names of the virtual models: one per sampler, and the best."""
        return virtual_models()

    async def open(self, body: SessionRequest) -> SessionReply:
        """Open a session, with an opponent by the virtual model's rule, or find it."""
        agent = await self._resolve_agent(body.agent)
        policy = agent.rpartition("@")[0]
        name = self._renew(policy, body.session) if body.renews else body.session
        match_id = session_match_id(policy, name)
        if self._sessions.find(match_id) is None:
            await self._uncancelled(self._open(match_id, name, agent, body))
        open_session = self._find(match_id, name)
        if open_session.model != body.model:
            raise RefusedError(
                409,
                f"session {name!r}: opened for {open_session.model!r}, and now {body.model!r}; expected one",
                "model",
            )
        return SessionReply(name, match_id, open_session.agent, open_session.opponent)

    async def reply(self, session: SessionReply, body: ChatCompletionRequest) -> ModelResponse | None:
        """The reply of a bot or a remote agent; None for a model, which the server samples."""
        if self._context.state.is_model(session.opponent):
            return None
        open_session = self._find(session.match_id, session.session)
        return await self._uncancelled(self._replies.reply(open_session, body))

    async def close(self) -> None:
        """Close the connections to remote agents."""
        await self._replies.close()

    async def report(self, body: ResultRequest) -> ResultReply:
        """Record the result of a session as its match's."""
        policy = (split_agent(body.agent) or (body.agent,))[0]
        return await self._uncancelled(self._report(session_match_id(policy, body.session), body))

    async def add_version(self, body: VersionRequest) -> VersionReply:
        """Record a version of an external agent."""
        return await self._uncancelled(self._add_version(body.agent, body.version))

    async def follow(self) -> None:
        """Wake the requests whose events the fold has reached; runs until cancelled."""
        while True:
            while self._waiting and self._waiting[0][0] <= self._context.state.sequence:
                future = heapq.heappop(self._waiting)[2]
                if not future.done():
                    future.set_result(None)
            await self._context.wait_for_event(timeout_s=60.0)

    async def expire(self) -> None:
        """Record the end of sessions whose time is over; runs until cancelled."""
        while True:
            now = time.time()
            workers = self._context.state.workers
            for opened in [session for session in self._sessions.open.values() if session.expires < now]:
                worker = workers.get(opened.worker)
                # The server that opened it ends it; once that one has left, any does.
                if opened.worker == self._context.name or worker is None or worker.left is not None:
                    await self._uncancelled(self._expire(opened))
            await asyncio.sleep(_EXPIRY_INTERVAL_S)

    @property
    def _sessions(self) -> SessionTable:
        return self._context.state.sessions

    async def _resolve_agent(self, body: str) -> str:
        """The version of an external agent that a request names; the default agent's is added when needed."""
        versions = self._context.state.external_versions
        member = self._context.state.agents.get(body)
        if body == DEFAULT_AGENT and body not in versions:
            await self._uncancelled(self._add_version(body, 0))
        if body in versions:
            return agent_name(body, versions[body])
        if member is not None and member.kind == "external":
            return body
        raise RefusedError(
            404,
            f"agent {body[:80]!r}: no such external agent; expected {format_choices(versions)}, or a new one, which "
            "POST /v1/league/agents adds",
            "league_agent",
        )

    def _renew(self, policy: str, name: str) -> str:
        """The first name of a row, ``NAME``, ``NAME 2``, ``NAME 3`` …, whose session has not ended."""

        def has_ended(number: int) -> bool:
            return self._context.state.has_match_ended(session_match_id(policy, _numbered(name, number)))

        # Names are used in order, so that those of ended sessions come first: doubling, then bisection.
        high = 1
        while has_ended(high):
            high *= 2
        return _numbered(name, bisect_left(range(high), True, lo=high // 2 + 1, key=lambda at: not has_ended(at)))

    def _find(self, match_id: str, name: str) -> SessionOpened | EndedSession:
        open_session = self._sessions.find(match_id)
        if open_session is not None:
            return open_session
        if self._context.state.has_match_ended(match_id):
            raise RefusedError(409, f"session {name!r}: ended long ago; expected a new name for every session")
        raise RefusedError(404, f"session {name[:80]!r}: unknown to this agent; expected an open session")

    async def _open(self, match_id: str, name: str, agent: str, body: SessionRequest) -> None:
        async with self._lock(match_id):
            state, config = self._context.state, self._context.config
            if self._sessions.find(match_id) is not None or state.has_match_ended(match_id):
                return
            game = body.game or config.game.name
            now = time.time()
            standings = state.standings()
            others = self._replies.eligible(game, body.position, body.choices)
            session = SessionOpened(
                match_id=match_id,
                session=name,
                model=body.model,
                agent=agent,
                seat=body.seat,
                opponent="",
                probabilities={},
                game=game,
                roles=list(self._session_roles(game, body)),
                worker=self._context.name,
                opened=now,
                expires=now + config.inference.session_s,
                eligible=sorted(others),
            )
            distribution = session_distribution(
                standings, config, body.model, agent, lambda name: name in others or state.is_model(name)
            )
            await self._append(*draw_session(session, standings, config, distribution))

    def _session_roles(self, game: str, body: SessionRequest) -> Sequence[str]:
        own = self._roles if game == self._context.config.game.name else ()
        roles = body.roles or own or _DEFAULT_ROLES
        if len(roles) < 2 or (own and len(roles) != len(own)):
            raise UsageError(f"session of {game}: {len(roles)} seats; expected {len(own) or '2 or more'}")
        if body.seat >= len(roles):
            raise UsageError(f"session of {game}: seat {body.seat}; expected 0 to {len(roles) - 1}")
        return roles

    async def _report(self, match_id: str, body: ResultRequest) -> ResultReply:
        async with self._lock(match_id):
            ended = self._find(match_id, body.session)
            if created := isinstance(ended, SessionOpened):
                is_own = ended.game == self._context.config.game.name
                rules = self._context.state.rules if is_own else 1
                seconds = max(0.0, time.time() - ended.opened)
                worker = self._context.name
                await self._append(session_result(ended, body.scores, worker, seconds, body.reason, body.length, rules))
                ended = self._find(match_id, body.session)
            assert isinstance(ended, EndedSession)
            if ended.error or ended.scores != body.scores:
                end = ended.error or f"scores {ended.scores}"
                raise RefusedError(
                    409,
                    f"session {body.session!r}: ended at event {ended.sequence} ({end}); reported are scores "
                    f"{body.scores}; expected one result",
                    "scores",
                )
            return ResultReply(body.session, match_id, ended.sequence, ended.scores, ended.opponent, created)

    async def _expire(self, opened: SessionOpened) -> None:
        async with self._lock(opened.match_id):
            if opened.match_id in self._sessions.open:
                log.info("a session ends without a result", session=opened.session, agent=opened.agent)
                await self._append(session_expiry(opened, self._context.name))

    async def _add_version(self, policy: str, version: int) -> VersionReply:
        async with self._lock(policy):
            try:
                added = external_version(self._context.state, policy, version, self._context.name)
            except UsageError as error:
                if version < self._context.state.external_versions.get(policy, 0):
                    raise RefusedError(409, str(error)) from error
                raise
            if added is not None:
                await self._append(added)
            return VersionReply(agent_name(policy, version), created=added is not None)

    async def _append(self, *events: Event) -> None:
        """Append events as one batch, and wait until they are folded."""
        async with self._appends:
            sequences = await self._context.log.append_batch(events)
        if self._context.state.sequence < sequences[-1]:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (sequences[-1], next(self._ticket), future))
            await future

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish work whose client may disconnect: what was begun is recorded before its session is used again."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Retrieved here too, for work whose client has disconnected.
            task.exception()


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} {number}"
