"""The pages' JavaScript modules as one script, since browsers load no module from a file.

Modules are written in one form: imports of names on one line, and exports of functions and constants where they are
defined. Each becomes a function that returns its exports.
"""

import posixpath
import re
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[\w./]+)";$', re.MULTILINE)
_DYNAMIC_IMPORT = re.compile(r'\bimport\("(\.[\w./]+)"\)')
_EXPORT = re.compile(r"^export ((?:async )?function|const) (\w+)", re.MULTILINE)
_UNBUNDLED = re.compile(r"^(?:import|export)\b.*$|\bimport\(.*$", re.MULTILINE)


@cache
def bundle_scripts(entry: str = "app.js") -> str:
    """One script with a module and all that it imports, in the order of their execution."""
    bundled: dict[str, str] = {}
    _add(entry, bundled, ())
    return '"use strict";\nconst modules = {};\n' + "".join(bundled.values())


def _add(name: str, bundled: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module after the modules that it imports."""
    if name in bundled:
        return
    if name in importers:
        raise ValueError(f"{name}: imported in a circle by {', '.join(importers)}; expected none")
    folder = posixpath.dirname(name)

    def path(relative: str) -> str:
        return posixpath.normpath(posixpath.join(folder, relative))

    text = (STATIC / name).read_text(encoding="utf-8")
    for relative in [found[2] for found in _IMPORT.finditer(text)] + _DYNAMIC_IMPORT.findall(text):
        _add(path(relative), bundled, (*importers, name))
    exports = [found[2] for found in _EXPORT.finditer(text)]
    text = _IMPORT.sub(lambda m: f'const {{ {m[1].replace(" as ", ": ")} }} = modules["{path(m[2])}"];', text)
    text = _DYNAMIC_IMPORT.sub(lambda m: f'Promise.resolve(modules["{path(m[1])}"])', text)
    text = _EXPORT.sub(r"\1 \2", text)
    if left := _UNBUNDLED.search(text):
        raise ValueError(f"{name}: {left[0]!r}: expected imports of names on one line, and exports where defined")
    bundled[name] = f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exports)} }};\n}})();\n'
