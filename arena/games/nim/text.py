"""Nim for models that are made for it: a position as a handful of pieces, a move as three."""

from collections.abc import Mapping, Sequence
from typing import cast

from arena.games.base import Action, Game
from arena.games.nim.game import NimGame, Settings
from arena.games.texts import Phrases, Pieces
from schemas.errors import GameError

OPEN, CLOSE = "<move>", "</move>"


class NimText:
    """The ``TextFormat`` of Nim."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def vocabulary(self) -> Sequence[str]:
        """Every piece that a prompt or completion can hold, sorted."""
        numbers = range(max(*self._settings.heaps, len(self._settings.heaps)) + 1)
        return sorted({OPEN, CLOSE, *map(str, numbers)})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """The heaps; Nim looks the same to whoever is to move."""
        table = cast(NimGame, game)
        table.check_to_move(seat)
        return (*map(str, table.state.heaps), OPEN)

    def completions(self, game: Game, seat: int) -> Phrases:
        """A heap that holds stones, then how many to take."""
        table = cast(NimGame, game)
        table.check_to_move(seat)
        end = _Place({CLOSE: _Place({})})
        return _Place(
            {
                str(i): _Place({str(n): end for n in range(1, heap + 1)})
                for i, heap in enumerate(table.state.heaps, 1)
                if heap
            }
        )

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """The completion that says ``action``.

        Raises:
            GameError: the action is not legal.
        """
        if not game.is_legal(seat, action):
            raise GameError(f"nim text: seat {seat} cannot play {action!r}")
        return (*action[0].split(":"), CLOSE)

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """The action that a completion says.

        Raises:
            GameError: the completion is not one of ``completions``.
        """
        action = (":".join(completion[:-1]),)
        if len(completion) != 3 or completion[2] != CLOSE or not game.is_legal(seat, action):
            raise GameError(f"nim text: {completion} is not heap, stones and {CLOSE!r} with a legal move")
        return action


class _Place:
    """A place of the walk through completions."""

    def __init__(self, options: Mapping[str, Phrases]) -> None:
        self._options = options

    def options(self) -> Mapping[str, Phrases]:
        """Next pieces and where each leads; one entry means forced, none means the completion is finished."""
        return self._options
