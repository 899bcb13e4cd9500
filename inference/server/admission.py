"""Admission control: rejects requests while loading or draining, and above the in-flight limits; pauses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
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


class AdmissionControl:
    """Counts what is in flight, and refuses more, so that admitted requests are answered in time within bounded memory.

    In flight are at most ``most`` completions, and requests whose bodies have ``most_bytes`` together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.max_in_flight = most
        self.max_bytes = most_bytes
        self.completions = InFlight()
        self.body_bytes = InFlight()
        self.phase = ServerPhase.LOADING
        self.refused = 0
        """Requests refused so far, because of the phase or a limit."""
        self._requests = InFlight()
        self._resumed = asyncio.Event()

    async def read(self, request: web.Request) -> bytes:
        """Read the body of a request; raises ``RefusedError`` where it is not admitted (503), or as ``read_body``."""
        self._check_capacity(1)
        return await read_body(request)

    def reserve_bytes(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Count a body of so many bytes as in flight during a block; raises ``RefusedError`` above the limit (503)."""
        if self.body_bytes.count + size > self.max_bytes:
            raise self._refuse(f"{self.body_bytes.count:,} bytes are under way; the server takes {self.max_bytes:,}")
        return self.body_bytes.hold(size)

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
        """Refuse new requests, and wait for those in flight."""
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
