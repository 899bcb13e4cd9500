"""Adapter for OpenSpiel's games: moves are identified by name, and chance is determined by the seed."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import pyspiel

from arena.enumerable import ListedGame, ListedSpec
from arena.games.base import Action
from arena.games.texts import LETTERS, Pieces, to_letters
from schemas.errors import ConfigError, DecodeError, GameError, format_choices
from schemas.ids import derive_seed

SpielGame = Any
"""A ``pyspiel.Game``."""
Position = Any
"""A ``pyspiel.State``."""

_DYNAMICS = pyspiel.GameType.Dynamics
_SAMPLED = pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
_PERFECT_INFORMATION = pyspiel.GameType.Information.PERFECT_INFORMATION


def open_game(text: str) -> SpielGame:
    """Loads a game by name, with parameters in parentheses: ``leduc_poker(players=3)``.

    Raises:
        ConfigError: no such game or parameter, or one that is neither turn-taking nor simultaneous, or whose chance
            outcomes are not explicit.
    """
    name = text.partition("(")[0]
    # Checked first because the library would print the whole list to the terminal.
    if name not in (names := pyspiel.registered_names()):
        raise ConfigError(
            f"game.settings.game: OpenSpiel has no game {name!r}; expected {format_choices(sorted(names))}"
        )
    try:
        game = pyspiel.load_game(text)
    except pyspiel.SpielError as error:
        raise ConfigError(f"game.settings.game: {text!r}: {_first_line(error)}") from None
    kind = game.get_type()
    if kind.dynamics not in (_DYNAMICS.SEQUENTIAL, _DYNAMICS.SIMULTANEOUS) or kind.chance_mode == _SAMPLED:
        raise ConfigError(
            f"game.settings.game: {text!r} has {kind.dynamics.name} moves and {kind.chance_mode.name} chance; expected "
            "turns or simultaneous moves, and chance that lists its outcomes"
        )
    return game


def first_position(game: SpielGame, seed: int) -> Position:
    """Returns the initial position, after any initial chance events."""
    position = game.new_initial_state()
    _resolve_chance(position, seed, [])
    return position


def seats_to_move(position: Position) -> tuple[int, ...]:
    """Returns the seats that must act."""
    if (seat := position.current_player()) >= 0:
        return (seat,)
    if position.is_terminal():
        return ()
    return tuple(seat for seat in range(position.num_players()) if position.legal_actions(seat))


def legal_moves(position: Position, seat: int) -> dict[str, int]:
    """Returns the seat's legal moves by name; ambiguous names include the move's number."""
    numbers = position.legal_actions(seat)
    names = [position.action_to_string(seat, number) for number in numbers]
    if len(found := dict(zip(names, numbers, strict=True))) == len(names):
        return found
    return {
        name if names.count(name) == 1 else f"{name} #{number}": number
        for name, number in zip(names, numbers, strict=True)
    }


def apply_moves(position: Position, chosen: Mapping[int, int], seed: int) -> Position:
    """Returns the position after the moves of all seats to move, and the chance events that follow.

    Raises:
        GameError: a seat is missing or not to move, a move is illegal, or the library refuses.
    """
    if sorted(chosen) != list(seats_to_move(position)) or any(
        move not in position.legal_actions(seat) for seat, move in chosen.items()
    ):
        raise GameError(
            f"openspiel: found the moves {dict(chosen)}; expected legal ones of seats {seats_to_move(position)}"
        )
    after = position.clone()
    _advance(after, chosen, seed, position.history())
    return after


def _advance(position: Position, chosen: Mapping[int, int], seed: int, history: Sequence[int]) -> list[int]:
    """Plays legal moves and the chance events that follow, in place.

    Args:
        position: Advanced.
        chosen: Moves of all seats to move.
        seed: Determines the chance events.
        history: Moves that led to ``position``, in the library's notation, chance included.

    Returns:
        The history afterwards.

    Raises:
        GameError: the library refuses; ``position`` is unusable afterwards.
    """
    try:
        if position.is_simultaneous_node():
            position.apply_actions([chosen.get(seat, pyspiel.INVALID_ACTION) for seat in range(position.num_players())])
            return _resolve_chance(position, seed, position.history())
        (move,) = chosen.values()
        position.apply_action(move)
        return _resolve_chance(position, seed, [*history, move])
    except pyspiel.SpielError as error:
        raise GameError(f"openspiel: {_first_line(error)}") from None


def observe_seat(position: Position, seat: int) -> str:
    """Returns the seat's observation: the board where nothing is hidden, else its information state.

    If a game has neither text, the whole position if nothing is hidden.

    Raises:
        GameError: the game has no text for a seat's information.
    """
    kind = position.get_game().get_type()
    if kind.information == _PERFECT_INFORMATION and kind.provides_observation_string:
        return str(position.observation_string(seat))
    if kind.provides_information_state_string:
        return str(position.information_state_string(seat))
    if kind.provides_observation_string:
        return str(position.observation_string(seat))
    if kind.information == _PERFECT_INFORMATION:
        return str(position)
    raise GameError(f"openspiel: {kind.short_name} has no text for what a seat knows")


def _resolve_chance(position: Position, seed: int, history: list[int]) -> list[int]:
    """Resolves chance events in place and adds them to the history, which each draw's seed is derived from."""
    while position.is_chance_node():
        drawn = Random(derive_seed(seed, "chance", len(history))).random()
        history.append(_pick_outcome(position.chance_outcomes(), drawn))
        position.apply_action(history[-1])
    return history


def _pick_outcome(outcomes: Sequence[tuple[int, float]], share: float) -> int:
    left = share * sum(weight for _, weight in outcomes)
    for number, weight in outcomes:
        left -= weight
        if left < 0:
            return number
    return outcomes[-1][0]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


