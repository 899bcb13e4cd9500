"""Nim in English, and as JSON of a schema or text that matches a regular expression.

The schema and the regular expression describe exactly the legal moves. A model made for the game reads its pieces and
needs a few more to write the language; any other model is prompted as a chat, and may write freely before the tag.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from arena.enumerable import CLOSE, OPEN, ListedText, ListedWords, require_turn
from arena.enumerable.game import GameDefinition
from arena.games.base import Action, Game
from arena.games.texts import Grammar, ParsedAction, strip_thinking
from arena.prompts import Message, build_game_messages
from schemas.errors import GameError

_FORM = (
    "Write a move as HEAP:STONES, the heap's number and how many stones to take: 2:3 takes three stones from "
    "heap 2. Answer with a single line of the form\nMOVE HEAP:STONES"
)


class NimWords(ListedWords):
    """The ``Words`` of Nim. A reply without a legal move is replaced by a random move."""

    def __init__(self, definition: GameDefinition[Any], form: str = _FORM) -> None:
        """``form`` is the description of a reply's form in the rules."""
        super().__init__(definition)
        self._form = form

    def rules(self) -> str:
        """See ``Words.rules``."""
        return f"{self._definition.rules()}\n{self._form}"

    def question(self, game: Game, seat: int) -> str:
        """Returns the heaps and the legal moves."""
        table = require_turn(game, seat)
        return f"You are {table.seats[seat]}. {table.tells(seat)}"

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """See ``Listing.replies``."""
        return [f"MOVE {move}" for move in require_turn(game, seat).moves(seat)]

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """See ``Words.understand``: the last move after the word MOVE, else the last move mentioned."""
        move = _find_mentioned_move(strip_thinking(reply))
        if move is not None and game.is_legal(seat, (move,)):
            return ParsedAction((move,), 1, 0)
        return ParsedAction(game.random_action(seat, rng), 1, 1)


_MARKED = re.compile(r"MOVE\W{1,8}([1-9])\s?:\s?([1-9]\d?)(?!\d)", re.IGNORECASE)
_BARE = re.compile(r"(?<!\d)([1-9])\s?:\s?([1-9]\d?)(?!\d)")
_HEAP_FIRST = re.compile(r"heap\W{0,5}([1-9])\D{1,20}([1-9]\d?)(?!\d)", re.IGNORECASE)
_STONES_FIRST = re.compile(r"(?<!\d)([1-9]\d?)\s(?:stones?\s)?from\s(?:the\s)?heap\W{0,5}([1-9])(?!\d)", re.IGNORECASE)


def _find_mentioned_move(reply: str) -> str | None:
    """Finds a move in any common phrasing: the clearest phrasing first, then the last in the text."""
    for pattern in (_MARKED, _BARE, _STONES_FIRST, _HEAP_FIRST):
        if matches := pattern.findall(reply):
            first, second = matches[-1]
            return f"{second}:{first}" if pattern is _STONES_FIRST else f"{first}:{second}"
    return None


_JSON_PIECES = ('{"heap":', ',"stones":', "}")
_FORM_RULES = {
    "json": 'Answer with JSON: {"heap":2,"stones":3} takes three stones from heap 2.',
    "regex": "Answer with the heap's number and how many stones to take: 2:3 takes three stones from heap 2.",
}
_FREE_TEXT_RULE = f" You may think first; your answer then stands behind {OPEN}."


class NimLanguage(ListedText):
    """The ``TextFormat`` of the schema and regular-expression settings; it is ``SupportsGrammar``, and a ``Chat``."""

    opening = OPEN

    def __init__(self, definition: GameDefinition[Any], kind: str, free_tokens: int = 0) -> None:
        """``kind`` is ``json`` or ``regex``; ``free_tokens`` limits what a large model may write before its answer."""
        super().__init__(definition)
        self.free_tokens = free_tokens
        self._kind = kind
        self._words = NimWords(definition, _FORM_RULES[kind] + (_FREE_TEXT_RULE if free_tokens else ""))

    def with_free_tokens(self, free_tokens: int) -> "NimLanguage":
        """Returns the format with this many tokens before the answer."""
        return NimLanguage(self._definition, self._kind, free_tokens)

    def vocabulary(self) -> Sequence[str]:
        """See ``TextFormat.vocabulary``."""
        more = _JSON_PIECES if self._kind == "json" else (":",)
        return sorted({*super().vocabulary(), *more, *"0123456789"})

    def messages(self, game: Game, seat: int) -> list[Message]:
        """See ``Chat.messages``."""
        return build_game_messages(self._words, game, seat)

    def grammar(self, game: Game, seat: int) -> Grammar:
        """See ``SupportsGrammar.grammar``."""
        heaps = {i: stones for i, stones in enumerate(require_turn(game, seat).state.heaps, 1) if stones}
        if self._kind == "json":
            return Grammar(schema={"anyOf": [_heap_schema(heap, stones) for heap, stones in heaps.items()]})
        moves = (f"{heap}:(?:{'|'.join(map(str, range(1, stones + 1)))})" for heap, stones in heaps.items())
        return Grammar(regex="|".join(moves), closing=CLOSE)

    def write_reply(self, game: Game, seat: int, action: Action) -> str:
        """See ``SupportsGrammar.write_reply``."""
        heap, stones, _ = self.write(game, seat, action)
        return f'{{"heap":{heap},"stones":{stones}}}' if self._kind == "json" else f"{heap}:{stones}"

    def read_reply(self, game: Game, seat: int, reply: str) -> Action:
        """See ``SupportsGrammar.read_reply``."""
        action = (_parse_json_move(reply) if self._kind == "json" else reply,)
        if not game.is_legal(seat, action):
            raise GameError(f"nim text: {reply[:80]!r} is not a legal move of seat {seat} in the form {self._kind!r}")
        return action


def _heap_schema(heap: int, stones: int) -> dict[str, Any]:
    fields = {"heap": {"const": heap}, "stones": {"enum": list(range(1, stones + 1))}}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _parse_json_move(reply: str) -> str:
    try:
        fields = msgspec.json.decode(reply, type=dict[str, int])
    except msgspec.DecodeError:
        return ""
    return f"{fields.get('heap')}:{fields.get('stones')}"
