"""Connecting to a broker, and its errors in our words."""

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from league.log.access import SILENCE_S, BrokerCredentials, FailFastClient, check_access
from schemas.errors import (
    AccessError,
    BackpressureError,
    ConflictError,
    LogError,
    LogUnavailableError,
    MessageTooLargeError,
    MissingStreamError,
    StoreFullError,
)
from schemas.loggers import get_logger
from schemas.retry import Backoff

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 10.0
_CLOSE_S = 0.5
PATIENCE_S = 20.0
"""How long an operation waits for a broker by default: a cluster may take so long to find its leader and its nodes."""
_FIRST_RETRY_S, _MAX_RETRY_S = 0.02, 2.0
_WARN_INTERVAL_S = 30.0
Answer = TypeVar("Answer")

# Codes of the server's API errors (its errors.json).
_WRONG_LAST_SEQUENCE = {10071}
_STREAM_FULL = {10077, 10167}
"""A stream's limit, and more messages in flight to it than ``max_buffered_msgs``, 10,000 by default."""
_STORE_FULL = {10023, 10028, 10047}
_TOO_LARGE = 10054
_NO_STREAM = 10059
_PASSING = {10005, 10008, 10009, 10158, 10164, 10176, 10201, 10210}
"""Errors that a repetition mends: no peers for the replicas, JetStream not available yet, a late reply; a message with
this id, or one that this one's condition is about, is being replicated; a message of an atomic batch was lost, its id
was known and is so no longer, too many batches at once."""
log = get_logger()


if sys.version_info < (3, 12):
    # As of Python 3.12. That of 3.11 loses a cancellation that meets its result (python/cpython#86296). The client
    # library waits for every answer by it: a worker whose background job had failed went on without that job.
    async def _wait_for(fut: Awaitable[Answer], timeout: float | None) -> Answer:  # noqa: ASYNC109 - the original's
        async with asyncio.timeout(timeout):
            return await fut

    asyncio.wait_for = _wait_for  # type: ignore[assignment]


async def connect(url: str, name: str, access: BrokerCredentials | None = None) -> Client:
    """Connect to a broker, by its address or those of a cluster's nodes, separated by commas, and stay connected to it.

    Raises:
        LogUnavailableError: no broker answers at ``url``.
        AccessError: it rejects these credentials, or its certificate is not trusted.
    """
    client = FailFastClient()
    access = access or BrokerCredentials()
    last_error = ["no answer"]
    let_in = False

    async def remember(error: Exception) -> None:
        last_error[0] = str(error) or type(error).__name__
        await client.handle_server_error(last_error[0])
        if not let_in:
            # The library would retry without end.
            if isinstance(error, ssl.SSLError):
                why = getattr(error, "verify_message", "") or str(error)
                expected = "expected a certificate signed by --ca"
                raise AccessError(f"the broker at {url} is not trusted: {why}; {expected}")
            check_access(client)

    options = access.connect_options()
    client.identity = access.identity()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.connect(
                [server.strip() for server in url.split(",")],
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,
                ping_interval=SILENCE_S / 2,
                error_cb=remember,
                disconnected_cb=client.fail_pending_requests,
                **options,
            )
        let_in = True
        # The library lets the broker decide.
        if access.ca is not None and not client._server_info.get("tls_required"):
            raise AccessError(f"the broker at {url} does not encrypt; expected TLS, as --ca requires")
        client.id_key = (access.seed() or "").encode()
    except BaseException as error:  # a cancelled attempt must not leave its socket either
        # A connection that failed during the TLS handshake never closes fully.
        with suppress(TimeoutError, OSError, nats.errors.Error, AccessError):
            async with asyncio.timeout(_CLOSE_S):
                await client.close()
        if isinstance(error, AccessError) or not isinstance(error, OSError | nats.errors.Error | ValueError):
            raise
        why = last_error[0] if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        raise LogUnavailableError(
            f"no NATS broker at {url}: {why}; expected a nats-server with JetStream, e.g. nats://127.0.0.1:4222"
        ) from None
    return client


def is_clustered(client: Client) -> bool:
    """Whether the broker is one node of a cluster, where streams have replicas."""
    return bool(client._server_info.get("cluster"))


async def retry_until_ready(
    doing: str,
    request: Callable[[], Awaitable[Answer]],
    patience_s: float = PATIENCE_S,
    give_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Repeat a request while the broker is unavailable, elects a leader or has no room: the one retry of a publish.

    ``doing`` names the operation in errors of the client library.

    Raises:
        LogUnavailableError, BackpressureError: the last failure, after ``patience_s`` or once ``give_up`` returns True.
        LogError: a failure that waiting cannot mend, at once.
    """
    backoff = Backoff(_FIRST_RETRY_S, _MAX_RETRY_S)
    began = time.monotonic()
    warn_after_s: float | None = None
    while True:
        try:
            with translate_broker_errors(doing):
                return await request()
        except (BackpressureError, LogUnavailableError) as error:
            waited_s = time.monotonic() - began
            if waited_s > patience_s or give_up():
                raise
            if warn_after_s is None:
                # Short waits for room are normal: they keep the streams short.
                warn_after_s = _WARN_INTERVAL_S if isinstance(error, BackpressureError) else 1.0
            if waited_s > warn_after_s:
                warn_after_s = waited_s + _WARN_INTERVAL_S
                log.warning("waiting for the broker", seconds=round(waited_s), error=str(error))
        await asyncio.sleep(backoff.next_s())


def has_no_responder(error: APIError) -> bool:
    """Whether a request reached no server: JetStream is starting, or the stream or consumer has no leader."""
    return isinstance(error, ServiceUnavailableError) and error.err_code is None


@contextmanager
def translate_broker_errors(doing: str) -> Iterator[None]:
    """Turn the client library's errors into ours; ``doing`` names the operation in the message."""
    try:
        yield
    except NoStreamResponseError as error:
        # A cluster that elects a stream's leader says so too; waiting mends that.
        raise LogUnavailableError(
            f"{doing}: no stream accepts this subject; was the league opened on this broker?"
        ) from error
    except APIError as error:
        text = f"{doing}: {error.description} (broker error {error.err_code})"
        if has_no_responder(error):
            raise LogUnavailableError(f"{doing}: no server answers for the stream now; is JetStream on?") from error
        if error.err_code in _WRONG_LAST_SEQUENCE:
            raise ConflictError(text) from error
        if error.err_code in _STORE_FULL or "no space left" in str(error.description):
            raise StoreFullError(f"{text}; free some space, nothing was lost") from error
        if error.err_code == _TOO_LARGE:
            raise MessageTooLargeError(f"{text}; expected at most the stream's max_msg_size") from error
        if error.err_code == _NO_STREAM:
            raise MissingStreamError(text) from error
        if error.err_code in _STREAM_FULL or "maximum" in str(error.description):
            raise BackpressureError(text) from error
        # With 503 a cluster is electing a leader or has no majority, or a server is shutting down.
        is_passing = error.code == 503 or error.err_code in _PASSING
        raise (LogUnavailableError if is_passing else LogError)(text) from error
    except nats.errors.MaxPayloadError as error:
        raise MessageTooLargeError(
            f"{doing}: the message is larger than the broker accepts; expected at most its max_payload"
        ) from error
    except (nats.errors.Error, TimeoutError) as error:
        raise LogUnavailableError(f"{doing}: the broker did not answer ({error or type(error).__name__})") from error
