"""The boundary between HTTP clients and every server of this project: pages, inference, metrics.

A request that cannot be used costs its server one short 4xx answer and no line in the log:

| request | answer |
|---|---|
| the client disconnects before its body is complete | none; the connection is closed |
| the body is not complete in time, or pauses for long | 408 |
| the body is larger than the server takes, once decompressed | 413 |
| the body is not what its ``Content-Encoding`` or its chunks say | 400 |
| the body is nested too deeply, or a text of the request is not UTF-8 | 400 |
| a page of another site sent it, or asks a loopback server under a foreign name | 403 |
| its body is of a type that forms of web pages can send | 415 |
| not HTTP, too many headers, or headers that are too long | 400, from aiohttp's parser |
| the headers are not complete in time | none; the connection is closed |

Errors of the server itself are classified by its table of statuses. All others are logged with their traceback and
answered with 500.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from schemas.config.base import is_loopback
from schemas.errors import UsageError, format_choices
from schemas.loggers import get_logger

log = get_logger()
T = TypeVar("T")

BODY_TIMEOUT_S, BODY_PAUSE_S = 30.0, 5.0
"""Time-outs of a request's body: from its first byte to its last, and of a pause between two pieces."""
BODY_TYPES = ("application/json",)
"""Types of bodies that servers take; pages of other sites can send none of them without asking first."""
_SMALL_BODY = 64 * 1024
IDLE_TIMEOUT_S = 75.0
"""Time-out of a connection without a complete request's headers; longer than clients keep idle connections."""
_LINGERING_S = 5.0
"""Longest time in which the rest of a rejected body is discarded, so that its sender reads the answer."""


def check_origin(request: web.Request, is_local: bool, body_types: Sequence[str] = BODY_TYPES) -> None:
    """Reject what a web page makes the browser of a user of this machine send.

    That is: requests to a loopback server under a foreign name (DNS rebinding), and forms and scripts of other sites.

    Raises:
        RefusedError: the host, the origin or the content type is not as expected.
    """
    host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
    if is_local and not is_loopback(host.strip("[]")):
        raise RefusedError(403, f"{request.path}: asked as {host!r}; expected localhost")
    if request.method in ("GET", "HEAD"):
        return
    if request.headers.get("Origin") not in (None, f"{request.scheme}://{request.host}"):
        raise RefusedError(403, f"{request.path}: sent by a page of another site; expected no Origin, or this server")
    if request.content_type not in body_types:
        expected = format_choices(body_types)
        raise RefusedError(415, f"{request.path}: Content-Type {request.content_type!r}; expected {expected}")


class RefusedError(Exception):
    """A request that is not served: its status of HTTP, and the field of the request at fault, if it is one."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


ErrorStatuses = Sequence[tuple[type[Exception] | tuple[type[Exception], ...], int]]
"""Types of errors with their status of HTTP; the first one that fits counts."""


def to_refused(error: Exception, path: str, statuses: ErrorStatuses) -> RefusedError:
    """Classify an error of a request at ``path`` by the statuses that the server knows."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, web.HTTPException):
        text = (error.text or "").strip()
        is_default = text in ("", f"{error.status}: {error.reason}")
        return RefusedError(error.status, f"{path}: {error.reason}" if is_default else text)
    if isinstance(error, web.RequestPayloadError):
        return RefusedError(400, f"{path}: unusable body: {str(error).rpartition(':')[2].strip() or 'incomplete'}")
    if isinstance(error, UnicodeEncodeError):
        # Bytes that are no UTF-8 arrive as lone surrogates, in headers too.
        return RefusedError(400, f"{path}: {error.object[error.start : error.end]!a}: not UTF-8; expected text")
    if isinstance(error, RecursionError):
        return RefusedError(400, f"{path}: nested too deeply; expected fewer levels")
    code = next((status for kinds, status in statuses if isinstance(error, kinds)), None)
    if code is None:
        log.error("a request failed unexpectedly", path=path, exc_info=error)
        return RefusedError(500, f"{path}: {type(error).__name__}; the server's log has the rest")
    if code == 500:
        log.error("a request failed", path=path, error=str(error))
    return RefusedError(code, str(error))


