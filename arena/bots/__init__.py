"""Registry of scripted agents: modules here register bots and the games they can play; ``random_bot`` plays all.

To add one: a module with a class that has ``name`` and ``act``, under ``@register("name", games=[...])``. A bot without
a list of games plays every game. Bots are pure functions of (position, seat, rng) and have no state between calls.
"""

from collections.abc import Callable, Sequence
from random import Random

from arena.games.base import Action, Bot, Game
from schemas.errors import GameError, format_choices
from schemas.plugins import F, FactoryRegistry

BOTS: FactoryRegistry[Callable[[], Bot], frozenset[str] | None] = FactoryRegistry(__name__)
"""Factories by name, each with the games that the bot can play; None for all."""


def register(name: str, games: Sequence[str] | None = None) -> Callable[[F], F]:
    """Registers a bot for ``games``; None means all."""
    return BOTS.register(name, None if games is None else frozenset(games))


def bot_names(game: str) -> tuple[str, ...]:
    """Returns the names of the bots that can play the game, sorted."""
    return tuple(sorted(name for name, bot in BOTS.load_all().items() if bot.info is None or game in bot.info))


def make_bot(name: str, game: str) -> Bot:
    """Makes the named bot for a game; ``GameError`` if the game has no such bot."""
    names = bot_names(game)
    if name not in names:
        raise GameError(f"{game}: no bot is called {name!r}; expected {format_choices(names, name)}")
    return BOTS.load_all()[name].make()


@register("random_bot")
class RandomBot:
    """Uniform over legal actions: the floor of every game."""

    name = "random_bot"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
        return game.random_action(seat, rng)
