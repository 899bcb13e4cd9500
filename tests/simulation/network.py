"""Simulated TCP: ordered byte streams with latency, which partitions hold back and crashes reset."""

import asyncio
import contextvars
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.simulation.loop import Process, SimulatedLoop

_SILENCE_S = 20.0
"""Time after which a peer gives up on unacknowledged data: the project's TCP_USER_TIMEOUT."""


class ServerConnection(Protocol):
    """A server's side of a connection."""

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""

    def connection_lost(self) -> None:
        """The peer is gone."""


class Listener(Protocol):
    """A server that accepts connections."""

    process: Process

    def accept(self, connection: "Connection") -> ServerConnection:
        """The server's side of a new connection."""


class Pipe:
    """One direction of a connection: bytes written together or before an earlier write has arrived, arrive together."""

    def __init__(self, connection: "Connection", context: contextvars.Context, deliver: Callable[[bytes], None]):
        self._connection = connection
        self._context = context
        self._deliver = deliver
        self._buffer: list[bytes] = []
        self._scheduled = False
        self.is_reading = True

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._buffer.append(bytes(data))
        self.schedule()

    def schedule(self) -> None:
        """See that buffered bytes arrive."""
        if self._buffer and not self._scheduled and self.is_reading:
            self._scheduled = True
            loop, network = self._connection.network.loop, self._connection.network
            loop.call_at(
                max(loop.time() + network.latency_s(), self._connection.blocked_until),
                self._arrive,
                context=self._context,
            )

    def _arrive(self) -> None:
        self._scheduled = False
        connection = self._connection
        if connection.is_closed or not self._buffer:
            return
        if not self.is_reading or connection.network.loop.time() < connection.blocked_until:
            self.schedule()
            return
        data, self._buffer = b"".join(self._buffer), []
        connection.network.observe(connection, data)
        self._deliver(data)


class Connection:
    """A connection between a process and a server."""

    def __init__(self, network: "Network", client: Process, listener: Listener, protocol: asyncio.Protocol) -> None:
        self.network = network
        self.client = client
        self.server = listener.process
        self.is_closed = False
        self.blocked_until = 0.0
        self.number = network.next_number()
        self.protocol: Any = protocol
        self.transport = ClientTransport(self)
        self.to_client = Pipe(self, client.context, self.protocol.data_received)
        self.acceptor = listener.accept(self)
        self.to_server = Pipe(self, listener.process.context, self.acceptor.data_received)

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.is_closed:
            self.to_client.send(data)

    def reset(self) -> None:
        """End the connection at both sides; bytes under way are lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self.network.connections.remove(self)
        loop = self.network.loop
        if self.client.is_alive:
            error = ConnectionResetError("connection reset by peer")
            loop.call_soon(self.protocol.connection_lost, error, context=self.client.context)
        if self.server.is_alive:
            loop.call_soon(self.acceptor.connection_lost, context=self.server.context)

    def close(self) -> None:
        """Close by the client: bytes that it sent still arrive."""
        if self.is_closed or self.transport.closing:
            return
        self.transport.closing = True
        loop = self.network.loop
        loop.call_soon(self.protocol.connection_lost, None, context=self.client.context)
        delay = max(2 * self.network.latency_s(), self.blocked_until - loop.time())
        loop.call_later(delay, self._finish, context=self.network.loop.root.context)

    def _finish(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.network.connections.remove(self)
        if self.server.is_alive:
            self.network.loop.call_soon(self.acceptor.connection_lost, context=self.server.context)


class ClientTransport(asyncio.Transport):
    """The client's side of a connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.closing = False

    def write(self, data: Any) -> None:
        """See ``asyncio``."""
        if not self.closing and not self._connection.is_closed:
            self._connection.to_server.send(data)

    def is_closing(self) -> bool:
        """See ``asyncio``."""
        return self.closing or self._connection.is_closed

    def close(self) -> None:
        """See ``asyncio``."""
        self._connection.close()

    def abort(self) -> None:
        """See ``asyncio``."""
        self._connection.close()

    def pause_reading(self) -> None:
        """See ``asyncio``."""
        self._connection.to_client.is_reading = False

    def resume_reading(self) -> None:
        """See ``asyncio``."""
        self._connection.to_client.is_reading = True
        self._connection.to_client.schedule()

    def is_reading(self) -> bool:
        """See ``asyncio``."""
        return self._connection.to_client.is_reading

    def get_write_buffer_size(self) -> int:
        """See ``asyncio``."""
        return 0

    def can_write_eof(self) -> bool:
        """See ``asyncio``."""
        return False


class Network:
    """All connections of a simulation."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.rng = Random(f"network:{seed}")
        self.mean_latency_s = 0.0003
        self.connections: list[Connection] = []
        self.listeners: dict[str, Listener] = {}
        self.observe: Callable[[Connection, bytes], None] = lambda connection, data: None
        """Called with everything that arrives."""
        self._partitions: dict[str, float] = {}
        self._numbers = 0
        loop.network = self

    def next_number(self) -> int:
        """The number of a new connection."""
        self._numbers += 1
        return self._numbers

    def latency_s(self) -> float:
        """A draw of the time that bytes take."""
        return self.mean_latency_s * (0.5 + self.rng.expovariate(1.0))

    async def connect(self, process: Process, protocol_factory: Callable[[], Any], address: str) -> Any:
        """Connect a process to a listener.

        Raises:
            ConnectionRefusedError: nothing listens at the address.
        """
        await asyncio.sleep(2 * self.latency_s())
        while (until := self._partitions.get(process.name, 0.0)) > self.loop.time():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(until - self.loop.time())
        listener = self.listeners.get(address)
        if listener is None or not listener.process.is_alive:
            raise ConnectionRefusedError(f"{address}: nothing listens here")
        protocol = protocol_factory()
        connection = Connection(self, process, listener, protocol)
        self.connections.append(connection)
        protocol.connection_made(connection.transport)
        return connection.transport, protocol

    def reset_all(self, process: Process) -> None:
        """Reset the connections of a process that has ended."""
        for connection in [c for c in self.connections if process in (c.client, c.server)]:
            connection.reset()

    def partition(self, name: str, seconds: float) -> None:
        """Cut a process off from every server; connections that stay silent for too long are reset."""
        until = self.loop.time() + seconds
        self._partitions[name] = max(until, self._partitions.get(name, 0.0))
        for connection in [c for c in self.connections if c.client.name == name]:
            connection.blocked_until = max(connection.blocked_until, until)
            if seconds > _SILENCE_S:
                self.loop.call_later(_SILENCE_S, connection.reset, context=self.loop.root.context)
