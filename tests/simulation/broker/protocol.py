"""The NATS client protocol, as a server speaks it."""

import json
from typing import Any, NamedTuple

CRLF = b"\r\n"
_HEADER_LINE = b"NATS/1.0"


class Operation(NamedTuple):
    """A client's operation."""

    name: str
    subject: str = ""
    reply: str = ""
    headers: bytes = b""
    """Encoded block, with its status line; empty without headers."""
    data: bytes = b""
    sid: str = ""
    limit: int = 0
    """Messages until a subscription ends; 0 ends it now."""


class Parser:
    """Splits a client's bytes into operations."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Operation]:
        """The operations that are complete with these bytes."""
        self._buffer += data
        operations, at = [], 0
        while (found := self._next(at)) is not None:
            operation, at = found
            operations.append(operation)
        self._buffer = self._buffer[at:]
        return operations

    def _next(self, at: int) -> tuple[Operation, int] | None:
        end = self._buffer.find(CRLF, at)
        if end < 0:
            return None
        name, *words = self._buffer[at:end].decode().split()
        name, after = name.upper(), end + 2
        if name not in ("PUB", "HPUB"):
            return _parse_control(name, words), after
        size = int(words[-1])
        if len(self._buffer) < after + size + 2:
            return None
        header_size = int(words[-2]) if name == "HPUB" else 0
        extra = words[1 : -2 if name == "HPUB" else -1]
        body = self._buffer[after : after + size]
        operation = Operation("PUB", words[0], extra[0] if extra else "", body[:header_size], body[header_size:])
        return operation, after + size + 2


def _parse_control(name: str, words: list[str]) -> Operation:
    if name == "SUB":
        return Operation("SUB", words[0], sid=words[-1])
    if name == "UNSUB":
        return Operation("UNSUB", sid=words[0], limit=int(words[1]) if len(words) > 1 else 0)
    return Operation(name)


def parse_headers(block: bytes) -> dict[str, str]:
    """Headers by name."""
    headers = {}
    for line in block.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def format_headers(headers: dict[str, str], status: str = "") -> bytes:
    """An encoded block of headers, with a status line."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return _HEADER_LINE + (b" " + status.encode() if status else b"") + CRLF + lines.encode() + CRLF


def format_message(subject: str, sid: str, reply: str, headers: bytes, data: bytes) -> bytes:
    """A delivery."""
    middle = f"{subject} {sid} {reply}".rstrip()
    if headers:
        return f"HMSG {middle} {len(headers)} {len(headers) + len(data)}\r\n".encode() + headers + data + CRLF
    return f"MSG {middle} {len(data)}\r\n".encode() + data + CRLF


def format_error(text: str) -> bytes:
    """A complaint."""
    return f"-ERR '{text}'".encode() + CRLF


def format_info(info: dict[str, Any]) -> bytes:
    """The greeting."""
    return b"INFO " + json.dumps(info).encode() + CRLF
