"""Base of configuration tables: plugins by name, decoding with one form of error message, checks."""

import json
import re
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import SplitResult, urlsplit

import msgspec

from schemas.errors import ConfigError, format_choices


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of configuration tables."""


class Plugin(Table, frozen=True):
    """A plugin by name, with its own settings."""

    name: str
    settings: dict[str, Any] = {}


def check_choice(key: str, value: str, names: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` unless ``value`` is one of ``names``."""
    if value not in names:
        raise ConfigError(f"{key}: {value!r}; expected {format_choices(names, value)}")


def check_at_least(settings: msgspec.Struct, where: str = "", **lowest: int) -> None:
    """Check settings against their lower bounds; ``where`` is the table, for the message.

    Raises:
        ConfigError: the first setting that is below its bound.
    """
    for name, bound in lowest.items():
        if getattr(settings, name) < bound:
            raise ConfigError(
                f"{where}{'.' if where else ''}{name}: {getattr(settings, name)}; expected {bound} or more"
            )


def check_positive(settings: msgspec.Struct, where: str, *names: str) -> None:
    """Raise ``ConfigError`` unless all of these settings of table ``where`` are finite and above 0."""
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):
            raise ConfigError(f"{where}.{name}: {getattr(settings, name)}; expected more than 0")


def check_worker_bounds(table: str, least: int | None, most: int | None) -> None:
    """Raise ``ConfigError`` unless both bounds are given, in order, or neither."""
    if (least is None) != (most is None):
        raise ConfigError(f"{table}.workers_min, {table}.workers_max: expected both or neither")
    if least is not None and not 1 <= least <= (most or 0):
        raise ConfigError(f"{table}.workers_min: {least}; expected 1 to {table}.workers_max")


def parse_url(url: str) -> SplitResult | None:
    """The parts of a URL; None where it or its port is malformed."""
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return parts if parts.port != 0 else None
    except ValueError:
        return None


T = TypeVar("T")


def convert(value: Any, into: type[T], where: str) -> T:
    """Decode a plain mapping into a configuration struct.

    Args:
        value: What TOML or JSON gave.
        into: A msgspec struct that forbids unknown fields.
        where: Dotted place of the mapping in the file, for the message; empty for the whole file.

    Raises:
        ConfigError: a key or value is not what it should be; the message names the key and the expectation.
    """
    expanded = _expand_names(value, into)
    try:
        return msgspec.convert(expanded, into, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            prefix = f"{where}." if where else ""
            raise ConfigError(f"{prefix}{error.__cause__}") from None
        raise ConfigError(_explain(str(error), expanded, into, where)) from None


@cache
def _field_types(table: type) -> Mapping[str, Any]:
    """Types of a table's fields; evaluating annotations takes longer than decoding the table."""
    return get_type_hints(table)


def _expand_names(value: Any, into: Any) -> Any:
    """Replace a plugin's bare name by its table: ``reward = "outcome"`` is ``reward = { name = "outcome" }``."""
    if get_origin(into) in (Union, UnionType):
        into = next((kind for kind in get_args(into) if isinstance(kind, type) and issubclass(kind, Table)), None)
    if into is Plugin:
        return {"name": value} if isinstance(value, str) else value
    if isinstance(into, type) and issubclass(into, Table) and isinstance(value, Mapping):
        kinds = _field_types(into)
        return {key: _expand_names(part, kinds.get(key)) for key, part in value.items()}
    if get_origin(into) in (list, tuple) and isinstance(value, list):
        return [_expand_names(part, get_args(into)[0]) for part in value]
    if get_origin(into) is dict and isinstance(value, Mapping):
        return {key: _expand_names(part, get_args(into)[1]) for key, part in value.items()}
    return value


def _explain(message: str, value: Any, into: Any, where: str) -> str:
    text, _, path = message.partition(" - at `$")
    path = _named_path(path.rstrip("`").strip("."), value, into)
    place = ".".join(part for part in (where, path) if part)
    unknown = re.search(r"unknown field `(.*)`", text)
    if unknown is None:
        return f"{place or 'configuration'}: {text[0].lower()}{text[1:]}"
    known = format_choices(_fields_at(into, path), unknown[1])
    prefix = f"{place}." if place else ""
    return f"{prefix}{unknown[1]}: unknown key; expected {known}"


def _named_path(path: str, value: Any, into: Any) -> str:
    """A path with the key of a mapping instead of ``[...]``: that of its first value which cannot be decoded."""
    head, separator, rest = path.partition("[...]")
    if not separator:
        return path
    for part in head.split("."):
        hints = _field_types(into) if isinstance(into, type) else {}
        if part not in hints or not isinstance(value, Mapping):
            return path
        value, into = value.get(part), hints[part]
    if get_origin(into) is not dict or not isinstance(value, Mapping):
        return path
    kind = get_args(into)[1]
    for key, entry in value.items():
        try:
            msgspec.convert(entry, kind, strict=True)
        except msgspec.ValidationError:
            return f"{head}.{key}{'.' if rest and rest[0] != '.' else ''}{_named_path(rest, entry, kind)}"
    return path


def _fields_at(into: Any, path: str) -> list[str]:
    """Field names of the struct that ``path`` leads to."""
    info = msgspec.inspect.type_info(into)
    for part in filter(None, re.split(r"[.\[]", path)):
        if isinstance(info, msgspec.inspect.UnionType):
            info = next(t for t in info.types if isinstance(t, msgspec.inspect.StructType))
        if isinstance(info, msgspec.inspect.StructType):
            info = next(field.type for field in info.fields if field.name == part)
        elif isinstance(info, msgspec.inspect.DictType):
            info = info.value_type
    if isinstance(info, msgspec.inspect.UnionType):
        info = next(t for t in info.types if isinstance(t, msgspec.inspect.StructType))
    return [field.name for field in info.fields] if isinstance(info, msgspec.inspect.StructType) else []


def toml_document(settings: Mapping[str, Any]) -> str:
    """Settings as a TOML file, a line per key at its top; keys without a value (None) are left out."""
    return "".join(f"{_toml_key(key)} = {toml_value(value)}\n" for key, value in _present(settings))


def toml_value(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {toml_value(part)}" for key, part in _present(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # JSON strings are TOML strings, except for lone surrogates; so are numbers, except for infinity.
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else toml_value(key)


def _present(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in table.items() if value is not None]


def to_builtins(config: msgspec.Struct) -> dict[str, Any]:
    """The configuration as plain values, defaults included: what ``LeagueOpened`` records."""
    value: dict[str, Any] = msgspec.to_builtins(config)
    return value
