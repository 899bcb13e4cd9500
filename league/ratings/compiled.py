"""Compilation of plain numeric functions that are called once per match, for millions of matches.

numba is optional: without it the functions run as they are, some ten times slower.
"""

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any


@cache
def has_compiler() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def compile_function(function: Callable[..., Any]) -> Any:
    """Compile a function and the functions of its package that it calls; without numba, the function itself.

    Single-threaded and without fast-math, so that every sum is formed as Python forms it. Machine code is cached on
    disk where possible.
    """
    return _compile(function, {}) if has_compiler() else function


@cache
def compile_loop(loop: Callable[..., Any], name: str, called: Callable[..., Any]) -> Any:
    """Compile a loop with the function ``called`` in place of its global ``name``."""
    return _compile(loop, {name: called})


def replace_globals(function: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a function with some of its globals replaced."""
    namespace = {**function.__globals__, **changes}
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    copy.__module__ = function.__module__
    return copy


def _compile(function: Any, calls: Mapping[str, Any]) -> Any:
    namespace = {**function.__globals__, **calls}
    helpers = {
        name: namespace[name]
        for name in function.__code__.co_names
        if isinstance(namespace.get(name), FunctionType)
        and (name in calls or _package_of(namespace[name]) == _package_of(function))
    }
    copy = replace_globals(function, {**calls, **{name: compile_function(one) for name, one in helpers.items()}})
    # numba keeps machine code under this name, with all called functions in it, and checks changes of this file only.
    copy.__qualname__ = f"{function.__name__}_{_code_digest(function, copy.__globals__, ())[:16]}"
    import numba

    try:
        return numba.njit(cache=True, nogil=True, fastmath=False)(copy)
    except RuntimeError:
        # Neither the package's folder nor the user's cache is writable.
        return numba.njit(nogil=True, fastmath=False)(copy)


def _package_of(function: Any) -> str:
    package: str = function.__module__.rpartition(".")[0] or function.__module__
    return package


def _code_digest(function: Any, namespace: Mapping[str, Any], callers: tuple[CodeType, ...]) -> str:
    """Digest of the function's module and code, of its constants, and of the functions that it calls."""
    parts = [function.__module__, _code_text(function.__code__), repr(function.__defaults__)]
    for name in function.__code__.co_names:
        value = namespace.get(name)
        inner = getattr(value, "py_func", value)
        if isinstance(inner, FunctionType) and inner.__code__ not in callers:
            parts.append(f"{name}={_code_digest(inner, inner.__globals__, (*callers, function.__code__))}")
        elif isinstance(value, int | float | str | tuple):
            parts.append(f"{name}={value!r}")
    return sha256("\n".join(parts).encode()).hexdigest()


def _code_text(code: CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"
