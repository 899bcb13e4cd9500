"""How DuckDB reads our events: their shape as it wants it described, and which rows it may have read wrongly.

An event counts only on a subject where such an event of its worker may lie (``schemas.subjects.belongs``), as in the
folds. Here that is one comparison of text per event; those on other subjects are for Python to judge.
"""

import json
from typing import Any

import msgspec

from schemas.events import EVENT_TYPES, Event
from schemas.subjects import MATCH_ENDS, match_subject, type_subject

READABLE = "SELECT sequence, time_ns, subject, type, payload FROM incoming WHERE readable"
"""Events of this version of the schema, as they were written."""

FACTS = "SELECT sequence, time_ns, '' AS subject, type, payload FROM facts"
"""Events that Python had to read first: of another version of the schema, with a field left out, or on a subject that
is not the usual one. Of these nothing is in doubt."""

_PLACE = "lies_on"
"""Column of the subject: no event has a field of this name."""

# ``sequence`` is where an event lies, so what it says of another sequence needs another name; ``at`` is a keyword.
_RENAMED = {"sequence": "through", "at": "through"}


def parsed(name: str, source: str) -> str:
    """SQL for the events of one type, one column per field beside ``sequence`` and ``time``."""
    kind = EVENT_TYPES[name]
    fields = ", ".join(f'j."{f}" AS {_column(f)}' for f in kind.__struct_encode_fields__)
    return f"""
        SELECT sequence, make_timestamp(time_ns // 1000) AS time, subject AS {_PLACE}, {fields} FROM (
            SELECT sequence, time_ns, subject, json_transform(payload, '{json.dumps(_shape(kind))}') AS j
            FROM ({source}) WHERE type = '{name}'
        )
    """


def doubtful(name: str) -> str:
    """SQL for the places of events with a field that is missing, of the wrong type or out of its range, or elsewhere.

    Of the first two ``json_transform`` makes NULL.
    """
    fields = _info(EVENT_TYPES[name]).fields  # type: ignore[attr-defined]
    missing = [condition for field in fields for condition in _missing(field.type, _column(field.encode_name), 0)]
    return f"SELECT sequence FROM {name} WHERE {' OR '.join([*missing, _elsewhere(EVENT_TYPES[name])])}"


def _elsewhere(kind: type[Event]) -> str:
    """Condition under which an event lies on another subject of the history than those of its type usually do."""
    if kind in MATCH_ENDS:
        usual = match_subject("{league}", "{purpose}", kind, "{worker}")
    else:
        usual = type_subject("{league}", kind, "{worker}")
    literal = f"'{usual}'".replace("{league}", f"' || split_part({_PLACE}, '.', 2) || '")
    for field in ("purpose", "worker"):
        literal = literal.replace(f"{{{field}}}", f"' || {field} || '")
    return f"(starts_with({_PLACE}, 'league.') AND {_PLACE} != {literal})"


def _column(field: str) -> str:
    return f'"{_RENAMED.get(field, field)}"'


def _shape(kind: Any) -> Any:
    """DuckDB's description of the JSON that msgspec writes for a type."""
    info = _info(kind)
    if isinstance(info, msgspec.inspect.StructType):
        return {field.encode_name: _shape(field.type) for field in info.fields}
    if isinstance(info, msgspec.inspect.ListType):
        return [_shape(info.item_type)]
    if isinstance(info, msgspec.inspect.UnionType):
        return next(_shape(t) for t in info.types if not isinstance(t, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.DictType):
        return "MAP(VARCHAR, DOUBLE)" if _is_numbers(info) else "JSON"
    return _SCALARS[type(info)]


def _missing(kind: Any, at: str, depth: int) -> list[str]:
    """Conditions under which a value read as ``kind`` was not one."""
    info = _info(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        return [condition for each in info.types for condition in _outside(each, at)]
    conditions = [f"{at} IS NULL", *_outside(info, at)]
    if isinstance(info, msgspec.inspect.StructType):
        for field in info.fields:
            conditions += _missing(field.type, f'{at}."{field.encode_name}"', depth)
    elif isinstance(info, msgspec.inspect.ListType):
        item = f"x{depth}"
        inner = " OR ".join(_missing(info.item_type, item, depth + 1))
        conditions.append(f"list_contains(list_transform({at}, lambda {item}: {inner}), true)")
    elif isinstance(info, msgspec.inspect.DictType) and _is_numbers(info):
        conditions.append(f"list_count(map_values({at})) < cardinality({at})")
    return conditions


def _outside(info: msgspec.inspect.Type, at: str) -> list[str]:
    """Conditions under which a number is none that the decoder takes; DuckDB's own bounds are those of 64 bits."""
    if not isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType) or info.ge is None:
        return []
    return [f"{at} < {info.ge}"] if info.ge > -(2**63) else []


def _info(kind: Any) -> msgspec.inspect.Type:
    return kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)


def _is_numbers(info: msgspec.inspect.DictType) -> bool:
    return isinstance(info.value_type, msgspec.inspect.FloatType)


_SCALARS = {
    msgspec.inspect.StrType: "VARCHAR",
    msgspec.inspect.IntType: "BIGINT",
    msgspec.inspect.FloatType: "DOUBLE",
    msgspec.inspect.BoolType: "BOOLEAN",
    msgspec.inspect.AnyType: "JSON",
}
