"""Nim for any number of seats: players take stones from heaps in turn, and the last stone wins.

It needs no optional dependency, so the system tests play it, in all forms in which models answer: pieces, English, JSON
of a schema, and text that matches a regular expression, both of which describe exactly the legal moves. A model made
for the game reads its pieces; any other is prompted as a chat, and may write freely before the tag.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal

import msgspec

from arena.enumerable import CLOSE, OPEN, ListedGame, ListedSpec, ListedText, ListedWords, require_turn
from arena.games import register
from arena.games.base import Action, Game, TextFormat, Words
from arena.games.texts import Grammar, ParsedAction, Pieces, strip_thinking
from arena.prompts import Message, build_game_messages
from schemas.config import convert
from schemas.config.base import Table
from schemas.errors import ConfigError, GameError


class Settings(Table, frozen=True):
    """The ``[game]`` settings of Nim."""

    seats: Annotated[int, msgspec.Meta(ge=2, le=16)] = 2
    """Number of players, who move in turn."""
    heaps: tuple[int, ...] = (3, 4, 5)
    """Stones in each heap at the start."""
    shuffle: bool = True
    """Whether the seed decides the first player; otherwise it is seat 0."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.heaps) <= 9 or not all(1 <= heap <= 99 for heap in self.heaps):
            raise ConfigError(f"heaps: found {list(self.heaps)}; expected 1 to 9 heaps of 1 to 99 stones")


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position."""

    heaps: tuple[int, ...]
    mover: int
    turns: int
    taken: tuple[int, ...]
    """Stones that each seat has taken."""
    last: int | None
    """Seat that last took a stone."""


class NimGame(ListedGame[State]):
    """One play-through. A move is ``<heap>:<stones>``, heaps numbered from 1."""

    @property
    def moment(self) -> str:
        """The turn, counted from 0."""
        return f"turn {self.state.turns}"

    @property
    def clock(self) -> int:
        """The number of full rounds played."""
        return self.state.turns // len(self.seats)

    @property
    def length(self) -> int:
        """The number of turns played."""
        return self.state.turns

    def to_move(self) -> Sequence[int]:
        """The seat to move; none once all heaps are empty."""
        return (self.state.mover,) if any(self.state.heaps) else ()

    def moves(self, seat: int) -> Sequence[str]:
        """All legal moves, which are the same for every seat."""
        return [f"{i}:{n}" for i, heap in enumerate(self.state.heaps, 1) for n in range(1, heap + 1)]

    def after(self, moves: Mapping[int, str]) -> State:
        """The position after one more move."""
        ((seat, move),) = moves.items()
        heap, stones = map(int, move.split(":"))
        heaps, taken = list(self.state.heaps), list(self.state.taken)
        heaps[heap - 1] -= stones
        taken[seat] += stones
        return State(tuple(heaps), (seat + 1) % len(self.seats), self.state.turns + 1, tuple(taken), seat)

    def progress(self, seat: int) -> float:
        """The stones that the seat has taken."""
        return float(self.state.taken[seat])

    def scores(self) -> Sequence[float]:
        """One point for the seat that took the last stone."""
        return [float(seat == self.state.last) for seat in range(len(self.seats))]

    def reason(self) -> str:
        """The only reason a game can end."""
        return "last_stone"

    def metrics(self) -> Sequence[dict[str, float]]:
        """The stones that each seat has taken."""
        return [{"taken": float(taken)} for taken in self.state.taken]

    def sees(self, seat: int) -> Pieces:
        """The heaps; Nim looks the same to every seat."""
        return tuple(map(str, self.state.heaps))

    def tells(self, seat: int) -> str:
        """The order of the players, the heaps and the legal moves."""
        after = [self.seats[(seat + step) % len(self.seats)] for step in range(1, len(self.seats))]
        heaps = [
            f"heap {i} holds {stones}: {i}:1" + (f" to {i}:{stones}" if stones > 1 else "")
            for i, stones in enumerate(self.state.heaps, 1)
            if stones
        ]
        return "\n".join([f"After you come {', '.join(after)}.", "Heaps and legal moves:", *heaps])

    def notes(self) -> list[str]:
        """The heaps."""
        return ["heaps: " + " ".join(map(str, self.state.heaps))]

    def describe_move(self, move: str) -> str:
        """Describe the move in English."""
        heap, stones = move.split(":")
        return f"takes {stones} from heap {heap}"


class NimSpec(ListedSpec[State]):
    """Factory of Nim games with one set of settings, which are recorded, and a text format, which is not."""

    name = "nim"
    is_fully_observed = True
    settings_type, state_type, game_type = Settings, State, NimGame

    def __init__(self, settings: Settings, text: str = "pieces") -> None:
        super().__init__(settings)
        self._text = text
        self.seats = tuple(f"P{seat + 1}" for seat in range(settings.seats))

    def start(self, seed: int) -> State:
        """The full heaps; the seed decides the first player."""
        seats = self.settings.seats
        mover = Random(seed).randrange(seats) if self.settings.shuffle else 0
        return State(self.settings.heaps, mover, 0, (0,) * seats, None)

    def is_possible(self, state: State) -> bool:
        """Whether the seats are those of the settings, and no heap is negative."""
        seats = range(len(self.seats))
        takers = (state.mover, *([] if state.last is None else [state.last]))
        return len(state.taken) == len(seats) and set(takers) <= {*seats} and all(heap >= 0 for heap in state.heaps)

    def pieces(self) -> Sequence[str]:
        """The numbers of heaps and stones."""
        return [str(number) for number in range(max(*self.settings.heaps, len(self.settings.heaps)) + 1)]

    def spell(self, move: str) -> Pieces:
        """Spell the move as heap and stones."""
        return tuple(move.split(":"))

    def rules(self) -> str:
        """The rules in English."""
        return (
            f"You are playing Nim. There are {len(self.seats)} players, {', '.join(self.seats)}, who move in this "
            "order, turn by turn. A move takes one or more stones from a single heap. The player who takes the very "
            "last stone wins, and all others lose."
        )

    def text(self) -> TextFormat:
        """The format with heaps and moves as numbers, or the language that the settings select."""
        return ListedText(self) if self._text == "pieces" else NimLanguage(self, self._text)

    def words(self) -> Words:
        """Heaps and moves in English."""
        return NimWords(self)


class NimConfig(Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings: those of a game, and the text format, which is not part of a record."""

    text: Literal["pieces", "json", "regex"] = "pieces"
    """Form of a model's answers: the game's own pieces, JSON of a schema, or text that matches a regular expression."""


