"""Games by name. Each module registers a factory from its settings (a mapping) to a ``GameSpec``."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from arena.games.base import GameSpec
from schemas.errors import ConfigError, one_of

Factory = Callable[[Mapping[str, Any]], GameSpec]

_FACTORIES: dict[str, Factory] = {}
# Modules that register games; imported on first use, so that an extra that is not installed breaks nothing else.
_MODULES = {"diplomacy": "arena.games.diplomacy", "nim": "arena.games.nim"}


def register(name: str) -> Callable[[Factory], Factory]:
    """Make a factory known under ``name``."""

    def add(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return add


def game_names() -> list[str]:
    """All games that can be asked for, installed or not."""
    return sorted(_MODULES)


def make_game(name: str, settings: Mapping[str, Any]) -> GameSpec:
    """The game of that name with its ``[game]`` settings.

    Raises:
        ConfigError: unknown name, a package that is not installed, or a bad setting.
    """
    if name not in _MODULES:
        raise ConfigError(f"league.game: no game is called {name!r}; expected {one_of(_MODULES)}")
    importlib.import_module(_MODULES[name])
    return _FACTORIES[name](settings)
