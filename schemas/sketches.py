"""Sketches of what was played: a sample of a match's n-grams, small enough to lie in its event.

An n-gram is n parts of actions in a row, out of one seat's own sequence: in a game of turns its moves, in Diplomacy
its orders, phase by phase and sorted within a phase, since two whole phases are hardly ever the same. The first ones
reach back before the beginning, so that games of two moves have some too.

The sample is coordinated: whether an n-gram is kept depends on its hash alone, so two matches that both hold it both
keep it or both don't, as long as their levels allow. A sketch of level L keeps the hashes that begin with L zero
bits, and L is the lowest at which few enough are left. Sketches of several levels are compared at the highest.

Source: Gibbons 2001, "Distinct sampling for highly-accurate answers to distinct values queries and event reports".
"""

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from schemas.errors import DecodeError

NGRAM_SIZE = 3
"""Parts to an n-gram."""
MAX_HASHES = 48
"""Hashes in a sketch, all seats together."""
HASH_BITS = 40
"""Of a hash; a few ten thousand of them at level 10 still meet by chance once in ten thousand."""

_HASH_BYTES = HASH_BITS // 8
_START_MARK = "\x02"


class Sketch(msgspec.Struct, frozen=True):
    """A sample of the n-grams of one match."""

    level: int
    """Of all n-grams, those with a hash below ``limit(level)`` are here: one in 2 to the power of it."""
    seats: tuple[tuple[int, ...], ...]
    """Hashes of every seat, ascending, none twice."""

    def encode(self) -> str:
        """As base64 text: level, number of seats, and for each its number of hashes and the hashes, high byte first."""
        data = bytearray((self.level, len(self.seats)))
        for hashes in self.seats:
            data.append(len(hashes))
            for number in hashes:
                data += number.to_bytes(_HASH_BYTES, "big")
        return b64encode(data).decode()


def hash_limit(level: int) -> int:
    """Hashes of a sketch lie below this."""
    return 1 << max(HASH_BITS - level, 0)


def make_sketch(
    turns: Iterable[Mapping[int, Sequence[str]]], seats: int, n: int = NGRAM_SIZE, most: int = MAX_HASHES
) -> Sketch:
    """Sketch a match.

    ``turns`` are as ``arena.games.base.Recording`` has them; there are at most 255 seats, and as many hashes.
    """
    parts: list[list[str]] = [[] for _ in range(seats)]
    for actions in turns:
        for seat, action in actions.items():
            parts[seat].extend(action)
    hashes = [_hash_grams(own, n) for own in parts]
    level = 0
    while level < HASH_BITS and sum(map(len, hashes)) > most:
        level += 1
        hashes = [[number for number in own if number < hash_limit(level)] for own in hashes]
    return Sketch(level, tuple(map(tuple, hashes)))


def decode_sketch(text: str) -> Sketch:
    """Decode the output of ``Sketch.encode``; ``DecodeError`` for anything else."""
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"sketch: {text[:20]!r}… is not base64; expected what Sketch.encode gives") from None
    if len(data) < 2 or data[0] > HASH_BITS:
        raise DecodeError(
            f"sketch: {len(data)} bytes, beginning {data[:1].hex()!r}; expected a level of 0 to {HASH_BITS}"
        )
    seats, place = [], 2
    for _ in range(data[1]):
        count = data[place] if place < len(data) else 0
        ends = range(place + 1 + _HASH_BYTES, place + 2 + _HASH_BYTES * count, _HASH_BYTES)
        seats.append(tuple(int.from_bytes(data[end - _HASH_BYTES : end], "big") for end in ends))
        place += 1 + _HASH_BYTES * count
    if place != len(data):
        raise DecodeError(f"sketch: {len(data)} bytes; expected {place} by its own counts")
    if any(low >= high for hashes in seats for low, high in pairwise((*hashes, hash_limit(data[0])))):
        raise DecodeError(f"sketch: hashes out of order or not of level {data[0]}; expected ascending ones below it")
    return Sketch(data[0], tuple(seats))


def _hash_grams(parts: list[str], n: int) -> list[int]:
    """Hashes of the n-grams, ascending, none twice."""
    padded = [_START_MARK] * (n - 1) + parts
    grams = ("\x1f".join(padded[place : place + n]).encode() for place in range(len(parts)))
    # Not hash(): that one is another in every process.
    digests = {hashlib.blake2b(gram, digest_size=_HASH_BYTES).digest() for gram in grams}
    return [int.from_bytes(one, "big") for one in sorted(digests)]
