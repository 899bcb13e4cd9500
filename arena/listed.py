"""Games whose legal moves can be listed: everything about a game but its rules.

A game of this kind is an immutable ``State``, a ``Settings`` struct, a subclass of ``ListedGame`` with the rules, and
one of ``ListedSpec`` that names them. Saving, records, replays, transcripts, pieces for small models and plain language
for large ones follow from there. ``arena/games/kuhn_poker.py`` is the example to begin with.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import msgspec

from arena import bots
from arena.games.base import (
    Action,
    Bot,
    Game,
    Outcome,
    Phrases,
    Pieces,
    Recording,
    Turn,
    Understood,
    check_of,
    checked,
    ranks,
    replayed,
    sole_leader,
    spoken,
)
from schemas.config import convert
from schemas.errors import DecodeError, GameError

OPEN, CLOSE = "<move>", "</move>"
S = TypeVar("S", bound=msgspec.Struct)
encode = msgspec.json.Encoder(order="sorted").encode


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes of ``ListedGame.record``."""

    game: str
    settings: dict[str, Any]
    seed: int
    start: msgspec.Raw
    turns: list[dict[str, Action]]
    """Actions by seat, turn by turn."""
    checks: list[str] = []
    """``check_of`` the position after each turn."""


class ListedGame(ABC, Generic[S]):
    """One play-through. An action is one move, ``(move,)``; the rules are what subclasses add."""

    def __init__(self, spec: "ListedSpec[S]", seed: int, start: S) -> None:
        self.spec = spec
        self.name = spec.name
        self.seats: Sequence[str] = spec.seats
        self.state = start
        self._seed = seed
        self._start = start
        self._turns: list[dict[str, Action]] = []
        self._after: list[bytes] = []

    @property
    @abstractmethod
    def clock(self) -> int:
        """Turns played since the game began, as the state knows them."""

    @abstractmethod
    def to_move(self) -> Sequence[int]:
        """Seats that must act now, ascending; empty once the game is over."""

    @abstractmethod
    def moves(self, seat: int) -> Sequence[str]:
        """All legal moves of a seat that is to move, in a fixed order, none twice."""

    @abstractmethod
    def after(self, moves: Mapping[int, str]) -> S:
        """The position after legal moves of all seats to move. Changes nothing."""

    @abstractmethod
    def scores(self) -> Sequence[float]:
        """Final score per seat, once the game is over."""

    @abstractmethod
    def sees(self, seat: int) -> Pieces:
        """The position as the seat knows it, in pieces of ``ListedSpec.pieces``."""

    @abstractmethod
    def tells(self, seat: int) -> str:
        """The same in English."""

    def reason(self) -> str:
        """Why the game ended."""
        return "over"

    def metrics(self) -> Sequence[dict[str, float]]:
        """Named facts per seat."""
        return [{} for _ in self.seats]

    def notes(self) -> list[str]:
        """What is worth a line for people after a turn, hidden things included."""
        return []

    def random_action(self, seat: int, rng: Random) -> Action:
        """A uniformly random legal action of ``seat``, drawn with ``rng`` only.

        Raises:
            GameError: the seat is not to move.
        """
        self.check_to_move(seat)
        return (rng.choice(self.moves(seat)),)

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether the action is one of the seat's moves, in its turn."""
        return (
            seat in self.to_move() and isinstance(action, tuple) and len(action) == 1 and action[0] in self.moves(seat)
        )

    def apply(self, actions: Mapping[int, Action]) -> None:
        """Play the moves of all seats to move.

        Raises:
            GameError: a seat is missing or not to move, or an action is illegal; the game is unchanged.
        """
        moves = {seat: action[0] for seat, action in checked(self, self.moment, actions)}
        self.state = self.after(moves)
        self._turns.append({str(seat): (move,) for seat, move in moves.items()})
        self._after.append(encode(self.state))

    @property
    def moment(self) -> str:
        """The game's name for now."""
        return f"turn {self.clock + 1}"

    def progress(self, seat: int) -> float:
        """Nothing worth telling, unless a game knows better."""
        return 0.0

    def outcome(self) -> Outcome:
        """The result.

        Raises:
            GameError: the game is not over.
        """
        if self.to_move():
            raise GameError(f"{self.name}, {self.moment}: no outcome; the game is not over")
        scores = tuple(self.scores())
        return Outcome(scores, ranks(scores), sole_leader(scores), tuple(self.metrics()), self.reason(), self.clock)

    def save(self) -> bytes:
        """The position as canonical JSON: equal positions give equal bytes."""
        return encode(self.state)

    def record(self) -> bytes:
        """The whole play-through as canonical JSON."""
        settings = msgspec.to_builtins(self.spec.settings)
        start, checks = msgspec.Raw(encode(self._start)), [check_of(saved) for saved in self._after]
        return encode(Record(self.name, settings, self._seed, start, self._turns, checks))

    def check_to_move(self, seat: int) -> None:
        """Refuse a seat whose turn it is not.

        Raises:
            GameError: the seat is not to move.
        """
        if seat not in self.to_move():
            raise GameError(f"{self.name}, {self.moment}: seat {seat} is not to move; expected {list(self.to_move())}")


