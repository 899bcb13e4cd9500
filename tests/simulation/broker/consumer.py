"""Pull consumers: positions in a stream, deliveries with acknowledgements, and redelivery."""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.simulation.broker import errors
from tests.simulation.broker.protocol import format_headers
from tests.simulation.broker.stream import StoredMessage, Stream
from tests.simulation.broker.subjects import matches

DEFAULT_ACK_WAIT_NS = 30 * 10**9


class PullRequest:
    """A client's request for messages."""

    def __init__(self, reply: str, batch: int, max_bytes: int, expires_at: float) -> None:
        self.reply = reply
        self.left = batch
        self.bytes_left = max_bytes
        self.is_bounded = max_bytes > 0
        self.expires_at = expires_at


class ConsumerHost(Protocol):
    """The server that a consumer belongs to."""

    def time(self) -> float:
        """Virtual time."""

    def deliver_from(self, source: "Consumer", reply: str, subject: str, ack: str, headers: bytes, data: bytes) -> bool:
        """Send a message to a reply subject; False when it has no subscriber."""

    def newest_at(self, consumer: "Consumer") -> int:
        """Sequence of the newest message that the consumer's server has."""


class Consumer:
    """One consumer.

    Args:
        name: Its name.
        config: As the API has it.
        stream: Its stream.
        host: The broker.
        server: Server of a cluster that it is on.
    """

    def __init__(self, name: str, config: dict[str, Any], stream: Stream, host: ConsumerHost, server: str = "") -> None:
        self.name = name
        self.config = config
        self.stream = stream
        self.is_durable = bool(config.get("durable_name"))
        self.host = host
        self.server = server
        self.touched_at = host.time()
        """Virtual time of the newest request of a client."""
        self._filter = config.get("filter_subject") or ">"
        self._explicit = config.get("ack_policy", "explicit") == "explicit"
        self.ack_wait_s = (config.get("ack_wait") or DEFAULT_ACK_WAIT_NS) / 1e9
        self._max_pending = config.get("max_ack_pending") or 1_000
        self._max_deliver = config.get("max_deliver") or -1
        self._requests: list[PullRequest] = []
        self._pending: dict[int, float] = {}
        """Deadlines of delivered messages by sequence."""
        self._deliveries: dict[int, int] = {}
        """Number of deliveries of messages that are not acknowledged."""
        self._redeliver: list[int] = []
        self._last_per_subject: list[int] | None = None
        self._next = 1
        self._delivered = 0
        self._start()

    def _start(self) -> None:
        policy = self.config.get("deliver_policy", "all")
        if policy == "by_start_sequence":
            self._next = self.config["opt_start_seq"]
        elif policy == "last_per_subject":
            newest = (self._newest_of(name) for name in self.stream.matching(self._filter))
            self._last_per_subject = sorted(sequence for sequence in newest if sequence)
        elif policy == "last":
            names = self.stream.matching(self._filter)
            self._next = max(map(self._newest_of, names), default=0) or self.host.newest_at(self) + 1
        elif policy == "new":
            self._next = self.host.newest_at(self) + 1
        elif policy != "all":
            raise errors.ApiError(400, 10012, f"the simulated server does not know the deliver policy {policy!r}")

    def _newest_of(self, subject: str) -> int:
        """Sequence of the newest message on a subject that its server has; 0 without one."""
        limit = self.host.newest_at(self)
        return next((sequence for sequence in reversed(self.stream.subjects[subject]) if sequence <= limit), 0)

    # ── Requests

    def request(self, pulled: PullRequest, no_wait: bool) -> None:
        """Serve a request now, or keep it until messages arrive or it expires."""
        self.touched_at = self.host.time()
        if no_wait:
            pulled.left = min(pulled.left, self.pending_count() + len(self._redeliver))
        if not pulled.left:
            self._end(pulled, "404 No Messages")
            return
        self._requests.append(pulled)
        self.serve()

    def expire(self) -> None:
        """End requests whose time is over, and take back deliveries whose acknowledgement is late."""
        now = self.host.time()
        for pulled in [p for p in self._requests if p.expires_at <= now]:
            self._requests.remove(pulled)
            self._end(pulled, "408 Request Timeout")
        for sequence in [s for s, deadline in self._pending.items() if deadline <= now]:
            self._take_back(sequence)
        self.serve()

    def forget_requests(self, has_interest: Callable[[str], bool]) -> None:
        """Drop the requests of clients that are gone."""
        self._requests = [pulled for pulled in self._requests if has_interest(pulled.reply)]

    def close(self, status: str) -> None:
        """End all requests, since the consumer is gone."""
        for pulled in self._requests:
            self._end(pulled, status)
        self._requests.clear()

    def next_deadline(self) -> float | None:
        """Virtual time at which ``expire`` has something to do; None when nothing is due."""
        times = [pulled.expires_at for pulled in self._requests]
        if self._pending:
            times.append(min(self._pending.values()))
        return min(times, default=None)

    def is_inactive(self, threshold_s: float) -> bool:
        """Whether no client has asked for long."""
        return not self._requests and self.host.time() - self.touched_at >= threshold_s

    def _end(self, pulled: PullRequest, status: str) -> None:
        self.touched_at = self.host.time()
        code, _, text = status.partition(" ")
        left = {"Nats-Pending-Messages": str(pulled.left), "Nats-Pending-Bytes": str(pulled.bytes_left)}
        self.host.deliver_from(self, pulled.reply, pulled.reply, "", format_headers(left, f"{code} {text}"), b"")

    # ── Deliveries

    def serve(self) -> None:
        """Deliver as many messages as are requested."""
        while self._requests:
            pulled = self._requests[0]
            found = self._peek()
            if found is None:
                return
            if pulled.is_bounded and found.size > pulled.bytes_left:
                self._requests.pop(0)
                self._end(pulled, "409 Message Size Exceeds MaxBytes")
                continue
            if not self._send(pulled, found):
                self._requests.pop(0)
                continue
            pulled.left -= 1
            pulled.bytes_left -= found.size
            if pulled.left <= 0:
                self._requests.pop(0)

    def _peek(self) -> StoredMessage | None:
        """The message to deliver next."""
        while self._redeliver:
            message = self.stream.messages.get(self._redeliver[0])
            if message is not None:
                return message
            self._drop(self._redeliver[0])
        if self._explicit and len(self._pending) >= self._max_pending:
            return None
        if self._last_per_subject is not None:
            while self._last_per_subject:
                message = self.stream.messages.get(self._last_per_subject[0])
                if message is not None:
                    return message
                self._last_per_subject.pop(0)
            return None
        self._next = max(self._next, self.stream.first)
        while self._next <= self.host.newest_at(self):
            message = self.stream.messages.get(self._next)
            if message is not None and matches(self._filter, message.subject):
                return message
            self._next += 1
        return None

    def _send(self, pulled: PullRequest, message: StoredMessage) -> bool:
        sequence = message.sequence
        tries = self._deliveries.get(sequence, 0) + 1
        number = self._delivered + 1
        pending = self._pending_after(sequence)
        ack = f"$JS.ACK.{self.stream.name}.{self.name}.{tries}.{sequence}.{number}.{message.time_ns}.{pending}"
        if not self.host.deliver_from(self, pulled.reply, message.subject, ack, message.headers, message.data):
            return False
        self._delivered = number
        if sequence in self._redeliver:
            self._redeliver.remove(sequence)
        elif self._last_per_subject is not None:
            self._last_per_subject.pop(0)
        else:
            self._next = sequence + 1
        if self._explicit:
            self._pending[sequence] = self.host.time() + self.ack_wait_s
            self._deliveries[sequence] = tries
        return True

    def _pending_after(self, sequence: int) -> int:
        if self._last_per_subject is not None:
            return len(self._last_per_subject) - 1
        missing = self.stream.count_after(self._filter, self.host.newest_at(self))
        return max(self.stream.count_after(self._filter, sequence) - missing, 0)

    def pending_count(self) -> int:
        """Messages that are still to be delivered for the first time."""
        if self._last_per_subject is not None:
            return len(self._last_per_subject)
        return self._pending_after(self._next - 1)

    # ── Acknowledgements

    def acknowledge(self, sequence: int, what: bytes) -> bool:
        """Handle an acknowledgement; returns whether the message is done with."""
        if what.startswith(b"+WPI"):
            if sequence in self._pending:
                self._pending[sequence] = self.host.time() + self.ack_wait_s
            return False
        if what.startswith(b"-NAK"):
            if sequence in self._pending:
                self._take_back(sequence)
                self.serve()
            return False
        self._drop(sequence)
        self.serve()
        return True

    def redeliver(self, count: int) -> None:
        """Take back deliveries before their time, as a new leader of the consumer may."""
        for sequence in list(self._pending)[:count]:
            self._take_back(sequence)
        self.serve()

    def move(self, server: str, rng: Random) -> None:
        """Go on from another server: open requests are lost, and some deliveries are repeated."""
        self.server = server
        self._requests.clear()
        for sequence in list(self._pending):
            if rng.random() < 0.5:
                self._take_back(sequence)

    def recover(self) -> None:
        """Start again from the disk: open requests are lost, and deliveries without acknowledgement are repeated."""
        self._requests.clear()
        for sequence in list(self._pending):
            self._take_back(sequence)
        self.touched_at = self.host.time()

    def _take_back(self, sequence: int) -> None:
        del self._pending[sequence]
        if 0 < self._max_deliver <= self._deliveries.get(sequence, 0):
            return
        self._redeliver.append(sequence)

    def _drop(self, sequence: int) -> None:
        self._pending.pop(sequence, None)
        self._deliveries.pop(sequence, None)
        if sequence in self._redeliver:
            self._redeliver.remove(sequence)

    def info(self) -> dict[str, Any]:
        """As the API has it."""
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": "2027-01-15T08:00:00Z",
            "config": self.config,
            "delivered": {"consumer_seq": self._delivered, "stream_seq": self._next - 1},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": len(self._pending),
            "num_redelivered": len(self._redeliver),
            "num_waiting": len(self._requests),
            "num_pending": self.pending_count(),
        }
