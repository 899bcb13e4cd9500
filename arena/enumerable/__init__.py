"""Games with enumerable legal moves: everything about a game but its rules.

A game of this kind is an immutable ``State``, a ``Settings`` struct, a subclass of ``ListedGame`` (in ``game``) with
the rules of one play-through, and one of ``ListedSpec`` that names them. Saving, records, replays, transcripts, pieces
for small models and plain language for large ones follow. ``arena/games/kuhn_poker.py`` is the example to begin with.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Generic, Self, cast

import msgspec

from arena import bots
from arena.enumerable.game import InPlaceGame as InPlaceGame
from arena.enumerable.game import ListedGame as ListedGame
from arena.enumerable.game import Record, S
from arena.games.base import Action, Bot, Game, GameSpec, Recording, TextFormat, Turn, Words
from arena.games.texts import ParsedAction, Phrases, Pieces, strip_thinking
from schemas.codec import DECODE_ERRORS
from schemas.config import convert
from schemas.errors import DecodeError, GameError

OPEN, CLOSE = "<move>", "</move>"
_NAMED_MOVE = re.compile(r"move:([^\n]*)", re.IGNORECASE)


class ListedText:
    """The ``TextFormat`` of a listed game: the seat's view of the position, then one of its moves."""

    def __init__(self, definition: "ListedSpec[Any]") -> None:
        self._definition = definition

    def vocabulary(self) -> Sequence[str]:
        """Pieces of positions and moves, and the two brackets, sorted."""
        return sorted({OPEN, CLOSE, *self._definition.pieces()})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """The position as ``seat`` sees it, and the opening bracket."""
        return (*require_turn(game, seat).sees(seat), OPEN)

    def completions(self, game: Game, seat: int) -> Phrases:
        """The walk over the spelled moves."""
        return SpelledMovesState(list(self._spellings(game, seat).values()))

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Spell the move and close it; ``GameError`` if it is not legal."""
        if not game.is_legal(seat, action):
            raise GameError(f"{game.name} text: seat {seat} cannot play {action!r}")
        return (*self._spellings(game, seat)[action[0]], CLOSE)

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """Read a spelled move; ``GameError`` if it is not legal or not closed."""
        moves = {(*pieces, CLOSE): move for move, pieces in self._spellings(game, seat).items()}
        if completion not in moves:
            raise GameError(f"{game.name} text: {completion[:20]} is not a legal move and {CLOSE!r}")
        return (moves[completion],)

    def _spellings(self, game: Game, seat: int) -> Mapping[str, Pieces]:
        return self._definition.spell_moves(require_turn(game, seat).moves(seat))


class SpelledMovesState:
    """A state in the walk over spelled moves: the remaining pieces of each; ``CLOSE`` follows a complete one."""

    def __init__(self, remainders: Sequence[Pieces]) -> None:
        self._remainders = remainders

    def options(self) -> Mapping[str, Phrases]:
        """The next pieces of the remaining moves and the state after each."""
        after: dict[str, list[Pieces]] = {}
        for remainder in self._remainders:
            if remainder:
                after.setdefault(remainder[0], []).append(remainder[1:])
            else:
                after[CLOSE] = []
        return {piece: SpelledMovesState(remainders) for piece, remainders in after.items()}


class ListedWords:
    """The ``Words`` of a listed game. A reply without a legal move counts as a move drawn at random."""

    opening = "MOVE:"
    """Beginning of every reply."""

    def __init__(self, definition: "ListedSpec[Any]") -> None:
        self._definition = definition

    def rules(self) -> str:
        """The game's rules, and the form of a reply: a line with one move."""
        return f"{self._definition.rules()}\nAnswer with a single line of the form\nMOVE: one of the legal moves"

    def question(self, game: Game, seat: int) -> str:
        """The seat's view of the position."""
        table = require_turn(game, seat)
        return f"You are {table.seats[seat]}. {table.tells(seat)}"

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """One reply per legal move."""
        return [f"{self.opening} {move}" for move in require_turn(game, seat).moves(seat)]

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """The legal move that stands after the last ``MOVE:``; without one, the last one that is mentioned."""
        answer = strip_thinking(reply)
        named = [match[0] for match in _NAMED_MOVE.finditer(answer) if match[1].strip()]
        move = find_mentioned_move(named[-1] if named else answer, require_turn(game, seat).moves(seat))
        if move is None:
            return ParsedAction(game.random_action(seat, rng), 1, 1, bool(named), bool(named))
        return ParsedAction((move,), 1, 0, well_formed=bool(named))


class MoveListWords(ListedWords):
    """``ListedWords`` whose questions list the legal moves."""

    def brief(self) -> ListedWords:
        """The format without the moves, which follow from rules and position."""
        return ListedWords(self._definition)

    def question(self, game: Game, seat: int) -> str:
        """The seat's view of the position, and its legal moves."""
        return f"{super().question(game, seat)}\nLegal moves: {', '.join(require_turn(game, seat).moves(seat))}"


