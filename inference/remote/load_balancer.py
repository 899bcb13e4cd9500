"""Load balancing over inference servers, with retries elsewhere and a bound on all of it.

Rendezvous hashing (Thaler and Ravishankar, 1998): each key ranks the servers by a hash of its own, so that requests
that begin alike go to the same server, which has the beginning in its cache, and a server that joins or dies moves only
its own share. With bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018): an overloaded server is passed over.
"""

import asyncio
import contextlib
import hashlib
import math
from array import array
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inference.base import InferenceBackend
from inference.remote import CONNECT_S, ServerState, loop_time, token_headers
from inference.remote.client import HttpRequest, ServerClient, ServerFailedError
from schemas.config.base import Table, is_loopback
from schemas.errors import ConfigError, NoServerError
from schemas.numbers import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    import aiohttp

OVERLOAD_RATIO = 1.25
"""Multiple of the mean number of requests in flight above which a server is passed over."""


class ServerTable:
    """The known servers and their ranking."""

    def __init__(self) -> None:
        self.servers: dict[str, ServerState] = {}

    def update(self, urls: Iterable[str]) -> None:
        """Replace the known servers, keeping the state of those that stay."""
        current = {url.rstrip("/"): None for url in urls}
        if current.keys() != self.servers.keys():
            self.servers = {url: self.servers.get(url) or ServerState(url) for url in current}

    def pick(self, key: bytes, now: float, avoid: Collection[ServerState] = ()) -> ServerState | None:
        """The server for a request, or None where all are down or busy, by the event loop's clock.

        Servers to ``avoid`` are picked only where there is no other.
        """
        opened = [server for server in self.servers.values() if server.is_open(now)]
        candidates = [server for server in opened if server not in avoid] or opened
        if not candidates:
            return None
        most = math.ceil(OVERLOAD_RATIO * (1 + sum(server.running for server in candidates)) / len(candidates))
        free = [server for server in candidates if server.running < most]

        def rank(server: ServerState) -> bytes:
            return hashlib.blake2b(server.url.encode(), key=key, digest_size=8).digest()

        return max(free, key=rank)


def affinity_key(adapter: str | None, prompt_ids: Sequence[int], tokens: int) -> bytes:
    """The key of requests that should go to the same server: digest of the adapter, and the prompt's first tokens."""
    beginning = array("q", prompt_ids[:tokens]).tobytes()
    return hashlib.blake2b(beginning, key=(adapter or "").encode()[:64], digest_size=16).digest()


_NO_SERVER = "none is known"
_POLL_S = 0.25
"""Between two looks for new servers, where none is available."""


class ServersConfig(Table, frozen=True):
    """Settings of the ``servers`` backend: addresses, and bounds on retries."""

    urls: tuple[str, ...] = ()
    """Fixed servers, besides those that the league announces: ``http://host:port``."""
    timeout_s: PositiveFloat = 300.0
    """Time-out of one request to one server; ``inference.request_timeout_s`` of a league."""
    patience_s: PositiveFloat = 120.0
    """How long a request waits for a server where none answers."""
    silence_s: PositiveFloat = 30.0
    """A server that owes answers and is silent for so long is probed; if the probe fails for as long again, its
    requests go to others. A tenth of ``inference.request_timeout_s`` in a league."""
    tries: PositiveInt = 5
    """Requests that a server failed to answer, until the completion fails."""
    sticky_tokens: PositiveInt = 256
    """Tokens of a prompt; requests that agree in these and in the adapter go to the same server while it is up."""
    places: PositiveInt = 1024
    """Places of a constraint that a request carries."""

    def __post_init__(self) -> None:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"urls: {url!r}; expected one like 'http://host:8000'")

    def build(self, folder: Path) -> InferenceBackend:
        """Make the backend of the servers, which have the base model themselves."""
        from inference.servers import ServersBackend

        return ServersBackend(self)


