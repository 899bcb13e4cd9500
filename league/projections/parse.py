"""Parsing of events by DuckDB: the structure of their JSON, and conditions for rows that it may have misread.

DuckDB is lenient: it turns lists into text and fractions into whole numbers, and accepts ``NaN`` and duplicate fields.
So its result is encoded again and compared with the payload. Where the two differ, or a value is missing or out of
range, Python decodes the event, as the folds do.

An event counts only on a subject that its worker may use (``schemas.subjects.is_allowed_on``), as in the folds. Here
that is one comparison of text per event; Python judges those on other subjects.
"""

import json
from typing import Any, NamedTuple

from msgspec import inspect as types

from schemas.events import EVENT_TYPES, Event
from schemas.subjects import MATCH_ENDS, match_end_subject, worker_event_subject

READABLE = "SELECT sequence, time_ns, subject, type, payload, false AS settled FROM incoming WHERE readable"
"""Events of this version of the schema, as they were written."""

DECODED = "SELECT sequence, time_ns, '' AS subject, type, payload, true AS settled FROM facts"
"""Events that Python had to read first: of another version of the schema, with a field left out, or on a subject that
is not the usual one. Of these nothing is in doubt."""

RENAMED = {"sequence": "through", "at": "through"}
"""Columns by field: ``sequence`` is where an event lies, so what it says of another one needs another name; ``at`` is a
keyword."""


def parse_statement(name: str, source: str) -> str:
    """SQL for the events of one type, one column per field beside ``sequence`` and ``time``."""
    kind = EVENT_TYPES[name]
    fields = ", ".join(f'j."{f}" AS {_column(f)}' for f in kind.__struct_encode_fields__)
    structure = _describe(types.type_info(kind), "j").structure
    # No event has a field named lies_on, as_written (what DuckDB read is, written again, what lies there) or has_null.
    return f"""
        SELECT sequence, make_timestamp(time_ns // 1000) AS time, subject AS lies_on,
               (settled OR (to_json(j)::VARCHAR = payload AND NOT contains(payload, 'NaN')
                            AND NOT contains(payload, 'Infinity'))) AS as_written,
               NOT settled AND contains(payload, 'null') AS has_null, {fields}
        FROM (
            SELECT sequence, time_ns, subject, settled, payload,
                   json_transform(payload, '{json.dumps(structure)}') AS j
            FROM ({source}) WHERE type = '{name}'
        )
    """


def doubtful_statement(name: str) -> str:
    """SQL for the places of events that DuckDB may have read in another way than the folds, or that lie elsewhere."""
    kind = EVENT_TYPES[name]
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    columns = [_describe(field.type, _column(field.encode_name)) for field in info.fields]
    conditions = ["NOT as_written", _unusual_subject(kind)]
    if missing := [condition for column in columns for condition in column.missing]:
        conditions.append(f"(has_null AND ({' OR '.join(missing)}))")
    conditions += [condition for column in columns for condition in column.invalid]
    if any(column.needs_decoder for column in columns):
        conditions.append("lies_on != ''")
    return f"SELECT sequence FROM {name} WHERE {' OR '.join(conditions)}"


def _unusual_subject(kind: type[Event]) -> str:
    """Condition under which an event lies on another subject of the history than those of its type usually do."""
    if kind in MATCH_ENDS:
        usual = match_end_subject("{league}", "{purpose}", kind, "{worker}")
    else:
        usual = worker_event_subject("{league}", kind, "{worker}")
    literal = f"'{usual}'".replace("{league}", "' || split_part(lies_on, '.', 2) || '")
    for field in ("purpose", "worker"):
        literal = literal.replace(f"{{{field}}}", f"' || {field} || '")
    return f"(starts_with(lies_on, 'league.') AND lies_on != {literal})"


def _column(field: str) -> str:
    return f'"{RENAMED.get(field, field)}"'


class _Description(NamedTuple):
    structure: Any
    """DuckDB's description of the JSON that msgspec writes for a type."""
    missing: list[str]
    """Conditions under which a value that has to be there is not."""
    invalid: list[str]
    """Conditions under which a value is none that the decoder takes; DuckDB's own bounds are those of 64 bits."""
    needs_decoder: bool
    """Whether only the decoder knows what it may hold: any JSON but numbers too large, or what code checks."""


def _describe(info: types.Type, at: str, depth: int = 0) -> _Description:
    """Describe a type, with conditions on the value ``at`` a place."""
    missing, invalid = [f"{at} IS NULL"], list[str]()
    if isinstance(info, types.StructType):
        parts = {f.encode_name: _describe(f.type, f'{at}."{f.encode_name}"', depth) for f in info.fields}
        structure = {info.tag_field: "VARCHAR"} if info.tag_field else {}
        invalid = [f"{at}.{info.tag_field} != '{info.tag}'"] if info.tag else []
        return _Description(
            structure | {name: part.structure for name, part in parts.items()},
            [*missing, *(condition for part in parts.values() for condition in part.missing)],
            [*invalid, *(condition for part in parts.values() for condition in part.invalid)],
            hasattr(info.cls, "__post_init__") or any(part.needs_decoder for part in parts.values()),
        )
    if isinstance(info, types.ListType):
        item = _describe(info.item_type, f"x{depth}", depth + 1)
        missing_item, invalid_item = (
            [f"list_contains(list_transform({at}, lambda x{depth}: {' OR '.join(conditions)}), true)"]
            if conditions
            else []
            for conditions in (item.missing, item.invalid)
        )
        return _Description([item.structure], missing + missing_item, invalid_item, item.needs_decoder)
    if isinstance(info, types.UnionType):
        options = [_describe(each, at, depth) for each in info.types if not isinstance(each, types.NoneType)]
        invalid = [condition for option in options for condition in option.invalid]
        return _Description(options[0].structure, [], invalid, any(option.needs_decoder for option in options))
    if isinstance(info, types.DictType) and isinstance(info.value_type, types.FloatType):
        return _Description(
            "MAP(VARCHAR, DOUBLE)", [*missing, f"list_count(map_values({at})) < cardinality({at})"], [], False
        )
    if isinstance(info, types.IntType | types.FloatType) and info.ge is not None and info.ge > -(2**63):
        invalid = [f"{at} < {info.ge}"]
    return _Description(_SCALARS[type(info)], missing, invalid, isinstance(info, types.AnyType | types.DictType))


_SCALARS = {
    types.StrType: "VARCHAR",
    types.IntType: "BIGINT",
    types.FloatType: "DOUBLE",
    types.BoolType: "BOOLEAN",
    types.AnyType: "JSON",
    types.DictType: "JSON",
}
