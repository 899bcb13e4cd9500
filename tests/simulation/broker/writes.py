"""Publications to streams: between their arrival and their answer they are flushed and, on a cluster, replicated."""

import json
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.broker import errors
from tests.simulation.broker.cluster import Cluster, apply_proposal, check_proposal
from tests.simulation.broker.protocol import Operation
from tests.simulation.broker.stream import Incoming, Staged, Stored, Stream

if TYPE_CHECKING:
    from tests.simulation.broker.server import Broker


class _Write:
    """A publication that is not yet flushed, or not yet replicated."""

    def __init__(self, stream: Stream, message: Incoming, reply: str, staged: Staged | None) -> None:
        self.stream = stream
        self.message = message
        self.reply = reply
        self.staged = staged
        """What a cluster's leader has checked; None on a single server, which checks as it stores."""
        self.is_over = False


class Writes:
    """The publications that a server has received and not yet answered."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: dict[str, deque[_Write]] = {}
        """By stream."""
        self._free_at: dict[str, float] = {}
        """Time at which the disk has flushed what each stream has been given."""

    def lose(self) -> None:
        """End as a power failure does: of what is not flushed, a part is lost."""
        for writes in self._waiting.values():
            for write in list(writes)[: self._broker.rng.randint(0, len(writes))]:
                self._write(write)

    def depose(self, stream: Stream, cluster: Cluster) -> None:
        """Replace a stream's leader: the new one has a part of what was in flight, and answers none of it."""
        writes = self._waiting.get(stream.name, deque())
        kept = cluster.rng.randint(0, len(writes))
        for place, write in enumerate(writes):
            write.is_over = True
            if place < kept:
                self._write(write)
        writes.clear()
        stream.forget_batches()
        cluster.elect(stream.name)
        self._broker.signal(stream)

    def enqueue(self, stream: Stream, operation: Operation) -> None:
        """Store a message after those before it, once it is flushed and, on a cluster, a majority has it."""
        message = Incoming(operation.subject, operation.headers, operation.data)
        write = _Write(stream, message, operation.reply, None)
        if self._broker.cluster is not None:
            outcome = self._try(stream, lambda: self._propose(write))
            if outcome or write.staged is None:
                self._reply_to(write, outcome)
                return
        self._waiting.setdefault(stream.name, deque()).append(write)
        if not stream.is_on_disk:
            self._finish(write)
            return
        start = max(self._broker.loop.time(), self._free_at.get(stream.name, 0.0))
        self._free_at[stream.name] = done = start + self._broker.conditions.flush_s * self._broker.rng.expovariate(1.0)
        self._broker.later(done - self._broker.loop.time(), self._finish, write)

    def _propose(self, write: _Write) -> Stored | None:
        """Check a message as a cluster's leader, which replicates it next unless it is stored already."""
        stored = self._check_disk(write)
        if stored is None and (staged := write.stream.stage(write.message)) is not None:
            in_flight = [each.staged for each in self._waiting.get(write.stream.name, ()) if each.staged is not None]
            stored = check_proposal(write.stream, staged, in_flight)
            write.staged = staged
        return stored

    def _check_disk(self, write: _Write) -> Stored | None:
        if self._broker.conditions.is_full and write.stream.is_on_disk:
            raise errors.INSUFFICIENT_RESOURCES
        return self._broker.conditions.on_publish(write.stream, write.message)

    def _finish(self, write: _Write) -> None:
        """Store and answer, unless another leader has decided on the message."""
        if write.is_over:
            return
        write.is_over = True
        self._waiting[write.stream.name].remove(write)
        outcome = self._write(write)
        self._broker.signal(write.stream)
        self._reply_to(write, outcome)

    def _reply_to(self, write: _Write, outcome: bytes) -> None:
        if write.reply:
            leader = self._broker.cluster.leader_of(write.stream.name) if self._broker.cluster is not None else ""
            self._broker.reply(write.reply, outcome, source=write.stream.name, server=leader)

    def _write(self, write: _Write) -> bytes:
        """Store a message; returns the acknowledgement or the error."""
        stream, before = write.stream, write.stream.last
        if (staged := write.staged) is None:
            return self._try(stream, lambda: self._check_disk(write) or stream.publish(write.message))
        outcome = self._try(stream, lambda: apply_proposal(stream, staged))
        if self._broker.cluster is not None and stream.last > before:
            self._broker.cluster.replicate(stream, before, self._broker.signal)
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
                self._broker.acknowledged.add(stream.name, sequence, kept.subject, kept.data)
        document: dict[str, Any] = {"stream": stream.name, "seq": stored.sequence}
        if stored.is_duplicate:
            document["duplicate"] = True
        if stored.batch:
            document |= {"batch": stored.batch, "count": stored.size}
        return json.dumps(document).encode()
