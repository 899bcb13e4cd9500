"""Consumers by which streams are read: under names of which a user's permissions contain a few.

Filter and name are parts of the subject on which a consumer is created, so permissions bound what a user can read, and
by how many consumers: all processes with its credentials share them (``league/auth/permissions.py``). An operator's
consumers, and those on a broker without credentials, have random names.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from league.auth.permissions import consumer_names
from league.log.access import FailFastClient, is_worker, user_name
from league.log.connection import REQUEST_TIMEOUT_S, retry_until_ready
from schemas.errors import AccessError, BackpressureError

_FORGET_S = 30.0
"""Seconds after which the broker removes a consumer that a killed process left behind."""
_NAME_IS_TAKEN, _TOO_MANY_CONSUMERS = 10148, 10026
"""The broker's errors for a consumer of this name with another configuration, and for the account's limit."""


class ConsumerLostError(Exception):
    """The consumer is gone or silent, or a message from it was lost."""


@contextlib.asynccontextmanager
async def reading_consumer(
    client: Client, stream: str, subject: str, first: int, deliver: DeliverPolicy, headers_only: bool = False
) -> AsyncIterator[ConsumerInfo]:
    """A consumer for the block; waits while all of the user's are in use, or the broker makes no more.

    Raises:
        BackpressureError: the wait was too long.
        ConsumerLostError: the broker did not answer.
        LogError: there is no such stream.
    """
    info = await retry_until_ready(
        f"reading {stream}",
        lambda: _add_consumer(client, stream, subject, first, deliver, headers_only),
        give_up=lambda: client.is_closed,
    )
    try:
        yield info
    finally:
        with contextlib.suppress(nats.errors.Error, ValueError, AccessError):
            await client.jetstream(timeout=REQUEST_TIMEOUT_S).delete_consumer(stream, info.name)
        _names_in_use(client, stream).discard(info.name)


def _names_in_use(client: Client, stream: str) -> set[str]:
    """Names of this connection's consumers on a stream."""
    return client.consumers[stream] if isinstance(client, FailFastClient) else set()


async def _add_consumer(
    client: Client, stream: str, subject: str, first: int, deliver: DeliverPolicy, headers_only: bool
) -> ConsumerInfo:
    """Create a consumer under a name that no process uses; BackpressureError without one."""
    names = consumer_names(user_name(client)) if is_worker(client) else [secrets.token_hex(16)]
    in_use = _names_in_use(client, stream)
    for name in [name for name in names if name not in in_use]:
        in_use.add(name)
        try:
            return await _create(client, stream, name, subject, first, deliver, headers_only)
        except BaseException as error:  # raised again; a name that stayed in use could not be taken any more
            in_use.discard(name)
            if not isinstance(error, APIError) or error.err_code != _NAME_IS_TAKEN:
                raise
    raise BackpressureError(
        f"reading {stream}: the {len(names)} consumers of {user_name(client)} are in use; expected at most so many "
        "readings at once by all processes with these credentials: end some, or give others their own credentials"
    )


async def _create(
    client: Client, stream: str, name: str, subject: str, first: int, deliver: DeliverPolicy, headers_only: bool
) -> ConsumerInfo:
    config = ConsumerConfig(
        name=name,
        # By this the broker tells it from another process's consumer of this name.
        description=secrets.token_hex(16),
        deliver_policy=deliver,
        opt_start_seq=max(first, 1) if deliver == DeliverPolicy.BY_START_SEQUENCE else None,
        ack_policy=AckPolicy.NONE,
        filter_subject=subject,
        headers_only=headers_only or None,
        inactive_threshold=_FORGET_S,
        mem_storage=True,
    )
    request = msgspec.json.encode({"stream_name": stream, "config": config.as_dict(), "action": "create"})
    api = client.jetstream()
    try:
        answer = await api._api_request(
            f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{subject}", request, timeout=REQUEST_TIMEOUT_S
        )
    except nats.errors.Error as error:
        is_told = isinstance(error, APIError) and error.err_code in (_NAME_IS_TAKEN, _TOO_MANY_CONSUMERS)
        if is_told or isinstance(error, NotFoundError):
            raise
        raise ConsumerLostError from error
    return ConsumerInfo.from_response(answer)
