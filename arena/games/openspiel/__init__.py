"""The games of OpenSpiel (Lanctot et al. 2019, arXiv 1908.09453), turn-taking and simultaneous.

Moves are identified by name, and chance is determined by the seed. A turn takes the library a few microseconds, so a
position is played on in place, and what a record needs is made with the record. The package itself computes best
responses and exploitability (``open_spiel.python.algorithms.exploitability``).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

import msgspec

from arena.games import register
from arena.games.texts import Pieces, to_letters
from arena.games.third_party import MAX_OBSERVATION_LETTERS, LetteredGame, LetteredSpec, require_package
from schemas.config.base import Table
from schemas.errors import ConfigError, DecodeError, GameError, format_choices
from schemas.ids import derive_seed
from schemas.numbers import PositiveInt

with require_package("openspiel", "open_spiel"):
    import pyspiel

SpielGame = Any
"""A ``pyspiel.Game``."""
Position = Any
"""A ``pyspiel.State``."""
Observer = Callable[[Position, int], str]
"""Text of what a seat knows in a position."""

_DYNAMICS = pyspiel.GameType.Dynamics
_SAMPLED = pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
_PERFECT_INFORMATION = pyspiel.GameType.Information.PERFECT_INFORMATION
_CHANCE, _SIMULTANEOUS = int(pyspiel.PlayerId.CHANCE), int(pyspiel.PlayerId.SIMULTANEOUS)
_PARTNERSHIPS = ("bridge", "euchre", "spades", "tiny_bridge_4p")
"""Games of two teams whose members sit opposite each other."""
_UNNAMED = "Action(id="
"""Begins the names of actions that a game does not give without a position."""


def open_game(text: str) -> SpielGame:
    """Load a game by name, with parameters in parentheses: ``leduc_poker(players=3)``.

    Raises:
        ConfigError: no such game or parameter, or one that is neither turn-taking nor simultaneous, whose chance
            outcomes are not explicit, or that lists no moves.
    """
    name = text.partition("(")[0]
    # Checked first because the library would print the whole list to the terminal.
    if name not in (names := pyspiel.registered_names()):
        raise ConfigError(
            f"game.settings.game: OpenSpiel has no game {name!r}; expected {format_choices(sorted(names))}"
        )
    try:
        game = pyspiel.load_game(text)
    except Exception as error:  # the library raises its own error, and C++'s
        raise ConfigError(f"game.settings.game: {text!r}: {_first_line(error)}") from None
    kind = game.get_type()
    if kind.dynamics not in (_DYNAMICS.SEQUENTIAL, _DYNAMICS.SIMULTANEOUS) or kind.chance_mode == _SAMPLED:
        raise ConfigError(
            f"game.settings.game: {text!r} has {kind.dynamics.name} moves and {kind.chance_mode.name} chance; expected "
            "turns or simultaneous moves, and chance that lists its outcomes"
        )
    try:
        position = first_position(game, 0)
        for seat in range(0 if position.is_terminal() else game.num_players()):
            position.legal_actions(seat)
    except pyspiel.SpielError as error:
        raise ConfigError(f"game.settings.game: {text!r} lists no moves: {_first_line(error)}") from None
    return game


def first_position(game: SpielGame, seed: int) -> Position:
    """The initial position, after any initial chance events."""
    position = game.new_initial_state()
    _resolve_chance(position, seed, [])
    return position


def observer_of(game: SpielGame) -> Observer:
    """The function that gives a seat's observation: the board where nothing is hidden, else its information.

    If a game has neither text, the whole position if nothing is hidden.
    """
    kind = game.get_type()
    nothing_hidden = kind.information == _PERFECT_INFORMATION
    if kind.provides_observation_string and (nothing_hidden or not kind.provides_information_state_string):
        return cast(Observer, pyspiel.State.observation_string)
    if kind.provides_information_state_string:
        return cast(Observer, pyspiel.State.information_state_string)

    def describe(position: Position, seat: int) -> str:
        if not nothing_hidden:
            raise GameError(f"openspiel: {kind.short_name} has no text for what a seat knows")
        return str(position)

    return describe


def _resolve_chance(position: Position, seed: int, history: list[int]) -> None:
    """Resolve chance events in place and add them to the history, which each draw's seed is derived from."""
    while position.is_chance_node():
        outcomes = position.chance_outcomes()
        left = Random(derive_seed(seed, "chance", len(history))).random() * sum(weight for _, weight in outcomes)
        drawn = outcomes[-1][0]
        for number, weight in outcomes:
            left -= weight
            if left < 0:
                drawn = number
                break
        history.append(drawn)
        position.apply_action(drawn)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    game: str = "kuhn_poker"
    """OpenSpiel's name, parameters in parentheses: ``leduc_poker(players=3)``."""
    max_turns: PositiveInt = 1_000
    """Maximum length of a game; one that is not over by then fails."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A position, represented by the moves that lead to it."""

    seed: int
    turns: list[dict[str, int]]
    """Move numbers of each seat, turn by turn."""
    history: list[int]
    """The same in OpenSpiel's notation, chance included: detects a change of the rules."""


