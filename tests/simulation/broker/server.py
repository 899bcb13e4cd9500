"""A simulated nats-server with JetStream, at the level of the wire: the real client library talks to it."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.broker import errors
from tests.simulation.broker.api import PREFIX, Disk, JetStreamApi
from tests.simulation.broker.clients import ClientHandler, Interest
from tests.simulation.broker.cluster import Cluster
from tests.simulation.broker.conditions import Conditions
from tests.simulation.broker.consumer import Consumer
from tests.simulation.broker.protocol import Operation, format_headers, format_info, format_message
from tests.simulation.broker.stream import Acknowledgements, Stream
from tests.simulation.broker.writes import Writes
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop
from tests.simulation.network import Connection, Network

ADDRESS = "broker:4222"
URL = f"nats://{ADDRESS}"
MAX_PAYLOAD = 8 * 1024 * 1024
_INACTIVE_S = 5.0
_NO_RESPONDERS = format_headers({}, "503")


class Broker:
    """A running server.

    Args:
        loop: Virtual time.
        network: It listens at ``ADDRESS``.
        disk: Survives the server.
        acknowledged: Collects what it acknowledges on streams that keep everything.
        conditions: Faults; they too survive it.
        seed: Seed of its draws.
        is_clustered: Whether it is three servers; ``process`` stands for all of them.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        disk: Disk,
        acknowledged: Acknowledgements,
        conditions: Conditions,
        seed: str = "0",
        is_clustered: bool = False,
    ) -> None:
        self.loop = loop
        self.network = network
        self.disk = disk
        self.acknowledged = acknowledged
        self.conditions = conditions
        self.process: Process = loop.spawn("broker")
        self.rng = Random(f"broker:{seed}:{self.process.pid}")
        draws = Random(f"cluster:{seed}:{self.process.pid}")
        self.cluster = Cluster(draws, loop.time, self.later) if is_clustered else None
        self.api = JetStreamApi(self)
        self.interest = Interest()
        self._writes = Writes(self)
        self._sent_until: dict[tuple[ClientHandler, str], float] = {}
        """Time by which everything that a source has sent to a client is there."""
        self._armed: dict[Consumer, float] = {}
        self._ephemeral = 0
        self._recover()
        network.listeners[ADDRESS] = self
        self.later(_INACTIVE_S, self._drop_inactive)

    def _recover(self) -> None:
        for name, stream in list(self.disk.streams.items()):
            if not stream.is_on_disk and self.cluster is None:
                del self.disk.streams[name]
            elif not stream.is_on_disk:
                # A cluster knows that there is such a stream, and has lost what was in it.
                self.disk.streams[name] = Stream(stream.config, self.now_ns)
        for key, consumer in list(self.disk.consumers.items()):
            if not consumer.is_durable or consumer.stream is not self.disk.streams.get(key[0]):
                del self.disk.consumers[key]
                continue
            consumer.host, consumer.server = self, self.server_of_consumer()
            consumer.recover()
        for stream in self.disk.streams.values():
            stream.recover()

    def crash(self) -> None:
        """End the server as a power failure does: of what is not flushed, a part is lost."""
        self.loop.kill(self.process)
        self._writes.lose()

    def lose_server(self, server: str, seconds: float, is_crash: bool) -> None:
        """One server of a cluster crashes, or loses its network to the others but not to its clients.

        What it leads gets other leaders; readers that it hosts end with it, or see nothing new.
        """
        if self.cluster is None or not self.process.is_alive:
            return
        self.cluster.lose(server, seconds)
        for stream in self.disk.streams.values():
            if self.cluster.leader_of(stream.name) == server:
                self._writes.depose(stream, self.cluster)
        for key, consumer in list(self.disk.consumers.items()):
            if consumer.server == server and consumer.is_durable:
                consumer.move(self.cluster.pick(), self.cluster.rng)
                self.arm(consumer)
            elif consumer.server == server and is_crash:
                del self.disk.consumers[key]
        for connection in list(self.network.connections) if is_crash else []:
            if isinstance(connection.acceptor, ClientHandler) and connection.acceptor.server == server:
                connection.reset()

    # ── Host of the API

    def now_ns(self) -> int:
        """Its wall clock."""
        return round((EPOCH_S + self.loop.time() + self.process.skew_s) * 1e9)

    def time(self) -> float:
        """Virtual time."""
        return self.loop.time()

    def server_of_consumer(self) -> str:
        """A server for a new consumer."""
        return self.cluster.pick() if self.cluster is not None else ""

    def newest_at(self, consumer: Consumer) -> int:
        """Sequence of the newest message that a consumer's server has."""
        stream = consumer.stream
        return self.cluster.newest_at(consumer.server, stream) if self.cluster is not None else stream.last

    def ephemeral_name(self) -> str:
        """A new name."""
        self._ephemeral += 1
        return f"e{self.process.pid}x{self._ephemeral}"

    def arm(self, consumer: Consumer) -> None:
        """Call ``consumer.expire`` when it is due."""
        deadline = consumer.next_deadline()
        if deadline is None or deadline == float("inf") or self._armed.get(consumer, float("inf")) <= deadline:
            return
        self._armed[consumer] = deadline
        self.later(max(deadline - self.loop.time(), 0.0), self._expire, consumer)

    def _expire(self, consumer: Consumer) -> None:
        self._armed.pop(consumer, None)
        if self.disk.consumers.get((consumer.stream.name, consumer.name)) is consumer:
            consumer.expire()
            self.arm(consumer)

    def _drop_inactive(self) -> None:
        for key, consumer in list(self.disk.consumers.items()):
            threshold = (consumer.config.get("inactive_threshold") or 0) / 1e9 or _INACTIVE_S
            if not consumer.is_durable and consumer.is_inactive(threshold):
                del self.disk.consumers[key]
        self.later(_INACTIVE_S, self._drop_inactive)

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call a function after some seconds, unless the server has ended by then."""
        self.loop.call_later(seconds, callback, *args, context=self.process.context)

    # ── Core messaging

    def accept(self, connection: Connection) -> ClientHandler:
        """Greet a client."""
        handler = ClientHandler(self, connection)
        info = {
            **{"server_id": "S", "server_name": "simulated", "version": "2.15.1", "proto": 1, "go": "", "port": 4222},
            **{"host": "broker", "headers": True, "max_payload": MAX_PAYLOAD, "jetstream": True},
            "client_id": connection.number,
            **({"cluster": "simulated"} if self.cluster is not None else {}),
            **({"auth_required": True, "nonce": f"nonce{connection.number:06}"} if handler.has_role else {}),
        }
        self.loop.call_soon(connection.send, format_info(info), context=self.process.context)
        return handler

    def client_lost(self) -> None:
        """Drop pull requests without a listener."""
        for consumer in self.disk.consumers.values():
            consumer.forget_requests(lambda reply: bool(self.interest.listeners(reply)))

    def deliver_from(self, source: Consumer, reply: str, subject: str, ack: str, headers: bytes, data: bytes) -> bool:
        """Send a message of a consumer to a reply subject; False when it has no subscriber."""
        return self.deliver(reply, subject, ack, headers, data, source.name, source.server)

    def deliver(
        self, reply: str, subject: str, ack: str, headers: bytes, data: bytes, source: str = "", server: str = ""
    ) -> bool:
        """Send a message to the listeners of a subject, under another subject; False when there are none.

        Args:
            reply: The subject that is listened to.
            subject: The subject that is sent.
            ack: Reply subject that is sent.
            headers: Encoded block.
            data: Bytes.
            source: Stream or consumer, whose messages to a client keep their order.
            server: Server of a cluster that it comes from; empty for the client's own.
        """
        listeners = self.interest.listeners(reply)
        for each in listeners:
            if self.cluster is None or not server or self.cluster.reaches(server, each.client.server):
                self._send(each.client, source or reply, format_message(subject, each.sid, ack, headers, data))
            if each.left is not None:
                each.left -= 1
                if each.left <= 0:
                    each.client.end(each)
        return bool(listeners)

    def _send(self, client: ClientHandler, source: str, data: bytes) -> None:
        """Send bytes to a client, at once or after a drawn time."""
        now, mean_s = self.loop.time(), self.conditions.reordering_s
        delay = self.rng.expovariate(1.0) * mean_s if mean_s else 0.0
        due = max(now + delay, self._sent_until.get((client, source), 0.0))
        if due <= now:
            client.connection.send(data)
            return
        self._sent_until[client, source] = due
        self.later(due - now, client.connection.send, data)

    def route(self, operation: Operation, server: str) -> None:
        """Handle a message published by a client of a server."""
        subject, reply = operation.subject, operation.reply
        stream = self._stream_of(subject)
        if self.cluster is not None and not self._is_taken(operation, server, stream, self.cluster):
            return
        if subject.startswith(PREFIX):
            self._answer(operation)
        elif subject.startswith("$JS.ACK."):
            self._acknowledge(operation)
        elif stream is not None and self.conditions.has_leader:
            self._writes.enqueue(stream, operation)
            self.deliver(subject, subject, reply, operation.headers, operation.data)
        elif not self.deliver(subject, subject, reply, operation.headers, operation.data) and reply:
            self.deliver(reply, reply, "", _NO_RESPONDERS, b"")

    def store(self, subject: str, data: bytes) -> None:
        """Store a message that no client has sent, such as an answer that was directed to a stream."""
        stream = self._stream_of(subject)
        if stream is not None and self.process.is_alive:
            self._writes.enqueue(stream, Operation("PUB", subject, data=data))

    def _is_taken(self, operation: Operation, server: str, stream: Stream | None, cluster: Cluster) -> bool:
        """Whether a cluster gets a message to who handles it; if not, it has no answer, or an error."""
        tokens = operation.subject.split(".")
        if operation.subject.startswith(("$JS.ACK.", PREFIX + "CONSUMER.MSG.NEXT.")):
            at = 2 if tokens[1] == "ACK" else 5
            consumer = self.disk.consumers.get((tokens[at], tokens[at + 1]))
            return consumer is None or cluster.reaches(server, consumer.server)
        if cluster.is_away(server):
            return False
        is_api = operation.subject.startswith(PREFIX)
        if is_api:
            stream = next((self.disk.streams[each] for each in tokens if each in self.disk.streams), None)
        if stream is None or cluster.takes_requests(stream):
            return True
        # The one that was the leader takes it still, or there is none.
        if operation.reply and cluster.rng.random() < 0.5:
            error = json.dumps({"error": errors.NO_LEADER.body}).encode()
            headers, data = (b"", error) if is_api else (_NO_RESPONDERS, b"")
            self.deliver(operation.reply, operation.reply, "", headers, data)
        return False

    def _stream_of(self, subject: str) -> Stream | None:
        return next((stream for stream in self.disk.streams.values() if stream.takes(subject)), None)

    # ── JetStream

    def _answer(self, operation: Operation) -> None:
        is_pull = operation.subject.startswith(PREFIX + "CONSUMER.MSG.NEXT.")
        if not self.conditions.has_leader or (is_pull and not self.api.has_consumer(operation.subject)):
            if operation.reply:
                self.deliver(operation.reply, operation.reply, "", _NO_RESPONDERS, b"")
            return
        answer = self.api.answer(operation.subject, operation.data, operation.reply)
        if answer is not None:
            self.reply(operation.reply, answer.data, answer.headers)

    def _acknowledge(self, operation: Operation) -> None:
        _, _, stream, name, _, sequence, *_ = operation.subject.split(".")
        consumer = self.disk.consumers.get((stream, name))
        if consumer is None:
            return
        if consumer.acknowledge(int(sequence), operation.data) and consumer.stream.config["retention"] == "workqueue":
            consumer.stream.remove([int(sequence)])
        self.arm(consumer)
        if operation.reply:
            self.reply(operation.reply, b"")

    def signal(self, stream: Stream) -> None:
        """Let the consumers of a stream deliver what is new."""
        for (name, _), consumer in self.disk.consumers.items():
            if name == stream.name:
                consumer.serve()
                self.arm(consumer)

    def reply(self, reply: str, data: bytes, headers: bytes = b"", source: str = "", server: str = "") -> None:
        """Answer a request, unless a fault loses, delays or doubles the answer."""
        conditions, draw = self.conditions, self.rng.random()
        if draw < conditions.lost_replies:
            return
        delay = 0.0
        if self.rng.random() < conditions.late_replies:
            delay = self.rng.expovariate(1.0) * conditions.late_mean_s
        for _ in range(2 if self.rng.random() < conditions.doubled_replies else 1):
            if delay:
                self.later(delay, self.deliver, reply, reply, "", headers, data, reply, server)
            else:
                self.deliver(reply, reply, "", headers, data, source, server)
            delay += self.rng.expovariate(1.0) * conditions.flush_s
