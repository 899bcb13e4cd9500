"""Tic-tac-toe on three times three cells.

The cells are numbered 1 to 9, row by row from the top left. X begins; the seed decides who is X.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated

import msgspec

from arena.enumerable import ListedGame, ListedSpec
from arena.games import register
from arena.games.texts import Pieces

CELLS = tuple("123456789")
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")
FREE = "."


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    shuffle: bool = True
    """Whether the seed decides who begins; otherwise it is seat 0."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position."""

    first: Annotated[int, msgspec.Meta(ge=0, le=1)]
    """The seat that is X."""
    moves: list[str] = []
    """Cells taken so far, in turn."""

    def board(self) -> str:
        """X, O or a dot for each cell."""
        marks = {cell: "XO"[turn % 2] for turn, cell in enumerate(self.moves)}
        return "".join(marks.get(cell, FREE) for cell in CELLS)


def winner(board: str) -> str:
    """X or O if it has three in a line; empty without one."""
    for line in LINES:
        marks = {board[int(cell) - 1] for cell in line}
        if len(marks) == 1 and marks != {FREE}:
            return marks.pop()
    return ""


class TicTacToe(ListedGame[State]):
    """One game."""

    def to_move(self) -> Sequence[int]:
        """The seat to move; none after a win or on a full board."""
        board = self.state.board()
        return () if winner(board) or FREE not in board else ((self.state.first + self.clock) % 2,)

    def moves(self, seat: int) -> Sequence[str]:
        """The free cells."""
        return [cell for cell in CELLS if cell not in self.state.moves]

    def after(self, moves: Mapping[int, str]) -> State:
        """The position after one more mark."""
        (cell,) = moves.values()
        return State(self.state.first, [*self.state.moves, cell])

    @property
    def clock(self) -> int:
        """Marks so far."""
        return len(self.state.moves)

    def scores(self) -> Sequence[float]:
        """1 for three in a line, -1 for the other player, 0 for a draw."""
        won = {"X": self.state.first, "O": 1 - self.state.first}.get(winner(self.state.board()))
        return [0.0 if won is None else 1.0 if seat == won else -1.0 for seat in range(2)]

    def reason(self) -> str:
        """Three in a line, or a full board."""
        return "three in a line" if winner(self.state.board()) else "full board"

    def mark(self, seat: int) -> str:
        """X or O."""
        return "XO"[(seat - self.state.first) % 2]

    def sees(self, seat: int) -> Pieces:
        """Each cell with its mark: the seat's own (+), the other's (-) or none (.)."""
        own = self.mark(seat)
        signs = {own: "+", FREE: "."}
        return tuple(f"{cell}{signs.get(mark, '-')}" for cell, mark in zip(CELLS, self.state.board(), strict=True))

    def tells(self, seat: int) -> str:
        """The board, with the numbers of free cells."""
        shown = [cell if mark == FREE else mark for cell, mark in zip(CELLS, self.state.board(), strict=True)]
        rows = "\n".join(" ".join(shown[start : start + 3]) for start in (0, 3, 6))
        return f"You are {self.mark(seat)}. The board:\n{rows}"

    def notes(self) -> list[str]:
        """The outcome, once the game is over."""
        mark = winner(self.state.board())
        return [] if self.to_move() else [f"{mark} has three in a line" if mark else "the board is full: a draw"]

    def describe_move(self, move: str) -> str:
        """The cell, for people."""
        return f"cell {move}"


class TicTacToeSpec(ListedSpec[State]):
    """Begins games of tic-tac-toe."""

    name = "tic_tac_toe"
    is_fully_observed = True
    settings_type, state_type, game_type = Settings, State, TicTacToe

    def start(self, seed: int) -> State:
        """An empty board."""
        return State(Random(seed).randrange(2) if self.settings.shuffle else 0)

    def is_possible(self, state: State) -> bool:
        """Whether the moves are different cells, and none follows a win."""
        known = len(set(state.moves)) == len(state.moves) and set(state.moves) <= set(CELLS)
        return known and not winner(State(state.first, state.moves[:-1]).board())

    def pieces(self) -> Sequence[str]:
        """The cells, by themselves and with a mark."""
        return (*CELLS, *(f"{cell}{sign}" for cell in CELLS for sign in "+-."))

    def rules(self) -> str:
        """The rules in English."""
        return (
            "You are playing tic-tac-toe. Two players, X and O, take turns to mark one free cell of a board of three "
            "rows of three cells, numbered 1 to 9; X begins. Who first has three marks in a row, a column or a "
            "diagonal wins; a full board without one is a draw."
        )


make = register("tic_tac_toe")(TicTacToeSpec.of)
