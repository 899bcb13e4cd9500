"""The client of one inference server.

Calls that are made in the same turns of the event loop go out in one exchange: games that waited for the same batch ask
again at the same time, and one exchange costs less than many. No call waits for another one that may come.

A server that hangs accepts connections and answers nothing. One that owes answers and has been silent for long is
therefore probed at ``/health``; if that fails too, its requests go to other servers. A server that is down is probed
until it answers 200.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inference import remote
from inference.remote import CallResult, FrameDecoder, ServerState, loop_time
from schemas.errors import ModelError
from schemas.loggers import get_logger
from schemas.retry import Backoff

if TYPE_CHECKING:
    import aiohttp

    from inference.remote.load_balancer import LoadBalancer

log = get_logger()

MAX_BATCH_CALLS, MAX_BATCH_BYTES = 64, 1 << 20
"""Limits of one exchange; further calls go in another one."""
_QUIET_TURNS = 2
"""Turns of the event loop without a further call after which the waiting ones are sent."""
_BUSY_S = 0.5
"""About how long a server gets no request after it had no room, or failed over one."""
_MAX_MESSAGE_CHARS = 300
"""Characters quoted of an error that is not in OpenAI's form."""
_FIRST_PROBE_S, _MAX_PROBE_S = 0.05, 5.0


class HttpRequest(NamedTuple):
    """A POST request."""

    path: str
    body: bytes
    content_type: str


class ServerFailedError(Exception):
    """A request that this server did not answer; another server may."""

    def __init__(self, why: str, counts: bool = True) -> None:
        super().__init__(why)
        self.counts_as_try = counts
        """Whether the server may have worked on it: such tries are bounded."""


class PendingCall(NamedTuple):
    """A call and the future of its reply."""

    call: bytes
    reply: asyncio.Future[bytes]


