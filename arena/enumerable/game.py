"""One play-through of a game with listed moves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from arena.games.base import Action, Outcome, Pieces, position_checksum, validate_actions
from schemas.errors import GameError

S = TypeVar("S", bound=msgspec.Struct)
encode_json = msgspec.json.Encoder(order="sorted").encode


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Schema of ``ListedGame.record``."""

    game: str
    settings: dict[str, Any]
    seed: int
    start: msgspec.Raw
    turns: list[dict[str, Action]]
    """Actions by seat, turn by turn."""
    checks: list[str] = []
    """``position_checksum`` of the position after each turn."""


class ListedGame(ABC, Generic[S]):
    """One play-through of a ``ListedSpec``. An action is one move, ``(move,)``; subclasses add the rules."""

    environment: str = ""
    """The TextArena environment, for a game that has several."""

    def __init__(self, spec: Any, seed: int, start: S) -> None:
        self.spec = spec
        self.name = spec.name
        self.seats: Sequence[str] = spec.seats
        self.state = start
        self._seed = seed
        self._start = start
        self._turns: list[dict[int, str]] = []
        """Moves by seat, turn by turn."""
        self._states: list[S] = []

    @property
    @abstractmethod
    def clock(self) -> int:
        """Turns played since the game began, according to the state."""

    @abstractmethod
    def to_move(self) -> Sequence[int]:
        """The seats to move, ascending; empty once the game is over."""

    @abstractmethod
    def moves(self, seat: int) -> Sequence[str]:
        """All legal moves of a seat that is to move, in a fixed order, none twice."""

    def after(self, moves: Mapping[int, str]) -> S:
        """The position after legal moves of all seats to move. Pure; every game has it but an ``InPlaceGame``."""
        raise NotImplementedError(f"{type(self).__name__} has neither after() nor advance()")

    @abstractmethod
    def scores(self) -> Sequence[float]:
        """Final score per seat, once the game is over."""

    @abstractmethod
    def sees(self, seat: int) -> Pieces:
        """The position as the seat knows it, in pieces of ``ListedSpec.pieces``."""

    @abstractmethod
    def tells(self, seat: int) -> str:
        """The position as the seat knows it, in English."""

    def reason(self) -> str:
        """Reason for the game's end."""
        return "over"

    def metrics(self) -> Sequence[dict[str, float]]:
        """Named facts per seat."""
        return [{} for _ in self.seats]

    def teams(self) -> Sequence[str]:
        """The seats' teams, once the game is over; empty for a game without."""
        return ()

    def roles(self) -> Sequence[str]:
        """The seats' roles, once the game is over; empty if the names of the seats are their roles."""
        return ()

    @property
    def length(self) -> int:
        """Turns of the game, for its outcome; by default those of its clock."""
        return self.clock

    def describe_move(self, move: str) -> str:
        """A move for people; by default its name."""
        return move

    def notes(self) -> list[str]:
        """Notable facts for people after a turn, hidden information included."""
        return []

    def random_action(self, seat: int, rng: Random) -> Action:
        """Draw one of the seat's moves; ``GameError`` if it is not to move."""
        self.check_to_move(seat)
        return (rng.choice(self.moves(seat)),)

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether the action is exactly one of the moves of a seat that is to move."""
        return (
            seat in self.to_move() and isinstance(action, tuple) and len(action) == 1 and action[0] in self.moves(seat)
        )

    def apply(self, actions: Mapping[int, Action]) -> None:
        """Play the moves of all seats to move; ``GameError`` for a missing or illegal one, and nothing changes."""
        moving = self.to_move()
        moves = {}
        for seat in moving:
            if seat not in actions or not self.is_legal(seat, actions[seat]):
                break
            moves[seat] = actions[seat][0]
        if not len(moves) == len(moving) == len(actions):
            validate_actions(self, actions, lambda: self.moment)
        self.advance(moves)
        self._turns.append(moves)

    def advance(self, moves: Mapping[int, str]) -> None:
        """Advance to the position after legal moves of all seats to move."""
        self.state = self.after(moves)
        # Encoded in ``record``, which games that are only tried, as by search, never make.
        self._states.append(self.state)

    @property
    def moment(self) -> str:
        """The game's name for the current turn."""
        return f"turn {self.clock + 1}"

    def progress(self, seat: int) -> float:
        """The seat's progress; 0 for games without a measure of it."""
        return 0.0

    def outcome(self) -> Outcome:
        """The result by the final scores; ``GameError`` while the game is not over."""
        if self.to_move():
            raise GameError(f"{self.name}, {self.moment}: no outcome; the game is not over")
        return Outcome.of(
            self.scores(),
            self.teams(),
            roles=tuple(self.roles()),
            metrics=tuple(self.metrics()),
            reason=self.reason(),
            length=self.length,
            environment=self.environment,
        )

    def save(self) -> bytes:
        """The position as canonical JSON."""
        return encode_json(self.state)

    def record(self) -> bytes:
        """The play-through as canonical JSON: settings, seed, first position, moves and checksums."""
        settings = msgspec.to_builtins(self.spec.settings)
        start = msgspec.Raw(encode_json(self._start))
        turns: list[dict[str, Action]] = [{str(seat): (move,) for seat, move in turn.items()} for turn in self._turns]
        return encode_json(Record(self.name, settings, self._seed, start, turns, self._position_checksums()))

    def _position_checksums(self) -> list[str]:
        return [position_checksum(encode_json(state)) for state in self._states]

    def check_to_move(self, seat: int) -> None:
        """Raise ``GameError`` unless the seat is to move."""
        if seat not in self.to_move():
            raise GameError(f"{self.name}, {self.moment}: seat {seat} is not to move; expected {list(self.to_move())}")


class InPlaceGame(ListedGame[S]):
    """A play-through of another package's game, which goes on in place: states are made when they are asked for."""

    @property
    def state(self) -> S:
        """The position."""
        return self.state_after(len(self._turns))

    @state.setter
    def state(self, start: S) -> None:
        """Nothing: the first position is ``_start``."""

    @abstractmethod
    def advance(self, moves: Mapping[int, str]) -> None:
        """Advance by legal moves; the position is unchanged where it raises."""

    @abstractmethod
    def state_after(self, turns: int) -> S:
        """The position after so many of the turns since the first position."""

    def _position_checksums(self) -> list[str]:
        states = (self.state_after(turns) for turns in range(1, len(self._turns) + 1))
        return [position_checksum(encode_json(state)) for state in states]
