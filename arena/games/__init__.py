"""Registry of games: each module or package here is one game and registers its factory under its own name.

A factory makes a ``GameSpec`` from the game's settings. Modules are imported on first use, so a missing optional
dependency breaks no other game. ``base`` is the contract, ``texts`` its optional parts, ``contract`` its rules as
checks, ``third_party`` the boundary to games of other packages.

To add a game: one module with its config struct, its ``Game``, and ``@register("name")``; the contract tests find it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arena.games.base import GameSpec
from schemas.errors import ConfigError, format_choices
from schemas.plugins import F, FactoryRegistry

Factory = Callable[[Mapping[str, Any]], GameSpec]

GAMES: FactoryRegistry[Factory, tuple[str, ...]] = FactoryRegistry(
    __name__, ("base", "contract", "texts", "third_party")
)
"""Factories by name, each with the values of its setting ``text``."""


def register(name: str, texts: Sequence[str] = ()) -> Callable[[F], F]:
    """Register the factory of a game; ``texts`` are the values of its setting ``text``, the default first."""
    return GAMES.register(name, tuple(texts))


def game_names() -> list[str]:
    """The names of all games, whether their packages are installed or not."""
    return GAMES.modules()


def make_game(name: str, settings: Mapping[str, Any]) -> GameSpec:
    """Make the named game; ``ConfigError`` for an unknown name, a package not installed or a bad setting."""
    if name not in game_names():
        raise ConfigError(f"game.name: no game is called {name!r}; expected {format_choices(game_names())}")
    return GAMES.load(name).make(settings)
