"""Fields of a struct as the reference shows them: name, type in words, default, and the docstring under the field.

griffe and mkdocstrings read the docstrings too, but neither msgspec's constraints nor the defaults that factories make.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import inspect as types

from docs_site.markdown import code, inline, table
from schemas.numbers import FINITE, MAX_INT64

Link = Callable[[type], str]
"""Markdown link to the section of a struct, or its name."""


def field_table(struct: type, link: Link, glossary: Mapping[str, str] = MappingProxyType({})) -> str:
    """All fields of a struct in their order, as a Markdown table.

    Args:
        struct: A msgspec struct.
        link: Links the structs that its fields hold.
        glossary: Meanings of fields that have no docstring, by name or by struct and name (``OpponentPick.seat``).
    """
    rows = [
        [
            code(field.encode_name),
            type_text(field.type, link),
            _field_default(field),
            inline(field_meaning(struct, field, glossary)),
        ]
        for field in struct_fields(struct)
    ]
    return table(("field", "type", "default", "meaning"), rows)


def field_meaning(struct: type, field: types.Field, glossary: Mapping[str, str]) -> str:
    """The docstring under the field, else the glossary's entry, else the summary of the only struct that it holds."""
    inner = [*nested_structs(field.type)]
    own = (inspect.getdoc(inner[0]) or "").partition("\n\n")[0] if len(inner) == 1 else ""
    known = glossary.get(f"{struct.__name__}.{field.name}", glossary.get(field.name, own))
    return field_docs(struct).get(field.name, known)


def struct_fields(struct: type) -> tuple[types.Field, ...]:
    """Fields of a struct in their order."""
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    return info.fields


@cache
def field_docs(struct: type) -> dict[str, str]:
    """Docstrings under the fields, by name; inherited fields included."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _class_field_docs(base)
    return found


def _class_field_docs(struct: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    except OSError:
        # Made at run time, as some bases are: there is no source.
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: after.value.value
        for field, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _field_default(field: types.Field) -> str:
    if field.required:
        return "required"
    made = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    return default_text(made)


def default_text(value: Any) -> str:
    """A default in TOML's and JSON's notation."""
    if value is None:
        return "none"
    plain = msgspec.to_builtins(value)
    if isinstance(value, msgspec.Struct):
        return _struct_default_text(value)
    if isinstance(plain, dict) and plain:
        return code(", ".join(plain))
    return code(msgspec.json.encode(plain).decode())


def _struct_default_text(value: msgspec.Struct) -> str:
    """Fields in which a struct that is a default differs from its own defaults."""
    own = {field.name: field.default for field in struct_fields(type(value))}
    different = {name: given for name, given in msgspec.structs.asdict(value).items() if given not in (own[name], {})}
    if set(different) == {"name"}:
        return code(different["name"])
    return code(", ".join(f"{name} = {given}" for name, given in different.items())) if different else "its defaults"


def type_text(kind: types.Type, link: Link) -> str:
    """A type in words: ``list of whole numbers from 0``."""
    match kind:
        case types.IntType():
            return f"whole number{_bounds_text(kind)}"
        case types.FloatType():
            return f"number{_bounds_text(kind)}"
        case types.StrType():
            return "text"
        case types.BoolType():
            return "true or false"
        case types.AnyType():
            return "any JSON"
        case types.StructType():
            return link(kind.cls)
        case types.LiteralType():
            return " or ".join(code(str(value)) for value in kind.values)
        case types.EnumType():
            return " or ".join(code(str(value.value)) for value in kind.cls)
        case types.UnionType():
            return _union_text(kind, link)
    return _container_text(kind, link)


def _bounds_text(kind: types.IntType | types.FloatType) -> str:
    least = "" if kind.ge in (None, -MAX_INT64 - 1, -FINITE) else f" from {kind.ge:g}"
    above = "" if kind.gt is None else f" above {kind.gt:g}"
    most = "" if kind.le in (None, MAX_INT64, FINITE) else f" to {kind.le:g}"
    return least + above + most


def _union_text(kind: types.UnionType, link: Link) -> str:
    some = [type_text(one, link) for one in kind.types if not isinstance(one, types.NoneType)]
    none = ["none"] if len(some) < len(kind.types) else []
    return " or ".join(some + none)


def _container_text(kind: types.Type, link: Link) -> str:
    match kind:
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            return f"list of {type_text(kind.item_type, link)}"
        case types.TupleType():
            return f"({', '.join(type_text(one, link) for one in kind.item_types)})"
        case types.DictType():
            return f"table of {type_text(kind.value_type, link)}"
    return type(kind).__name__.removesuffix("Type").lower()


def field_structs(struct: type) -> Iterator[type]:
    """Structs that a struct's fields hold, directly or in lists and tables."""
    for field in struct_fields(struct):
        yield from nested_structs(field.type)


def nested_structs(kind: types.Type) -> Iterator[type]:
    """Structs that a type holds, at any depth of lists and tables; not those within these structs."""
    if isinstance(kind, types.StructType):
        yield kind.cls
    for name in ("item_type", "value_type"):
        if hasattr(kind, name):
            yield from nested_structs(getattr(kind, name))
    for one in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from nested_structs(one)
