"""POST actions of the web pages: ``sql`` and ``play``, and what they share."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from inference.http_server import read_body
from schemas.errors import UsageError

ActionHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class ActionGroup(Protocol):
    """Actions of one subject on one league."""

    def routes(self) -> Mapping[str, ActionHandler]:
        """Returns the handlers of ``POST`` by path below ``/api``."""

    async def close(self) -> None:
        """Ends open actions when the server stops."""


async def decode_body(request: web.Request, kind: type[T]) -> T:
    """Decodes the body of a request.

    Raises:
        UsageError: the body is not of that type; the message names the field.
    """
    try:
        return msgspec.json.decode(await read_body(request), type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{request.path}: {error}") from None


def json_response(value: Any) -> web.Response:
    """Returns a JSON response that is not cached."""
    return web.Response(
        body=msgspec.json.encode(value), content_type="application/json", headers={"Cache-Control": "no-store"}
    )
