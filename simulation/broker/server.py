"""A simulated nats-server with JetStream, at the level of the wire: the real client library talks to it."""

import json
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from simulation.broker import errors
from simulation.broker.api import PREFIX, Disk, JetStreamApi
from simulation.broker.cluster import Cluster, apply_proposal, check_proposal
from simulation.broker.consumer import Consumer
from simulation.broker.protocol import Operation, Parser, format_error, format_headers, format_info, format_message
from simulation.broker.roles import Role
from simulation.broker.stream import Acknowledgements, Incoming, Staged, Stored, Stream
from simulation.broker.subjects import has_wildcard, matches
from simulation.loop import EPOCH_S, Process, SimulatedLoop
from simulation.network import Connection, Network

ADDRESS = "broker:4222"
URL = f"nats://{ADDRESS}"
MAX_PAYLOAD = 8 * 1024 * 1024
_INACTIVE_S = 5.0
_NO_RESPONDERS = format_headers({}, "503")


class Conditions:
    """How a server behaves; faults change it while it runs."""

    def __init__(self) -> None:
        self.flush_s = 0.0008
        """Mean time of a flush to disk."""
        self.lost_replies = 0.0
        """Share of replies that are lost after their effect."""
        self.late_replies = 0.0
        self.late_mean_s = 8.0
        self.doubled_replies = 0.0
        self.reordering_s = 0.0
        """Mean delay of messages to clients; those of one stream or consumer keep their order, others overtake them."""
        self.is_full = False
        """Whether every write is refused."""
        self.has_leader = True
        """Whether streams take requests; without a leader there is no responder."""
        self.on_publish: Callable[[Stream, Incoming], Stored | None] = lambda stream, message: None
        """Answers a publication instead of storing it, when it returns an outcome."""
        self.role_of: Callable[[str], Role | None] = lambda process: None
        """What a process may do; None for everything."""


class _Write:
    """A publication that is not yet flushed, or not yet replicated."""

    def __init__(self, stream: Stream, message: Incoming, reply: str, staged: Staged | None) -> None:
        self.stream = stream
        self.message = message
        self.reply = reply
        self.staged = staged
        """What a cluster's leader has checked; None on a single server, which checks as it stores."""
        self.is_over = False


class Subscription:
    """A client's interest in a subject."""

    def __init__(self, client: "ClientHandler", subject: str, sid: str) -> None:
        self.client = client
        self.subject = subject
        self.sid = sid
        self.left: int | None = None
        """Messages until it ends; None without end."""


