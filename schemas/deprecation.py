"""Paths and names of earlier releases, which plugins may still import, and what they are called now.

Importing ``schemas`` installs the redirection. An old path gives the module of today, an old name the object of today,
each with a ``DeprecationWarning`` that says what to write instead. ``old_names.txt`` holds the entries.
"""

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MOVED: dict[str, str] = {}
"""Old path to new path; a package stands for all modules in it that have no entry of their own."""
RENAMED: dict[str, dict[str, str]] = {}
"""Module of today, then its old names and what each is called now: a name in the same module, or a dotted path."""

for _line in Path(__file__).with_name("old_names.txt").read_text(encoding="utf-8").splitlines():
    if moved := re.fullmatch(r"([\w.]+) -> ([\w.]+)", _line):
        MOVED[moved[1]] = moved[2]
    elif renamed := re.fullmatch(r"([\w.]+): (.*)", _line):
        RENAMED.setdefault(renamed[1], {}).update(re.findall(r"(\w+)=([\w.]+)", renamed[2]))


def new_path(path: str) -> str | None:
    """The path that a module of an earlier release has now; None for one that has not moved."""
    parts = path.split(".")
    for end in range(len(parts), 1, -1):
        package = MOVED.get(".".join(parts[:end]))
        if package is not None:
            moved = ".".join((package, *parts[end:]))
            return new_path(moved) or moved
    return None


def old_paths(package: str) -> list[str]:
    """The paths that a package had in earlier releases."""
    return [
        old + package.removeprefix(new)
        for old, new in MOVED.items()
        if f"{package}.".startswith(f"{new}.") and new_path(old + package.removeprefix(new)) == package
    ]


class _AliasLoader(Loader):
    """Gives the module of today for an old path; for a package, a stand-in with the same attributes.

    The import system sets submodules as attributes of their parent: those with old names must not be set on a package
    of today, which may have something else of that name.
    """

    def __init__(self, path: str) -> None:
        self._new = importlib.import_module(path)
        self._spec = self._new.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._new if spec.submodule_search_locations is None else None

    def exec_module(self, module: ModuleType) -> None:
        if module is self._new:
            # The import system has just given it the spec of the old path.
            module.__spec__ = self._spec
        else:
            module.__dict__["__getattr__"] = partial(getattr, self._new)


class _RenamingLoader(InspectLoader):
    """Loads a module, and answers for its old names."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def get_source(self, fullname: str) -> Any:
        return self._loader.get_source(fullname)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__dict__["__getattr__"] = _old_names(module)


class _Redirection(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_path(fullname)
        if new is not None and importlib.util.find_spec(new) is not None:
            warnings.warn(f"{fullname} is now {new}", DeprecationWarning, stacklevel=2)
            loader = _AliasLoader(new)
            is_package = hasattr(sys.modules[new], "__path__") or any(old.startswith(f"{fullname}.") for old in MOVED)
            return ModuleSpec(fullname, loader, is_package=is_package)
        if fullname not in RENAMED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _RenamingLoader(spec.loader)
        return spec


def _old_names(module: ModuleType) -> Callable[[str], Any]:
    here, own = module.__name__, module.__dict__.get("__getattr__")

    def resolve(name: str) -> Any:
        return own(name) if own is not None and name not in RENAMED[here] else resolve_old_name(here, name)

    return resolve


def resolve_old_name(module: str, name: str) -> Any:
    """The object of today under an old name of a module, with a ``DeprecationWarning``; or ``AttributeError``."""
    new = RENAMED.get(module, {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, _, attribute = (new if "." in new else f"{module}.{new}").rpartition(".")
    warnings.warn(f"{module}.{name} is now {place}.{attribute}", DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(place), attribute)


def redirect_old_imports() -> None:
    """Install the redirection in this process, once."""
    if not any(isinstance(finder, _Redirection) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Redirection())
        # A package whose import came first, and led here, was not found by the redirection.
        for module in filter(None, map(sys.modules.get, RENAMED)):
            module.__dict__["__getattr__"] = _old_names(module)
