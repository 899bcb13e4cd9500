"""A rolling upgrade: processes of two versions of the package, between which the stored form of an event has changed.

The version in the repository is the newer one. Processes of the older one write ``MatchFinished`` in schema version 2,
where ``length`` was ``turns``, and read no event of a newer schema; the newer ones read both, through an upcaster.
"""

from collections.abc import Callable
from typing import Any

import msgspec

import league.log.base
import league.log.jetstream
import schemas.codec
import workers.compatibility
import workers.membership
from schemas.codec import NewerSchemaError, decode_event, encode_event
from schemas.events import Event, MatchFinished
from tests.simulation.loop import current_process

OLD, NEW = 2, 3
_VERSIONS = {OLD: "0.2.0", NEW: "0.3.0"}


def _schema() -> int:
    process = current_process()
    return (process.schema if process is not None else 0) or NEW


def upcast(fields: dict[str, Any]) -> dict[str, Any]:
    """The hop from the older schema to the newer one."""
    if fields["type"] == "MatchFinished":
        fields["length"] = fields.pop("turns")
    return fields


def _encode(event: Event) -> bytes:
    data = encode_event(event)
    if _schema() == NEW or not isinstance(event, MatchFinished):
        return data
    fields = msgspec.json.decode(data)
    fields["turns"] = fields.pop("length")
    return msgspec.json.encode(fields, order="deterministic")


def _decode(data: bytes, version: int = NEW) -> Event:
    if version > _schema():
        raise NewerSchemaError(f"event of schema version {version}; this process reads up to {_schema()}: upgrade it")
    return decode_event(data, version)


def patches() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Replacements of the encoder, the decoder and the package's version."""
    return {
        (league.log.jetstream, "encode_event"): _encode,
        (league.log.base, "decode_event"): _decode,
        (workers.membership, "version"): lambda name: _VERSIONS[_schema()],
    }


def install() -> None:
    """Make this process read both schemas."""
    schemas.codec.SCHEMA_VERSION = NEW
    schemas.codec.UPCASTERS[OLD] = upcast


def switch_to(schema: int) -> None:
    """Make the modules that write or compare schema versions those of the process that runs next."""
    for module in (league.log.jetstream, workers.compatibility, workers.membership):
        module.SCHEMA_VERSION = schema or NEW  # type: ignore[attr-defined]
