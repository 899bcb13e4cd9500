"""Loggers that import structlog with their first line: a command that prints an answer seldom logs anything."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

_configure: list[Callable[[], None]] = []


def configure_with_first_line(configure: Callable[[], None]) -> None:
    """Configure structlog with the first line of a logger of ``get_logger``, unless it is configured by then."""
    _configure[:] = [configure]


def get_logger(*names: str) -> Any:
    """A logger like ``structlog.get_logger(*names)``, without importing structlog yet."""
    return _Logger(names)


class _Logger:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @cached_property
    def _logger(self) -> Any:
        import structlog

        while _configure:
            configure = _configure.pop()
            if not structlog.is_configured():
                configure()
        return structlog.get_logger(*self._names)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._logger, method)
