"""Logging with structlog: text on a terminal, JSON lines in files."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

import structlog

from arena.observer import LOGGER_NAME, LoggingObserver
from league.queries.terminal import styled_stderr
from schemas.errors import DiskError, UsageError, escape_unprintable

_SHARED_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]

LEVEL_VARIABLE = "LEAGUE_LOG"
"""``debug`` logs every episode of a league with its model calls; ``info``, the default, does not."""


TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=30)
)
"""Exceptions in log files as structures, without the values of variables: these are large, and may be secrets."""


def configure_command_logging() -> None:
    """Send warnings of a command to stderr: standard output is for its answer."""
    structlog.configure(
        processors=[*_SHARED_PROCESSORS, *_console_processors()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(styled_stderr()),
    )


def _console_processors() -> list[structlog.typing.Processor]:
    return [
        _escape_values,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_format_traceback),
    ]


def _escape_values(
    logger: object, method: str, line: structlog.typing.EventDict
) -> structlog.typing.EventDict:  # as structlog calls it
    return {
        name: escape_unprintable(value, lines=name == "event") if isinstance(value, str) else value
        for name, value in line.items()
    }


def _format_traceback(to: TextIO, exception: structlog.typing.ExcInfo) -> None:
    # Plain: the renderer's own choice shows the variables of every frame, in hundreds of lines.
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exception)
    to.write(escape_unprintable(text.getvalue(), lines=True))


def configure_logging(worker: str, file: Path | None, terminal: bool) -> None:
    """Send log lines to a JSON file, the terminal or both; ``UsageError`` for a bad level or an unwritable file."""
    logging.basicConfig(level=logging.INFO, handlers=_make_handlers(file, terminal), force=True)
    level = os.environ.get(LEVEL_VARIABLE, "").strip().lower() or "info"
    if level not in ("debug", "info"):
        raise UsageError(f"{LEVEL_VARIABLE}: {level!r}; expected 'debug' or 'info'")
    logging.getLogger(LOGGER_NAME).setLevel(level.upper())
    for chatty in ("nats", "matplotlib", "transformers", "httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    structlog.configure(
        processors=[*_SHARED_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(worker=worker)


@contextmanager
def isolated_logger(file: Path | None, terminal: bool) -> Iterator[structlog.stdlib.BoundLogger]:
    """A logger for all levels, independent of the process's other loggers; closed at the end of the block."""
    logger = logging.Logger(LOGGER_NAME)
    logger.handlers = _make_handlers(file, terminal)
    try:
        yield structlog.wrap_logger(
            logger,
            processors=[*_SHARED_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    finally:
        for handler in logger.handlers:
            handler.close()


class VerboseLogger(LoggingObserver):
    """Log of all of an arena's events, for ``arena.observer``: JSON lines in a file, text on the terminal, or both."""

    def __init__(self, log_path: Path | str | None, terminal: bool = False) -> None:
        """Entered as a context, it opens the file, to which it appends."""
        super().__init__()
        self._open = isolated_logger(None if log_path is None else Path(log_path), terminal)

    def __enter__(self) -> Self:
        self._log = self._open.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._open.__exit__(*failure)


def logs_episodes() -> bool:
    """Whether this process logs every episode that it plays."""
    return logging.getLogger(LOGGER_NAME).isEnabledFor(logging.DEBUG)


class _LogFile(logging.FileHandler):
    """A log file. Lines that the disk rejects are lost, without a traceback for each on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _make_handlers(file: Path | None, terminal: bool) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = _LogFile(file)
        except OSError as error:
            if disk := DiskError.of(error):
                raise disk from None
            raise UsageError(f"{file}: {error.strerror}; expected a log file that this user can write to") from None
        handler.setFormatter(_make_formatter(TRACEBACKS, structlog.processors.JSONRenderer()))
        handlers.append(handler)
    if terminal:
        stream = logging.StreamHandler(styled_stderr())
        stream.setFormatter(_make_formatter(*_console_processors()))
        handlers.append(stream)
    return handlers


def _make_formatter(*processors: structlog.typing.Processor) -> logging.Formatter:
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED_PROCESSORS, processors=[drop_meta, *processors]
    )