class LoadBalancer:
    """The connections of one process to all inference servers."""

    def __init__(self, limits: ServersConfig, urls: Callable[[], Sequence[str]], local_token: str = "") -> None:
        """Send nothing yet. ``urls`` returns the servers besides the configured ones, before each request.

        Servers on loopback get the ``local_token`` where ``LEAGUE_INFERENCE_TOKEN`` is not set.
        """
        self.routes = ServerTable()
        self.waiting_requests = 0
        self.silence_s = limits.silence_s
        self._limits = limits
        self._urls = urls
        self._local_token = local_token
        self._session: aiohttp.ClientSession | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self._clients: dict[ServerState, ServerClient] = {}
        self._recovered = asyncio.Event()
        """Set when a server that was down answers again."""

    async def broadcast(self, posted: HttpRequest) -> None:
        """Send a request to all available servers, and wait for the first answer.

        Raises:
            ModelError: the request is at fault.
            NoServerError: no server answered within the bounds.
        """
        self.routes.update((*self._limits.urls, *self._urls()))
        available = [server for server in self.routes.servers.values() if server.is_open(loop_time())]
        tasks = [self.spawn(self._client_for(server).send(posted)) for server in available]
        why = _NO_SERVER
        for first in asyncio.as_completed(tasks):
            try:
                await first
                return
            except ServerFailedError as error:
                why = str(error)
        await self.send(b"", posted, why)

    async def close(self) -> None:
        """Cancel what is in flight and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def send(self, key: bytes, posted: HttpRequest, why: str = _NO_SERVER) -> bytes:
        """Send a request to a server, and to others where it fails; returns the answer.

        Requests of the same ``key`` go to the same server while it is up. ``why`` is the reason of the last failure.

        Raises:
            ModelError: the request is at fault.
            NoServerError: too many servers failed over it, or none was available within the bounds.
        """
        failed: list[ServerState] = []
        while len(failed) < self._limits.tries:
            server = await self._wait_for_server(key, failed, why)
            try:
                return await self._client_for(server).send(posted)
            except ServerFailedError as error:
                why = f"{server.url}: {error}"
                if error.counts_as_try:
                    failed.append(server)
        raise NoServerError(f"inference: {len(failed)} tries failed, the last one at {why}")

    async def _wait_for_server(self, key: bytes, avoid: Sequence[ServerState], why: str) -> ServerState:
        """The server for a request, once one is available."""
        until = loop_time() + self._limits.patience_s
        self.waiting_requests += 1
        try:
            while True:
                self.routes.update((*self._limits.urls, *self._urls()))
                if (server := self.routes.pick(key, loop_time(), avoid)) is not None:
                    return server
                if loop_time() >= until:
                    raise NoServerError(
                        f"inference: no server to ask for {self._limits.patience_s:g} s, of "
                        f"{', '.join(self.routes.servers) or 'none that the league announces'} (last: {why}); expected "
                        "an inference process to be running"
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._recovered.wait()
        finally:
            self.waiting_requests -= 1

    def _client_for(self, server: ServerState) -> ServerClient:
        """The client of a server; clients of servers that the league forgot are dropped."""
        if server not in self._clients:
            self._clients = {other: client for other, client in self._clients.items() if self.is_known(other)}
            self._clients[server] = ServerClient(server, self)
        return self._clients[server]

    def is_known(self, server: ServerState) -> bool:
        """Whether the league still has the server."""
        return self.routes.servers.get(server.url) is server

    def notify_recovered(self) -> None:
        """Wake the requests that wait: a server that was down answers."""
        news, self._recovered = self._recovered, asyncio.Event()
        news.set()

    def session(self) -> "aiohttp.ClientSession":
        """The connections of all clients."""
        if self._session is None:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=self._limits.timeout_s, sock_connect=CONNECT_S)
            # No limit on connections: the servers batch the requests.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self._session

    def headers(self, url: str) -> dict[str, str]:
        """The headers that show a server this process's token."""
        return token_headers(self._local_token if is_loopback(urlsplit(url).hostname or "") else "")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in the background, at most until ``close``."""

        def ended(task: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task