class ServerClient:
    """Sends requests to one server, watches it while it owes answers, and probes it while it is down."""

    def __init__(self, server: ServerState, balancer: "LoadBalancer") -> None:
        self._server = server
        self._balancer = balancer
        self._waiting: list[PendingCall] = []
        self._arrival_count = 0
        self._flush_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._owed: dict[asyncio.Timeout, None] = {}
        """Scopes of the requests that wait for an answer."""
        self._last_answer_at = 0.0
        """Time of the last answer, or at which the first was owed."""

    async def send(self, posted: HttpRequest) -> bytes:
        """Send a request; returns the body of the answer.

        Raises:
            ModelError: the request is at fault.
            ServerFailedError: the server is at fault, and is marked.
        """
        self._server.running += 1
        self._server.sent += 1
        try:
            if posted.path != remote.GENERATE:
                return await self._post_one(posted)
            reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting.append(PendingCall(posted.body, reply))
            self._arrival_count += 1
            if self._flush_task is None or self._flush_task.done():
                self._flush_task = self._balancer.spawn(self._flush())
            return await reply
        finally:
            self._server.running -= 1

    async def _flush(self) -> None:
        """Send the waiting calls, once no further ones come."""
        quiet = 0
        while quiet < _QUIET_TURNS and len(self._waiting) < MAX_BATCH_CALLS:
            arrived = self._arrival_count
            await asyncio.sleep(0)
            quiet = quiet + 1 if arrived == self._arrival_count else 0
        waiting, self._waiting = [pending for pending in self._waiting if not pending.reply.done()], []
        while waiting:
            sizes = accumulate(len(pending.call) for pending in waiting[:MAX_BATCH_CALLS])
            count = max(sum(size <= MAX_BATCH_BYTES for size in sizes), 1)
            self._start_exchange(waiting[:count])
            waiting = waiting[count:]

    def _start_exchange(self, calls: Sequence[PendingCall]) -> None:
        task = self._balancer.spawn(self._exchange(calls))
        waiting, left = len(calls), False

        def ended(reply: asyncio.Future[bytes]) -> None:
            nonlocal waiting, left
            waiting, left = waiting - 1, left or reply.cancelled()
            if left and not waiting:
                # Every caller has its reply or gave up, and some gave up: hanging up informs the server.
                task.cancel()

        for pending in calls:
            pending.reply.add_done_callback(ended)

    async def _exchange(self, calls: Sequence[PendingCall]) -> None:
        """Send calls and resolve their replies. Nothing is raised: errors go to the callers."""
        try:
            if len(calls) == 1:
                _settle(
                    calls[0], await self._post_one(HttpRequest(remote.GENERATE, calls[0].call, remote.CONTENT_TYPE))
                )
            else:
                await self._post_many(calls)
        except (ModelError, ServerFailedError) as error:
            for pending in calls:
                _settle(pending, error)
        finally:
            for pending in calls:
                pending.reply.cancel()  # the rest, when this process closes its connections

    async def _post_many(self, calls: Sequence[PendingCall]) -> None:
        posted = HttpRequest(
            remote.GENERATE_MANY, remote.encode_calls([pending.call for pending in calls]), remote.CONTENT_TYPE
        )
        left, frames = len(calls), FrameDecoder()
        async with self._post(posted) as response:
            if response.status != 200:
                self._check_response(posted.path, response.status, await response.read())
            async for piece in response.content.iter_any():
                self._last_answer_at = loop_time()
                for answer in _decode_answers(frames, piece, len(calls)):
                    left -= 1
                    try:
                        result = self._check_response(posted.path, answer.status, answer.body)
                    except (ModelError, ServerFailedError) as error:
                        _settle(calls[answer.index], error)
                    else:
                        _settle(calls[answer.index], result)
        if left:
            raise ServerFailedError(f"the answer ended with {left} of {len(calls)} calls unanswered")

    async def _post_one(self, posted: HttpRequest) -> bytes:
        async with self._post(posted) as response:
            answer = await response.read()
        self._last_answer_at = loop_time()
        return self._check_response(posted.path, response.status, answer)

    @contextlib.asynccontextmanager
    async def _post(self, posted: HttpRequest) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Post a request; gives the response, or raises ``ServerFailedError``, also where the server hangs."""
        import aiohttp

        headers = {"Content-Type": posted.content_type, **self._balancer.headers(self._server.url)}
        session, url = self._balancer.session(), self._server.url + posted.path
        try:
            if not self._owed:
                self._last_answer_at = loop_time()
            async with asyncio.timeout(None) as scope:
                self._owed[scope] = None
                if self._watch_task is None or self._watch_task.done():
                    self._watch_task = self._balancer.spawn(self._watch())
                try:
                    async with session.post(url, data=posted.body, headers=headers) as response:
                        yield response
                finally:
                    del self._owed[scope]
        except aiohttp.ClientConnectorError as error:
            self._mark_down(str(error))
            raise ServerFailedError(str(error), counts=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{type(error).__name__}: {error or 'no answer in time'}"
            self._mark_down(why)
            raise ServerFailedError(why) from error

    def _check_response(self, path: str, status: int, answer: bytes) -> bytes:
        """The answer, where its status is 200; raises as ``send``."""
        if status == 200:
            return answer
        if status >= 500:
            self._server.busy_until = loop_time() + _BUSY_S * random.uniform(0.5, 1.5)
        is_ours = True
        try:
            message = str(json.loads(answer)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message, is_ours = answer[:_MAX_MESSAGE_CHARS].decode(errors="replace"), False
        if status == 503:
            raise ServerFailedError(message, counts=False)
        if status >= 500 or status in (408, 429):
            raise ServerFailedError(f"{status}: {message}")
        if is_ours and message:
            raise ModelError(message)
        raise ModelError(
            f"inference: {self._server.url}{path} answers {status} ({message}); expected an inference process of a "
            "league"
        )

    def _mark_down(self, why: str) -> None:
        """Send the server no more requests until a probe succeeds."""
        if not self._server.down:
            log.warning("an inference server does not answer", url=self._server.url, why=why)
            self._server.down = True
            self._balancer.spawn(self._probe_until_healthy())

    async def _watch(self) -> None:
        """Check the server's health whenever it is silent for too long, until it owes nothing."""
        silence_s = self._balancer.silence_s
        while self._owed:
            remaining_s = self._last_answer_at + silence_s - loop_time()
            if remaining_s > 0:
                await asyncio.sleep(remaining_s)
            elif await self._check_health(silence_s) is not None:
                # It may be busy or draining: a server that answers still works on its requests.
                self._last_answer_at = loop_time()
            elif self._last_answer_at + silence_s <= loop_time():
                self._mark_down(f"silent for {silence_s:g} s, and then no /health within as long")
                for scope in list(self._owed):
                    scope.reschedule(loop_time())
                return

    async def _probe_until_healthy(self) -> None:
        backoff = Backoff(_FIRST_PROBE_S, _MAX_PROBE_S, jitter=(0.75, 1.25))
        while self._balancer.is_known(self._server):
            if await self._check_health(remote.CONNECT_S) == 200:
                log.info("an inference server answers again", url=self._server.url)
                self._server.down = False
                self._balancer.notify_recovered()
                return
            await asyncio.sleep(backoff.next_s())

    async def _check_health(self, within_s: float) -> int | None:
        """The status of ``/health``; None without an answer."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._balancer.session().get(f"{self._server.url}/health", timeout=timeout) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


def _decode_answers(frames: FrameDecoder, piece: bytes, calls: int) -> Sequence[CallResult]:
    try:
        answers = list(frames.feed(piece))
    except msgspec.MsgspecError as error:
        raise ModelError(f"inference: a server's answer is no reply ({error}); expected one of this version") from error
    if odd := [answer.index for answer in answers if not 0 <= answer.index < calls]:
        raise ModelError(f"inference: a server's answer is no reply (to call {odd[0]} of {calls})")
    return answers


def _settle(pending: PendingCall, result: bytes | Exception) -> None:
    """Resolve a call's reply, or raise at its caller, unless that gave up."""
    if pending.reply.done():
        return
    if isinstance(result, Exception):
        pending.reply.set_exception(result)
    else:
        pending.reply.set_result(result)
