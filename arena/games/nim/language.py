"""Nim for models that answer in a language: JSON of a schema, or a text that a regular expression gives.

Both hold the legal moves and nothing else. A model made for the game reads its pieces and says the language with a few
more; any other is asked in a conversation, and may write of its own before the tag.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from arena.games.base import Action, Game
from arena.games.nim.game import NimGame, Settings
from arena.games.nim.text import CLOSE, OPEN, NimText
from arena.games.nim.words import NimWords
from arena.games.texts import Grammar
from arena.prompts.base import Message, messages_of
from schemas.errors import GameError

_JSON_PIECES = ('{"heap":', ',"stones":', "}")
_FORMS = {
    "json": 'Answer with JSON: {"heap":2,"stones":3} takes three stones from heap 2.',
    "regex": "Answer with the heap's number and how many stones to take: 2:3 takes three stones from heap 2.",
}
_FREE = f" You may think first; your answer then stands behind {OPEN}."


class NimLanguage(NimText):
    """The ``TextFormat`` of these settings; it is ``Grammatical``, and a ``Chat``."""

    opening = OPEN

    def __init__(self, settings: Settings, kind: str, free_tokens: int = 0) -> None:
        """Prepare to ask.

        Args:
            settings: Of the game.
            kind: ``json`` or ``regex``.
            free_tokens: Most tokens that a large model may write before its answer.
        """
        super().__init__(settings)
        self.free_tokens = free_tokens
        self._played = settings
        self._kind = kind
        self._words = NimWords(settings, _FORMS[kind] + (_FREE if free_tokens else ""))

    def with_free_tokens(self, free_tokens: int) -> "NimLanguage":
        """The same, with so much room before the answer."""
        return NimLanguage(self._played, self._kind, free_tokens)

    def vocabulary(self) -> Sequence[str]:
        """Every piece that a prompt or completion can hold, sorted."""
        more = _JSON_PIECES if self._kind == "json" else (":",)
        return sorted({*super().vocabulary(), *more, *"0123456789"})

    def messages(self, game: Game, seat: int) -> list[Message]:
        """Rules and position as a conversation.

        Raises:
            GameError: the seat is not to move.
        """
        return messages_of(self._words, game, seat)

    def grammar(self, game: Game, seat: int) -> Grammar:
        """The legal moves.

        Raises:
            GameError: the seat is not to move.
        """
        table = cast(NimGame, game)
        table.check_to_move(seat)
        heaps = {i: stones for i, stones in enumerate(table.state.heaps, 1) if stones}
        if self._kind == "json":
            return Grammar(schema={"anyOf": [_moves(heap, stones) for heap, stones in heaps.items()]})
        moves = (f"{heap}:(?:{'|'.join(map(str, range(1, stones + 1)))})" for heap, stones in heaps.items())
        return Grammar(regex="|".join(moves), closing=CLOSE)

    def said(self, game: Game, seat: int, action: Action) -> str:
        """How an action is said, without the closing text.

        Raises:
            GameError: the action is not legal.
        """
        heap, stones, _ = self.write(game, seat, action)
        return f'{{"heap":{heap},"stones":{stones}}}' if self._kind == "json" else f"{heap}:{stones}"

    def heard(self, game: Game, seat: int, reply: str) -> Action:
        """The action that a reply of the language says, without the closing text.

        Raises:
            GameError: the reply says no legal action.
        """
        action = (_json_move(reply) if self._kind == "json" else reply,)
        if not game.is_legal(seat, action):
            raise GameError(f"nim text: {reply[:80]!r} is not a legal move of seat {seat} in the form {self._kind!r}")
        return action


def _moves(heap: int, stones: int) -> dict[str, Any]:
    fields = {"heap": {"const": heap}, "stones": {"enum": list(range(1, stones + 1))}}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _json_move(reply: str) -> str:
    try:
        told = msgspec.json.decode(reply, type=dict[str, int])
    except msgspec.DecodeError:
        return ""
    return f"{told.get('heap')}:{told.get('stones')}"
