"""Admission control: rejects requests while loading or draining, and above the in-flight limits; pauses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import Enum

from aiohttp import web

from inference.http_server import RefusedError, read_body
from inference.statistics import InFlight


class ServerPhase(Enum):
    """Phase of a server's life."""

    LOADING = "loading"
    SERVING = "serving"
    PAUSING = "pausing"
    """Requests in progress are answered, further ones wait; so they do in the next two phases."""
    ASLEEP = "asleep"
    """Another process has the GPU."""
    WAKING = "waking"
    DRAINING = "draining"


WAITING_PHASES = (ServerPhase.PAUSING, ServerPhase.ASLEEP, ServerPhase.WAKING)


@dataclass(eq=False)
class _Body:
    """The body of a request in flight."""

    size: int = 0
    """Bytes that have come."""
    reading: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    """Scope of its reading, which ends early where others need the room."""


class AdmissionControl:
    """Counts what is in flight, and rejects more, so that admitted requests are answered in time within bounded memory.

    In flight are at most ``most`` completions, and requests whose bodies have ``most_bytes`` together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.max_in_flight = most
        self.max_bytes = most_bytes
        self.completions = InFlight()
        self.body_bytes = 0
        """Bytes of the bodies of all requests in flight, as far as they have come."""
        self.phase = ServerPhase.LOADING
        self.refused = 0
        """Requests rejected so far, because of the phase or a limit."""
        self._requests = InFlight()
        self._resumed = asyncio.Event()
        self._bodies: dict[int, _Body] = {}
        """Bodies of the requests in flight, by the request's ``id``."""
        self._arriving: dict[_Body, None] = {}
        """Bodies that are being read, the oldest first."""

    async def read(self, request: web.Request) -> bytes:
        """Read the body of a request, within ``hold_body``.

        Raises:
            RefusedError: no request is admitted, or there is no room for its body (503); or as ``read_body``.
        """
        self._check_capacity(1)
        body = self._bodies[id(request)]
        try:
            async with body.reading:
                self._arriving[body] = None
                return await read_body(request, lambda size: self._claim(body, size))
        except TimeoutError:
            raise self._refuse("newer requests needed the room of this one, whose body was incomplete") from None
        finally:
            self._arriving.pop(body, None)

    @contextlib.contextmanager
    def hold_body(self, request: web.Request) -> Iterator[None]:
        """Count what ``read`` reads of a request's body as in flight until the end of the block."""
        body = self._bodies[id(request)] = _Body()
        try:
            yield
        finally:
            del self._bodies[id(request)]
            self.body_bytes -= body.size

    def _claim(self, body: "_Body", size: int) -> None:
        """Count another piece of a body, in place of the oldest incomplete ones if there is no room for both.

        What counts is what has come: a client that only announces bodies, or never ends them, keeps nobody out.
        """
        while self.body_bytes + size > self.max_bytes:
            oldest = next((each for each in self._arriving if each is not body), None)
            if oldest is None:
                raise self._refuse(f"{self.body_bytes:,} bytes are under way; the server takes {self.max_bytes:,}")
            del self._arriving[oldest]
            oldest.reading.reschedule(asyncio.get_running_loop().time())
            self.body_bytes -= oldest.size
            oldest.size = 0
        self.body_bytes += size
        body.size += size

    def admit(self, completions: int = 1) -> contextlib.AbstractContextManager[None]:
        """Count completions as in flight during a block; raises ``RefusedError`` where none are admitted (503)."""
        self._check_capacity(completions)
        return self.completions.hold(completions)

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Begin a request, once the server does not pause; ``pause`` waits for the end of the block."""
        while self.phase in WAITING_PHASES:
            await self._resumed.wait()
        with self._requests.hold():
            yield

    def open(self) -> None:
        """Admit requests from now on."""
        self.phase = ServerPhase.SERVING

    async def pause(self) -> None:
        """Hold new requests back until ``resume``, and wait for the end of those that run."""
        self._resumed.clear()
        self.show(ServerPhase.PAUSING)
        await self._requests.wait_until_idle()

    def resume(self) -> None:
        """Admit the waiting requests."""
        self.show(ServerPhase.SERVING)
        self._resumed.set()

    def show(self, phase: ServerPhase) -> None:
        """Enter another phase, unless the server is draining, which it does to its end."""
        if self.phase is not ServerPhase.DRAINING:
            self.phase = phase

    async def drain(self) -> None:
        """Reject new requests, and wait for those in flight."""
        self.phase = ServerPhase.DRAINING
        self._resumed.set()
        await self.completions.wait_until_idle()

    def _check_capacity(self, completions: int) -> None:
        if self.phase is not ServerPhase.SERVING:
            raise self._refuse(f"the server is {self.phase.value}; another one may serve")
        under_way = self.completions.count
        if under_way + completions > self.max_in_flight:
            raise self._refuse(f"{under_way} completions are under way; the server takes {self.max_in_flight}")

    def _refuse(self, why: str) -> RefusedError:
        self.refused += 1
        return RefusedError(503, why)
