"""Admission control: rejects requests while loading or draining, and above the in-flight limits; pauses."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum

from aiohttp import web

from inference.http_server import RefusedError, read_body


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


class AdmissionControl:
    """Counts what is in flight, and refuses more, so that admitted requests are answered in time within bounded memory.

    In flight are at most ``most`` completions, and requests whose bodies have ``most_bytes`` together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.max_in_flight = most
        self.max_bytes = most_bytes
        self.bytes_in_flight = 0
        self.phase = ServerPhase.LOADING
        self.in_flight = 0
        self.refused = 0
        """Requests refused so far, because of the phase or a limit."""
        self._requests = 0
        self._drained, self._idle, self._resumed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._drained.set()
        self._idle.set()

    async def read(self, request: web.Request) -> bytes:
        """Read the body of a request.

        Raises:
            RefusedError: the request is not admitted (503), or ``read_body`` refuses its body.
        """
        self._check_capacity(1)
        return await read_body(request)

    @contextmanager
    def reserve_bytes(self, size: int) -> Iterator[None]:
        """Count a body of so many bytes as in flight during a block.

        Raises:
            RefusedError: the limit would be exceeded (503).
        """
        if self.bytes_in_flight + size > self.max_bytes:
            raise self._refuse(f"{self.bytes_in_flight:,} bytes are under way; the server takes {self.max_bytes:,}")
        self.bytes_in_flight += size
        try:
            yield
        finally:
            self.bytes_in_flight -= size

    @contextmanager
    def admit(self, completions: int = 1) -> Iterator[None]:
        """Count completions as in flight during a block.

        Raises:
            RefusedError: the phase or the limit does not allow them (503).
        """
        self._check_capacity(completions)
        self.in_flight += completions
        self._drained.clear()
        try:
            yield
        finally:
            self.in_flight -= completions
            if not self.in_flight:
                self._drained.set()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Begin a request, once the server does not pause; ``pause`` waits for the end of the block."""
        while self.phase in WAITING_PHASES:
            await self._resumed.wait()
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    def open(self) -> None:
        """Admit requests from now on."""
        self.phase = ServerPhase.SERVING

    async def pause(self) -> None:
        """Hold new requests back until ``resume``, and wait for the end of those that run."""
        self._resumed.clear()
        self.show(ServerPhase.PAUSING)
        await self._idle.wait()

    def resume(self) -> None:
        """Admit the waiting requests."""
        self.show(ServerPhase.SERVING)
        self._resumed.set()

    def show(self, phase: ServerPhase) -> None:
        """Enter another phase, unless the server is draining, which it does to its end."""
        if self.phase is not ServerPhase.DRAINING:
            self.phase = phase

    async def drain(self) -> None:
        """Refuse new requests, and wait for those in flight."""
        self.phase = ServerPhase.DRAINING
        self._resumed.set()
        await self._drained.wait()

    def _check_capacity(self, completions: int) -> None:
        if self.phase is not ServerPhase.SERVING:
            raise self._refuse(f"the server is {self.phase.value}; another one may serve")
        if self.in_flight + completions > self.max_in_flight:
            raise self._refuse(f"{self.in_flight} completions are under way; the server takes {self.max_in_flight}")

    def _refuse(self, why: str) -> RefusedError:
        self.refused += 1
        return RefusedError(503, why)