def find_mentioned_move(reply: str, moves: Sequence[str]) -> str | None:
    """The move that a reply names, whatever its letter case where moves do not differ in that; None for none."""
    known = {move.lower(): move for move in moves}
    either = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    if not either:
        return None
    edged = rf"(?<!\w)({either})(?!\w)"
    lowered = reply.lower()
    for pattern in (rf"move\W{{0,8}}{edged}", edged):
        if matches := list(re.finditer(pattern, lowered)):
            written = reply[slice(*matches[-1].span(1))]
            # Few letters change a text's length with their case.
            return written if len(lowered) == len(reply) and written in moves else known[matches[-1][1]]
    return None


def require_turn(game: Game, seat: int) -> ListedGame[Any]:
    """The game, after a check that the seat is to move."""
    table = cast(ListedGame[Any], game)
    table.check_to_move(seat)
    return table


class ListedSpec(GameSpec, Generic[S]):
    """A ``GameSpec`` under one set of settings: its seats, first position, pieces and rules in English."""

    seats: Sequence[str] = ("P1", "P2")
    settings_type: ClassVar[type[msgspec.Struct]]
    """Struct of the ``[game]`` settings."""
    state_type: ClassVar[type[msgspec.Struct]]
    game_type: ClassVar[type[ListedGame[Any]]]

    def __init__(self, settings: msgspec.Struct) -> None:
        self.settings: Any = settings
        self.bots: Sequence[str] = bots.bot_names(self.name)

    @abstractmethod
    def start(self, seed: int) -> S:
        """The first position; all chance comes from the seed."""

    @abstractmethod
    def pieces(self) -> Sequence[str]:
        """Every piece that ``ListedGame.sees`` or a move can contain."""

    @abstractmethod
    def rules(self) -> str:
        """The rules in English, without the form of a reply."""

    def spell(self, move: str) -> Pieces:
        """A legal move in pieces; none may be the beginning of another's."""
        return (move,)

    def spell_moves(self, moves: Sequence[str]) -> Mapping[str, Pieces]:
        """The legal moves of a position in pieces, all different."""
        return {move: self.spell(move) for move in moves}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Build from the ``[game]`` settings; ``ConfigError`` for a bad one."""
        return cls(convert(dict(settings), cls.settings_type, "game.settings"))

    def new(self, seed: int) -> ListedGame[S]:
        """Start a play-through at the first position of this seed."""
        return self.game_type(self, seed, self.start(seed))

    def load(self, saved: bytes) -> ListedGame[S]:
        """Restore a saved position; ``DecodeError`` for other bytes, or a position that the settings exclude."""
        return self._restore_game(0, saved)

    def open_record(self, record: bytes) -> Recording:
        """Decode a record under its own settings, without playing it; ``DecodeError`` for other bytes."""
        decoded = self._decode(record, Record)
        try:
            turns = [{int(seat): action for seat, action in turn.items()} for turn in decoded.turns]
        except ValueError as error:
            raise DecodeError(f"{self.name} record: {error}; expected numbers of seats") from None
        start = self.of(decoded.settings)._restore_game(decoded.seed, bytes(decoded.start))
        return Recording(decoded.seed, start, turns, decoded.checks)

    def transcript(self, record: bytes) -> list[Turn]:
        """Replay a record and describe every turn in words."""
        recording = self.open_record(record)
        game = cast(ListedGame[S], recording.start)
        turns = []
        for actions in recording.turns:
            title = f"turn {game.length + 1}"
            game.apply(actions)
            moves = {game.seats[seat]: [game.describe_move(action[0])] for seat, action in actions.items()}
            turns.append(Turn(title, moves, game.notes()))
        return turns

    def bot(self, name: str) -> Bot:
        """The scripted agent of this name; ``GameError``, which lists the names, if there is none."""
        return bots.make_bot(name, self.name)

    def text(self) -> TextFormat:
        """The format in which language models read positions and write moves."""
        return ListedText(self)

    def words(self) -> Words:
        """The game in plain language."""
        return MoveListWords(self)

    def is_possible(self, state: S) -> bool:
        """Whether a saved position fits the settings; by default any of ``state_type`` does."""
        return True

    def _restore_game(self, seed: int, saved: bytes) -> ListedGame[S]:
        state = self._decode(saved, self.state_type)
        if not self.is_possible(state):
            raise DecodeError(f"{self.name}: {state}; expected a position of a game under {self.settings}")
        return self.game_type(self, seed, state)

    def _decode(self, data: bytes, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except DECODE_ERRORS as error:
            raise DecodeError(f"{self.name}: {error}") from None
