"""Nim in English, for models that never saw its pieces."""

import re
from collections.abc import Sequence
from random import Random
from typing import cast

from arena.games.base import Game
from arena.games.nim.game import NimGame, Settings, seat_names
from arena.games.texts import Understood, spoken

_FORM = (
    "Write a move as HEAP:STONES, the heap's number and how many stones to take: 2:3 takes three stones from "
    "heap 2. Answer with a single line of the form\nMOVE HEAP:STONES"
)


class NimWords:
    """The ``Words`` of Nim. The default for a reply without a legal move is a move drawn at random."""

    def __init__(self, settings: Settings, form: str = _FORM) -> None:
        """Prepare to ask.

        Args:
            settings: Of the game.
            form: What the rules say about the form of a reply.
        """
        self._settings = settings
        self._form = form

    def rules(self) -> str:
        """The rules in brief, and the form of a reply."""
        seats = seat_names(self._settings)
        return (
            f"You are playing Nim. There are {len(seats)} players, {', '.join(seats)}, who move in this order, turn by "
            "turn. A move takes one or more stones from a single heap. The player who takes the very last stone wins, "
            f"and all others lose.\n{self._form}"
        )

    def question(self, game: Game, seat: int) -> str:
        """The heaps, and the moves that they allow."""
        table = cast(NimGame, game)
        table.check_to_move(seat)
        after = [table.seats[(seat + step) % len(table.seats)] for step in range(1, len(table.seats))]
        heaps = [
            f"heap {i} holds {stones}: {i}:1" + (f" to {i}:{stones}" if stones > 1 else "")
            for i, stones in enumerate(table.state.heaps, 1)
            if stones
        ]
        return "\n".join(
            [f"You are {table.seats[seat]}. After you come {', '.join(after)}.", "Heaps and legal moves:", *heaps]
        )

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """See ``Listing``."""
        table = cast(NimGame, game)
        table.check_to_move(seat)
        return [f"MOVE {move}" for move in table.moves()]

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> Understood:
        """The last move that follows the word MOVE; else the last one that is mentioned."""
        said = _mentioned(spoken(reply))
        if said is not None and game.is_legal(seat, (said,)):
            return Understood((said,), 1, 0)
        return Understood(game.random_action(seat, rng), 1, 1)


_MARKED = re.compile(r"MOVE\W{1,8}([1-9])\s?:\s?([1-9]\d?)(?!\d)", re.IGNORECASE)
_BARE = re.compile(r"(?<!\d)([1-9])\s?:\s?([1-9]\d?)(?!\d)")
_HEAP_FIRST = re.compile(r"heap\W{0,5}([1-9])\D{1,20}([1-9]\d?)(?!\d)", re.IGNORECASE)
_STONES_FIRST = re.compile(r"(?<!\d)([1-9]\d?)\s(?:stones?\s)?from\s(?:the\s)?heap\W{0,5}([1-9])(?!\d)", re.IGNORECASE)


def _mentioned(reply: str) -> str | None:
    """A move in any of the ways that people write one; the clearest way first, and then the last in the text."""
    for pattern in (_MARKED, _BARE, _STONES_FIRST, _HEAP_FIRST):
        if found := pattern.findall(reply):
            first, second = found[-1]
            return f"{second}:{first}" if pattern is _STONES_FIRST else f"{first}:{second}"
    return None
