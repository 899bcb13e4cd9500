"""What all formats share: a result, the objects of a file with their lines, and how values are shown in messages."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from schemas.errors import UsageError
from schemas.ids import digest
from schemas.numbers import Count

_MAX_SHOWN = 80
_MAX_BYTES = 256 * 1024 * 1024
"""Bytes of a file after decompression."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GZIP, _BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
_CONTENT = re.compile(r"\S")


class ExternalSeat(NamedTuple):
    """One seat of a result."""

    role: str
    player: str
    """Name of its agent in the file."""
    score: float
    metrics: Mapping[str, float] = {}
    team: str = ""
    drawn_role: str = ""


class ExternalResult(msgspec.Struct, frozen=True):
    """One match of a file."""

    line: int
    """Its first line, from 1."""
    id: str
    """Identity among the results of its origin."""
    environment: str
    seats: tuple[ExternalSeat, ...]
    reason: str = ""
    length: int = 0
    """Number of turns."""
    tokens: Count = 0
    """Tokens that models wrote."""
    error: str = ""
    """Why the match failed; its scores do not count then."""
    record: bytes = b""
    """The record of a game that can be played again here."""
    rules: int = 1
    """Version of the game's rules that the record was adjudicated by."""


def decompress(data: bytes, source: str) -> bytes:
    """The bytes of a file, out of gzip and without a byte order mark; ``UsageError`` for damaged or too large ones."""
    if data.startswith(_GZIP):
        try:
            # A member after another: gzip files may be joined.
            unpacked, rest = bytearray(), data
            while rest:
                member = zlib.decompressobj(wbits=31)
                unpacked += member.decompress(rest, _MAX_BYTES + 1 - len(unpacked))
                if len(unpacked) > _MAX_BYTES:
                    raise UsageError(f"{source}: more than {_MAX_BYTES:,} bytes after gzip; expected a smaller file")
                if not member.eof:
                    raise UsageError(f"{source}: the gzip data ends early; expected the whole file")
                rest = member.unused_data
        except zlib.error as error:
            raise UsageError(f"{source}: damaged gzip data ({error}); expected the whole file") from None
        data = bytes(unpacked)
    return data.removeprefix(_BOM)


class Line(NamedTuple):
    """One JSON object of a file, and where it is."""

    number: int
    where: str
    """File and line, for messages."""
    fields: dict[str, Any]
    identity: str
    """Digest of the line, and its occurrence in the file: for results without an id."""


def read_lines(data: bytes, source: str) -> Iterator[Line]:
    """A JSON object in each line; ``UsageError`` for another line."""
    occurrences: Counter[str] = Counter()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            text = show(line.decode(errors="replace"))
            raise UsageError(f"{where}: found {text}; expected JSON ({error})") from None
        if not isinstance(fields, dict):
            raise UsageError(f"{where}: found {show(fields)}; expected a JSON object")
        name = digest(line.strip())[:24]
        occurrences[name] += 1
        yield Line(number, where, fields, f"{name}-{occurrences[name]}")


def read_objects(data: bytes, source: str) -> Iterator[Line]:
    """JSON objects, one a line, several lines each, one after another, or in a list; ``UsageError`` for others."""
    text = data.decode("utf-8", "replace")
    decoder, at, number, counted = json.JSONDecoder(), 0, 1, 0
    occurrences: Counter[str] = Counter()
    while content := _CONTENT.search(text, at):
        at = content.start()
        number, counted = number + text.count("\n", counted, at), at
        where = f"{source}, line {number}"
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: found {show(text[at : at + 200])}; expected JSON ({error})") from None
        for fields in value if isinstance(value, list) else [value]:
            if not isinstance(fields, dict):
                raise UsageError(f"{where}: found {show(fields)}; expected a JSON object")
            name = digest(json.dumps(fields, sort_keys=True).encode())[:24]
            occurrences[name] += 1
            yield Line(number, where, fields, f"{name}-{occurrences[name]}")
        at = end


def safe_id(text: str) -> str:
    """The text as a part of a match's id, or a digest of it."""
    return text if _ID.fullmatch(text) else digest(text.encode("utf-8", "surrogatepass"))[:24]


def show(value: Any) -> str:
    """A value in a message, cut."""
    return repr(value[:_MAX_SHOWN]) if isinstance(value, str) else json.dumps(value)[:_MAX_SHOWN]
