"""Which ids a fold has met already, in about one bit per match."""

_MAX_DIGITS = 7


class Seen:
    """A growing set of ids.

    Ids of the form ``<prefix>-<n>``, as all match ids are, take one bit each in a bitmap per prefix, so that a fold
    can remember every match of a long history. Other ids are kept as they are.
    """

    def __init__(self) -> None:
        self._bitmaps: dict[str, bytearray] = {}
        self._others: set[str] = set()

    def add(self, name: str) -> bool:
        """Remember an id; True when it is new."""
        prefix, dash, digits = name.rpartition("-")
        if not prefix or not dash or not _is_index(digits):
            known = name in self._others
            self._others.add(name)
            return not known
        byte, bit = divmod(int(digits), 8)
        bitmap = self._bitmaps.setdefault(prefix, bytearray())
        if byte >= len(bitmap):
            bitmap.extend(bytes(byte + 1 - len(bitmap)))
        known = bool(bitmap[byte] >> bit & 1)
        bitmap[byte] |= 1 << bit
        return not known

    def plain(self) -> dict[str, str]:
        """The set as plain values: equal sets give equal values."""
        bitmaps = {prefix: bits.hex() for prefix, bits in self._bitmaps.items()}
        return {**bitmaps, "": "\n".join(sorted(self._others))}


def _is_index(digits: str) -> bool:
    # Only the canonical spelling ("7", not "07"), so that different ids never share a bit; bounded, so that one odd
    # id cannot ask for a huge bitmap.
    return digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS and (digits == "0" or digits[0] != "0")
