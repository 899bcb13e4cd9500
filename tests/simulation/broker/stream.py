"""A stream: messages with limits, conditions, a deduplication window and atomic batches."""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.simulation.broker import errors
from tests.simulation.broker.protocol import parse_headers
from tests.simulation.broker.subjects import has_wildcard, last_token, matches

_MAX_BATCH = 1_000
_OVERHEAD_BYTES = 22
"""Bytes of a stored message beyond subject, headers and data."""
DEFAULTS: dict[str, Any] = {
    **{"retention": "limits", "storage": "file", "discard": "old", "num_replicas": 1},
    **{"max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1},
    **{"max_msg_size": -1, "duplicate_window": 120 * 10**9},
}


class StoredMessage(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    headers: bytes
    data: bytes
    time_ns: int

    @property
    def size(self) -> int:
        """Bytes that it takes of the stream's limit."""
        return len(self.subject) + len(self.headers) + len(self.data) + _OVERHEAD_BYTES


class Incoming(NamedTuple):
    """A message to be stored."""

    subject: str
    headers: bytes
    data: bytes

    def parsed(self) -> dict[str, str]:
        """Its headers by name."""
        return parse_headers(self.headers) if self.headers else {}


class Staged(NamedTuple):
    """What is stored together: one message, or a batch that was committed."""

    messages: list[Incoming]
    batch: str = ""


class Stored(NamedTuple):
    """The outcome of a publication."""

    sequence: int
    is_duplicate: bool = False
    batch: str = ""
    size: int = 1
    """Number of messages."""


class Stream:
    """One stream.

    Args:
        config: As the API has it.
        now_ns: The server's wall clock.
    """

    def __init__(self, config: dict[str, Any], now_ns: Callable[[], int]) -> None:
        self.config = DEFAULTS | {key: value for key, value in config.items() if value is not None}
        self.name: str = config["name"]
        self.created_ns = now_ns()
        self.messages: dict[int, StoredMessage] = {}
        self.first = self.config.get("first_seq") or 1
        self.last = self.first - 1
        self.bytes = 0
        self.last_time_ns = 0
        self.subjects: dict[str, dict[int, None]] = {}
        """Sequences by subject, ascending."""
        self._by_last_token: dict[str, dict[str, None]] = {}
        """Subjects by their last token: most patterns end with the digest of a blob."""
        self._added: list[str] = []
        """Subjects in the order in which they came, for ``all_match``."""
        self._matched: dict[str, int] = {}
        """By pattern that matches them: the number of subjects in ``_added`` up to there; -1 for one that does not."""
        self._now_ns = now_ns
        self._ids: dict[str, tuple[int, int]] = {}
        """Sequence and time of the message of each id."""
        self._id_order: deque[tuple[int, str]] = deque()
        self._last_id = ""
        """Id of the newest message."""
        self._batches: dict[str, list[Incoming]] = {}
        self.is_ended = False
        """Whether its replicas have stopped at a message that they could not apply."""

    @property
    def is_on_disk(self) -> bool:
        """Whether it survives the server."""
        return bool(self.config["storage"] == "file")

    def takes(self, subject: str) -> bool:
        """Whether messages on a subject are stored here."""
        return any(matches(pattern, subject) for pattern in self.config.get("subjects") or [])

    def known(self, headers: dict[str, str]) -> int | None:
        """Sequence of the message whose id is in the deduplication window; None without one."""
        return self._ids.get(headers.get("Nats-Msg-Id", ""), (None,))[0]

    # ── Publishing

    def publish(self, message: Incoming) -> Stored | None:
        """Store a message, as a single server does; None for one of a batch that is not yet committed.

        Raises:
            ApiError: it is refused; nothing is stored.
        """
        staged = self.stage(message)
        return None if staged is None else self._check(staged) or self.store(staged)

    def stage(self, message: Incoming) -> Staged | None:
        """Take a message; None for one of a batch that is not yet committed.

        Raises:
            ApiError: its batch is refused.
        """
        self._expire()
        headers = message.parsed()
        batch = headers.get("Nats-Batch-Id")
        return self._stage_batched(batch, headers, message) if batch else Staged([message])

    def _stage_batched(self, batch: str, headers: dict[str, str], message: Incoming) -> Staged | None:
        if not self.config.get("allow_atomic"):
            raise errors.BATCHES_DISABLED
        number = int(headers.get("Nats-Batch-Sequence", 0))
        if not number:
            raise errors.MISSING_BATCH_SEQUENCE
        staged = self._batches.setdefault(batch, []) if number == 1 else self._batches.get(batch)
        is_commit = "Nats-Batch-Commit" in headers
        if staged is None or number != len(staged) + 1:
            self._batches.pop(batch, None)
            raise errors.INCOMPLETE_BATCH
        staged.append(message)
        if len(staged) > _MAX_BATCH:
            del self._batches[batch]
            raise errors.LARGE_BATCH
        if not is_commit:
            return None
        del self._batches[batch]
        return Staged(staged, batch)

    def _check(self, staged: Staged) -> Stored | None:
        """Check ids and conditions; returns the outcome for a message that is stored already."""
        parsed = [message.parsed() for message in staged.messages]
        known = self.known(parsed[0])
        if not staged.batch and known is not None:
            return Stored(known, is_duplicate=True)
        ids = [found for headers in parsed if (found := headers.get("Nats-Msg-Id"))]
        if len(set(ids)) < len(ids) or any(name in self._ids for name in ids):
            raise errors.DUPLICATE_IN_BATCH
        newest: dict[str, int] = {}
        for place, (headers, message) in enumerate(zip(parsed, staged.messages, strict=True), self.last + 1):
            self.check_last_id(headers)
            self._check_conditions(headers, message.subject, self.last, newest)
            newest[message.subject] = place
        return None

    def store(self, staged: Staged) -> Stored:
        """Store what was checked, all of it.

        Raises:
            ApiError: the stream is full; nothing is stored.
        """
        self._check_limits(staged.messages)
        for message in staged.messages:
            headers = message.parsed()
            if headers.get("Nats-Rollup") == "sub":
                self.remove(list(self.subjects.get(message.subject, ())))
            elif headers.get("Nats-Rollup") == "all":
                self.remove(list(self.messages))
            self._append(message, headers)
        return Stored(self.last, batch=staged.batch, size=len(staged.messages))

    def check_last_id(self, headers: dict[str, str]) -> None:
        """Check the condition on the newest message's id.

        Raises:
            ApiError: it fails.
        """
        expected = headers.get("Nats-Expected-Last-Msg-Id")
        if expected is not None and expected != self._last_id:
            raise errors.wrong_last_id(self._last_id)

    def _check_conditions(self, headers: dict[str, str], subject: str, last: int, newest: dict[str, int]) -> None:
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != last:
            raise errors.wrong_last_sequence(last)
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            pattern = headers.get("Nats-Expected-Last-Subject-Sequence-Subject", subject)
            stored = self.last_of(pattern)
            in_batch = (sequence for name, sequence in newest.items() if matches(pattern, name))
            found = max(in_batch, default=stored.sequence if stored is not None else 0)
            if int(expected) != found:
                raise errors.wrong_last_sequence(found)

    def _check_limits(self, incoming: list[Incoming]) -> None:
        config = self.config
        if config["discard"] != "new":
            return
        if 0 < config["max_msgs"] < len(self.messages) + len(incoming):
            raise errors.store_failed("maximum messages exceeded")
        size = sum(StoredMessage(0, *message, 0).size for message in incoming)
        if 0 < config["max_bytes"] < self.bytes + size:
            raise errors.store_failed("maximum bytes exceeded")
        most = config["max_msgs_per_subject"]
        if config.get("discard_new_per_subject") and most > 0:
            for message in incoming:
                if len(self.subjects.get(message.subject, ())) >= most:
                    raise errors.store_failed("maximum messages per subject exceeded")

    def _append(self, message: Incoming, headers: dict[str, str]) -> int:
        self.last += 1
        stored = StoredMessage(self.last, *message, self._now_ns())
        self._index(stored)
        self.last_time_ns = stored.time_ns
        self._last_id = headers.get("Nats-Msg-Id", "")
        if self._last_id:
            self._remember(self._last_id, stored)
        self._discard_old(stored.subject)
        return self.last

    def _remember(self, name: str, stored: StoredMessage) -> None:
        self._ids[name] = stored.sequence, stored.time_ns
        self._id_order.append((stored.time_ns, name))

    def _index(self, stored: StoredMessage) -> None:
        self.messages[stored.sequence] = stored
        if stored.subject not in self.subjects:
            self.subjects[stored.subject] = {}
            self._added.append(stored.subject)
            self._by_last_token.setdefault(last_token(stored.subject), {})[stored.subject] = None
        self.subjects[stored.subject][stored.sequence] = None
        self.bytes += stored.size

    def _discard_old(self, subject: str) -> None:
        config = self.config
        if config["discard"] == "new":
            return
        most, sequences = config["max_msgs_per_subject"], self.subjects[subject]
        if 0 < most < len(sequences):
            self.remove(list(itertools.islice(sequences, len(sequences) - most)))
        if 0 < config["max_msgs"] < len(self.messages):
            self.remove([next(iter(self.messages))])

    def _expire(self) -> None:
        now, window = self._now_ns(), self.config["duplicate_window"]
        while self._id_order and self._id_order[0][0] < now - window:
            time_ns, name = self._id_order.popleft()
            if self._ids.get(name, (0, -1))[1] == time_ns:
                del self._ids[name]
        if age := self.config["max_age"]:
            old = itertools.takewhile(lambda m: m.time_ns < now - age, self.messages.values())
            self.remove([message.sequence for message in old])

    # ── Removing

    def remove(self, sequences: Iterable[int]) -> int:
        """Delete messages; missing ones are skipped. Returns the number of deleted ones."""
        count = 0
        for sequence in sequences:
            gone = self.messages.pop(sequence, None)
            if gone is None:
                continue
            count += 1
            self.bytes -= gone.size
            of_subject = self.subjects[gone.subject]
            del of_subject[sequence]
            if not of_subject:
                del self.subjects[gone.subject]
                del self._by_last_token[last_token(gone.subject)][gone.subject]
        if count:
            self.first = next(iter(self.messages), self.last + 1)
        return count

    def purge(self, subject: str = ">", before: int | None = None, keep: int = 0) -> int:
        """Delete the messages on a subject, up to a sequence or all but the newest."""
        self._expire()
        chosen = [
            message.sequence
            for message in self.messages.values()
            if matches(subject, message.subject) and (before is None or message.sequence < before)
        ]
        return self.remove(chosen[: len(chosen) - keep] if keep else chosen)

    def truncate(self, sequences: Iterable[int]) -> None:
        """Lose the newest messages, which were never flushed."""
        lost = sorted(sequences)
        if lost:
            self.remove(lost)
            self.last = lost[0] - 1
            self.first = next(iter(self.messages), self.last + 1)

    def forget_batches(self) -> None:
        """Drop batches that are not committed, as a leader does that takes over."""
        self._batches.clear()

    def recover(self) -> None:
        """Start again from the disk: ids of messages that are gone and open batches are forgotten."""
        self._batches.clear()
        self._ids.clear()
        self._id_order.clear()
        for message in self.messages.values():
            if name := parse_headers(message.headers).get("Nats-Msg-Id") if message.headers else None:
                self._remember(name, message)
        self._expire()

    # ── Reading

    def matching(self, pattern: str) -> list[str]:
        """Subjects that match a pattern, in the order of their first message."""
        token = last_token(pattern)
        candidates = self.subjects if token in ("*", ">") else self._by_last_token.get(token, ())
        return [name for name in candidates if matches(pattern, name)]

    def sequences(self, subject: str) -> Iterator[int]:
        """Sequences of the messages on a subject, ascending."""
        if not has_wildcard(subject):
            return iter(list(self.subjects.get(subject, ())))
        return iter(sorted(sequence for name in self.matching(subject) for sequence in self.subjects[name]))

    def all_match(self, pattern: str) -> bool:
        """Whether all messages so far are on matching subjects; each subject is compared once."""
        count = self._matched.get(pattern, 0)
        if 0 <= count < len(self._added):
            is_matched = all(matches(pattern, name) for name in itertools.islice(self._added, count, None))
            self._matched[pattern] = count = len(self._added) if is_matched else -1
        return count >= 0

    def count_after(self, pattern: str, sequence: int) -> int:
        """The number of messages on matching subjects beyond a sequence."""
        if sequence >= self.last:
            return 0
        is_gapless = len(self.messages) == self.last - self.first + 1
        if is_gapless and self.all_match(pattern):
            return self.last - max(sequence, self.first - 1)
        later = (itertools.takewhile(sequence.__lt__, reversed(self.subjects[name])) for name in self.matching(pattern))
        return sum(sum(1 for _ in found) for found in later)

    def last_of(self, subject: str) -> StoredMessage | None:
        """The newest message on a subject."""
        self._expire()
        if not has_wildcard(subject):
            return self.messages.get(next(reversed(self.subjects.get(subject, {})), 0))
        newest = (next(reversed(self.subjects[name])) for name in self.matching(subject))
        return self.messages.get(max(newest, default=0))

    def next_of(self, subject: str, first: int) -> StoredMessage | None:
        """The first message on a subject at or after a sequence."""
        self._expire()
        found = (m for m in self.messages.values() if m.sequence >= first and matches(subject, m.subject))
        return next(found, None)

    def state(self, subjects_filter: str = "") -> dict[str, Any]:
        """Its state, as the API has it."""
        self._expire()
        state: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": self.bytes,
            "first_seq": self.first if self.messages or self.last else 0,
            "last_seq": self.last,
            "num_subjects": len(self.subjects),
            "num_deleted": 0,
        }
        if subjects_filter:
            state["subjects"] = {name: len(self.subjects[name]) for name in self.matching(subjects_filter)}
        return state


class Acknowledgements:
    """What the server has acknowledged, by stream and sequence: the reference of durability."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[int, tuple[str, str]]] = {}

    def add(self, stream: str, sequence: int, subject: str, data: bytes) -> None:
        """Acknowledge a stored message to its publisher."""
        self._streams.setdefault(stream, {})[sequence] = subject, hashlib.sha256(data).hexdigest()

    def of(self, stream: str) -> dict[int, tuple[str, str]]:
        """Subject and digest of the bytes by sequence."""
        return self._streams.get(stream, {})
