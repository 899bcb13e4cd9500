"""Base of configuration tables: plugins by name, decoding with one form of error message, checks."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import SplitResult, urlsplit

import msgspec
import tomli_w
from msgspec import inspect

from schemas.config.foreign_keys import FOREIGN_KEYS, REMOVED_KEYS
from schemas.errors import ConfigError, format_choices
from schemas.numbers import FINITE, MAX_INT64


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of configuration tables."""


class Plugin(Table, frozen=True):
    """A plugin by name, with its own settings."""

    name: str
    settings: dict[str, Any] = {}


def parse_url(url: str) -> SplitResult | None:
    """The parts of a URL; None where it or its port is malformed."""
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return parts if parts.port != 0 else None
    except ValueError:
        return None


def parse_http_url(url: str) -> SplitResult | None:
    """The parts of an address with a host, of HTTP or HTTPS; None for all others."""
    parts = parse_url(url)
    return parts if parts is not None and parts.scheme in ("http", "https") and parts.hostname else None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


T = TypeVar("T")


def convert(value: Any, into: type[T], where: str) -> T:
    """Decode a plain mapping, as TOML or JSON gave it, into a configuration struct, which forbids unknown fields.

    ``where`` is its dotted place in the file, for the message; empty for the whole file.

    Raises:
        ConfigError: a key or value is not what it should be; the message names the key and the expectation.
    """
    expanded = _expand_names(value, into)
    _check_numbers(expanded, where)
    try:
        return msgspec.convert(expanded, into, strict=True)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where or 'configuration'}: {error.object!a}: not UTF-8; expected a known key") from None
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            prefix = f"{where}." if where else ""
            raise ConfigError(f"{prefix}{error.__cause__}") from None
        raise ConfigError(_explain(str(error), expanded, into, where)) from None


def _check_numbers(value: Any, where: str) -> None:
    """Raise ConfigError for a number that JSON, arrays or arithmetic cannot take, in settings of plugins too."""
    waiting = [(where, value)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += [(f"{place}.{name}" if place else str(name), each) for name, each in part.items()]
        elif isinstance(part, list | tuple):
            waiting += [(f"{place}[{nth}]", each) for nth, each in enumerate(part)]
        elif isinstance(part, float) and not math.isfinite(part):
            raise ConfigError(f"{place}: {part}; expected a finite number")
        elif isinstance(part, int) and not -MAX_INT64 - 1 <= part <= MAX_INT64:
            raise ConfigError(f"{place}: an integer of {part.bit_length()} bits; expected one of 64")


@cache
def _field_types(table: type) -> Mapping[str, Any]:
    """Types of a table's fields; evaluating annotations takes longer than decoding the table."""
    return get_type_hints(table, include_extras=True)


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
    path, kind, found = _follow(path, into, value)
    key = ".".join(part for part in (where, path) if part)
    if unknown := re.search(r"unknown field `(.*)`", text):
        prefix = f"{key}." if key else ""
        if here := FOREIGN_KEYS.get(unknown[1]):
            return f"{prefix}{unknown[1]}: unknown key; here {here}"
        if reason := REMOVED_KEYS.get(unknown[1]):
            return f"{prefix}{unknown[1]}: a key of version 0.1.0; remove it: {reason} (CHANGELOG.md)"
        known = format_choices(kind.__struct_fields__, unknown[1])
        return f"{prefix}{unknown[1]}: unknown key; expected {known}"
    if re.match(r"Invalid enum|Expected `\w+` [<>]", text):
        return f"{key}: {found!r}; expected {_expectation(inspect.type_info(kind), found)}"
    return f"{key or 'configuration'}: {text[0].lower()}{text[1:]}"


def _follow(path: str, into: Any, value: Any) -> tuple[str, Any, Any]:
    """Where the path of an error leads: its place in words, what is expected there, and what was found.

    For ``[...]``, a value of a mapping, the place has the key: the first with a value that cannot be decoded.
    """
    place = ""
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if name:
            into, value = _field_types(into)[name], value[name]
        elif index == "...":
            into = get_args(into)[1]
            name, value = next(entry for entry in value.items() if not _fits(entry[1], into))
        else:
            kinds = get_args(into)
            into = kinds[int(index)] if get_origin(into) is tuple and ... not in kinds else kinds[0]
            value = value[int(index)]
        place += f".{name}" if name else f"[{index}]"
        if get_origin(into) in (Union, UnionType):
            into = _alternative(into, value)
    return place.removeprefix("."), into, value


def _alternative(union: Any, value: Any) -> Any:
    """The member of a union that a value is meant to be: a table, a list, or else the first one."""
    kinds = [kind for kind in get_args(union) if kind is not type(None)]
    if isinstance(value, Mapping):
        fitting = (kind for kind in kinds if get_origin(kind) is dict or hasattr(kind, "__struct_fields__"))
    else:
        fitting = (kind for kind in kinds if isinstance(value, list) and get_origin(kind) in (list, tuple))
    return next(fitting, kinds[0])


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        return False
    return True


def _expectation(kind: Any, found: Any) -> str:
    """What a choice or a number with bounds should be."""
    if isinstance(kind, inspect.LiteralType):
        choices: Any = kind.values
        return format_choices(choices, found) if isinstance(found, str) else " or ".join(map(str, choices))
    if kind.ge == -FINITE:
        return "a finite number"
    least = f"more than {kind.gt:,}" if kind.ge is None else f"{kind.ge:,}"
    if kind.lt is not None:
        return f"{least}{'' if kind.ge is None else ' or more,'} and less than {kind.lt:,}"
    if kind.le in (None, FINITE, MAX_INT64):
        return least if kind.ge is None else f"{least} or more"
    return f"{least} and at most {kind.le:,}" if kind.ge is None else f"{least} to {kind.le:,}"


def toml_document(settings: Mapping[str, Any]) -> str:
    """Render settings as TOML, which has no null: keys whose value is None are left out."""
    return tomli_w.dumps(_without_none(settings))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value


def parse_value(text: str) -> Any:
    """Parse a value as TOML, else as a word without quotes; empty text is None.

    Raises:
        ConfigError: the text has bytes that are not UTF-8, which a command's arguments have as lone surrogates.
    """
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise ConfigError(f"{text!a}: not UTF-8; expected a value in TOML, or a word")
    if not text:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        # Not TOML, an integer of thousands of digits, or lists within lists without end.
        return text


def assign_setting(table: dict[str, Any], parts: Sequence[str], value: Any, key: str) -> None:
    """Set a value in nested tables, whose names may contain dots; ``ConfigError`` if a part of ``key`` is no table."""
    if len(parts) == 1 or ".".join(parts) in table:
        table[".".join(parts)] = value
        return
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        if isinstance(table.get(name), dict):
            assign_setting(table[name], parts[length:], value, key)
            return
    if table.get(parts[0]) is not None:
        raise ConfigError(f"{key}: {parts[0]!r} is not a table; expected a key, {format_choices(sorted(table))}")
    table[parts[0]] = {}
    assign_setting(table[parts[0]], parts[1:], value, key)


def to_builtins(config: msgspec.Struct) -> dict[str, Any]:
    """The configuration as plain values, defaults included: what ``LeagueOpened`` records."""
    value: dict[str, Any] = msgspec.to_builtins(config)
    return value
