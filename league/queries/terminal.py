"""The last step before a terminal: text of events shows every character and moves no cursor.

Names, reasons and replies in a history were written by others. On a terminal, an escape sequence clears the screen, a
carriage return hides the line before it, and a change of direction reorders it. All output of commands passes here:
tables and messages through ``Console``, which adds its own styles afterwards, and everything else that is printed
through ``guard_terminal``.
"""

import sys
from collections.abc import Iterable
from typing import IO, Any, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from schemas.errors import escape_unprintable


class Console(rich.console.Console):
    """A console that writes visible characters and its own styles only."""

    @property
    def file(self) -> IO[str]:
        """The terminal itself: while a live display runs, a proxy stands before the guarded stream."""
        stream: IO[str] = rich.console.Console.file.fget(self)  # type: ignore[attr-defined]
        return getattr(stream, "rich_proxied_file", stream)

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; all text of a console is made here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_unprintable(segment.text, lines=True))


class _GuardedStream:
    """A terminal that takes visible characters, tabs and line ends only."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The terminal itself, to which consoles write."""

    def write(self, text: str) -> int:
        """Write a text."""
        self.rich_proxied_file.write(escape_unprintable(text, lines=True))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard_terminal() -> None:
    """Have this process write visible characters only to standard output and error, where these are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _GuardedStream) and stream is not None and stream.isatty():
            setattr(sys, name, _GuardedStream(stream))


def styled_stderr() -> TextIO:
    """Standard error for a writer that has escaped what it writes, and styles it."""
    stream: TextIO = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    return stream


def say(text: str) -> None:
    """Print a text as one line, whatever line breaks are in it."""
    print(escape_unprintable(text))
