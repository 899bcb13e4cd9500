"""What three servers add to one: leaders that change, messages in flight, replicas that lag, servers cut off.

A stream is simulated once, as the majority of the servers has it. A server has clients, leads streams, and hosts
consumers, which deliver what its replica has. A message is in flight until a majority stores it; the leader checks its
conditions before that. When a leader loses its place, a part of what is in flight is stored, and nothing is answered.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.simulation.broker import errors
from tests.simulation.broker.protocol import parse_headers
from tests.simulation.broker.stream import Staged, Stored, Stream
from tests.simulation.broker.subjects import matches

SERVERS = ("server-1", "server-2", "server-3")
_LONGEST_ELECTION_S = 8.0


class Cluster:
    """Who leads, who is away, and how far replicas are.

    Args:
        rng: Its draws.
        now: Virtual time.
        later: Calls a function after some seconds, unless the broker has crashed by then.
    """

    def __init__(self, rng: Random, now: Callable[[], float], later: Callable[..., None]) -> None:
        self.rng = rng
        self.lost_deliveries = 0.0
        """Share of the messages between two servers that are lost, as where a route is closed."""
        self._now = now
        self._later = later
        self._leaders: dict[str, str] = {}
        self._elected_at: dict[str, float] = {}
        self._away_until: dict[str, float] = {}
        self._lags: dict[str, float] = {}
        """Mean time by which a server's replicas are late, in seconds."""
        self._missing: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        """By stream and server: when messages arrive there, and the sequence before each."""

    # ── Who serves

    def pick(self) -> str:
        """A server that is there, for a client, a consumer or a stream to lead."""
        return self.rng.choice([each for each in SERVERS if not self.is_away(each)] or SERVERS)

    def is_away(self, server: str) -> bool:
        """Whether a server is down or cut off from the others."""
        return self._away_until.get(server, 0.0) > self._now()

    def leader_of(self, stream: str) -> str:
        """The server that leads a stream."""
        return self._leaders.setdefault(stream, self.pick())

    def takes_requests(self, stream: Stream) -> bool:
        """Whether a stream has a leader, and that one a majority."""
        has_majority = sum(map(self.is_away, SERVERS)) * 2 < len(SERVERS)
        return has_majority and not stream.is_ended and self._elected_at.get(stream.name, 0.0) <= self._now()

    def reaches(self, one: str, other: str) -> bool:
        """Whether a message between two servers arrives."""
        if one == other:
            return True
        return not self.is_away(one) and not self.is_away(other) and self.rng.random() >= self.lost_deliveries

    def lose(self, server: str, seconds: float) -> None:
        """A server is down or cut off for a while."""
        self._away_until[server] = max(self._away_until.get(server, 0.0), self._now() + seconds)

    def elect(self, stream: str) -> None:
        """Give a stream another leader, after a time without one."""
        self._leaders[stream] = self.pick()
        self._elected_at[stream] = self._now() + self.rng.uniform(0.0, _LONGEST_ELECTION_S)

    # ── Replicas

    def delay(self, server: str, mean_s: float) -> None:
        """Make a server's replicas late; 0 ends that."""
        self._lags[server] = mean_s

    def replicate(self, stream: Stream, before: int, arrived: Callable[[Stream], Any]) -> None:
        """The majority has what follows a sequence; a slow server gets it later, and ``arrived`` is called then."""
        for server, mean_s in self._lags.items():
            missing = self._missing.setdefault((stream.name, server), deque())
            if (mean_s or missing) and server != self.leader_of(stream.name):
                due = self._now() + self.rng.expovariate(1.0) * mean_s
                missing.append((max(due, missing[-1][0]) if missing else due, before))
                self._later(missing[-1][0] - self._now(), arrived, stream)

    def newest_at(self, server: str, stream: Stream) -> int:
        """Sequence of the newest message of a stream that a server has."""
        missing = self._missing.get((stream.name, server))
        while missing and missing[0][0] <= self._now():
            missing.popleft()
        return missing[0][1] if missing and server != self.leader_of(stream.name) else stream.last


def check_proposal(stream: Stream, staged: Staged, in_flight: Sequence[Staged]) -> Stored | None:
    """What a leader checks before it replicates messages; returns the outcome for one that is stored already.

    It sees what is stored, and refuses a condition on a subject of which a message is in flight, or another condition.
    The newest message's id is not checked here, but as replicas store the message (nats-server 2.15.1).

    Raises:
        ApiError: an id or a condition is refused.
    """
    pending = [(message.subject, message.parsed()) for each in in_flight for message in each.messages]
    ids = {headers.get("Nats-Msg-Id") for _, headers in pending} - {None}
    ordered = {_condition_subject(subject, headers) for subject, headers in pending}
    for message in staged.messages:
        headers = message.parsed()
        known = stream.known(headers)
        is_in_process = headers.get("Nats-Msg-Id") in ids
        if staged.batch and (is_in_process or known is not None):
            raise errors.DUPLICATE_IN_BATCH
        if is_in_process:
            raise errors.IN_PROCESS
        if known is not None:
            return Stored(known, is_duplicate=True)
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != stream.last + len(pending):
            raise errors.wrong_last_sequence(stream.last + len(pending))
        if pattern := _condition_subject(message.subject, headers):
            if pattern in ordered or any(matches(pattern, subject) for subject, _ in pending):
                raise errors.IN_FLIGHT
            newest = stream.last_of(pattern)
            found = newest.sequence if newest is not None else 0
            if int(headers["Nats-Expected-Last-Subject-Sequence"]) != found:
                raise errors.wrong_last_sequence(found)
    return None


def apply_proposal(stream: Stream, staged: Staged) -> Stored:
    """Store what was replicated. A condition that fails only now stops the replicas: the stream serves no more.

    Raises:
        ApiError: it is not stored.
    """
    try:
        for message in staged.messages:
            stream.check_last_id(parse_headers(message.headers))
    except errors.ApiError:
        stream.is_ended = True
        raise
    return stream.store(staged)


def _condition_subject(subject: str, headers: dict[str, str]) -> str:
    """Subject that a message's condition is on; empty without one."""
    if "Nats-Expected-Last-Subject-Sequence" not in headers:
        return ""
    return headers.get("Nats-Expected-Last-Subject-Sequence-Subject", subject)
