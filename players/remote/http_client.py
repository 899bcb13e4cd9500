"""The HTTP client for servers outside the league: remote agents, log platforms, webhooks of alarms.

httpx2 and not aiohttp, which carries the requests to inference servers (4,700 a second on one core, against 1,070 of
httpx2): it honours proxies, and takes 0.1 s and 24 MiB to import where aiohttp takes 0.45 s and 35 MiB.
"""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx2

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
"""Bytes of one body, above which no more of it is read."""
JSON_HEADERS = MappingProxyType({"Content-Type": "application/json"})


class RequestFailedError(Exception):
    """A request without a usable response: what happened, never an address or a secret.

    ``is_retryable`` is whether another try may succeed, ``wait_s`` how long the server asks to wait before it, and
    ``may_be_billed`` whether the server may have worked on the request.
    """

    def __init__(self, why: str, is_retryable: bool = True, wait_s: float = 0.0, may_be_billed: bool = True) -> None:
        super().__init__(why)
        self.is_retryable = is_retryable
        self.wait_s = wait_s
        self.may_be_billed = may_be_billed


class InvalidAddressError(RequestFailedError):
    """An address that no request can be sent to."""


class HttpResponse(NamedTuple):
    """A response, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class HttpClient:
    """A pool of connections for requests with one secret.

    Args:
        timeout_s: For one request, from connecting to the last byte of the response.
        secret: Sent as a bearer token; empty for none. No message and no log holds it.
        max_body_bytes: Of a response.
        body_timeout_s: For responses of which the status decides: their body is read for so long at most, cut at
            ``max_body_bytes`` and not unpacked. None needs the whole body.
    """

    def __init__(
        self,
        timeout_s: float,
        secret: str = "",
        max_body_bytes: int = MAX_RESPONSE_BYTES,
        body_timeout_s: float | None = None,
    ) -> None:
        # Imported here: most processes never send a request outside.
        import httpx2

        self._timeout_s = timeout_s
        self._secret = secret
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        # No time-outs of the client's own: they are for each read, and a reply that trickles in would never meet one.
        self._client = httpx2.AsyncClient(
            auth=self._add_authorization if secret else None,
            headers=None if body_timeout_s is None else {"Accept-Encoding": "identity"},
            timeout=None,
            follow_redirects=False,
        )

    async def send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = JSON_HEADERS
    ) -> HttpResponse:
        """Send one request; ``RequestFailedError`` if there is no response, or its body is too long."""
        import httpx2

        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(method, url, content=body, headers=headers) as response,
            ):
                read = self._read_whole if self._body_timeout_s is None else self._read_beginning
                return HttpResponse(response.status_code, response.headers, await read(response))
        except TimeoutError:
            raise RequestFailedError(f"no reply within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            # The error's own text may name the address.
            may_be_billed = not isinstance(error, httpx2.ConnectError | httpx2.InvalidURL)
            is_invalid = isinstance(error, httpx2.InvalidURL | ValueError)
            why = "no valid address" if is_invalid else "no connection or a broken one"
            kind = InvalidAddressError if is_invalid else RequestFailedError
            raise kind(f"{why}, {type(error).__name__}", may_be_billed=may_be_billed) from None

    def quote(self, body: bytes) -> str:
        """A body as one line of text, without the secret; see ``quote_body``."""
        return quote_body(body, self._secret)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _read_whole(self, response: "httpx2.Response") -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise RequestFailedError(
                    f"status {response.status_code} with an answer of more than {self._max_body_bytes:,} bytes"
                )
        return bytes(body)

    async def _read_beginning(self, response: "httpx2.Response") -> bytes:
        import httpx2

        body = bytearray()
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(self._body_timeout_s):
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) >= self._max_body_bytes:
                        break
        return bytes(body[: self._max_body_bytes])

    def _add_authorization(self, request: "httpx2.Request") -> "httpx2.Request":
        # Not among the client's headers: the secret is in no local variable that a logged traceback would show.
        request.headers["Authorization"] = f"Bearer {self._secret}"
        return request


def quote_body(body: bytes, secret: str) -> str:
    """A body as one line of text. Cut it only now: the secret is gone, so that no part of it can stay."""
    text = body.decode(errors="replace")
    return " ".join((text.replace(secret, "…") if secret else text).split())


def parse_retry_after(header: str) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date (RFC 9110, 10.2.3); None for neither."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except (ValueError, TypeError, OverflowError):
            return None
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None
