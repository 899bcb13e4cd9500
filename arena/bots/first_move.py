"""Rock, paper, scissors: always the same move, the first of the table; whoever learns at all beats it."""

from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.rock_paper_scissors import RockPaperScissors


@register("first_move", games=["rock_paper_scissors"])
class FirstMove:
    """Rock, for whoever keeps the names."""

    name = "first_move"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """The first move there is."""
        return (cast("RockPaperScissors", game).moves(seat)[0],)
