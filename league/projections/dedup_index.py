"""What was recorded before: ids of matches, and the newest rated match per game and system.

A match counts once, however often its result was recorded. The folds' own sets of ids say so (``SeenIds``), since
searching all earlier rows would make every batch as slow as the history is long.
"""

import msgspec
import zstandard

from league.fold_primitives import SeenIds, SeenIdsSnapshot
from schemas.codec import DECODE_ERRORS
from schemas.errors import DecodeError
from schemas.events import Event, MatchFailed, MatchFinished, OpponentsSampled, RatingsCorrected, RatingUpdated


class _SavedIndex(msgspec.Struct, array_like=True):
    played: SeenIdsSnapshot
    sampled: SeenIdsSnapshot
    rated_to: list[tuple[str, str, int]]


class DedupIndex:
    """Matches with an outcome, matches whose opponents were drawn, and how far each game and system is rated."""

    def __init__(self) -> None:
        self._played = SeenIds()
        self._sampled = SeenIds()
        self._rated_to: dict[tuple[str, str], int] = {}

    def add(self, event: Event) -> bool:
        """Add an event, and return whether it is the first of its fact; types without an entry here always are."""
        match event:
            case MatchFinished() | MatchFailed():
                return self._played.add(event.match_id)
            case OpponentsSampled():
                return self._sampled.add(event.match_id)
            case RatingUpdated():
                return self._advance(event.game, event.system, event.match_sequence)
            case RatingsCorrected():
                return self._advance(event.game, event.system, event.through)
        return True

    def _advance(self, game: str, system: str, upto: int) -> bool:
        is_new = upto > self._rated_to.get((game, system), 0)
        if is_new:
            self._rated_to[game, system] = upto
        return is_new

    def to_bytes(self) -> bytes:
        """The index as compressed msgpack: equal ones give equal bytes."""
        rated_to = [(*key, upto) for key, upto in sorted(self._rated_to.items())]
        data = _SavedIndex(self._played.to_snapshot(), self._sampled.to_snapshot(), rated_to)
        return zstandard.compress(msgspec.msgpack.encode(data, order="deterministic"))

    @classmethod
    def from_bytes(cls, data: bytes) -> "DedupIndex":
        """Decode a saved index; DecodeError if these bytes are none."""
        try:
            saved = msgspec.msgpack.decode(zstandard.decompress(data), type=_SavedIndex)
        except (*DECODE_ERRORS, zstandard.ZstdError, MemoryError) as error:
            # The last: a damaged frame may claim any size.
            raise DecodeError(f"not the dedup index of a projection: {error}") from error
        index = cls()
        index._played = SeenIds.from_snapshot(saved.played)
        index._sampled = SeenIds.from_snapshot(saved.sampled)
        index._rated_to = {(game, system): upto for game, system, upto in saved.rated_to}
        return index
