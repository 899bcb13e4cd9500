"""Perfect play of tic-tac-toe."""

from functools import cache
from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.tic_tac_toe import TicTacToe


@register("tic_tac_toe_minimax", games=["tic_tac_toe"])
class Minimax:
    """Perfect play: one of the best moves, drawn uniformly. It never loses."""

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Draw one of the moves with the best value."""
        worth = {
            cell: -position_value(after) for cell, after in _next_boards(cast("TicTacToe", game).state.board()).items()
        }
        best = max(worth.values())
        return (rng.choice([cell for cell in worth if worth[cell] == best]),)


@cache
def position_value(board: str) -> int:
    """The outcome under perfect play for the player to move: 1 won, 0 drawn, -1 lost."""
    from arena.games.tic_tac_toe import FREE, winner

    if winner(board):
        return -1
    if FREE not in board:
        return 0
    return max(-position_value(after) for after in _next_boards(board).values())


def _next_boards(board: str) -> dict[str, str]:
    from arena.games.tic_tac_toe import CELLS, FREE

    mark = "XO"[(9 - board.count(FREE)) % 2]
    return {cell: board[:at] + mark + board[at + 1 :] for at, cell in enumerate(CELLS) if board[at] == FREE}