class ClientHandler:
    """The server's side of a connection."""

    def __init__(self, broker: "Broker", connection: Connection) -> None:
        self.connection = connection
        self.subscriptions: dict[str, Subscription] = {}
        self._broker = broker
        self._parser = Parser()
        self.server = broker.cluster.pick() if broker.cluster is not None else ""
        """Server of a cluster that it is connected to."""
        self._role = broker.conditions.role_of(connection.client.name)
        self.has_role = self._role is not None
        """Whether it has to present credentials; any are believed."""

    def data_received(self, data: bytes) -> None:
        """Handle operations."""
        for operation in self._parser.feed(data):
            self._handle(operation)

    def _may(self, act: str, subject: str) -> bool:
        if self._role is None or self._role.may(act, subject):
            return True
        self.connection.send(format_error(f'Permissions Violation for {act.title()} to "{subject}"'))
        return False

    def _handle(self, operation: Operation) -> None:
        match operation.name:
            case "PUB" if not self._may("publish", operation.subject):
                pass
            case "SUB" if not self._may("subscribe", operation.subject):
                pass
            case "PUB":
                self._broker.route(operation, self.server)
            # A client that reconnects may repeat a subscription; the server keeps the first.
            case "SUB" if operation.sid not in self.subscriptions:
                self.subscriptions[operation.sid] = made = Subscription(self, operation.subject, operation.sid)
                self._broker.add_subscription(made)
            case "UNSUB":
                self._unsubscribe(operation)
            case "PING":
                self.connection.send(b"PONG\r\n")

    def _unsubscribe(self, operation: Operation) -> None:
        found = self.subscriptions.get(operation.sid)
        if found is not None and operation.limit:
            found.left = operation.limit
        elif found is not None:
            self.end(found)

    def end(self, subscription: Subscription) -> None:
        """End a subscription."""
        self.subscriptions.pop(subscription.sid, None)
        self._broker.remove_subscription(subscription)

    def connection_lost(self) -> None:
        """Forget the client."""
        for subscription in list(self.subscriptions.values()):
            self.end(subscription)
        self._broker.client_lost()


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
        self.cluster = Cluster(draws, loop.time, self._later) if is_clustered else None
        self.api = JetStreamApi(self)
        self._subscriptions: dict[str, list[Subscription]] = {}
        """By subject; those of a pattern that ends with its only wildcard, ``*``, by the part before it."""
        self._patterns: list[Subscription] = []
        """Those of other patterns."""
        self._writes: dict[str, deque[_Write]] = {}
        """By stream."""
        self._sent_until: dict[tuple[ClientHandler, str], float] = {}
        """Time by which everything that a source has sent to a client is there."""
        self._free_at: dict[str, float] = {}
        self._armed: dict[Consumer, float] = {}
        self._ephemeral = 0
        self._recover()
        network.listeners[ADDRESS] = self
        self._later(_INACTIVE_S, self._drop_inactive)

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
        for writes in self._writes.values():
            for write in list(writes)[: self.rng.randint(0, len(writes))]:
                self._write(write)

    def lose_server(self, server: str, seconds: float, is_crash: bool) -> None:
        """One server of a cluster crashes, or loses its network to the others but not to its clients.

        What it leads gets other leaders; readers that it hosts end with it, or see nothing new.
        """
        if self.cluster is None or not self.process.is_alive:
            return
        self.cluster.lose(server, seconds)
        for stream in self.disk.streams.values():
            if self.cluster.leader_of(stream.name) == server:
                self._depose(stream, self.cluster)
        for key, consumer in list(self.disk.consumers.items()):
            if consumer.server == server and consumer.is_durable:
                consumer.move(self.cluster.pick(), self.cluster.rng)
                self.arm(consumer)
            elif consumer.server == server and is_crash:
                del self.disk.consumers[key]
        for connection in list(self.network.connections) if is_crash else []:
            if isinstance(connection.acceptor, ClientHandler) and connection.acceptor.server == server:
                connection.reset()

    def _depose(self, stream: Stream, cluster: Cluster) -> None:
        """Replace a stream's leader: the new one has a part of what was in flight, and answers none of it."""
        writes = self._writes.get(stream.name, deque())
        kept = cluster.rng.randint(0, len(writes))
        for place, write in enumerate(writes):
            write.is_over = True
            if place < kept:
                self._write(write)
        writes.clear()
        stream.forget_batches()
        cluster.elect(stream.name)
        self._signal(stream)

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
        self._later(max(deadline - self.loop.time(), 0.0), self._expire, consumer)

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
        self._later(_INACTIVE_S, self._drop_inactive)

    def _later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
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

    def add_subscription(self, made: Subscription) -> None:
        """Register a client's interest."""
        self._group_of(made).append(made)

    def remove_subscription(self, gone: Subscription) -> None:
        """Forget a client's interest."""
        if gone in (group := self._group_of(gone)):
            group.remove(gone)

    def _group_of(self, subscription: Subscription) -> list[Subscription]:
        key = subscription.subject.removesuffix("*")
        return self._patterns if has_wildcard(key) else self._subscriptions.setdefault(key, [])

    def client_lost(self) -> None:
        """Drop pull requests without a listener."""
        for consumer in self.disk.consumers.values():
            consumer.forget_requests(lambda reply: bool(self._listeners(reply)))

    def _listeners(self, subject: str) -> list[Subscription]:
        parent = subject[: subject.rfind(".") + 1]
        found = [*self._subscriptions.get(subject, ()), *self._subscriptions.get(parent, ())]
        return found + [each for each in self._patterns if matches(each.subject, subject)]

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
        listeners = self._listeners(reply)
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
        self._later(due - now, client.connection.send, data)

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
            self._enqueue(stream, operation)
            self.deliver(subject, subject, reply, operation.headers, operation.data)
        elif not self.deliver(subject, subject, reply, operation.headers, operation.data) and reply:
            self.deliver(reply, reply, "", _NO_RESPONDERS, b"")

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
            self._reply(operation.reply, answer.data, answer.headers)

    def _acknowledge(self, operation: Operation) -> None:
        _, _, stream, name, _, sequence, *_ = operation.subject.split(".")
        consumer = self.disk.consumers.get((stream, name))
        if consumer is None:
            return
        if consumer.acknowledge(int(sequence), operation.data) and consumer.stream.config["retention"] == "workqueue":
            consumer.stream.remove([int(sequence)])
        self.arm(consumer)
        if operation.reply:
            self._reply(operation.reply, b"")

    def _enqueue(self, stream: Stream, operation: Operation) -> None:
        """Store a message after those before it, once it is flushed and, on a cluster, a majority has it."""
        message = Incoming(operation.subject, operation.headers, operation.data)
        write = _Write(stream, message, operation.reply, None)
        if self.cluster is not None:
            outcome = self._try(stream, lambda: self._propose(write))
            if outcome or write.staged is None:
                self._reply_to(write, outcome)
                return
        self._writes.setdefault(stream.name, deque()).append(write)
        if not stream.is_on_disk:
            self._finish(write)
            return
        start = max(self.loop.time(), self._free_at.get(stream.name, 0.0))
        self._free_at[stream.name] = done = start + self.conditions.flush_s * self.rng.expovariate(1.0)
        self._later(done - self.loop.time(), self._finish, write)

    def _propose(self, write: _Write) -> Stored | None:
        """Check a message as a cluster's leader, which replicates it next unless it is stored already."""
        stored = self._check_disk(write)
        if stored is None and (staged := write.stream.stage(write.message)) is not None:
            in_flight = [each.staged for each in self._writes.get(write.stream.name, ()) if each.staged is not None]
            stored = check_proposal(write.stream, staged, in_flight)
            write.staged = staged
        return stored

    def _check_disk(self, write: _Write) -> Stored | None:
        if self.conditions.is_full and write.stream.is_on_disk:
            raise errors.INSUFFICIENT_RESOURCES
        return self.conditions.on_publish(write.stream, write.message)

    def _finish(self, write: _Write) -> None:
        """Store and answer, unless another leader has decided on the message."""
        if write.is_over:
            return
        write.is_over = True
        self._writes[write.stream.name].remove(write)
        outcome = self._write(write)
        self._signal(write.stream)
        self._reply_to(write, outcome)

    def _reply_to(self, write: _Write, outcome: bytes) -> None:
        if write.reply:
            leader = self.cluster.leader_of(write.stream.name) if self.cluster is not None else ""
            self._reply(write.reply, outcome, source=write.stream.name, server=leader)

    def _write(self, write: _Write) -> bytes:
        """Store a message; returns the acknowledgement or the error."""
        stream, before = write.stream, write.stream.last
        if (staged := write.staged) is None:
            return self._try(stream, lambda: self._check_disk(write) or stream.publish(write.message))
        outcome = self._try(stream, lambda: apply_proposal(stream, staged))
        if self.cluster is not None and stream.last > before:
            self.cluster.replicate(stream, before, self._signal)
        return outcome

    def _try(self, stream: Stream, store: Callable[[], Stored | None]) -> bytes:
        """The answer to a publication: its acknowledgement, its error, or nothing within a batch."""
        try:
            stored = store()
        except errors.ApiError as error:
            return json.dumps({"error": error.body, "stream": stream.name, "seq": 0}).encode()
        if stored is None:
            return b""
        if not stored.is_duplicate and stream.config.get("deny_delete"):
            for sequence in range(stored.sequence - stored.size + 1, stored.sequence + 1):
                kept = stream.messages[sequence]
                self.acknowledged.add(stream.name, sequence, kept.subject, kept.data)
        document: dict[str, Any] = {"stream": stream.name, "seq": stored.sequence}
        if stored.is_duplicate:
            document["duplicate"] = True
        if stored.batch:
            document |= {"batch": stored.batch, "count": stored.size}
        return json.dumps(document).encode()

    def _signal(self, stream: Stream) -> None:
        for (name, _), consumer in self.disk.consumers.items():
            if name == stream.name:
                consumer.serve()
                self.arm(consumer)

    def _reply(self, reply: str, data: bytes, headers: bytes = b"", source: str = "", server: str = "") -> None:
        """Answer a request, unless a fault loses, delays or doubles the answer."""
        conditions, draw = self.conditions, self.rng.random()
        if draw < conditions.lost_replies:
            return
        delay = 0.0
        if self.rng.random() < conditions.late_replies:
            delay = self.rng.expovariate(1.0) * conditions.late_mean_s
        for _ in range(2 if self.rng.random() < conditions.doubled_replies else 1):
            if delay:
                self._later(delay, self.deliver, reply, reply, "", headers, data, reply, server)
            else:
                self.deliver(reply, reply, "", headers, data, source, server)
            delay += self.rng.expovariate(1.0) * conditions.flush_s
