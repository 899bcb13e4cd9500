"""Structs to bytes and back: JSON for events and jobs, compressed msgpack for trajectories.

An event carries its schema version in a header. Older versions are upcast to the current one (``UPCASTERS``); a newer
version is rejected with a message that names the side to upgrade.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any

import msgspec
import zstandard

from schemas import events as e
from schemas.errors import DecodeError
from schemas.jobs import PlayMatch
from schemas.trajectories import Trajectory

SCHEMA_VERSION = 2
"""Schema version of the events that this package writes."""
FIRST_SCHEMA_VERSION = 2
"""Schema version of the oldest events that this package reads; 0.1.0 wrote version 1."""

_SHOWN = 100
"""Characters of an event's key in a message."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: dict[int, Upcaster] = {}
"""Upcasters by the version that each raises by one."""

_ANY_EVENT: Any = reduce(or_, e.EVENT_TYPES.values())
_events = msgspec.json.Decoder(_ANY_EVENT)
_jobs = msgspec.json.Decoder(PlayMatch)
_trajectories = msgspec.msgpack.Decoder(Trajectory)
_json = msgspec.json.Encoder(order="deterministic")
_msgpack = msgspec.msgpack.Encoder()

MAX_TRAJECTORY_BYTES = 256 * 1024 * 1024
"""Largest decompressed trajectory: a few compressed bytes can expand to any size."""


DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for malformed bytes; the last one for unlimited nesting."""

_FREE_FORM_EVENTS = (e.LeagueOpened, e.LeagueConfigured, e.ArtifactStored, e.HistoryImported, e.BenchmarkRequested)
"""Events with fields that may hold any JSON, including numbers of any size."""


class OlderSchemaError(DecodeError):
    """An event of a schema version below ``FIRST_SCHEMA_VERSION``: a history of 0.1.0."""


class NewerSchemaError(DecodeError):
    """An event of a newer schema version; a process that makes decisions must stop at it."""


class UnknownEventError(DecodeError):
    """An event type that this version does not know; it is skipped and counted."""


class _Tagged(msgspec.Struct):
    type: str


def encode_event(event: e.Event) -> bytes:
    """Encode an event as JSON.

    Raises:
        DecodeError: it is too large, a number that is infinite or out of range (``schemas.numbers``), or text with half
            a character.
    """
    try:
        data = _json.encode(event)
        _events.decode(data)
    except (UnicodeEncodeError, *DECODE_ERRORS) as error:
        # Once written, it would stay in the history and be skipped by every reader.
        raise DecodeError(f"{type(event).__name__} cannot be recorded: {error}") from error
    if len(data) > event.MAX_BYTES:
        raise DecodeError(f"{event.key[:_SHOWN]} cannot be recorded: {_size_error(event, len(data))}")
    return data


def _size_error(event: e.Event, size: int) -> str:
    """What is wrong with an event of too many bytes as JSON."""
    largest, length = max(
        ((name, len(_json.encode(getattr(event, name)))) for name in event.__struct_fields__),
        key=lambda field: field[1],
    )
    return (
        f"{type(event).__name__} of {size:,} bytes, {length:,} of them in {largest}; "
        f"expected at most {event.MAX_BYTES:,}"
    )


def decode_event(data: bytes, version: int = SCHEMA_VERSION) -> e.Event:
    """Decode an event from JSON.

    Raises:
        UnknownEventError: a well-formed event of an unknown type.
        NewerSchemaError: a schema version above ``SCHEMA_VERSION``.
        OlderSchemaError: a schema version below ``FIRST_SCHEMA_VERSION``.
        DecodeError: not an event, or a schema version without upcasters to the current one.
    """
    if 0 < version < FIRST_SCHEMA_VERSION:
        raise OlderSchemaError(f"event of schema version {version}; expected {FIRST_SCHEMA_VERSION} or later")
    if version > SCHEMA_VERSION:
        # A newer event stops processes that make decisions; malformed bytes with such a label must not.
        with suppress(*DECODE_ERRORS):
            if msgspec.json.decode(data, type=_Tagged).type:
                raise NewerSchemaError(
                    f"event of schema version {version}; this process reads up to {SCHEMA_VERSION}: upgrade the reader"
                )
        raise DecodeError(f"not an event, though labelled as one of schema version {version}")
    try:
        if version == SCHEMA_VERSION:
            event: e.Event = _events.decode(data)
        else:
            event = msgspec.convert(_upcast(data, version), _ANY_EVENT)
        if isinstance(event, _FREE_FORM_EVENTS):
            # Folds keep these fields in snapshots, which are msgpack: numbers of 64 bits.
            _msgpack.encode(event)
        if len(data) > event.MAX_BYTES:
            raise DecodeError(f"not a usable event: {_size_error(event, len(data))}")
    except (*DECODE_ERRORS, OverflowError) as error:
        raise _event_error(data, error) from error
    return event


def _upcast(data: bytes, version: int) -> dict[str, Any]:
    fields = msgspec.json.decode(data, type=dict[str, Any])
    for hop in range(version, SCHEMA_VERSION):
        if hop not in UPCASTERS:
            raise DecodeError(f"event of schema version {version}; no upcaster from {hop} to {hop + 1}")
        try:
            fields = UPCASTERS[hop](fields)
        except (LookupError, TypeError, ValueError) as error:
            raise DecodeError(
                f"event of schema version {version} that the upcaster from {hop} cannot read: {error!r}"
            ) from error
    return fields


def _event_error(data: bytes, error: Exception) -> DecodeError:
    try:
        kind = msgspec.json.decode(data, type=dict[str, Any]).get("type")
    except DECODE_ERRORS:
        return DecodeError(f"not a JSON object but {data[:60]!r}")
    if isinstance(kind, str) and kind not in e.EVENT_TYPES:
        return UnknownEventError(f"event of unknown type {kind!r}")
    return DecodeError(f"not a valid {kind} event: {error}")


def encode_job(job: PlayMatch) -> bytes:
    """Encode a job as JSON."""
    return _json.encode(job)


def decode_job(data: bytes) -> PlayMatch:
    """Decode a job from JSON; ``DecodeError`` for other bytes."""
    try:
        return _jobs.decode(data)
    except DECODE_ERRORS as error:
        raise DecodeError(f"not a job: {error}; found {data[:60]!r}") from error


def encode_trajectory(rollout: Trajectory) -> bytes:
    """Encode a trajectory as zstd-compressed msgpack."""
    return zstandard.compress(_msgpack.encode(rollout), 1)


def decode_trajectory(data: bytes) -> Trajectory:
    """Decode a trajectory from compressed msgpack; ``DecodeError`` for other bytes."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_TRAJECTORY_BYTES:
            raise DecodeError(f"not a trajectory: {size:,} bytes unpacked; expected at most {MAX_TRAJECTORY_BYTES:,}")
        return _trajectories.decode(zstandard.decompress(data))
    except (*DECODE_ERRORS, zstandard.ZstdError) as error:
        raise DecodeError(f"not a trajectory: {error}; found {data[:20]!r}") from error


def canonical_json(value: Any) -> bytes:
    """Encode any plain value or struct as JSON with sorted keys: equal values give equal bytes."""
    return _json.encode(value)