@register("nim", texts=("pieces", "json", "regex"))
def make(settings: Mapping[str, Any]) -> NimSpec:
    """Make Nim with these settings; ``ConfigError`` for a bad one."""
    table = convert(dict(settings), NimConfig, "game.settings")
    played = {name: getattr(table, name) for name in Settings.__struct_fields__}
    return NimSpec(Settings(**played), table.text)


_FORM = (
    "Write a move as HEAP:STONES, the heap's number and how many stones to take: 2:3 takes three stones from "
    "heap 2. Answer with a single line of the form\nMOVE HEAP:STONES"
)


class NimWords(ListedWords):
    """The ``Words`` of Nim; ``form`` describes a reply. A random move replaces a reply without a legal one."""

    opening = "MOVE"

    def __init__(self, definition: ListedSpec[Any], form: str = _FORM) -> None:
        super().__init__(definition)
        self._form = form

    def rules(self) -> str:
        """The game's rules and the form of a reply."""
        return f"{self._definition.rules()}\n{self._form}"

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """One reply per legal move."""
        return [f"MOVE {move}" for move in require_turn(game, seat).moves(seat)]

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """Parse the last move after the word MOVE, else the last move mentioned."""
        answer = strip_thinking(reply)
        move, well_formed = _find_mentioned_move(answer), bool(_MARKED.search(answer))
        if move is not None and game.is_legal(seat, (move,)):
            return ParsedAction((move,), 1, 0, well_formed=well_formed)
        return ParsedAction(game.random_action(seat, rng), 1, 1, move is not None, well_formed)


