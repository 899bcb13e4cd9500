"""Bots of games that fit in a table: rock, paper, scissors and Kuhn poker."""

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.kuhn_poker import KuhnPoker
    from arena.games.rock_paper_scissors import RockPaperScissors


@register("first_move", games=["rock_paper_scissors"])
class FirstMove:
    """Always plays the first move of the table, rock by default: any policy that learns beats it."""

    name = "first_move"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
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

    name = "kuhn_equilibrium"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
        table = cast("KuhnPoker", game)
        eager, shy = table.moves(seat)
        share = BET_PROBABILITIES[tuple(table.state.said)][table.state.cards[seat]]
        return (eager if rng.random() < share else shy,)
