"""The API errors of JetStream that the simulated server answers with (errors.json of nats-server)."""

from typing import Any


class ApiError(Exception):
    """An error of the JetStream API: HTTP-like code, error code and description."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.body: dict[str, Any] = {"code": code, "err_code": err_code, "description": description}


def stream_not_found() -> ApiError:
    """There is no such stream."""
    return ApiError(404, 10059, "stream not found")


def consumer_not_found() -> ApiError:
    """There is no such consumer."""
    return ApiError(404, 10014, "consumer not found")


def message_not_found() -> ApiError:
    """There is no such message."""
    return ApiError(404, 10037, "no message found")


def wrong_last_sequence(found: int) -> ApiError:
    """An expected sequence does not hold."""
    return ApiError(400, 10071, f"wrong last sequence: {found}")


def wrong_last_id(found: str) -> ApiError:
    """The newest message has another id than expected."""
    return ApiError(400, 10070, f"wrong last msg ID: {found}")


IN_FLIGHT = ApiError(400, 10164, "wrong last sequence")
"""A message on the subject of a condition is being replicated."""
IN_PROCESS = ApiError(409, 10158, "duplicate message id is in process")
"""A message of the same id is being replicated."""


def store_failed(why: str) -> ApiError:
    """A stream with the policy discard-new is full."""
    return ApiError(503, 10077, why)


INSUFFICIENT_RESOURCES = ApiError(503, 10023, "insufficient resources")
TOO_MANY_CONSUMERS = ApiError(400, 10026, "maximum consumers limit reached")
NO_LEADER = ApiError(503, 10008, "JetStream system temporarily unavailable")
INCOMPLETE_BATCH = ApiError(400, 10176, "atomic publish batch is incomplete")
MISSING_BATCH_SEQUENCE = ApiError(400, 10175, "atomic publish sequence is missing")
LARGE_BATCH = ApiError(400, 10199, "atomic publish batch is too large: 1000")
DUPLICATE_IN_BATCH = ApiError(400, 10201, "atomic publish batch contains duplicate message id")
BATCHES_DISABLED = ApiError(400, 10174, "atomic publish is disabled")