_MARKED = re.compile(r"MOVE\W{1,8}([1-9])\s?:\s?([1-9]\d?)(?!\d)", re.IGNORECASE)
_BARE = re.compile(r"(?<!\d)([1-9])\s?:\s?([1-9]\d?)(?!\d)")
_HEAP_FIRST = re.compile(r"heap\W{0,5}([1-9])\D{1,20}([1-9]\d?)(?!\d)", re.IGNORECASE)
_STONES_FIRST = re.compile(r"(?<!\d)([1-9]\d?)\s(?:stones?\s)?from\s(?:the\s)?heap\W{0,5}([1-9])(?!\d)", re.IGNORECASE)


def _find_mentioned_move(reply: str) -> str | None:
    """Find a move in any common phrasing: the clearest phrasing first, then the last in the text."""
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
    """The ``TextFormat`` of the settings ``json`` and ``regex``; it is ``SupportsGrammar``, and a ``Chat``."""

    opening = OPEN

    def __init__(self, definition: ListedSpec[Any], kind: str, free_tokens: int = 0) -> None:
        super().__init__(definition)
        self.free_tokens = free_tokens
        self._kind = kind
        self._words = NimWords(definition, _FORM_RULES[kind] + (_FREE_TEXT_RULE if free_tokens else ""))

    def with_free_tokens(self, free_tokens: int) -> "NimLanguage":
        """Copy the format with this many tokens before the answer."""
        return NimLanguage(self._definition, self._kind, free_tokens)

    def vocabulary(self) -> Sequence[str]:
        """Pieces of positions and of replies in the language, sorted."""
        more = _JSON_PIECES if self._kind == "json" else (":",)
        return sorted({*super().vocabulary(), *more, *"0123456789"})

    def messages(self, game: Game, seat: int) -> list[Message]:
        """The rules and the question as a conversation."""
        return build_game_messages(self._words, game, seat)

    def grammar(self, game: Game, seat: int) -> Grammar:
        """The language of legal moves: a JSON schema or a regular expression."""
        heaps = {i: stones for i, stones in enumerate(require_turn(game, seat).state.heaps, 1) if stones}
        if self._kind == "json":
            return Grammar(schema={"anyOf": [_heap_schema(heap, stones) for heap, stones in heaps.items()]})
        moves = (f"{heap}:(?:{'|'.join(map(str, range(1, stones + 1)))})" for heap, stones in heaps.items())
        return Grammar(regex="|".join(moves), closing=CLOSE)

    def write_reply(self, game: Game, seat: int, action: Action) -> str:
        """Write a legal move in the form of the language."""
        heap, stones, _ = self.write(game, seat, action)
        return f'{{"heap":{heap},"stones":{stones}}}' if self._kind == "json" else f"{heap}:{stones}"

    def read_reply(self, game: Game, seat: int, reply: str) -> Action:
        """Read a move from a reply; ``GameError`` if it is illegal or of another form."""
        action = (reply,)
        if self._kind == "json":
            try:
                fields = msgspec.json.decode(reply, type=dict[str, int])
            except msgspec.DecodeError:
                fields = {}
            action = (f"{fields.get('heap')}:{fields.get('stones')}",)
        if not game.is_legal(seat, action):
            raise GameError(f"nim text: {reply[:80]!r} is not a legal move of seat {seat} in the form {self._kind!r}")
        return action


def _heap_schema(heap: int, stones: int) -> dict[str, Any]:
    fields = {"heap": {"const": heap}, "stones": {"enum": list(range(1, stones + 1))}}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
