"""POST actions of the web pages: ``sql`` and ``play``, and what they share."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from inference.http_server import read_body
from league.projections.query import QueryLimits, QueryProcess, QueryResult, names_decisions
from league.queries.live_league import LiveLeague
from league.queries.playable import wait_until_folded
from league.queries.stored import ProjectionCopy
from league.queries.tables import unreadable_warning
from league.queries.text_table import render_rows
from schemas.errors import BusyError, LeagueError, UsageError
from ui.play.human_match import HumanMatch, HumanMatchLobby

ActionHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")
_POLL_TIMEOUT_S = 20.0
"""Maximum wait for a new view; shorter than the timeouts of proxies."""
MAX_ROWS = 1_000
"""Maximum number of rows shown on a page."""
MAX_FILE_ROWS = 100_000
"""Maximum number of rows in a download, which is built in this process's memory."""
MAX_CONCURRENT = 3
"""Maximum number of concurrent queries; each may use a gigabyte and a core."""
_MAX_CELL_CHARS = 2_000
"""Maximum number of characters of a cell on a page; downloads have all of them."""
_MAX_SAFE_INTEGER = 2**53
"""Largest integer that browsers represent exactly."""
PositionedResult = tuple[QueryResult, int]
"""A result, and the sequence of the last event that it includes."""


async def decode_body(request: web.Request, kind: type[T]) -> T:
    """Decode the body of a request; raises ``UsageError``, with the field's name, where it is not of that type."""
    try:
        return msgspec.json.decode(await read_body(request), type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{request.path}: {error}") from None


def json_response(value: Any) -> web.Response:
    """Make a JSON response that is not cached."""
    return web.Response(
        body=msgspec.json.encode(value), content_type="application/json", headers={"Cache-Control": "no-store"}
    )


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
        """Handlers of ``POST`` by path below ``/api``."""
        return {
            "/play/begin": self.start_game,
            "/play/look": self.poll_game,
            "/play/answer": self.submit_move,
            "/play/pictures": self.read_pictures,
            "/play/leave": self.leave_game,
        }

    async def close(self) -> None:
        """Fail open matches when the server stops."""
        if self._lobby is not None:
            await self._lobby.close()
        if self._wake_task is not None:
            self._wake_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._wake_task

    async def start_game(self, request: web.Request) -> web.StreamResponse:
        """Start a match."""
        body = await decode_body(request, StartGameRequest)
        await wait_until_folded(self._league.state, self._league.position)
        secret, match = self._open_lobby().start_match(body.seat, body.agents)
        return json_response({"secret": secret, "match_id": match.job.match_id})

    async def poll_game(self, request: web.Request) -> web.StreamResponse:
        """Respond with the view once it has changed."""
        match, since = await self._find_match(request)
        return json_response(await match.wait_for_view(since, _POLL_TIMEOUT_S))

    async def submit_move(self, request: web.Request) -> web.StreamResponse:
        """Submit a move."""
        body = await decode_body(request, MoveRequest)
        self._open_lobby().get_match(body.secret).person.answer(body.number, body.reply)
        return json_response({})

    async def read_pictures(self, request: web.Request) -> web.StreamResponse:
        """Respond with drawings of the position and the one before it."""
        match, _ = await self._find_match(request)
        return json_response(await match.draw_positions())

    async def leave_game(self, request: web.Request) -> web.StreamResponse:
        """Abandon a match."""
        match, _ = await self._find_match(request)
        match.person.leave("the person left")
        return json_response({})

    async def _find_match(self, request: web.Request) -> tuple[HumanMatch, int]:
        body = await decode_body(request, GameViewRequest)
        return self._open_lobby().get_match(body.secret), body.since

    def _open_lobby(self) -> HumanMatchLobby:
        if self._lobby is None:
            self._lobby = lobby = HumanMatchLobby(self._league.run, self._league.log, self._league.state)

            async def wake_lobby() -> None:
                while True:
                    await self._league.wait_for_sequence(self._league.position + 1)
                    lobby.wake()

            self._wake_task = asyncio.create_task(wake_lobby())
        return self._lobby


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request to run a statement."""

    statement: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
    page: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    form: Literal["rows", "csv"] = "rows"


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Request to cancel a page's statement."""

    page: str


class SqlActions:
    """SQL queries of one league's visitors.

    They run on a copy of the league's tables, so that they neither block its writer nor wait for it.
    """

    def __init__(self, league: LiveLeague) -> None:
        self._copy = ProjectionCopy(league)
        self._running: dict[str, asyncio.Task[PositionedResult]] = {}

    def routes(self) -> Mapping[str, ActionHandler]:
        """Handlers of ``POST`` by path below ``/api``."""
        return {"/sql": self.run_statement, "/sql/stop": self.cancel_statement}

    async def close(self) -> None:
        """Cancel running statements when the server stops."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._copy.close()

    async def run_statement(self, request: web.Request) -> web.StreamResponse:
        """Run a statement; respond with rows to show, or with a file."""
        body = await decode_body(request, SqlRequest)
        shown = body.form == "rows"
        if body.page in self._running:
            raise BusyError("this page's last query is still running; wait for it, or stop it")
        if len(self._running) >= MAX_CONCURRENT:
            raise BusyError(f"{MAX_CONCURRENT} other queries are running; try again in a moment")
        task = asyncio.create_task(self._execute(body.statement, MAX_ROWS if shown else MAX_FILE_ROWS))
        self._running[body.page] = task
        task.add_done_callback(lambda _: self._running.pop(body.page, None))
        await asyncio.wait([task])
        if task.cancelled():
            raise LeagueError("query stopped at the request of its page")
        result, position = task.result()
        if shown:
            answer = {
                "columns": result.columns,
                "types": result.types,
                "rows": [[_cell(value) for value in row] for row in result.rows[:MAX_ROWS]],
                "more": len(result.rows) > MAX_ROWS,
                "position": position,
                "warning": unreadable_warning(result),
            }
            return json_response(answer)
        text = await asyncio.to_thread(render_rows, result.columns, result.types, result.rows[:MAX_FILE_ROWS], "csv")
        headers = {"Content-Disposition": 'attachment; filename="answer.csv"', "Cache-Control": "no-store"}
        if len(result.rows) > MAX_FILE_ROWS:
            headers["X-Rows-Left-Out"] = f"after the first {MAX_FILE_ROWS}"
        return web.Response(text=text, content_type="text/csv", headers=headers)

    async def cancel_statement(self, request: web.Request) -> web.StreamResponse:
        """Cancel a page's statement."""
        task = self._running.get((await decode_body(request, CancelRequest)).page)
        return json_response({"stopped": task is not None and task.cancel()})

    async def _execute(self, statement: str, rows: int) -> PositionedResult:
        # One row more than the limit shows whether there are more.
        path = await self._copy.latest(names_decisions(statement))
        query = QueryProcess(path, QueryLimits(max_rows=rows + 1, cut=True))
        try:
            position = await asyncio.to_thread(query.position)
            if position is None:
                raise BusyError("the tables were removed meanwhile; try again")
            return await asyncio.to_thread(query.run, statement), position
        finally:
            query.close()


def _cell(value: Any) -> Any:
    """A value for a page: those that JSON and browsers cannot represent become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        is_exact = abs(value) <= _MAX_SAFE_INTEGER if isinstance(value, int) else isfinite(value)
        return value if is_exact else str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, list | dict):
        # Unlike msgspec's JSON, this writes floats that are not finite, which are no nulls.
        parts = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    else:
        text = str(value)
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}… ({len(text):,} characters)"