def error_boundary(statuses: ErrorStatuses, render: Callable[[web.Request, RefusedError], web.Response]) -> Middleware:
    """A server's outermost middleware, which answers every request; ``render`` formats a rejection."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            # By its own header, before anything of it is read or counted.
            if (request.content_length or 0) > request.client_max_size:
                raise _too_large(request)
            return await handler(request)
        except Exception as error:  # the boundary of a request
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                # The client has disconnected: nothing failed, and no answer can be sent.
                return web.Response(status=400)
            return render(request, to_refused(error, request.path, statuses))

    return answer


async def read_body(request: web.Request, claim: Callable[[int], None] = lambda size: None) -> bytes:
    """Read the body of a request, decompressed; ``claim`` is called with the size of each piece before it is kept.

    Raises:
        RefusedError: the body is too large or too slow.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                async with asyncio.timeout(BODY_PAUSE_S):
                    piece = await request.content.readany()
                if not piece:
                    return bytes(body)
                if len(body) + len(piece) > request.client_max_size:
                    raise _too_large(request)
                claim(len(piece))
                body += piece
    except TimeoutError:
        raise RefusedError(
            408, f"{request.path}: the body did not come within {BODY_TIMEOUT_S:g} s, or paused for {BODY_PAUSE_S:g} s"
        ) from None


async def off_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Do work on an input of so many bytes, in a thread if it is large: other requests are served meanwhile."""
    return work(*arguments) if size <= _SMALL_BODY else await asyncio.to_thread(work, *arguments)


def _too_large(request: web.Request) -> RefusedError:
    return RefusedError(
        413, f"{request.path}: the body is too large; expected at most {request.client_max_size:,} bytes"
    )


async def listen(
    app: web.Application, host: str, port: int, setting: str, *, shutdown_s: float = 1.0, cancels_handlers: bool = False
) -> web.AppRunner:
    """Start to serve an application whose first middleware is ``error_boundary``; the caller ends it with ``cleanup``.

    Port 0 takes a free one, see ``port_of``; ``setting`` is the option that names the address, for messages.
    ``shutdown_s`` is the time-out of the requests in flight when the server stops; ``cancels_handlers`` is whether a
    client that disconnects cancels its request.

    Raises:
        UsageError: the port is taken, or the address is not one of this machine.
    """
    runner = web.AppRunner(
        app,
        handler_cancellation=cancels_handlers,
        access_log=None,
        shutdown_timeout=shutdown_s,
        keepalive_timeout=IDLE_TIMEOUT_S,
        lingering_time=_LINGERING_S,
        logger=_server_log,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        await runner.cleanup()
        why = error.strerror or error
        raise UsageError(f"{setting} {host}:{port}: {why}; expected an address that is free") from None
    return runner


def port_of(runner: web.AppRunner) -> int:
    """The port that a server listens on."""
    return int(runner.addresses[0][1])


class Sample(NamedTuple):
    """One value of a metric."""

    labels: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """A metric with all its values."""

    name: str
    kind: str
    """``gauge`` or ``counter``."""
    help: str
    samples: list[Sample]


def render_metrics(metrics: Iterable[Metric]) -> str:
    """Render metrics in Prometheus's text format, version 0.0.4; those without samples are left out.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/

    prometheus_client 0.26 was weighed and left out: it has no dependencies and would replace these lines, but its
    collectors are called synchronously, and every scrape of a league reads its status from the broker.
    """
    lines = []
    for metric in metrics:
        described = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        if metric.samples:
            lines += [f"# HELP {metric.name} {described}\n", f"# TYPE {metric.name} {metric.kind}\n"]
        for labels, value in metric.samples:
            text = ",".join(f'{name}="{label.translate(_ESCAPED)}"' for name, label in labels.items())
            series = f"{metric.name}{{{text}}}" if text else metric.name
            lines.append(f"{series} {_NUMBERS.get(str(value), value)}\n")
    return "".join(lines)


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NUMBERS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def metrics_response(metrics: Iterable[Metric]) -> web.Response:
    """The answer to a scrape."""
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    return web.Response(body=render_metrics(metrics).encode(), headers=headers)


def _is_servers_fault(record: logging.LogRecord) -> bool:
    """Whether a record of aiohttp's is about the server: clients' faults are answered, and would fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError)


_server_log = logging.getLogger("league.http")
_server_log.addFilter(_is_servers_fault)
