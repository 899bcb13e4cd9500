"""Registry of scripted agents, which modules here fill, and the bots that need no module of their own.

To add one: a module with a class that has ``act``, under ``@register("name", games=[...])``. A bot without games plays
all of them. Bots are pure functions of (position, seat, rng) and have no state between calls.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, cast

from arena.games.base import Action, Bot, Game
from schemas.errors import GameError, format_choices
from schemas.plugins import F, FactoryRegistry

if TYPE_CHECKING:
    from arena.games.kuhn_poker import KuhnPoker
    from arena.games.rock_paper_scissors import RockPaperScissors

BOTS: FactoryRegistry[Callable[[], Bot], frozenset[str] | None] = FactoryRegistry(__name__)
"""Factories by name, each with the games that the bot can play; None for all."""


def register(name: str, games: Sequence[str] | None = None) -> Callable[[F], F]:
    """Register a bot for ``games``; None means all."""
    return BOTS.register(name, None if games is None else frozenset(games))


def bot_names(game: str) -> tuple[str, ...]:
    """The names of the bots that can play the game, sorted."""
    return tuple(sorted(name for name, bot in BOTS.load_all().items() if bot.info is None or game in bot.info))


def make_bot(name: str, game: str) -> Bot:
    """Make the named bot for a game; ``GameError`` if the game has no such bot."""
    names = bot_names(game)
    if name not in names:
        raise GameError(f"{game}: no bot is called {name!r}; expected {format_choices(names, name)}")
    return BOTS.load_all()[name].make()


@register("random_bot")
class RandomBot:
    """Uniform over legal actions: the floor of every game."""

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Draw a legal action."""
        return game.random_action(seat, rng)


@register("first_move", games=["rock_paper_scissors"])
class FirstMove:
    """Always plays the first move of the table, rock by default: any policy that learns beats it."""

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """The first of the seat's moves."""
        return (cast("RockPaperScissors", game).moves(seat)[0],)


# Probability of betting or calling, by the moves so far and the card, ascending. The equilibria form a family with one
# free parameter, the first player's probability of betting the jack, from 0 to 1/3; here it is 1/3.
BET_PROBABILITIES: Mapping[tuple[str, ...], tuple[float, float, float]] = {
    (): (1 / 3, 0.0, 1.0),
    ("check",): (1 / 3, 0.0, 1.0),
    ("bet",): (0.0, 1 / 3, 1.0),
    ("check", "bet"): (0.0, 2 / 3, 1.0),
}


@register("kuhn_equilibrium", games=["kuhn_poker"])
class KuhnEquilibrium:
    """One of the Nash equilibria (Kuhn 1950): bets the king always, the jack sometimes, the queen never.

    Against any opponent its expected loss is at most 1/18 of a chip per game as first player, and its expected win at
    least 1/18 as second.
    """

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Bet with the equilibrium's probability of the seat's card and what was said."""
        table = cast("KuhnPoker", game)
        eager, shy = table.moves(seat)
        share = BET_PROBABILITIES[tuple(table.state.said)][table.state.cards[seat]]
        return (eager if rng.random() < share else shy,)
