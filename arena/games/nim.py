"""Nim for any number of seats: heaps, turns, and whoever takes the last stone wins.

The smallest game that shows every part of the contract: seats that take turns, settings, a text format, plain language
for remote agents, saved positions, records and transcripts. It needs no extra, so the tests of the whole system play
it. One file on purpose, to be read in one go by whoever adds a game.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import msgspec

from arena import bots
from arena.games import register
from arena.games.base import (
    Action,
    Bot,
    Game,
    Outcome,
    Phrases,
    Pieces,
    Recording,
    TextFormat,
    Turn,
    Understood,
    Words,
    check_of,
    checked,
    ranks,
    replayed,
    spoken,
)
from schemas.config import convert
from schemas.errors import ConfigError, DecodeError, GameError

OPEN, CLOSE = "<move>", "</move>"
_encode = msgspec.json.Encoder(order="sorted").encode


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings of Nim."""

    seats: int = 2
    """Players, who move in turn."""
    heaps: tuple[int, ...] = (3, 4, 5)
    """Stones in each heap at the start."""
    shuffle: bool = True
    """Whether the seed decides who begins; otherwise seat 0 does."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: the message names the key, what was found and what was expected.
        """
        if not 2 <= self.seats <= 16:
            raise ConfigError(f"seats: found {self.seats}; expected 2 to 16")
        if not 1 <= len(self.heaps) <= 9 or not all(1 <= heap <= 99 for heap in self.heaps):
            raise ConfigError(f"heaps: found {list(self.heaps)}; expected 1 to 9 heaps of 1 to 99 stones")


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes of ``NimGame.save``."""

    heaps: tuple[int, ...]
    mover: int
    turns: int
    taken: tuple[int, ...]
    """Stones that each seat has taken."""
    last: int | None
    """Seat that took a stone last."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bytes of ``NimGame.record``."""

    game: str
    settings: Settings
    seed: int
    start: State
    turns: list[Action]
    checks: list[str] = []
    """``check_of`` the position after each turn."""


