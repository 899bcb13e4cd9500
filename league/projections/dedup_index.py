"""An index of seen match ids, and of the newest rated match per game and system.

A match id counts once, however often it was recorded. Searching all earlier rows would make every batch as slow as the
history is long, so the ids are kept in bitmaps: a bit per match, in small chunks of which a batch touches a few.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from schemas.codec import DECODE_ERRORS
from schemas.errors import DecodeError

IdKind = Literal["played", "sampled"]
"""Ids of matches with an outcome, and of matches whose opponents were drawn."""

IDS_PER_CHUNK = 2048
"""Ids per bitmap: small, since an evaluation has a prefix of its own and a few dozen matches."""

# Only the canonical spelling ("7", not "07"), so that different ids never share a bit.
_NUMBERED = re.compile(r"(?s)(.+)-(0|[1-9][0-9]{0,8})")


class BitmapChunk(NamedTuple):
    """A bitmap of ids ``<prefix>-<n>`` with n from ``CHUNK * chunk`` on; of other ids, ``prefix`` is the id itself."""

    kind: IdKind
    prefix: str
    chunk: int
    """-1 for an id that has no number."""
    bits: bytes


class _SavedIndex(msgspec.Struct, array_like=True):
    chunks: list[BitmapChunk]
    rated_to: list[tuple[str, str, int]]


class DedupIndex:
    """Seen ids, and per game and rating system the newest rated match."""

    def __init__(self) -> None:
        self.rated_to: dict[tuple[str, str], int] = {}
        self._bits: dict[tuple[IdKind, str, int], bytes] = {}
        self._touched: set[tuple[IdKind, str, int]] = set()

    def add(self, kind: IdKind, ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Add ids; returns a mask of the new ones: neither seen before nor earlier in ``ids``."""
        new = np.ones(len(ids), bool)
        chunks: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        for place, name in enumerate(ids):
            if (match := _NUMBERED.fullmatch(name)) is None:
                key = (kind, name, -1)
                new[place] = key not in self._bits
                if new[place]:
                    self._bits[key] = b""
                    self._touched.add(key)
                continue
            prefix, number = match.groups()
            chunk, bit = divmod(int(number), IDS_PER_CHUNK)
            places, listed = chunks.setdefault((prefix, chunk), ([], []))
            places.append(place)
            listed.append(bit)
        for (prefix, chunk), (places, listed) in chunks.items():
            key, numbers = (kind, prefix, chunk), np.array(listed)
            packed = np.frombuffer(self._bits.get(key, b"").ljust(IDS_PER_CHUNK // 8, b"\0"), np.uint8)
            bits = np.unpackbits(packed)
            is_first = np.zeros(len(numbers), bool)
            is_first[np.unique(numbers, return_index=True)[1]] = True
            new[places] = is_new = is_first & (bits[numbers] == 0)
            if is_new.any():
                bits[numbers] = 1
                self._bits[key] = np.packbits(bits).tobytes().rstrip(b"\0")
                self._touched.add(key)
        return new

    def advance_rated(self, place: tuple[str, str], upto: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Advance the newest rated match of a game and system; returns a mask of the steps beyond all before."""
        before = np.maximum.accumulate(np.concatenate([[self.rated_to.get(place, 0)], upto]))
        self.rated_to[place] = int(before[-1])
        new: npt.NDArray[np.bool_] = upto > before[:-1]
        return new

    def pop_touched_chunks(self) -> list[BitmapChunk]:
        """Chunks that changed since the last call."""
        keys, self._touched = sorted(self._touched), set()
        return [BitmapChunk(*key, self._bits[key]) for key in keys]

    def chunks(self) -> Iterator[BitmapChunk]:
        """All chunks, sorted."""
        return (BitmapChunk(*key, self._bits[key]) for key in sorted(self._bits))

    @classmethod
    def from_chunks(cls, chunks: Iterable[BitmapChunk], rated_to: dict[tuple[str, str], int]) -> "DedupIndex":
        """The index of these chunks."""
        marks = cls()
        marks._bits = {(kind, prefix, chunk): bits for kind, prefix, chunk, bits in chunks}
        marks.rated_to = rated_to
        return marks

    def to_bytes(self) -> bytes:
        """The index as compressed msgpack: equal ones give equal bytes."""
        rated_to = [(*place, upto) for place, upto in sorted(self.rated_to.items())]
        data = _SavedIndex(list(self.chunks()), rated_to)
        return zstandard.compress(msgspec.msgpack.encode(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> "DedupIndex":
        """Decode a saved index; DecodeError if these bytes are none."""
        try:
            saved = msgspec.msgpack.decode(zstandard.decompress(data), type=_SavedIndex)
        except (*DECODE_ERRORS, zstandard.ZstdError, MemoryError) as error:
            # The last: a damaged frame may claim any size.
            raise DecodeError(f"not the marks of a projection: {error}") from error
        return cls.from_chunks(saved.chunks, {(game, system): upto for game, system, upto in saved.rated_to})
