"""Verification of a history against its seals, down to the events that differ.

Applies to the events of the stream and to those read back from the archive: the same seals check both, so damage in
one is distinguished from damage in the other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise

import msgspec
from nats.aio.client import Client

from league.integrity.seals import CHECK_BYTES, decode_checks, event_digest, range_digest
from league.log.base import EventLog, RecordedEvent
from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from schemas.errors import LogError
from schemas.events import HistorySealed
from schemas.numbers import Ranges, merge_ranges
from schemas.subjects import LEAGUE_STREAM

ProgressCallback = Callable[[int], None]


class DamagedEvents(msgspec.Struct, frozen=True):
    """Events that are not what was sealed."""

    what: str
    """``differs``, ``missing`` or ``added``."""
    first: int
    last: int
    """Sequences of the first and last of these events; of missing ones, the range between their neighbours."""
    events: int


class Damage(msgspec.Struct, frozen=True):
    """A range that does not agree with its seal."""

    where: str
    """``stream``, ``archive`` or ``copy``."""
    first: int
    last: int
    what: str
    located: list[DamagedEvents] = []
    seal: int = 0
    """Sequence of the seal that does not agree; 0 where it is lost, or where no seal covers the range."""


class SealedRange(msgspec.Struct, frozen=True):
    """A closed range as described by its seal, or, if that is lost, by the next seal."""

    first: int
    last: int
    previous: str
    seal: HistorySealed | None
    expected: str
    """Its digest according to the next seal, or to its own if that is the newest."""
    sealed_by: int = 0
    """Sequence of its seal; 0 if that is lost."""


class SealChain(msgspec.Struct):
    """The seals of a history, as far as they continue one another, and the damage found among them."""

    ranges: list[SealedRange] = []
    damage: list[Damage] = []

    @property
    def last(self) -> int:
        """Last sequence covered by the newest seal; 0 without any."""
        return self.ranges[-1].last if self.ranges else 0

    @property
    def digest(self) -> str:
        """Digest of the newest seal."""
        return self.ranges[-1].expected if self.ranges else ""


async def read_chain(history: EventLog) -> SealChain:
    """Read the seals of a history, without the rest of it."""
    chain = SealChain()
    seals: list[tuple[int, HistorySealed]] = []
    async for recorded in history.read(only=HistorySealed):
        if isinstance(recorded.event, HistorySealed):
            seals.append((recorded.sequence, recorded.event))
        else:
            what = f"no seal: {recorded.error}"
            chain.damage.append(Damage("stream", recorded.sequence, recorded.sequence, what))
    closed: list[tuple[int, int, HistorySealed | None, int]] = []
    at = 1
    for sequence, seal in seals:
        if seal.first < at or seal.last < seal.first:
            what = f"a seal does not continue the one that ends at {at - 1}"
            chain.damage.append(Damage("stream", seal.first, seal.last, what, seal=sequence))
            continue
        if seal.first > at:
            what = "the seal of this range is lost or cannot be read"
            chain.damage.append(Damage("stream", at, seal.first - 1, what))
            closed.append((at, seal.first - 1, None, 0))
        closed.append((seal.first, seal.last, seal, sequence))
        at = seal.last + 1
    for (first, last, own, sequence), (_, _, after, _) in pairwise([*closed, (0, 0, None, 0)]):
        expected = own.digest if own is not None else ""
        if after is not None:
            expected = after.previous
        previous = own.previous if own is not None else chain.digest
        chain.ranges.append(SealedRange(first, last, previous, own, expected, sequence))
    return chain


class SealChecker:
    """Comparison of events, in order, with sealed ranges; ``where`` is that of ``Damage``."""

    def __init__(self, ranges: Sequence[SealedRange], where: str) -> None:
        self.events = 0
        self.unsealed = 0
        """Number of them after the last sealed range."""
        self.last = ranges[-1].last if ranges else 0
        """Last sequence applied, at least the end of the last sealed range."""
        self.gaps: Ranges = []
        """Sequences after the last sealed range that are not among the events: another league's, deleted or lost."""
        self.damage: list[Damage] = []
        self._where = where
        self._ranges = list(ranges)
        self._at = 0
        self._found: list[tuple[int, bytes]] = []

    def apply_batch(self, batch: Iterable[RecordedEvent]) -> None:
        """Apply events in order of sequence."""
        for recorded in batch:
            while self._at < len(self._ranges) and recorded.sequence > self._ranges[self._at].last:
                self._close()
            self.events += 1
            if self._at == len(self._ranges):
                self.unsealed += 1
                if recorded.sequence > self.last + 1:
                    self.gaps.append([self.last + 1, recorded.sequence - 1])
                self.last = recorded.sequence
            else:
                self._found.append((recorded.sequence, event_digest(recorded)))

    def finish(self) -> list[Damage]:
        """Close the remaining ranges after the last event; returns all damage."""
        while self._at < len(self._ranges):
            self._close()
        return self.damage

    def _close(self) -> None:
        checked = self._ranges[self._at]
        self._at += 1
        actual, self._found = self._found, []
        digests = [digest for _, digest in actual]
        digest = range_digest(checked.previous, digests)
        seal = checked.seal
        located: list[DamagedEvents] = []
        if digest == checked.expected:
            checks = [each[:CHECK_BYTES] for each in digests]
            if seal is None or (seal.digest == digest and decode_checks(seal) == checks):
                return
            what = "the events are what the seal after says, the seal of this range is not"
        elif seal is not None and digest == seal.digest:
            what = "the events agree with their seal, but the seal after it was made for others"
        else:
            what = "the events do not give the sealed digest"
            if seal is None:
                lost = "their seal, or several, are lost, so the event that differs cannot be named"
                what = f"{len(digests):,} events do not give the sealed digest; {lost}"
            elif len(digests) != seal.events:
                what = f"{len(digests):,} events; sealed were {seal.events:,}"
            located = locate_damage(checked, actual)
        self.damage.append(Damage(self._where, checked.first, checked.last, what, located, checked.sealed_by))


