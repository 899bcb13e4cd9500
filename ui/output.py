"""Numbers as text, and what commands print: JSON, lines and cut lists. Shared by ``ui.cli`` and ``ui.terminal``."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from league.queries.terminal import Console
from schemas.errors import UsageError

T = TypeVar("T")

PLACEHOLDER = "–"
"""Stands for a value that is missing."""


def format_number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators."""
    return PLACEHOLDER if value is None else f"{value:,.{digits}f}"


def format_percent(share: float | None, digits: int = 0) -> str:
    """A share of 1 in per cent."""
    return PLACEHOLDER if share is None else f"{100 * share:.{digits}f} %"


def format_bytes(count: float) -> str:
    """A size in decimal units, from bytes to GB."""
    if count < 1000:
        return f"{count:,.0f} bytes"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} GB"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """A number of things: ``1 seal``, ``2,000 seals``; ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def terminal_width() -> int | None:
    """Characters of a line of standard output; None where that is no terminal."""
    console = Console()
    return console.width if console.is_terminal else None


@contextlib.contextmanager
def writing(to: Path) -> Iterator[None]:
    """Translate an operating system's error about the file of ``--output`` to a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"-o {to}: cannot be written: {error.strerror}; expected a file in a folder that is"
        ) from error


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(msgspec.json.encode(value).decode())


def print_answer(value: T, as_json: bool, show: Callable[[T], object]) -> None:
    """Print a value as one line of JSON, or have it shown to a person."""
    if as_json:
        print_json(value)
    else:
        show(value)


def print_line(console: Console, text: str) -> None:
    """Print a text as it is: without markup, highlighting or line breaks of the console's."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_error(error: Exception) -> None:
    """Print an error as one red paragraph on stderr."""
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


def print_omitted(count: int, shown: int, noun: str = "", indent: str = "") -> None:
    """Print how many entries of a list were cut off, if any."""
    if count > shown:
        print(f"{indent}… and {count - shown:,} more {noun}".rstrip())