class OpenSpielGame(LetteredGame[State]):
    """One play-through."""

    spec: "OpenSpielSpec"

    def __init__(self, spec: "OpenSpielSpec", seed: int, start: State, position: Position | None = None) -> None:
        """Replay the moves of ``start``, or begin at the library's ``position``; ``DecodeError`` for invalid ones."""
        super().__init__(spec, seed, start)
        self.label = spec.settings.game
        self._chosen: list[dict[int, int]] = []
        """Numbers of the moves since ``start``, by seat, turn by turn."""
        self._written: list[dict[str, int]] = []
        """The first of them as a state has them."""
        if position is not None:
            self._begin(position)
        else:
            self.restore()
            if self._history != start.history:
                found, expected = start.history[:20], self._history[:20]
                raise DecodeError(
                    f"openspiel: a saved position is not what the rules give; found {found}, expected {expected}"
                )
        self._history_lengths = [len(self._history)]

    @property
    def clock(self) -> int:
        """The number of turns played."""
        return len(self._start.turns) + len(self._chosen)

    def to_move(self) -> Sequence[int]:
        """The seat to move, or those that move simultaneously."""
        return self._to_move

    def moves(self, seat: int) -> Sequence[str]:
        """The legal moves under OpenSpiel's names."""
        return tuple(self._legal_moves(seat))

    def play(self, moves: Mapping[int, str]) -> None:
        """Play legal moves and the chance events that follow."""
        chosen = {seat: self._legal_moves_cache[seat][move] for seat, move in moves.items()}
        self._play(chosen)
        self._chosen.append(chosen)
        self._history_lengths.append(len(self._history))

    def state_after(self, turns: int) -> State:
        """The position after so many turns: all moves until then and OpenSpiel's history."""
        for turn in self._chosen[len(self._written) :]:
            self._written.append({str(seat): move for seat, move in turn.items()})
        played = [*self._start.turns, *self._written[:turns]]
        return State(self._start.seed, played, self._history[: self._history_lengths[turns]])

    def progress(self, seat: int) -> float:
        """The seat's winnings so far."""
        return float(self.position.returns()[seat])

    def scores(self) -> Sequence[float]:
        """Each seat's winnings."""
        return [float(score) for score in self.position.returns()]

    def teams(self) -> Sequence[str]:
        """Partners at cards, the sides of a hidden-role game, or all seats where they can only win together."""
        kind = self.spec.spiel.get_type()
        if kind.utility == pyspiel.GameType.Utility.IDENTICAL:
            return ["all" for _ in self.seats]
        if kind.short_name in _PARTNERSHIPS:
            return ("NS", "EW") * 2
        if solo := re.search(r"^Solo Player: (\d)", str(self.position), re.M) if kind.short_name == "skat" else None:
            return ["solo" if seat == int(solo[1]) else "defenders" for seat in range(len(self.seats))]
        return self.roles()

    def roles(self) -> Sequence[str]:
        """The roles that a hidden-role game drew."""
        if self.spec.spiel.get_type().short_name != "social_deduction":
            return ()
        line = next(line for line in str(self.position).splitlines() if line.startswith("Roles:"))
        return re.findall(r"=(\w+)", line)

    def sees(self, seat: int) -> Pieces:
        """The seat's observation, spelled letter by letter."""
        return to_letters(self.spec.observe(self.position, seat), MAX_OBSERVATION_LETTERS)

    def tells(self, seat: int) -> str:
        """The seat's observation."""
        return f"What you know:\n{self.spec.observe(self.position, seat) or 'nothing yet'}"

    def notes(self) -> list[str]:
        """The whole position."""
        return str(self.position).splitlines()

    def replay(self) -> None:
        """Play all moves from the library's first position; ``GameError`` or ``ValueError`` if they are not legal."""
        self._begin(first_position(self.spec.spiel, self._start.seed))
        earlier = [{int(seat): move for seat, move in turn.items()} for turn in self._start.turns]
        for chosen in (*earlier, *self._chosen):
            if sorted(chosen) != list(self._to_move) or any(
                move not in self.position.legal_actions(seat) for seat, move in chosen.items()
            ):
                raise GameError(f"openspiel: found the moves {chosen}; expected legal ones of seats {self._to_move}")
            self._play(chosen)

    def _begin(self, first: Position) -> None:
        self.position: Position = first
        self._history: list[int] = first.history()
        self._find_movers(first.current_player())

    def _play(self, chosen: Mapping[int, int]) -> None:
        """Play legal moves and chance events; after a ``GameError`` of the library the position is unusable."""
        position, history = self.position, self._history
        try:
            if self._is_simultaneous:
                joint = [chosen.get(seat, pyspiel.INVALID_ACTION) for seat in range(len(self.seats))]
                position.apply_actions(joint)
                history.extend(joint)
            else:
                (move,) = chosen.values()
                position.apply_action(move)
                history.append(move)
            mover = position.current_player()
            if mover == _CHANCE:
                _resolve_chance(position, self._start.seed, history)
                mover = position.current_player()
        except pyspiel.SpielError as error:
            raise GameError(f"openspiel: {_first_line(error)}") from None
        self._find_movers(mover)

    def _find_movers(self, mover: int) -> None:
        """Store the seats that must act; ``mover`` is the library's number of one, of several or of none."""
        self._is_simultaneous = mover == _SIMULTANEOUS
        self._legal_moves_cache: dict[int, dict[str, int]] = {}
        self._to_move: tuple[int, ...] = (mover,) if mover >= 0 else ()
        if self._is_simultaneous:
            legal = {seat: self.spec.legal_moves(self.position, seat) for seat in range(len(self.seats))}
            self._legal_moves_cache = {seat: moves for seat, moves in legal.items() if moves}
            self._to_move = tuple(self._legal_moves_cache)

    def _legal_moves(self, seat: int) -> dict[str, int]:
        if seat not in self._legal_moves_cache:
            self._legal_moves_cache[seat] = self.spec.legal_moves(self.position, seat)
        return self._legal_moves_cache[seat]


