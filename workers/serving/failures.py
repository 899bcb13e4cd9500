"""What went wrong with a request, in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``."""

from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from schemas.errors import ArtifactError, LogError, MemoryShortError, ModelError, NoServerError, UsageError

log = structlog.get_logger()

_TYPES = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 413: "too_large_error"}
_RETRY_AFTER_S = 1
_OF_THE_REQUEST = (ModelError, UsageError)
_PASSING = (MemoryShortError, NoServerError, LogError)
"""What another process, or this one later, may do."""


class RefusedError(Exception):
    """A request that is not served.

    Args:
        status: Of HTTP.
        message: What was found, and what was expected.
        field: Of the request, where one field is to blame.
    """

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


def refusal(status: int, message: str, field: str | None = None) -> web.Response:
    """An answer that says what is wrong."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error: dict[str, Any] = {"message": message, "type": kind, "param": field, "code": status}
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else None
    return web.json_response({"error": error}, status=status, headers=headers)


@web.middleware
async def explaining(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure in one form. The boundary for errors of one request: the server goes on."""
    try:
        return await handler(request)
    except RefusedError as error:
        return refusal(error.status, str(error), error.field)
    except web.HTTPException as error:
        return refusal(error.status, f"{request.method} {request.path}: {error.text or error.reason}")
    except _PASSING as error:
        return refusal(503, str(error))
    except ArtifactError as error:
        return refusal(404, str(error))
    except _OF_THE_REQUEST as error:
        return refusal(400, str(error))
    except Exception as error:
        log.exception("a request failed unexpectedly", path=request.path)
        return refusal(500, f"{request.path}: {type(error).__name__}: {error}")
