"""Parsing of events by DuckDB: the structure of their JSON, and conditions for rows that it may have misread.

DuckDB is lenient: it turns lists into text and fractions into whole numbers, and accepts ``NaN`` and duplicate fields.
So its result is encoded again and compared with the payload. Where the two differ, or a value is missing or out of
range, Python decodes the event, as the folds do.

An event counts only on a subject that its worker may use (``schemas.subjects.is_allowed_on``), as in the folds. Here
that is one comparison of text per event; Python judges those on other subjects.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from schemas.events import EVENT_TYPES, Event
from schemas.subjects import MATCH_ENDS, match_end_subject, worker_event_subject

READABLE = "SELECT sequence, time_ns, subject, type, payload, false AS settled FROM incoming WHERE readable"
"""Events of this version of the schema, as they were written."""

DECODED = "SELECT sequence, time_ns, '' AS subject, type, payload, true AS settled FROM facts"
"""Events that Python had to read first: of another version of the schema, with a field left out, or on a subject that
is not the usual one. Of these nothing is in doubt."""

_SUBJECT_COLUMN = "lies_on"
"""Column of the subject: no event has a field of this name, nor of the next two."""
_AS_WRITTEN_COLUMN = "as_written"
"""Column: whether what DuckDB read is, written again, what lies there."""
_HAS_NULL_COLUMN = "has_null"
"""Column: whether a value may be missing."""

_AS_WRITTEN = """
    (settled OR (to_json(j)::VARCHAR = payload AND NOT contains(payload, 'NaN') AND NOT contains(payload, 'Infinity')))
