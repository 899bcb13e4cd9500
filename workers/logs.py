"""Logging by structlog: readable on a terminal, one JSON object a line in files."""

import logging
import sys
from pathlib import Path

import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def set_up_logging(worker: str, file: Path | None, terminal: bool) -> None:
    """Send log lines of this process to a JSON file, to the terminal, or both."""
    handlers: list[logging.Handler] = []
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_handler(logging.FileHandler(file), structlog.processors.JSONRenderer()))
    if terminal:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        handlers.append(_handler(logging.StreamHandler(sys.stderr), renderer))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for chatty in ("nats", "matplotlib", "transformers", "httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(worker=worker)


def _handler(handler: logging.Handler, renderer: structlog.typing.Processor) -> logging.Handler:
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    exceptions = [structlog.processors.dict_tracebacks] if isinstance(handler, logging.FileHandler) else []
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[drop_meta, *exceptions, renderer])
    )
    return handler
