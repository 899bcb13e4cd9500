"""The web server of a league: answers, live stream and static files."""

import asyncio
import contextlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler

from inference.http_server import ErrorStatuses, RefusedError, check_origin, error_boundary, listen, port_of
from league.queries.live_league import LiveLeague, open_live_league
from league.queries.pages import EncodedResponse, RequestParams, Route, routes
from league.queries.pages.matches import load_whole_match
from league.run import Run
from schemas.config.base import is_loopback
from schemas.errors import BusyError, LeagueError, LogError, UsageError, format_choices
from ui.web.actions import PlayActions, SqlActions
from ui.web.bundle import STATIC
from ui.web.frozen import make_match_file, page_policy
from workers.runtime import beside, call_on_signals

_MAX_CACHED_RESPONSES = 256
_KEEPALIVE_S = 15.0
"""Interval of keep-alive messages on an idle stream, which proxies would close."""
COOKIE = "league-token"
_SECURITY_HEADERS = {
    # Only the server's own scripts and styles: texts of agents can never run.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_ERROR_STATUSES: ErrorStatuses = ((UsageError, 400), ((BusyError, LogError), 503), (LeagueError, 404))


async def serve_web(
    runs: Sequence[Run], host: str, port: int, announce: Callable[[str], None], token: str | None = None
) -> None:
    """Serve the pages of one or several leagues until the process gets a signal to stop.

    The first run is shown by default. Port 0 takes a free one. ``announce`` is called once with the address of the
    pages, token included. Without a ``token``, one is generated if other machines can reach the address.

    Raises:
        UsageError: there is no league, or the server cannot listen on the address.
    """
    stopped = asyncio.Event()
    guard = RequestGuard(host, token)
    async with contextlib.AsyncExitStack() as opened:
        leagues: dict[str, LiveLeague] = {}
        for name, run in zip(run_names([run.folder for run in runs]), runs, strict=True):
            history = await opened.enter_async_context(run.open_log("web"))
            leagues[name] = await opened.enter_async_context(open_live_league(run, history))
        follow = [work for league in leagues.values() for work in (league.follow(), league.apply_events())]
        await opened.enter_async_context(beside(*follow))
        runner = await listen(make_application(leagues, guard), host, port, "--listen")
        shown = f"?token={guard.token}" if guard.token is not None else ""
        announce(f"http://{f'[{host}]' if ':' in host else host}:{port_of(runner)}/{shown}")
        try:
            with call_on_signals(stopped.set):
                await stopped.wait()
        finally:
            await runner.cleanup()


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names of runs: their folders' names, with as much of the paths as tells them apart; no folder twice."""
    if len(set(folders)) < len(folders):
        raise UsageError("--run: a folder is given twice; expected a different folder each time")
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def make_application(leagues: Mapping[str, LiveLeague], guard: "RequestGuard") -> web.Application:
    """Make the application, for leagues by the names of their runs, which the caller keeps up to date.

    Requests name their run as the parameter ``run``; without it, they are about the first.
    """

    def chosen(request: web.Request) -> str:
        name = request.query.get("run") or next(iter(leagues))
        if name not in leagues:
            raise UsageError(f"run {name!r}: not among the runs shown; expected {format_choices(leagues, name)}")
        return name

    async def list_runs(_: LiveLeague, __: RequestParams) -> list[dict[str, str]]:
        return [{"run": name, "league": league.log.league} for name, league in leagues.items()]

    boundary = error_boundary(_ERROR_STATUSES, _render_error)
    app = web.Application(middlewares=[boundary, guard.middleware], client_max_size=64 * 1024)
    app.on_response_prepare.append(add_security_headers)
    cache = ResponseCache(lambda request: leagues[chosen(request)])
    pages = (Route("/api/match/{id}/file", _match_file, None), Route("/api/runs", list_runs, None))
    for route in (*routes(), *pages):
        # Parts of a path match any text: aiohttp's default pattern excludes braces.
        app.router.add_get(re.sub(r"\{(\w+)\}", r"{\1:[^/]+}", route.path), cache.handler(route))
    groups = {name: (PlayActions(league), SqlActions(league)) for name, league in leagues.items()}
    actions = {name: {**play.routes(), **sql.routes()} for name, (play, sql) in groups.items()}

    async def act(request: web.Request) -> web.StreamResponse:
        return await actions[chosen(request)][request.path.removeprefix("/api")](request)

    async def close(_: web.Application) -> None:
        for play, sql in groups.values():
            await play.close()
            await sql.close()

    for path in next(iter(actions.values())):
        app.router.add_post(f"/api{path}", act)
    app.on_shutdown.append(close)
    app.router.add_get("/api/live", _sse_handler(lambda request: leagues[chosen(request)]))
    app.router.add_static("/static/", STATIC)
    # Every other address is a page, for the router in the browser.
    app.router.add_get("/{page:(?!api/|static/).*}", _serve_page)
    return app


async def _serve_page(_: web.Request) -> web.StreamResponse:
    return web.FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _match_file(league: LiveLeague, params: RequestParams) -> EncodedResponse:
    match = await load_whole_match(league, params.path_part("id"))
    page = await asyncio.to_thread(make_match_file, league, match)
    return EncodedResponse(page.encode(), "text/html", 0)


class ResponseCache:
    """Cache of answers: computed once per event, for all visitors. ``choose`` gives the league of a request."""

    def __init__(self, choose: Callable[[web.Request], LiveLeague]) -> None:
        self._choose = choose
        self._entries: OrderedDict[str, tuple[float, asyncio.Task[EncodedResponse]]] = OrderedDict()

    def handler(self, route: Route) -> Handler:
        """Request handler of a route."""

        async def handle(request: web.Request) -> web.StreamResponse:
            response = await asyncio.shield(self._response_task(route, request))
            headers = {"Cache-Control": f"private, max-age={response.max_age_s}" if response.max_age_s else "no-cache"}
            if response.content_type == "text/html":
                policy = page_policy(response.body.decode())
                headers["Content-Security-Policy"] = f"{policy}; frame-ancestors 'none'"
            return web.Response(body=response.body, content_type=response.content_type, headers=headers)

        return handle

    def _response_task(self, route: Route, request: web.Request) -> "asyncio.Task[EncodedResponse]":
        league = self._choose(request)
        now = time.monotonic() if route.ttl_s is not None else float(league.position)
        since, task = self._entries.get(request.path_qs, (-1.0, None))

        async def respond() -> EncodedResponse:
            result = await route.handler(league, RequestParams(request.query, request.match_info))
            if isinstance(result, EncodedResponse):
                return result
            return EncodedResponse(msgspec.json.encode(result), "application/json", 0)

        def evict_failed(done: "asyncio.Task[EncodedResponse]") -> None:
            failed = done.cancelled() or done.exception() is not None
            if failed and self._entries.get(request.path_qs, (0.0, None))[1] is done:
                del self._entries[request.path_qs]

        if task is None or (now - since >= route.ttl_s if route.ttl_s is not None else now != since):
            # Independent of the request: other visitors may wait for the answer when this one disconnects.
            task = asyncio.create_task(respond())
            task.add_done_callback(evict_failed)
            self._entries[request.path_qs] = now, task
        self._entries.move_to_end(request.path_qs)
        while len(self._entries) > _MAX_CACHED_RESPONSES:
            self._entries.popitem(last=False)
        return task


def _sse_handler(choose: Callable[[web.Request], LiveLeague]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        league = choose(request)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        # Closing the page ends the stream.
        with contextlib.suppress(ClientConnectionResetError), league.subscribe() as viewer:
            await response.write(b"retry: 1000\n\n" + league.initial_message())
            while True:
                messages = await viewer.next_messages(_KEEPALIVE_S)
                await response.write(messages or b": alive\n\n")
        return response

    return handle


def _render_error(request: web.Request, refused: RefusedError) -> web.Response:
    """Errors as JSON, ``{"error": …}``, to the pages' scripts; as text to persons."""
    if request.path.startswith("/api/"):
        return web.json_response({"error": str(refused)}, status=refused.status)
    return web.Response(text=f"{refused}\n", status=refused.status)


class RequestGuard:
    """Access control: on a loopback address every user of this machine, elsewhere visitors with the token.

    It blocks three attacks through a browser: a loopback server under a foreign name (DNS rebinding), forms from other
    sites, and framing, this by the headers of every response. Without a ``token``, one is generated if the address can
    be reached from other machines.
    """

    def __init__(self, host: str, token: str | None = None) -> None:
        self._is_local = is_loopback(host)
        self.token = token or (None if self._is_local else secrets.token_urlsafe(24))
        """Required token; None if every user of this machine has access."""

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Passes a request on, or rejects it."""
        check_origin(request, self._is_local)
        if self.token is None:
            return await handler(request)
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        shown = (request.query.get("token"), request.cookies.get(COOKIE), bearer)
        if not any(hmac.compare_digest(text.encode(errors="replace"), self.token.encode()) for text in shown if text):
            raise web.HTTPUnauthorized(text="expected the address with its ?token=…, as `league web` printed it\n")
        if "token" not in request.query:
            return await handler(request)
        rest = request.rel_url.with_query({name: value for name, value in request.query.items() if name != "token"})
        response = web.Response(status=303, headers={"Location": str(rest)})
        response.set_cookie(COOKIE, self.token, httponly=True, samesite="Strict")
        return response


async def add_security_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Complete every response, the server's errors included."""
    for name, value in _SECURITY_HEADERS.items():
        # Pages in one file have stricter policies of their own.
        response.headers.setdefault(name, value)