class ListedSpec(ABC, Generic[S]):
    """Makes games with one set of settings."""

    name: str
    settings_type: ClassVar[type[msgspec.Struct]]
    """Of the ``[game]`` settings."""
    state_type: ClassVar[type[msgspec.Struct]]
    game_type: ClassVar[type[ListedGame[Any]]]
    seats: Sequence[str] = ("P1", "P2")

    def __init__(self, settings: msgspec.Struct) -> None:
        self.settings: Any = settings
        self.bots: Sequence[str] = bots.bot_names(self.name)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From the ``[game]`` settings.

        Raises:
            ConfigError: a bad setting.
        """
        return cls(convert(dict(settings), cls.settings_type, "game.settings"))

    @abstractmethod
    def start(self, seed: int) -> S:
        """The first position; all chance comes from the seed."""

    @abstractmethod
    def pieces(self) -> Sequence[str]:
        """Every piece that ``ListedGame.sees`` or a move can hold."""

    @abstractmethod
    def rules(self) -> str:
        """The rules in English, without the form of a reply."""

    def spell(self, move: str) -> Pieces:
        """A move in pieces, unlike the beginning of any other legal one's."""
        return (move,)

    def new(self, seed: int) -> ListedGame[S]:
        """A fresh play-through."""
        return self.game_type(self, seed, self.start(seed))

    def load(self, saved: bytes) -> ListedGame[S]:
        """The position that ``Game.save`` wrote, ready to be played on.

        Raises:
            DecodeError: not such bytes.
        """
        return self._from(0, saved)

    def replay(self, record: bytes) -> Game:
        """Play a ``Game.record`` again under the settings it was played with.

        Raises:
            DecodeError: not such bytes.
            GameError: an action in it is illegal.
        """
        return replayed(self.open_record(record))

    def open_record(self, record: bytes) -> Recording:
        """A ``Game.record`` turn by turn.

        Raises:
            DecodeError: not such bytes.
        """
        told = self._decoded(record, Record)
        turns = [{int(seat): action for seat, action in turn.items()} for turn in told.turns]
        return Recording(told.seed, self.of(told.settings)._from(told.seed, bytes(told.start)), turns, told.checks)

    def transcript(self, record: bytes) -> list[Turn]:
        """A ``Game.record`` for people to read.

        Raises:
            DecodeError: not such bytes.
            GameError: an action in it is illegal.
        """
        recording = self.open_record(record)
        game, turns = cast(ListedGame[S], recording.start), []
        for number, actions in enumerate(recording.turns, 1):
            game.apply(actions)
            moves = {game.seats[seat]: [action[0]] for seat, action in actions.items()}
            turns.append(Turn(f"turn {number}", moves, game.notes()))
        return turns

    def bot(self, name: str) -> Bot:
        """The scripted agent of that name.

        Raises:
            GameError: no such bot.
        """
        return bots.make_bot(name, self.name)

    def text(self) -> "ListedText":
        """What a seat sees, and its moves, in pieces."""
        return ListedText(self)

    def words(self) -> "ListedWords":
        """The game in English."""
        return ListedWords(self)

    def _from(self, seed: int, saved: bytes) -> ListedGame[S]:
        return self.game_type(self, seed, self._decoded(saved, self.state_type))

    def _decoded(self, data: bytes, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise DecodeError(f"{self.name}: {error}") from None


class ListedText:
    """The ``TextFormat`` of a listed game: what the seat sees, then one of its moves."""

    def __init__(self, spec: ListedSpec[Any]) -> None:
        self._spec = spec

    def vocabulary(self) -> Sequence[str]:
        """Every piece that a prompt or completion can hold, sorted."""
        return sorted({OPEN, CLOSE, *self._spec.pieces()})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """The position as ``seat`` sees it.

        Raises:
            GameError: the seat is not to move.
        """
        table = _table(game, seat)
        return (*table.sees(seat), OPEN)

    def completions(self, game: Game, seat: int) -> Phrases:
        """The legal moves.

        Raises:
            GameError: the seat is not to move.
        """
        return Spelled([self._spec.spell(move) for move in _table(game, seat).moves(seat)])

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """The completion that says ``action``.

        Raises:
            GameError: the action is not legal.
        """
        if not game.is_legal(seat, action):
            raise GameError(f"{game.name} text: seat {seat} cannot play {action!r}")
        return (*self._spec.spell(action[0]), CLOSE)

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """The action that a completion says.

        Raises:
            GameError: the completion is not one of ``completions``.
        """
        meant = {(*self._spec.spell(move), CLOSE): move for move in _table(game, seat).moves(seat)}
        if completion not in meant:
            raise GameError(f"{game.name} text: {completion[:20]} is not a legal move and {CLOSE!r}")
        return (meant[completion],)


class Spelled:
    """A place of the walk through moves in pieces, all of which share the pieces before it."""

    def __init__(self, rests: Sequence[Pieces]) -> None:
        """Stand at a place.

        Args:
            rests: What is left of each move that can still be meant; the end of one leads to ``CLOSE``.
        """
        self._rests = rests

    def options(self) -> Mapping[str, Phrases]:
        """Next pieces and where each leads; one entry means forced, none means the completion is finished."""
        after: dict[str, list[Pieces]] = {}
        for rest in self._rests:
            if rest:
                after.setdefault(rest[0], []).append(rest[1:])
            else:
                after[CLOSE] = []
        return {piece: Spelled(rests) for piece, rests in after.items()}


class ListedWords:
    """The ``Words`` of a listed game. The default for a reply without a legal move is a move drawn at random."""

    def __init__(self, spec: ListedSpec[Any]) -> None:
        self._spec = spec

    def rules(self) -> str:
        """The rules in brief, and the form of a reply."""
        return f"{self._spec.rules()}\nAnswer with a single line of the form\nMOVE: one of the legal moves"

    def question(self, game: Game, seat: int) -> str:
        """What the seat sees, and its legal moves.

        Raises:
            GameError: the seat is not to move.
        """
        table = _table(game, seat)
        return f"You are {table.seats[seat]}. {table.tells(seat)}\nLegal moves: {', '.join(table.moves(seat))}"

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> Understood:
        """The last legal move that follows the word MOVE; else the last one that is mentioned."""
        move = mentioned(spoken(reply), _table(game, seat).moves(seat))
        if move is None:
            return Understood(game.random_action(seat, rng), 1, 1)
        return Understood((move,), 1, 0)


def mentioned(reply: str, moves: Sequence[str]) -> str | None:
    """The move that a reply means, whatever its letter case; None where it mentions none."""
    known = {move.lower(): move for move in moves}
    either = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    if not either:
        return None
    edged = rf"(?<!\w)({either})(?!\w)"
    for pattern in (rf"move\W{{0,8}}{edged}", edged):
        if found := re.findall(pattern, reply.lower()):
            return known[found[-1]]
    return None


def _table(game: Game, seat: int) -> ListedGame[Any]:
    table = cast(ListedGame[Any], game)
    table.check_to_move(seat)
    return table
