"""Sends requests to inference servers: to one that is well, again elsewhere when it fails, and never for ever."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from schemas.errors import ModelError, NoServerError
from workers.inference.routing import Routes, Server

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger()

_CONNECT_S = 5.0
_LOOK_EVERY_S = 0.25
"""For servers that joined, where none is left to ask."""
_FIRST_PROBE_S = 0.05
_LONGEST_PROBE_S = 5.0
_BUSY_S = 0.5
"""About as long is a server left alone that had no room."""
_EXCERPT = 300
"""Characters of a message that is not in the form agreed on."""


class Limits(NamedTuple):
    """How long is tried."""

    timeout_s: float
    """For one request to one server."""
    patience_s: float
    """For a server to appear where none answers."""
    tries: int
    """Requests that a server may have worked on and did not answer."""


class Posted(NamedTuple):
    """A request."""

    path: str
    body: bytes
    content_type: str


class _FailedError(Exception):
    """A request that this server did not answer; another may."""

    def __init__(self, why: str, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts
        """Whether the server may have worked on it: such tries are bounded."""


class Dispatch:
    """The connections of one process to all inference servers."""

    def __init__(self, limits: Limits, urls: Callable[[], Sequence[str]]) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            limits: How long is tried.
            urls: The servers that there are, asked for before each request.
        """
        self.routes = Routes()
        self.waiting = 0
        """Requests without a server to ask."""
        self._limits = limits
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self._news = asyncio.Event()
        """Set when a server that was down is well again."""

    async def everywhere(self, posted: Posted) -> None:
        """Send a request to all servers that are open, and wait for the first that has answered.

        Raises:
            ModelError: the request is at fault.
            NoServerError: no server answered for long.
        """
        self._look()
        told = [self._spawn(self._sent(server, posted)) for server in self.routes.open_ones(self._now())]
        for first in asyncio.as_completed(told):
            with contextlib.suppress(_FailedError):
                await first
                return
        await self.somewhere(b"", posted)

    async def close(self) -> None:
        """Let go of the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def somewhere(self, key: bytes, posted: Posted) -> bytes:
        """What some server answers.

        Args:
            key: Requests of the same key go to the same server while it is well.
            posted: The request.

        Raises:
            ModelError: the request is at fault.
            NoServerError: too many servers failed over it, or none was there for long.
        """
        failed: list[Server] = []
        why = "none is known"
        while len(failed) < self._limits.tries:
            server = await self._free_server(key, failed, why)
            try:
                return await self._sent(server, posted)
            except _FailedError as error:
                why = f"{server.url}: {error}"
                if error.counts:
                    failed.append(server)
        raise NoServerError(f"inference: {len(failed)} tries failed, the last one at {why}")

    async def _free_server(self, key: bytes, avoid: Sequence[Server], why: str) -> Server:
        """A server to ask, once there is one."""
        self._look()
        server = self.routes.pick(key, self._now(), avoid)
        if server is not None:
            return server
        until = self._now() + self._limits.patience_s
        self.waiting += 1
        try:
            while server is None:
                if self._now() >= until:
                    raise NoServerError(
                        f"inference: no server to ask for {self._limits.patience_s:g} s, of "
                        f"{', '.join(self.routes.servers) or 'none that the league tells of'} (last: {why}); expected "
                        "an inference process to be running"
                    )
                await self._hear()
                self._look()
                server = self.routes.pick(key, self._now(), avoid)
        finally:
            self.waiting -= 1
        return server

    def _look(self) -> None:
        self.routes.update(self._urls())

    async def _hear(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._news.wait()

    async def _sent(self, server: Server, posted: Posted) -> bytes:
        """What one server answers.

        Raises:
            ModelError: the request is at fault.
            _FailedError: the server is; it is marked.
        """
        import aiohttp

        server.running += 1
        server.sent += 1
        try:
            headers = {"Content-Type": posted.content_type}
            async with self._connections().post(
                server.url + posted.path, data=posted.body, headers=headers
            ) as response:
                answer, status = await response.read(), response.status
        except aiohttp.ClientConnectorError as error:
            self._lost(server, str(error))
            raise _FailedError(str(error), counts=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
            self._lost(server, why)
            raise _FailedError(why) from error
        finally:
            server.running -= 1
        if status == 200:
            return answer
        if status == 503:
            server.busy_until = self._now() + _BUSY_S * random.uniform(0.5, 1.5)
            raise _FailedError(_message(answer), counts=False)
        if status >= 500 or status in (408, 429):
            raise _FailedError(f"{status}: {_message(answer)}")
        if _is_ours(answer):
            raise ModelError(_message(answer))
        raise ModelError(
            f"inference: {server.url}{posted.path} answers {status} ({_message(answer)}); expected an inference "
            "process of a league (vLLM's own servers are for inference.backend = 'vllm_server')"
        )

    def _lost(self, server: Server, why: str) -> None:
        """Ask a server nothing more until it says that it is well."""
        if not server.down:
            log.warning("an inference server does not answer", url=server.url, why=why)
            server.down = True
            self._spawn(self._probe(server))

    async def _probe(self, server: Server) -> None:
        pause_s = _FIRST_PROBE_S
        while self.routes.servers.get(server.url) is server:
            if await self._is_well(server):
                log.info("an inference server answers again", url=server.url)
                server.down = False
                news, self._news = self._news, asyncio.Event()
                news.set()
                return
            await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
            pause_s = min(pause_s * 2, _LONGEST_PROBE_S)

    async def _is_well(self, server: Server) -> bool:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_CONNECT_S)
        try:
            async with self._connections().get(f"{server.url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _connections(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=self._limits.timeout_s, sock_connect=_CONNECT_S)
            # As many as there are requests: the servers batch them.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self._session

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, whoever else does

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_ours(answer: bytes) -> bool:
    """Whether an answer says what is wrong in the form agreed on."""
    return _message(answer, otherwise="") != ""


def _message(answer: bytes, otherwise: str | None = None) -> str:
    """What a server says is wrong."""
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:_EXCERPT].decode(errors="replace") if otherwise is None else otherwise
