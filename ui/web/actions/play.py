"""Matches against agents in the browser. The secret of a match authorises every further request."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Annotated

import msgspec
from aiohttp import web

from league.queries.live_league import LiveLeague
from league.queries.playable import wait_until_folded
from ui.play.lobby import HumanMatchLobby
from ui.web.actions import ActionHandler, decode_body, json_response

_POLL_TIMEOUT_S = 20.0
"""Maximum wait for a new view; shorter than the timeouts of proxies."""


class StartGameRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request to start a match."""

    seat: int
    agents: Annotated[list[str], msgspec.Meta(max_length=64)]
    """Agents of all seats; the one of the person's seat is ignored."""


class GameViewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request for the view of a match."""

    secret: str
    since: int = -1
    """Number of changes that the page has already shown."""


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A person's move."""

    secret: str
    number: int
    """Number of the question."""
    reply: Annotated[str, msgspec.Meta(max_length=20_000)]


class PlayActions:
    """Matches of one league's visitors."""

    def __init__(self, league: LiveLeague) -> None:
        self._league = league
        self._lobby: HumanMatchLobby | None = None
        self._wake_task: asyncio.Task[None] | None = None

    def routes(self) -> Mapping[str, ActionHandler]:
        """See ``ActionGroup``."""
        return {
            "/play/begin": self.start_game,
            "/play/look": self.poll_game,
            "/play/answer": self.submit_move,
            "/play/pictures": self.read_pictures,
            "/play/leave": self.leave_game,
        }

    async def close(self) -> None:
        """See ``ActionGroup``: open matches fail."""
        if self._lobby is not None:
            await self._lobby.close()
        if self._wake_task is not None:
            self._wake_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._wake_task

    async def start_game(self, request: web.Request) -> web.StreamResponse:
        """Starts a match."""
        body = await decode_body(request, StartGameRequest)
        await wait_until_folded(self._league.state, self._league.position)
        secret, match = self._open_lobby().start_match(body.seat, body.agents)
        return json_response({"secret": secret, "match_id": match.job.match_id})

    async def poll_game(self, request: web.Request) -> web.StreamResponse:
        """Returns the view once it has changed."""
        body = await decode_body(request, GameViewRequest)
        return json_response(await self._open_lobby().get_match(body.secret).wait_for_view(body.since, _POLL_TIMEOUT_S))

    async def submit_move(self, request: web.Request) -> web.StreamResponse:
        """Submits a move."""
        body = await decode_body(request, MoveRequest)
        self._open_lobby().get_match(body.secret).person.answer(body.number, body.reply)
        return json_response({})

    async def read_pictures(self, request: web.Request) -> web.StreamResponse:
        """Returns drawings of the position and the one before it."""
        body = await decode_body(request, GameViewRequest)
        return json_response(await self._open_lobby().get_match(body.secret).draw_positions())

    async def leave_game(self, request: web.Request) -> web.StreamResponse:
        """Abandons a match."""
        body = await decode_body(request, GameViewRequest)
        self._open_lobby().get_match(body.secret).person.leave("the person left")
        return json_response({})

    def _open_lobby(self) -> HumanMatchLobby:
        if self._lobby is None:
            self._lobby = HumanMatchLobby(self._league.run, self._league.log, self._league.state)
            self._wake_task = asyncio.create_task(self._wake_lobby(self._lobby))
        return self._lobby

    async def _wake_lobby(self, lobby: HumanMatchLobby) -> None:
        while True:
            await self._league.wait_for_sequence(self._league.position + 1)
            lobby.wake()