"""

RENAMED = {"sequence": "through", "at": "through"}
"""Columns by field: ``sequence`` is where an event lies, so what it says of another one needs another name; ``at`` is a
keyword."""


def parse_statement(name: str, source: str) -> str:
    """SQL for the events of one type, one column per field beside ``sequence`` and ``time``."""
    kind = EVENT_TYPES[name]
    fields = ", ".join(f'j."{f}" AS {_column(f)}' for f in kind.__struct_encode_fields__)
    return f"""
        SELECT sequence, make_timestamp(time_ns // 1000) AS time, subject AS {_SUBJECT_COLUMN}, {_AS_WRITTEN} AS
        {_AS_WRITTEN_COLUMN},
               NOT settled AND contains(payload, 'null') AS {_HAS_NULL_COLUMN}, {fields}
        FROM (
            SELECT sequence, time_ns, subject, settled, payload,
                   json_transform(payload, '{json.dumps(_json_structure(kind))}') AS j
            FROM ({source}) WHERE type = '{name}'
        )
    """


def doubtful_statement(name: str) -> str:
    """SQL for the places of events that DuckDB may have read in another way than the folds, or that lie elsewhere."""
    kind = EVENT_TYPES[name]
    fields = _type_info(kind).fields  # type: ignore[attr-defined]
    columns = [(field.type, _column(field.encode_name)) for field in fields]
    conditions = [f"NOT {_AS_WRITTEN_COLUMN}", _unusual_subject(kind)]
    if missing := [condition for kind, at in columns for condition in _missing_conditions(kind, at)]:
        conditions.append(f"({_HAS_NULL_COLUMN} AND ({' OR '.join(missing)}))")
    conditions += [condition for kind, at in columns for condition in _out_of_range_conditions(kind, at)]
    if any(_needs_decoder(kind) for kind, _ in columns):
        conditions.append(f"{_SUBJECT_COLUMN} != ''")
    return f"SELECT sequence FROM {name} WHERE {' OR '.join(conditions)}"


def _unusual_subject(kind: type[Event]) -> str:
    """Condition under which an event lies on another subject of the history than those of its type usually do."""
    if kind in MATCH_ENDS:
        usual = match_end_subject("{league}", "{purpose}", kind, "{worker}")
    else:
        usual = worker_event_subject("{league}", kind, "{worker}")
    literal = f"'{usual}'".replace("{league}", f"' || split_part({_SUBJECT_COLUMN}, '.', 2) || '")
    for field in ("purpose", "worker"):
        literal = literal.replace(f"{{{field}}}", f"' || {field} || '")
    return f"(starts_with({_SUBJECT_COLUMN}, 'league.') AND {_SUBJECT_COLUMN} != {literal})"


def _column(field: str) -> str:
    return f'"{RENAMED.get(field, field)}"'


def _json_structure(kind: Any) -> Any:
    """DuckDB's description of the JSON that msgspec writes for a type."""
    info = _type_info(kind)
    if isinstance(info, msgspec.inspect.StructType):
        tag = {info.tag_field: "VARCHAR"} if info.tag_field else {}
        return tag | {field.encode_name: _json_structure(field.type) for field in info.fields}
    if isinstance(info, msgspec.inspect.ListType):
        return [_json_structure(info.item_type)]
    if isinstance(info, msgspec.inspect.UnionType):
        return next(_json_structure(t) for t in info.types if not isinstance(t, msgspec.inspect.NoneType))
    if isinstance(info, msgspec.inspect.DictType):
        return "MAP(VARCHAR, DOUBLE)" if _is_numbers(info) else "JSON"
    return _SCALARS[type(info)]


def _missing_conditions(kind: Any, at: str, depth: int = 0) -> list[str]:
    """Conditions under which a value that has to be there is not."""
    info = _type_info(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        return []
    if isinstance(info, msgspec.inspect.DictType) and _is_numbers(info):
        return [f"{at} IS NULL", f"list_count(map_values({at})) < cardinality({at})"]
    return [f"{at} IS NULL", *_nested_conditions(info, at, depth, _missing_conditions)]


def _out_of_range_conditions(kind: Any, at: str, depth: int = 0) -> list[str]:
    """Conditions under which a value is none that the decoder takes; DuckDB's own bounds are those of 64 bits."""
    info = _type_info(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        return [condition for each in info.types for condition in _out_of_range_conditions(each, at, depth)]
    if isinstance(info, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return [f"{at} < {info.ge}"] if info.ge is not None and info.ge > -(2**63) else []
    tag = (
        [f"{at}.{info.tag_field} != '{info.tag}'"] if isinstance(info, msgspec.inspect.StructType) and info.tag else []
    )
    return [*tag, *_nested_conditions(info, at, depth, _out_of_range_conditions)]


def _nested_conditions(
    info: msgspec.inspect.Type, at: str, depth: int, conditions: Callable[[Any, str, int], list[str]]
) -> list[str]:
    """The conditions on the parts of a value."""
    if isinstance(info, msgspec.inspect.StructType):
        return [each for f in info.fields for each in conditions(f.type, f'{at}."{f.encode_name}"', depth)]
    if isinstance(info, msgspec.inspect.ListType):
        item = f"x{depth}"
        inner = conditions(info.item_type, item, depth + 1)
        return [f"list_contains(list_transform({at}, lambda {item}: {' OR '.join(inner)}), true)"] if inner else []
    return []


def _needs_decoder(kind: Any) -> bool:
    """Whether only the decoder knows what a field may hold: any JSON but numbers too large, or what code checks."""
    info = _type_info(kind)
    if isinstance(info, msgspec.inspect.StructType):
        return hasattr(info.cls, "__post_init__") or any(_needs_decoder(field.type) for field in info.fields)
    if isinstance(info, msgspec.inspect.ListType):
        return _needs_decoder(info.item_type)
    if isinstance(info, msgspec.inspect.UnionType):
        return any(map(_needs_decoder, info.types))
    return isinstance(info, msgspec.inspect.AnyType) or (
        isinstance(info, msgspec.inspect.DictType) and not _is_numbers(info)
    )


def _type_info(kind: Any) -> msgspec.inspect.Type:
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