class NimGame:
    """One play-through. An action is ``("<heap>:<stones>",)``, heaps numbered from 1."""

    name = "nim"

    def __init__(self, settings: Settings, seed: int, start: State) -> None:
        self.settings = settings
        self.seats: Sequence[str] = seat_names(settings)
        self.state = start
        self._seed = seed
        self._start = start
        self._turns: list[Action] = []
        self._after: list[State] = []

    def moves(self) -> list[str]:
        """All legal moves, whoever is to make them."""
        return [f"{i}:{n}" for i, heap in enumerate(self.state.heaps, 1) for n in range(1, heap + 1)]

    def to_move(self) -> Sequence[int]:
        """The one seat whose turn it is; nobody once all heaps are empty."""
        return (self.state.mover,) if any(self.state.heaps) else ()

    def random_action(self, seat: int, rng: Random) -> Action:
        """A uniformly random legal action of ``seat``, drawn with ``rng`` only.

        Raises:
            GameError: the seat is not to move.
        """
        self.check_to_move(seat)
        return (rng.choice(self.moves()),)

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether the action takes at least one stone, and none that isn't there, in the seat's turn."""
        return seat in self.to_move() and isinstance(action, tuple) and len(action) == 1 and action[0] in self.moves()

    def apply(self, actions: Mapping[int, Action]) -> None:
        """Take the stones and pass the turn on.

        Raises:
            GameError: it is another seat's turn, or the action is illegal; the game is unchanged.
        """
        ((seat, action),) = checked(self, f"turn {self.state.turns}", actions)
        heap, stones = map(int, action[0].split(":"))
        heaps, taken = list(self.state.heaps), list(self.state.taken)
        heaps[heap - 1] -= stones
        taken[seat] += stones
        mover = (seat + 1) % len(self.seats)
        self.state = State(tuple(heaps), mover, self.state.turns + 1, tuple(taken), seat)
        self._turns.append(action)
        self._after.append(self.state)

    @property
    def clock(self) -> int:
        """Full rounds played."""
        return self.state.turns // len(self.seats)

    def progress(self, seat: int) -> float:
        """Stones that the seat has taken."""
        return float(self.state.taken[seat])

    def outcome(self) -> Outcome:
        """One point for the seat that took the last stone.

        Raises:
            GameError: the game is not over.
        """
        if self.to_move():
            raise GameError(f"nim: no outcome in turn {self.state.turns}; the game is not over")
        scores = tuple(float(seat == self.state.last) for seat in range(len(self.seats)))
        metrics = tuple({"taken": float(taken)} for taken in self.state.taken)
        return Outcome(scores, ranks(scores), self.state.last, metrics, "last_stone", self.state.turns)

    def save(self) -> bytes:
        """The position as canonical JSON: equal positions give equal bytes."""
        return _encode(self.state)

    def record(self) -> bytes:
        """The whole play-through as canonical JSON."""
        checks = [check_of(_encode(state)) for state in self._after]
        return _encode(Record(self.name, self.settings, self._seed, self._start, self._turns, checks))

    def check_to_move(self, seat: int) -> None:
        """Refuse a seat whose turn it is not.

        Raises:
            GameError: the seat is not to move.
        """
        if seat not in self.to_move():
            raise GameError(f"nim, turn {self.state.turns}: seat {seat} is not to move; expected {self.to_move()}")


class NimSpec:
    """Makes games of Nim with one set of settings."""

    name = "nim"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seats: Sequence[str] = seat_names(settings)
        self.bots: Sequence[str] = bots.bot_names(self.name)

    def new(self, seed: int) -> NimGame:
        """A fresh game; the seed decides who begins."""
        seats = self.settings.seats
        mover = Random(seed).randrange(seats) if self.settings.shuffle else 0
        return NimGame(self.settings, seed, State(self.settings.heaps, mover, 0, (0,) * seats, None))

    def load(self, saved: bytes) -> NimGame:
        """The position that ``Game.save`` wrote, ready to be played on.

        Raises:
            DecodeError: not such bytes.
        """
        return NimGame(self.settings, 0, _decode(saved, State))

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
        told = _decode(record, Record)
        first, seats = told.start.mover, told.settings.seats
        turns = [{(first + nth) % seats: action} for nth, action in enumerate(told.turns)]
        return Recording(told.seed, NimGame(told.settings, told.seed, told.start), turns, told.checks)

    def transcript(self, record: bytes) -> list[Turn]:
        """A ``Game.record`` for people to read.

        Raises:
            DecodeError: not such bytes.
            GameError: an action in it is illegal.
        """
        recording = self.open_record(record)
        game, turns = cast(NimGame, recording.start), []
        for actions in recording.turns:
            title = f"turn {game.state.turns + 1}"
            game.apply(actions)
            moves = {game.seats[seat]: [_said(action[0])] for seat, action in actions.items()}
            turns.append(Turn(title, moves, ["heaps: " + " ".join(map(str, game.state.heaps))]))
        return turns

    def bot(self, name: str) -> Bot:
        """The scripted agent of that name.

        Raises:
            GameError: no such bot.
        """
        return bots.make_bot(name, self.name)

    def text(self) -> TextFormat:
        """Heaps as numbers, a move as heap and stones."""
        return NimText(self.settings)

    def words(self) -> Words:
        """Heaps and moves in English."""
        return NimWords(self.settings)


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


class NimWords:
    """The ``Words`` of Nim. The default for a reply without a legal move is a move drawn at random."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def rules(self) -> str:
        """The rules in brief, and the form of a reply."""
        seats = seat_names(self._settings)
        return (
            f"You are playing Nim. There are {len(seats)} players, {', '.join(seats)}, who move in this order, turn by "
            "turn. A move takes one or more stones from a single heap. The player who takes the very last stone wins, "
            "and all others lose.\n"
            "Write a move as HEAP:STONES, the heap's number and how many stones to take: 2:3 takes three stones from "
            "heap 2. Answer with a single line of the form\nMOVE HEAP:STONES"
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


class _Place:
    """A place of the walk through completions."""

    def __init__(self, options: Mapping[str, Phrases]) -> None:
        self._options = options

    def options(self) -> Mapping[str, Phrases]:
        """Next pieces and where each leads; one entry means forced, none means the completion is finished."""
        return self._options


def seat_names(settings: Settings) -> tuple[str, ...]:
    """Names of the seats: ``P1``, ``P2`` and so on."""
    return tuple(f"P{seat + 1}" for seat in range(settings.seats))


def _said(move: str) -> str:
    heap, stones = move.split(":")
    return f"takes {stones} from heap {heap}"


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise DecodeError(f"nim: {error}") from None


@register("nim")
def make(settings: Mapping[str, Any]) -> NimSpec:
    """Nim with these settings.

    Raises:
        ConfigError: a bad setting.
    """
    return NimSpec(convert(dict(settings), Settings, "game.settings"))
