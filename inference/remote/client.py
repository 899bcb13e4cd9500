"""The client of one inference server.

Calls that are made in the same turns of the event loop go out in one exchange: games that waited for the same batch ask
again at the same time, and one exchange costs less than many. No call waits for another one that may come.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inference.remote import CONTENT_TYPE, GENERATE, GENERATE_MANY, CallResult, FrameDecoder, encode_calls
from inference.remote.health import ClientContext, HealthMonitor, ServerState, loop_time
from schemas.errors import ModelError

if TYPE_CHECKING:
    import aiohttp

MAX_BATCH_CALLS, MAX_BATCH_BYTES = 64, 1 << 20
"""Limits of one exchange; further calls go in another one."""
_QUIET_TURNS = 2
"""Turns of the event loop without a further call after which the waiting ones are sent."""
_BUSY_S = 0.5
"""About how long a server gets no request after it had no room, or failed over one."""
_MAX_MESSAGE_CHARS = 300
"""Characters quoted of an error that is not in OpenAI's form."""


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
    """Sends requests to one server."""

    def __init__(self, server: ServerState, context: ClientContext) -> None:
        self._server = server
        self._shared = context
        self._waiting: list[PendingCall] = []
        self._arrival_count = 0
        self._flush_task: asyncio.Task[None] | None = None
        self._health = HealthMonitor(server, context)

    async def send(self, posted: HttpRequest) -> bytes:
        """Send a request; returns the body of the answer.

        Raises:
            ModelError: the request is at fault.
            ServerFailedError: the server is at fault, and is marked.
        """
        server = self._server
        server.running += 1
        server.sent += 1
        try:
            return await (self._send_batched(posted.body) if posted.path == GENERATE else self._post_one(posted))
        finally:
            server.running -= 1

    async def _send_batched(self, call: bytes) -> bytes:
        """Queue a call for the next exchange; returns its reply."""
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingCall(call, reply))
        self._arrival_count += 1
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = self._shared.spawn(self._flush())
        return await reply

    async def _flush(self) -> None:
        quiet = 0
        while quiet < _QUIET_TURNS and len(self._waiting) < MAX_BATCH_CALLS:
            arrived = self._arrival_count
            await asyncio.sleep(0)
            quiet = quiet + 1 if arrived == self._arrival_count else 0
        waiting, self._waiting = [one for one in self._waiting if not one.reply.done()], []
        while waiting:
            count = _batch_size(waiting)
            self._start_exchange(waiting[:count])
            waiting = waiting[count:]

    def _start_exchange(self, calls: Sequence[PendingCall]) -> None:
        task = self._shared.spawn(self._exchange(calls))
        waiting, left = len(calls), False

        def ended(reply: asyncio.Future[bytes]) -> None:
            nonlocal waiting, left
            waiting, left = waiting - 1, left or reply.cancelled()
            if left and not waiting:
                # Every caller has its reply or gave up, and some gave up: hanging up informs the server.
                task.cancel()

        for one in calls:
            one.reply.add_done_callback(ended)

    async def _exchange(self, calls: Sequence[PendingCall]) -> None:
        """Send calls and resolve their replies. Nothing is raised: errors go to the callers."""
        try:
            if len(calls) == 1:
                answer = await self._post_one(HttpRequest(GENERATE, calls[0].call, CONTENT_TYPE))
                _resolve(calls[0].reply, answer)
            else:
                await self._post_many(calls)
        except (ModelError, ServerFailedError) as error:
            for one in calls:
                _fail(one.reply, error)
        finally:
            for one in calls:
                one.reply.cancel()  # the rest, when this process closes its connections

    async def _post_many(self, calls: Sequence[PendingCall]) -> None:
        posted = HttpRequest(GENERATE_MANY, encode_calls([one.call for one in calls]), CONTENT_TYPE)
        left, frames = len(calls), FrameDecoder()
        async with self._post(posted) as response:
            if response.status != 200:
                self._check_response(posted.path, response.status, await response.read())
            async for piece in response.content.iter_any():
                self._health.note_answer()
                for answer in _decode_answers(frames, piece, len(calls)):
                    left -= 1
                    self._deliver(calls[answer.index].reply, answer)
        if left:
            raise ServerFailedError(f"the answer ended with {left} of {len(calls)} calls unanswered")

    def _deliver(self, reply: asyncio.Future[bytes], answer: CallResult) -> None:
        try:
            _resolve(reply, self._check_response(GENERATE_MANY, answer.status, answer.body))
        except (ModelError, ServerFailedError) as error:
            _fail(reply, error)

    async def _post_one(self, posted: HttpRequest) -> bytes:
        async with self._post(posted) as response:
            answer = await response.read()
        self._health.note_answer()
        return self._check_response(posted.path, response.status, answer)

    @contextlib.asynccontextmanager
    async def _post(self, posted: HttpRequest) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Post a request; gives the response.

        Raises:
            ServerFailedError: no response, or not all of it.
        """
        import aiohttp

        headers = {"Content-Type": posted.content_type}
        session, url = self._shared.connections(), self._server.url + posted.path
        try:
            async with self._health.expect_answer(), session.post(url, data=posted.body, headers=headers) as response:
                yield response
        except aiohttp.ClientConnectorError as error:
            self._health.mark_down(str(error))
            raise ServerFailedError(str(error), counts=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{type(error).__name__}: {error or 'no answer in time'}"
            self._health.mark_down(why)
            raise ServerFailedError(why) from error

    def _check_response(self, path: str, status: int, answer: bytes) -> bytes:
        """The answer, where its status is 200.

        Raises:
            ModelError: the request is at fault.
            ServerFailedError: the server is at fault.
        """
        if status == 200:
            return answer
        if status == 503 or status >= 500:
            self._server.busy_until = loop_time() + _BUSY_S * random.uniform(0.5, 1.5)
        if status == 503:
            raise ServerFailedError(_error_message(answer), counts=False)
        if status >= 500 or status in (408, 429):
            raise ServerFailedError(f"{status}: {_error_message(answer)}")
        if _error_message(answer, otherwise=""):
            raise ModelError(_error_message(answer))
        raise ModelError(
            f"inference: {self._server.url}{path} answers {status} ({_error_message(answer)}); expected an inference "
            "process of a league"
        )


def _batch_size(waiting: Sequence[PendingCall]) -> int:
    """Number of the first calls that one exchange carries."""
    size = 0
    for count, one in enumerate(waiting[:MAX_BATCH_CALLS]):
        size += len(one.call)
        if count and size > MAX_BATCH_BYTES:
            return count
    return min(len(waiting), MAX_BATCH_CALLS)


def _decode_answers(frames: FrameDecoder, piece: bytes, calls: int) -> Sequence[CallResult]:
    try:
        answers = list(frames.feed(piece))
    except msgspec.MsgspecError as error:
        raise ModelError(f"inference: a server's answer is no reply ({error}); expected one of this version") from error
    if odd := [answer.index for answer in answers if not 0 <= answer.index < calls]:
        raise ModelError(f"inference: a server's answer is no reply (to call {odd[0]} of {calls})")
    return answers


def _resolve(reply: asyncio.Future[bytes], answer: bytes) -> None:
    if not reply.done():
        reply.set_result(answer)


def _fail(reply: asyncio.Future[bytes], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)


def _error_message(answer: bytes, otherwise: str | None = None) -> str:
    """The message of an error in OpenAI's form."""
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:_MAX_MESSAGE_CHARS].decode(errors="replace") if otherwise is None else otherwise