MAX_OBSERVATION_LETTERS = 1_200
"""Maximum length of a position that a small model reads; only its end is kept."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    game: str = "kuhn_poker"
    """OpenSpiel's name, parameters in parentheses: ``leduc_poker(players=3)``."""
    max_turns: int = 1_000
    """Maximum length of a game; one that is not over by then fails."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` with the key, the value found and the expected range."""
        if self.max_turns < 1:
            raise ConfigError(f"max_turns: found {self.max_turns}; expected 1 or more")


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A position, represented by the moves that lead to it."""

    seed: int
    turns: list[dict[str, int]]
    """Move numbers of each seat, turn by turn."""
    history: list[int]
    """The same in OpenSpiel's notation, chance included: detects a change of the rules."""


class OpenSpielGame(ListedGame[State]):
    """One play-through."""

    spec: "OpenSpielSpec"

    def __init__(self, spec: "OpenSpielSpec", seed: int, start: State, position: Position | None = None) -> None:
        """Replays the moves up to a position.

        Args:
            spec: The game.
            seed: Seed of the play-through.
            start: The position.
            position: The library's first position, if there is one.

        Raises:
            DecodeError: the moves are not valid in this game.
        """
        super().__init__(spec, seed, start)
        self._max_turns: int = spec.settings.max_turns
        self.position: Position = first_position(spec.spiel, start.seed) if position is None else position
        self._legal_moves_cache: dict[int, dict[str, int]] = {}
        try:
            self._replay(start)
        except (GameError, ValueError) as error:
            raise DecodeError(f"openspiel: a saved position cannot be reached ({error})") from None
        if self.position.history() != start.history:
            raise DecodeError(
                f"openspiel: a saved position is not what the rules give; found {start.history[:20]}, expected "
                f"{self.position.history()[:20]}"
            )
        self._to_move = seats_to_move(self.position)

    @property
    def clock(self) -> int:
        """Returns the number of turns played."""
        return len(self.state.turns)

    def to_move(self) -> Sequence[int]:
        """See ``Game.to_move``: one seat, or those that move simultaneously."""
        return self._to_move

    def moves(self, seat: int) -> Sequence[str]:
        """Returns the legal moves under OpenSpiel's names."""
        return tuple(self._legal_moves(seat))

    def is_legal(self, seat: int, action: Action) -> bool:
        """See ``Game.is_legal``."""
        return (
            seat in self._to_move
            and isinstance(action, tuple)
            and len(action) == 1
            and action[0] in self._legal_moves(seat)
        )

    def after(self, moves: Mapping[int, str]) -> State:
        """Returns the position after the moves and the chance events that follow.

        Raises:
            GameError: the library refuses, or the maximum number of turns is reached.
        """
        state = self.state
        if len(state.turns) >= self._max_turns:
            raise GameError(f"{self._label}: not over after {self.clock} turns; settings.max_turns allows no more")
        chosen = {seat: self._legal_moves(seat)[move] for seat, move in moves.items()}
        try:
            history = _advance(self.position, chosen, state.seed, state.history)
        except GameError:
            self.position = first_position(self.spec.spiel, state.seed)
            self._replay(state)
            raise
        self._to_move = seats_to_move(self.position)
        self._legal_moves_cache = {}
        return State(state.seed, [*state.turns, {str(seat): move for seat, move in chosen.items()}], history)

    def progress(self, seat: int) -> float:
        """Returns the seat's winnings so far."""
        return float(self.position.returns()[seat])

    def scores(self) -> Sequence[float]:
        """Returns each seat's winnings."""
        return [float(score) for score in self.position.returns()]

    def sees(self, seat: int) -> Pieces:
        """Returns the seat's observation, spelled letter by letter."""
        return to_letters(observe_seat(self.position, seat), MAX_OBSERVATION_LETTERS)

    def tells(self, seat: int) -> str:
        """Returns the seat's observation."""
        return f"What you know:\n{observe_seat(self.position, seat) or 'nothing yet'}"

    def notes(self) -> list[str]:
        """Returns the whole position."""
        return str(self.position).splitlines()

    def _replay(self, state: State) -> None:
        """Plays the moves of a state from the first position on."""
        for turn in state.turns:
            self.position = apply_moves(self.position, {int(seat): move for seat, move in turn.items()}, state.seed)

    def _legal_moves(self, seat: int) -> dict[str, int]:
        if seat not in self._legal_moves_cache:
            self._legal_moves_cache[seat] = legal_moves(self.position, seat)
        return self._legal_moves_cache[seat]

    @property
    def _label(self) -> str:
        return f"openspiel, {self.spec.settings.game}"


class OpenSpielSpec(ListedSpec[State]):
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

    def start(self, seed: int) -> State:
        """Returns the initial position, after any initial chance events."""
        return State(seed, [], first_position(self.spiel, seed).history())

    def new(self, seed: int) -> OpenSpielGame:
        """See ``GameSpec.new``; makes the first position once."""
        position = first_position(self.spiel, seed)
        return OpenSpielGame(self, seed, State(seed, [], position.history()), position)

    def pieces(self) -> Sequence[str]:
        """Returns the letters."""
        return LETTERS

    def spell(self, move: str) -> Pieces:
        """Spells a move letter by letter."""
        return to_letters(move)

    def rules(self) -> str:
        """Returns the game's name: OpenSpiel has no rules in words."""
        return (
            f"You are playing {self.spiel.get_type().long_name}, as OpenSpiel plays it ({self.spiel}). The players are "
            f"{', '.join(self.seats)}."
        )
