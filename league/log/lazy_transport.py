"""nats-py without aiohttp, which takes longer to import than all of nats-py, until a WebSocket connection needs it."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TRANSPORTS, _DEFERRED = "nats.aio.transport", "aiohttp"


class _LazyModule(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _TransportFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TRANSPORTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None and _DEFERRED not in sys.modules:
            run = spec.loader.exec_module

            def run_without(module: ModuleType) -> None:
                sys.modules[_DEFERRED] = _LazyModule(_DEFERRED)
                try:
                    run(module)
                finally:
                    # All others get the module itself.
                    del sys.modules[_DEFERRED]

            spec.loader.exec_module = run_without  # type: ignore[method-assign]
        return spec


def defer_aiohttp() -> None:
    """Defer the import of aiohttp by nats-py, unless that is imported already."""
    if _TRANSPORTS not in sys.modules:
        sys.meta_path.insert(0, _TransportFinder())