def locate_damage(checked: SealedRange, digests: Sequence[tuple[int, bytes]]) -> list[DamagedEvents]:
    """Locate the events of a range, by sequence and digest, that differ from its seal, are missing or were added."""
    if checked.seal is None:
        return []
    sealed, present = decode_checks(checked.seal), [digest[:CHECK_BYTES] for _, digest in digests]
    if len(sealed) == checked.last - checked.first + 1:
        return _locate_by_place(checked.first, sealed, digests)
    start = _common_prefix_length(sealed, present)
    end = _common_prefix_length(sealed[start:][::-1], present[start:][::-1])
    old, new = sealed[start : len(sealed) - end], present[start : len(present) - end]
    located: list[DamagedEvents] = []
    # Both ends are nearly always equal, so the slow comparison sees little.
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            located += _damaged_spans(checked, digests, start + c, start + d, b - a)
    return located


def _locate_by_place(first: int, sealed: Sequence[bytes], digests: Sequence[tuple[int, bytes]]) -> list[DamagedEvents]:
    """Compare a range without gaps, where the place in a seal gives the sequence, which digests cover."""
    present: defaultdict[int, list[bytes]] = defaultdict(list)
    for sequence, digest in digests:
        present[sequence].append(digest[:CHECK_BYTES])

    def damage(place: tuple[int, bytes]) -> str:
        there = present[place[0]]
        if there == [place[1]]:
            return ""
        if not there:
            return "missing"
        return "added" if place[1] in there else "differs"

    runs = ((what, [sequence for sequence, _ in run]) for what, run in groupby(enumerate(sealed, first), damage))
    return [DamagedEvents(what, run[0], run[-1], len(run)) for what, run in runs if what]


def _damaged_spans(
    checked: SealedRange, digests: Sequence[tuple[int, bytes]], begin: int, end: int, sealed: int
) -> list[DamagedEvents]:
    """Classify ``found[begin:end]``, which stands in place of ``sealed`` events of the seal."""
    there = end - begin
    both = min(sealed, there)
    located = [DamagedEvents("differs", digests[begin][0], digests[begin + both - 1][0], both)] if both else []
    if there > sealed:
        located.append(DamagedEvents("added", digests[begin + both][0], digests[end - 1][0], there - both))
    if sealed > there:
        before = digests[begin + both - 1][0] if begin + both else checked.first - 1
        after = digests[end][0] if end < len(digests) else checked.last + 1
        # Without room between them, checks of two bytes were equal by chance.
        if before + 1 < after:
            located.append(DamagedEvents("missing", before + 1, after - 1, sealed - there))
    return located


def _common_prefix_length(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)


async def check_stream(
    history: EventLog,
    chain: SealChain,
    on_progress: ProgressCallback = lambda events: None,
    folds: Sequence[Callable[[list[RecordedEvent]], None]] = (),
) -> SealChecker:
    """Read the whole history and compare it with its seals.

    ``folds`` are further checks, applied to every batch in the same pass, in another thread.
    """
    checker = SealChecker(chain.ranges, "stream")

    def apply(batch: list[RecordedEvent]) -> None:
        checker.apply_batch(batch)
        for fold in folds:
            fold(batch)

    async for batch in history.batches():
        await asyncio.to_thread(apply, batch)
        on_progress(checker.events)
    checker.finish()
    return checker


class StreamContents(msgspec.Struct, frozen=True, rename={"first": "first_seq", "last": "last_seq"}):
    """The broker's figures of the stream that holds a history."""

    messages: int = 0
    """Messages that it claims to hold, those of other leagues included."""
    first: int = 0
    last: int = 0
    """Sequence of its newest message, deleted ones included."""
    deleted: list[int] = []
    """Sequences of messages that were deleted after the first one."""

    @property
    def gaps(self) -> Ranges:
        """Sequences of all deleted messages."""
        before = [[1, self.first - 1]] if self.first > 1 else []
        return merge_ranges(before, [[at, at] for at in self.deleted])


async def read_contents(client: Client) -> StreamContents:
    """Ask the broker for the contents of the history's stream; LogError if it has none, or does not answer."""
    request = msgspec.json.encode({"deleted_details": True})
    with translate_broker_errors(f"reading {LEAGUE_STREAM}"):
        reply = await client.request(f"$JS.API.STREAM.INFO.{LEAGUE_STREAM}", request, timeout=REQUEST_TIMEOUT_S)
    if (state := msgspec.json.decode(reply.data).get("state")) is None:
        raise LogError(f"reading {LEAGUE_STREAM}: the broker answers {reply.data[:200]!r}")
    return msgspec.convert(state, StreamContents)
