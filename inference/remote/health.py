"""State, liveness and type of an inference server.

A server that hangs accepts connections and answers nothing. One that owes answers and has been silent for long is
therefore probed at ``/health``; if that fails too, its requests go to other servers. A server that is down is probed
until it answers 200.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inference.remote import OWNER, TOKEN_VARIABLE, token_headers
from schemas.errors import ConfigError
from schemas.loggers import get_logger
from schemas.retry import Backoff

if TYPE_CHECKING:
    import aiohttp


log = get_logger()

CONNECT_S = 5.0
_FIRST_PROBE_S = 0.05
_MAX_PROBE_S = 5.0


def loop_time() -> float:
    """The clock of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


class ServerState:
    """State of a server, as one client knows it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running = 0
        """Requests of this client in flight there."""
        self.down = False
        """Whether it failed, and has not answered a probe since."""
        self.busy_until = 0.0
        """It takes no requests until then, by the event loop's clock."""
        self.sent = 0
        """Requests sent so far."""

    def is_open(self, now: float) -> bool:
        """Whether it takes requests now."""
        return not self.down and now >= self.busy_until


class ClientContext(NamedTuple):
    """State that the clients of one process share."""

    connections: Callable[[], "aiohttp.ClientSession"]
    spawn: Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"]
    """Runs a coroutine in the background."""
    is_known: Callable[[ServerState], bool]
    """Whether the league still has the server."""
    well_again: Callable[[], None]
    """Called when a server that was down answers."""
    silence_s: float
    """Longest silence of a server that owes answers, and then the time-out of ``/health``."""


class HealthMonitor:
    """Watches one server while it owes answers, and probes it while it is down."""

    def __init__(self, server: ServerState, context: ClientContext) -> None:
        self._server = server
        self._shared = context
        self._watch_task: asyncio.Task[None] | None = None
        self._pending: dict[asyncio.Timeout, None] = {}
        self._last_answer_at = 0.0
        """When the last answer came, or the first was owed."""

    def note_answer(self) -> None:
        """Note that the server has sent something."""
        self._last_answer_at = loop_time()

    @contextlib.asynccontextmanager
    async def expect_answer(self) -> AsyncIterator[None]:
        """Watch the server while it owes an answer; a server that hangs ends the block.

        Raises:
            TimeoutError: the server hangs.
        """
        if not self._pending:
            self._last_answer_at = loop_time()
        async with asyncio.timeout(None) as scope:
            self._pending[scope] = None
            if self._watch_task is None or self._watch_task.done():
                self._watch_task = self._shared.spawn(self._watch())
            try:
                yield
            finally:
                del self._pending[scope]

    def mark_down(self, why: str) -> None:
        """Send the server no more requests until a probe succeeds."""
        if not self._server.down:
            log.warning("an inference server does not answer", url=self._server.url, why=why)
            self._server.down = True
            self._shared.spawn(self._probe_until_healthy())

    async def _watch(self) -> None:
        """Check the server's health whenever it is silent for too long, until it owes nothing."""
        silence_s = self._shared.silence_s
        while self._pending:
            remaining_s = self._last_answer_at + silence_s - loop_time()
            if remaining_s > 0:
                await asyncio.sleep(remaining_s)
            elif await self._check_health(silence_s) is not None:
                # It may be busy or draining: a server that answers still works on its requests.
                self._last_answer_at = loop_time()
            elif self._last_answer_at + silence_s <= loop_time():
                self.mark_down(f"silent for {silence_s:g} s, and then no /health within as long")
                for scope in list(self._pending):
                    scope.reschedule(loop_time())
                return

    async def _probe_until_healthy(self) -> None:
        backoff = Backoff(_FIRST_PROBE_S, _MAX_PROBE_S, jitter=(0.75, 1.25))
        while self._shared.is_known(self._server):
            if await self._check_health(CONNECT_S) == 200:
                log.info("an inference server answers again", url=self._server.url)
                self._server.down = False
                self._shared.well_again()
                return
            await asyncio.sleep(backoff.next_s())

    async def _check_health(self, within_s: float) -> int | None:
        """The status of ``/health``; None without an answer."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._shared.connections().get(f"{self._server.url}/health", timeout=timeout) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


PROBE_TIMEOUT_S = 5.0
"""Time-out of the list of models, which vLLM and our processes answer at once, whatever they compute."""


class ServerType(Enum):
    """The implementation of a server."""

    LEAGUE = "an inference process of a league"
    VLLM = "a server of vLLM's own"


_OWNERS = {OWNER: ServerType.LEAGUE, "vllm": ServerType.VLLM}


class _Model(msgspec.Struct):
    owned_by: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def detect_server_types(urls: Sequence[str]) -> dict[str, ServerType | None]:
    """The type of each server, by URL; None for one that does not answer, or not yet.

    Raises:
        ConfigError: a server answers, and is of neither type.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=token_headers()) as session:
        types = await asyncio.gather(*(_detect_server_type(session, url) for url in urls))
    return dict(zip(urls, types, strict=True))


def common_server_type(kinds: Mapping[str, ServerType | None]) -> ServerType | None:
    """The type of all servers that answered; None where none did.

    Raises:
        ConfigError: the types differ. Both sample the same distribution, but by different draws, so that a request
            sent again elsewhere would give another completion.
    """
    first: dict[ServerType, str] = {}
    for url, kind in kinds.items():
        if kind is not None:
            first.setdefault(kind, url)
    if len(first) > 1:
        types = " and ".join(f"{url} is {kind.value}" for kind, url in first.items())
        raise ConfigError(f"inference.urls: {types}; expected servers of one kind")
    return next(iter(first), None)


async def _detect_server_type(session: "aiohttp.ClientSession", url: str) -> ServerType | None:
    import aiohttp

    try:
        async with session.get(f"{url.rstrip('/')}/v1/models") as response:
            status, answer = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if status >= 500:
        return None
    owners = _parse_owners(answer) if status == 200 else []
    kinds = {_OWNERS.get(owner) for owner in owners}
    if len(kinds) != 1 or None in kinds:
        finding = f"a list of models owned by {sorted(set(owners))}" if owners else f"{status} and no list of models"
        hint = f" that takes the token in {TOKEN_VARIABLE}" if status == 401 else ""
        kinds_text = " or ".join(kind.value for kind in ServerType)
        raise ConfigError(f"inference.urls: {url}/v1/models answers {finding}; expected {kinds_text}{hint}")
    return kinds.pop()


def _parse_owners(answer: bytes) -> list[str]:
    try:
        return [model.owned_by for model in msgspec.json.decode(answer, type=_Models).data]
    except msgspec.MsgspecError:
        return []
