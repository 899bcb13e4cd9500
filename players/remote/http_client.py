"""The HTTP client for servers outside the league: remote agents, log platforms, webhooks of alarms."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import aiohttp

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
    """Headers by name, in any case."""
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
        self._timeout_s = timeout_s
        self._secret = secret
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = JSON_HEADERS
    ) -> HttpResponse:
        """Send one request; ``RequestFailedError`` if there is no response, or its body is too long."""
        # Imported here: most processes never send a request outside.
        import aiohttp

        if not url.isprintable():
            raise InvalidAddressError("no valid address, a control character", may_be_billed=False)
        try:
            session = self._open_session()
            async with (
                asyncio.timeout(self._timeout_s),
                session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                read = self._read_whole if self._body_timeout_s is None else self._read_beginning
                return HttpResponse(response.status, response.headers, await read(response))
        except TimeoutError:
            raise RequestFailedError(f"no reply within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The error's own text may name the address.
            is_invalid = isinstance(error, aiohttp.InvalidURL | ValueError)
            may_be_billed = not (is_invalid or isinstance(error, aiohttp.ClientConnectorError))
            why = "no valid address" if is_invalid else "no connection or a broken one"
            kind = InvalidAddressError if is_invalid else RequestFailedError
            raise kind(f"{why}, {type(error).__name__}", may_be_billed=may_be_billed) from None

    def quote(self, body: bytes) -> str:
        """A body as one line of text, without the secret; see ``quote_body``."""
        return quote_body(body, self._secret)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp

            is_cut = self._body_timeout_s is not None
            self._session = aiohttp.ClientSession(
                headers={"Accept-Encoding": "identity"} if is_cut else None,
                auto_decompress=not is_cut,
                middlewares=(self._add_authorization,) if self._secret else (),
                # ``send`` bounds the whole request; these would bound each read, which a slow body never exceeds.
                timeout=aiohttp.ClientTimeout(),
                trust_env=True,
            )
        return self._session

    async def _read_whole(self, response: "aiohttp.ClientResponse") -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise RequestFailedError(
                    f"status {response.status} with an answer of more than {self._max_body_bytes:,} bytes"
                )
        return bytes(body)

    async def _read_beginning(self, response: "aiohttp.ClientResponse") -> bytes:
        import aiohttp

        body = bytearray()
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._body_timeout_s):
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) >= self._max_body_bytes:
                        break
        return bytes(body[: self._max_body_bytes])

    async def _add_authorization(
        self, request: "aiohttp.ClientRequest", send: "aiohttp.ClientHandlerType"
    ) -> "aiohttp.ClientResponse":
        # Not among the session's headers: no local variable that a logged traceback would show holds the secret.
        request.headers["Authorization"] = f"Bearer {self._secret}"
        return await send(request)


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
