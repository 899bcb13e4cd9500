"""Games by name. Each module or package here is a game of that name and registers its factory.

A factory makes a ``GameSpec`` from the game's settings. Modules are imported on first use, so that an extra that is
not installed breaks nothing else. ``base`` is the contract, not a game.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from arena.games.base import GameSpec
from schemas.errors import ConfigError, one_of

Factory = Callable[[Mapping[str, Any]], GameSpec]

_FACTORIES: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Make a factory known under ``name``."""

    def add(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return add


def game_names() -> list[str]:
    """All games that can be asked for, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def make_game(name: str, settings: Mapping[str, Any]) -> GameSpec:
    """The game of that name with its ``[game]`` settings.

    Raises:
        ConfigError: unknown name, a package that is not installed, or a bad setting.
    """
    if name not in game_names():
        raise ConfigError(f"game.name: no game is called {name!r}; expected {one_of(game_names())}")
    importlib.import_module(f"{__name__}.{name}")
    return _FACTORIES[name](settings)
