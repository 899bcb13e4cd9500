"""Signatures of match results: made by the reporting workers, verified on the recorded bytes.

A worker announces its public key when it connects (``WorkerJoined.public_key``) and signs every ``MatchFinished``
(Ed25519, RFC 8032): the payload's bytes with ``"signature":""`` in them. Verification restores that form without
decoding and encoding again, so it works on the bytes of a stream, an archive, a branch or an export, and with fields
unknown to this version.

Whether a result must be signed follows from the history before it: only where its worker has announced a key. Keys
are NATS user keys: a worker with credentials signs with the key of those credentials.
"""

import asyncio
import base64
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
import nacl.exceptions
import nacl.signing
import nkeys

from league.auth.tokens import new_seed, public_key, raw_key
from league.fold_primitives import SeenIds
from league.log.base import EventLog, RecordedEvent
from league.ratings.fold import RatingFold
from schemas.codec import encode_event
from schemas.events import Event, MatchFailed, MatchFinished, MatchVoided, RatingsCorrected, RatingUpdated, WorkerJoined
from schemas.loggers import get_logger

MAX_REMEMBERED = 16
"""Newest keys and starts kept per worker. One without credentials makes a new key at every start."""
_PUBLIC = re.compile(r"U[A-Z2-7]{55}")


class WorkerKeys(msgspec.Struct):
    """Public keys by worker."""

    by_worker: dict[str, list[str]] = {}
    """Oldest first; an empty string is a start without a key after one with. Workers without any key are absent."""
    incarnations: dict[str, list[str]] = {}
    """Process starts of each worker, oldest first."""

    def is_announced(self, event: WorkerJoined) -> bool:
        """Whether this start is known already: a copy may arrive long after later starts."""
        return event.incarnation in self.incarnations.get(event.worker, ())

    def announce(self, event: WorkerJoined) -> bool:
        """Register a worker's start; returns whether it is new. An invalid key counts as none."""
        if self.is_announced(event):
            return False
        starts = self.incarnations.setdefault(event.worker, [])
        starts.append(event.incarnation)
        del starts[:-MAX_REMEMBERED]
        key = event.public_key if _PUBLIC.fullmatch(event.public_key) else ""
        known = self.by_worker.get(event.worker)
        if known is None:
            if key:
                self.by_worker[event.worker] = [key]
        elif known[-1] != key and not (key and known[-1] and key in known):
            known.append(key)
            del known[:-MAX_REMEMBERED]
        return True

    def for_worker(self, worker: str) -> list[str]:
        """A worker's keys, newest first: results signed by an earlier start may still arrive."""
        return [key for key in reversed(self.by_worker.get(worker, [])) if key]

    def must_sign(self, worker: str) -> bool:
        """Whether a worker announced a key when it last connected."""
        known = self.by_worker.get(worker)
        return bool(known and known[-1])


_FIELD, _END = b'"signature":"', b'"'
_EMPTY = _FIELD + _END
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{85}[AQgw]")
"""64 bytes in base64: the last character carries two of the bits and nothing else."""


class Signer:
    """Signer of one worker's results, with the secret key of a NATS user; by default a new one, stored nowhere else."""

    def __init__(self, seed: str | None = None) -> None:
        seed = seed or new_seed("user")
        self.public_key = public_key(seed)
        self._pair = nkeys.from_seed(bytearray(seed.encode()))

    def encode(self, event: Event) -> bytes:
        """Encode an event as JSON; results get a signature. DecodeError if it could not be decoded again."""
        if not isinstance(event, MatchFinished):
            return encode_event(event)
        unsigned = encode_event(msgspec.structs.replace(event, signature="") if event.signature else event)
        before, _, after = unsigned.rpartition(_EMPTY)
        signature = base64.urlsafe_b64encode(self._pair.sign(unsigned)).rstrip(b"=")
        return before + _FIELD + signature + _END + after


def verify_signature(payload: bytes, signature: str, key: str) -> bool:
    """Whether a key (``U…``) made the signature of a result, whose recorded bytes include the signature."""
    if not _SIGNATURE.fullmatch(signature) or payload.count(_FIELD) != 1:
        return False
    # Inside a string the quotation marks would be escaped: this is the field, and the only one of its name.
    before, field, after = payload.partition(_FIELD + signature.encode() + _END)
    if not field:
        return False
    try:
        _verify_key(key).verify(before + _EMPTY + after, base64.urlsafe_b64decode(signature + "=="))
    except (nacl.exceptions.CryptoError, ValueError):
        return False
    return True


@lru_cache(maxsize=16_384)
def _verify_key(key: str) -> nacl.signing.VerifyKey:
    return nacl.signing.VerifyKey(raw_key(key))


class SignatureVerifier:
    """Fold over events in order that classifies a history's results.

    ``forged``: the required signature is missing, or none of the worker's keys made it. ``unsigned``: none is required,
    or the key to verify it was never announced.
    """

    def __init__(self) -> None:
        self.keys = WorkerKeys()
        self.counts = {"signed": 0, "unsigned": 0, "forged": 0}

    def verify_batch(self, batch: Iterable[RecordedEvent]) -> list[RecordedEvent]:
        """Classify the results among these events; returns the forged ones."""
        forged = []
        for recorded in batch:
            event = recorded.event
            if isinstance(event, WorkerJoined):
                self.keys.announce(event)
            elif isinstance(event, MatchFinished):
                keys = self.keys.for_worker(event.worker)
                verdict = "unsigned"
                if keys and event.signature:
                    is_signed = any(verify_signature(recorded.payload, event.signature, key) for key in keys)
                    verdict = "signed" if is_signed else "forged"
                elif keys and self.keys.must_sign(event.worker):
                    verdict = "forged"
                self.counts[verdict] += 1
                if verdict == "forged":
                    forged.append(recorded)
        return forged