class OpenSpielSpec(LetteredSpec[State]):
    """Factory of play-throughs of one OpenSpiel game."""

    name = "openspiel"
    settings_type, state_type, game_type = Settings, State, OpenSpielGame

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.spiel = open_game(settings.game)
        self.seats = tuple(f"P{seat}" for seat in range(self.spiel.num_players()))
        kind = self.spiel.get_type()
        is_deterministic = kind.chance_mode == pyspiel.GameType.ChanceMode.DETERMINISTIC
        self.is_fully_observed = is_deterministic and kind.information == _PERFECT_INFORMATION
        self.observe = observer_of(self.spiel)
        self._fixed_names: list[dict[int, str]] = [{} for _ in self.seats]
        """Names of moves by seat and number, in games whose names do not depend on the position."""
        try:
            self._has_fixed_names = not self.spiel.action_to_string(0, 0).startswith(_UNNAMED)
        except pyspiel.SpielError:
            # It names some without a position, but not this one.
            self._has_fixed_names = False

    def legal_moves(self, position: Position, seat: int) -> dict[str, int]:
        """The seat's legal moves by name; ambiguous names include the move's number."""
        numbers, name_of = position.legal_actions(seat), position.action_to_string
        if self._has_fixed_names:
            fixed = self._fixed_names[seat]
            for number in numbers:
                if number not in fixed:
                    fixed[number] = name_of(seat, number)
            moves = {fixed[number]: number for number in numbers}
        else:
            moves = {name_of(seat, number): number for number in numbers}
        if len(moves) == len(numbers):
            return moves
        names = [name_of(seat, number) for number in numbers]
        return {
            name if names.count(name) == 1 else f"{name} #{number}": number
            for name, number in zip(names, numbers, strict=True)
        }

    def new(self, seed: int) -> OpenSpielGame:
        """Begin at the initial position, after any initial chance events."""
        position = first_position(self.spiel, seed)
        return OpenSpielGame(self, seed, State(seed, [], position.history()), position)

    def rules(self) -> str:
        """The game's name: OpenSpiel has no rules in words."""
        name, seats = self.spiel.get_type().long_name, ", ".join(self.seats)
        return f"You are playing {name}, as OpenSpiel plays it ({self.spiel}). The players are {seats}."


make = register("openspiel")(OpenSpielSpec.of)
