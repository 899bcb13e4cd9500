"""The opponent pool over HTTP: sessions against opponents of the league, their results, and external agents.

| request | answer |
|---|---|
| ``POST /v1/chat/completions``, model ``league/…`` | the opponent's reply; the first request opens the session |
| ``POST /v1/league/sessions`` | opens a session, or finds it: its opponent |
| ``POST /v1/league/results`` | records the scores of a session, once |
| ``POST /v1/league/agents`` | adds an external agent, or a version of it |
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

import msgspec
from aiohttp import web

from inference.http_server import RefusedError
from inference.server.admission import AdmissionControl
from inference.server.openai_types import ChatCompletionRequest, decode_request, message_text
from schemas.episodes import ModelResponse
from schemas.ids import digest
from schemas.numbers import Count

MODEL_PREFIX = "league/"
"""Begins the name of every virtual model."""
DEFAULT_AGENT = "guest"
"""External agent of clients that name none."""
_HEADERS = {"session": "X-League-Session", "agent": "X-League-Agent", "game": "X-League-Game", "seat": "X-League-Seat"}

Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
T = TypeVar("T")


class SessionRequest(msgspec.Struct, frozen=True):
    """``POST /v1/league/sessions``; fields as in ``ChatCompletionRequest``."""

    model: str
    session: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]
    agent: str = DEFAULT_AGENT
    game: Name = ""
    seat: Count = 0
    roles: Annotated[list[Name], msgspec.Meta(max_length=100)] = []
    renews: bool = False
    """Whether an ended session of this name is followed by another one: the name is no client's choice."""
    position: bool = False
    """Whether its chat requests carry ``league_position``, so that bots can be drawn."""
    choices: bool = False
    """Whether they carry the legal replies as ``structured_outputs.choice``, so that ``random_bot`` can be drawn."""


class SessionReply(msgspec.Struct, frozen=True):
    """An open session."""

    session: str
    """Name to report the result under."""
    match_id: str
    agent: str
    opponent: str


class ResultRequest(msgspec.Struct, frozen=True):
    """``POST /v1/league/results``."""

    session: str
    scores: list[float]
    """Scores by seat; higher is better."""
    agent: str = DEFAULT_AGENT
    reason: Name = ""
    """Why the game ended."""
    length: Count = 0
    """Number of turns."""


class ResultReply(msgspec.Struct, frozen=True):
    """A recorded result."""

    session: str
    match_id: str
    sequence: int
    """Sequence of the match's event."""
    scores: list[float]
    opponent: str
    created: bool
    """False where the same result had been recorded before."""


class VersionRequest(msgspec.Struct, frozen=True):
    """``POST /v1/league/agents``."""

    agent: str
    """Name of the external agent."""
    version: Count = 0


class VersionReply(msgspec.Struct, frozen=True):
    """A version that is in the league."""

    agent: str
    """``grpo@40``."""
    created: bool
    """False where it had been added before."""


class OpponentPool(Protocol):
    """Sessions of external agents against agents of a league."""

    def names(self) -> Sequence[str]:
        """Names of the virtual models; every agent that can answer is another one."""

    async def open(self, body: SessionRequest) -> SessionReply:
        """Open a session, or find it: its opponent stays the same.

        Raises:
            RefusedError: an unknown agent (404); or the session was opened otherwise (409).
            UsageError: an unknown virtual model, one without an eligible opponent, or a seat that the game has not.
        """

    async def reply(self, session: SessionReply, body: ChatCompletionRequest) -> ModelResponse | None:
        """The reply of a session's opponent, where it is a bot or a remote agent; None for a model of the server.

        Raises:
            RefusedError: the request lacks what a bot needs, or has a field that the opponent cannot honour (400).
            RemoteError: the remote agent's server gave no reply.
        """

    async def report(self, body: ResultRequest) -> ResultReply:
        """Record the result of a session.

        Raises:
            RefusedError: no such session (404); or it ended with another result, or without one (409).
            UsageError: the scores do not fit the game.
        """

    async def add_version(self, body: VersionRequest) -> VersionReply:
        """Add a version of an external agent, newer than all others of it.

        Raises:
            RefusedError: a newer one is there already (409).
            UsageError: the name is invalid, or that of another agent.
        """


def chat_session(body: ChatCompletionRequest, headers: Mapping[str, str]) -> SessionRequest:
    """The session that a chat request belongs to; raises ``RefusedError`` for too long a name, or an unusable seat."""
    structured = body.structured_outputs
    values = {name: headers[header] for name, header in _HEADERS.items() if header in headers}
    name = values.get("session") or body.league_session or body.user or ""
    # Without one, conversations that agree up to the first message of the user's share a session.
    first = next((index for index, message in enumerate(body.messages) if message.role == "user"), 0)
    opening = [(message.role, message_text(message)) for message in body.messages[: first + 1]] if not name else []
    fields = {
        "model": body.model,
        "session": name or f"conversation {digest(msgspec.json.encode([body.model, opening]))[:32]}",
        "agent": values.get("agent") or body.league_agent or DEFAULT_AGENT,
        "game": values.get("game") or body.league_game,
        "seat": values.get("seat") or body.league_seat,
        "roles": body.league_roles,
        "renews": not name,
        "position": body.league_position is not None,
        "choices": structured is not None and bool(structured.choice),
    }
    try:
        return msgspec.convert(fields, SessionRequest, strict=False)
    except msgspec.ValidationError as error:
        raise RefusedError(400, f"session: {error}", "league_session") from error


@dataclass
class PoolRoutes:
    """Answers ``/v1/league/sessions``, ``/v1/league/results`` and ``/v1/league/agents``."""

    pool: OpponentPool | None
    admission: AdmissionControl

    async def open(self, request: web.Request) -> web.Response:
        """Open a session."""
        return await self._answer(request, SessionRequest, lambda pool, body: pool.open(body))

    async def report(self, request: web.Request) -> web.Response:
        """Record a result."""
        return await self._answer(request, ResultRequest, lambda pool, body: pool.report(body))

    async def add_version(self, request: web.Request) -> web.Response:
        """Add an external agent, or a version of it."""
        return await self._answer(request, VersionRequest, lambda pool, body: pool.add_version(body))

    async def _answer(
        self, request: web.Request, kind: type[T], act: Callable[[OpponentPool, T], Awaitable[msgspec.Struct]]
    ) -> web.Response:
        body = decode_request(await self.admission.read(request), kind)
        with self.admission.admit():
            if self.pool is None:
                raise RefusedError(404, "this server has no opponent pool; expected an inference worker of a league")
            result = await act(self.pool, body)
        return web.Response(body=msgspec.json.encode(result), content_type="application/json")