_SUBJECTS = ("match.", "worker.joined")
"""Relevant events have these subjects, or every reader refuses them; the payload's first bytes are the writer's choice.
"""


class ForgedResult(msgspec.Struct, frozen=True):
    """A result without its worker's required signature that nevertheless counts."""

    sequence: int
    match_id: str
    worker: str
    """The worker named as its reporter."""


class SignatureReport(msgspec.Struct, frozen=True):
    """Counts of signed, unsigned and forged results in a history."""

    signed: int = 0
    unsigned: int = 0
    """Results of workers that had announced no key."""
    forged: Sequence[ForgedResult] = ()
    harmless: int = 0
    """Forged results that were voided, or whose match had ended before."""


class SignatureChecker:
    """Signature check of a history's events in order; decodes relevant events only."""

    def __init__(self) -> None:
        self._signatures = SignatureVerifier()
        self._ended_matches = SeenIds()
        self._forged: dict[str, ForgedResult] = {}
        self._voided: set[str] = set()

    def apply_batch(self, batch: Iterable[RecordedEvent]) -> None:
        """Apply events in order of sequence."""
        for recorded in batch:
            if not recorded.subject.partition(".")[2].partition(".")[2].startswith(_SUBJECTS):
                continue
            event = recorded.event
            is_forged = bool(self._signatures.verify_batch([recorded]))
            if isinstance(event, MatchFinished | MatchFailed):
                counts = self._ended_matches.add(event.match_id)
                if is_forged and counts:
                    self._forged[event.match_id] = ForgedResult(recorded.sequence, event.match_id, event.worker)
            elif isinstance(event, MatchVoided):
                self._voided.add(event.match.match_id)

    def finish(self) -> SignatureReport:
        """Returns the report, after the last event."""
        counts = self._signatures.counts
        forged = [forgery for name, forgery in self._forged.items() if name not in self._voided]
        return SignatureReport(counts["signed"], counts["unsigned"], forged, counts["forged"] - len(forged))


log = get_logger()
VOID_REASON = "signature"
_MAX_WAITING = 1_000
"""Approximate bound on results waiting for verification, which are kept in memory."""


class SignatureAudit:
    """Verifies signatures of folded results after ``through`` in a thread, before the rater records their ratings."""

    def __init__(self, through: int = 0) -> None:
        self._checked_through = through
        self._signatures = SignatureVerifier()
        self._waiting: list[RecordedEvent] = []
        self._forged: list[RecordedEvent] = []
        self._check_lock = asyncio.Lock()

    @classmethod
    async def resume(cls, history: EventLog, fold: RatingFold) -> "SignatureAudit":
        """Continue after the results behind the newest recorded rating, up to the sequence of the fold."""
        through = await _find_checked_through(history, fold.recorded_sequence)
        checks = cls(through)
        if through:
            checks._signatures.verify_batch([r async for r in history.read(1, through, only=WorkerJoined)])
        if fold.sequence > through:
            async for batch in history.batches(through + 1, fold.sequence):
                for recorded in batch:
                    checks.observe(recorded)
                await checks.check_waiting()
        if checks._forged:
            names = {_match_id(r.event) for r in checks._forged}
            counted = await _find_counted(history, names, checks._forged[-1].sequence)
            checks._forged = [r for r in checks._forged if r.sequence in counted]
        return checks

    @property
    def is_full(self) -> bool:
        """Whether enough results wait that they should be verified now."""
        return len(self._waiting) >= _MAX_WAITING

    def observe(self, recorded: RecordedEvent, is_over: bool = False) -> None:
        """Queue an event, in order of the history.

        ``is_over`` says that a result's match had ended before. Such a result does not count, whatever its signature,
        and voiding it would void the one that counts.
        """
        event = recorded.event
        if recorded.sequence > self._checked_through and (
            isinstance(event, WorkerJoined) or (isinstance(event, MatchFinished) and not is_over)
        ):
            self._waiting.append(recorded)

    async def check_waiting(self) -> None:
        """Verify all waiting results."""
        async with self._check_lock:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                self._forged += await asyncio.to_thread(self._signatures.verify_batch, batch)

    async def collect_voids(self, fold: RatingFold) -> Sequence[MatchVoided]:
        """Returns the events that void forged results; each result is returned once."""
        await self.check_waiting()
        forged, self._forged = self._forged, []
        voids: list[MatchVoided] = []
        for sequence, match in ((recorded.sequence, recorded.event) for recorded in forged):
            if isinstance(match, MatchFinished) and match.match_id not in fold.voided:
                log.error("forged result voided", match=match.match_id, worker=match.worker, sequence=sequence)
                voids.append(MatchVoided(match=match, match_sequence=sequence, reason=VOID_REASON))
        return voids


async def _find_checked_through(history: EventLog, recorded: int) -> int:
    """The match sequence of the rating at ``recorded``: all results up to it were verified before it was recorded."""
    if not recorded:
        return 0
    async for at in history.read(recorded, recorded):
        if isinstance(at.event, RatingUpdated):
            return at.event.match_sequence
        if isinstance(at.event, RatingsCorrected):
            return at.event.through
    return 0


async def _find_counted(history: EventLog, matches: set[str], last: int) -> set[int]:
    """Sequences of the first outcome of each match: only these count."""
    places: dict[str, int] = {}
    async for batch in history.batches(1, last):
        for recorded in batch:
            if ".match." in recorded.subject and (name := _match_id(recorded.event)) in matches:
                places.setdefault(name, recorded.sequence)
    return set(places.values())


def _match_id(event: Event | None) -> str:
    return event.match_id if isinstance(event, MatchFinished | MatchFailed) else ""
