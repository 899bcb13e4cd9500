"""TextArena environments by name, each with its own random state.

Environments draw from the modules ``random`` and ``numpy.random``, print, and raise arbitrary exceptions. Here each has
its own generators, whose functions stand in both modules while it runs; its output is discarded; its exceptions become
a ``GameError``.
"""

import copy
import io
import math
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any

import numpy as np

from arena.games.textarena.moves import FROM_POSITION
from arena.games.textarena.teams import SeatSides, seat_sides
from arena.games.third_party import EnvironmentCall, require_package
from schemas.errors import ConfigError, GameError, format_choices

with require_package("textarena", "textarena"), warnings.catch_warnings():
    # Its modules emit warnings when Python compiles them.
    warnings.simplefilter("ignore")
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.wrappers import ActionFormattingWrapper

MAX_PLAYERS = 15
"""Largest number of players that any known environment accepts."""

_GLOBAL_RANDOM_LOCK = threading.RLock()


class EnvironmentUnavailableError(GameError):
    """An environment that cannot be made, for any number of players."""


class _Discard(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


_DISCARD = _Discard()
_IGNORE_ALL = ("ignore", None, Warning, None, 0)


def _functions_of(module: ModuleType, generator: object) -> dict[str, Any]:
    """The functions of a module that are methods of its hidden generator, by name."""
    return {name: each for name, each in vars(module).items() if getattr(each, "__self__", None) is generator}


_PYTHON = _functions_of(random, random._inst)
_NUMPY = _functions_of(np.random, np.random.mtrand._rand)
# These call a method of the generator instead of being one.
_NUMPY_METHODS = {name: name for name in [*_NUMPY, "seed"]} | {"ranf": "random_sample", "sample": "random_sample"}
_NUMPY = {name: getattr(np.random, name) for name in _NUMPY_METHODS}


class GlobalRandomState:
    """Both global random generators for one environment.

    The functions of the modules ``random`` and ``numpy.random`` are replaced while it runs: exchanging the states of
    the generators behind them would take two hundred times as long. NumPy's generator is made when it is first used.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._python = random.Random(seed)
        self._numpy: np.random.RandomState | None = None
        self._functions = {name: getattr(self._python, name) for name in _PYTHON}
        self._numpy_functions = {name: partial(self._call_numpy, each) for name, each in _NUMPY_METHODS.items()}

    def __deepcopy__(self, memo: object) -> "GlobalRandomState":
        copied = GlobalRandomState(self._seed)
        copied._python.setstate(self._python.getstate())
        copied._numpy = copy.deepcopy(self._numpy)
        return copied

    def _call_numpy(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._numpy is None:
            self._numpy = np.random.RandomState(self._seed % 2**32)
        return getattr(self._numpy, name)(*args, **kwargs)

    def __enter__(self) -> None:
        """Install the generators, and silence output and warnings."""
        _GLOBAL_RANDOM_LOCK.acquire()
        self._kept = sys.stdout, sys.stderr, warnings.filters
        sys.stdout = sys.stderr = _DISCARD
        warnings.filters = [_IGNORE_ALL]
        vars(random).update(self._functions)
        vars(np.random).update(self._numpy_functions)

    def __exit__(self, *_: object) -> None:
        """Restore the originals."""
        vars(random).update(_PYTHON)
        vars(np.random).update(_NUMPY)
        sys.stdout, sys.stderr, warnings.filters = self._kept
        _GLOBAL_RANDOM_LOCK.release()


@cache
def _import_environment(name: str) -> None:
    """Import an environment's module beforehand: libraries that it imports may keep functions of ``random``."""
    entry_point = ENV_REGISTRY[name].entry_point if name in ENV_REGISTRY else None
    if isinstance(entry_point, str):
        # An error is raised again, and reported, where the environment is made.
        with redirect_stdout(_DISCARD), redirect_stderr(_DISCARD), warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            import_module(entry_point.partition(":")[0])


class TextArenaEnvironment:
    """One running environment. ``deepcopy`` copies its position and its random state."""

    def __init__(self, name: str, players: int, seed: int) -> None:
        """Start an environment by TextArena's id, ``TicTacToe-v0-train``; ``GameError`` if it cannot be started."""
        self.name = name
        self.done = False
        self.mover = 0
        self.observation = ""
        """Observation of the seat to move."""
        _import_environment(name)
        self._chance = GlobalRandomState(seed)
        self._label = f"textarena, {name}"
        self._stepping = EnvironmentCall(self._label, "raises")
        self._copying = EnvironmentCall(self._label, "cannot be copied")
        with self._chance, EnvironmentCall(self._label, "cannot be made", EnvironmentUnavailableError):
            self._env = textarena.make(name)
        with self._chance, EnvironmentCall(self._label, "does not begin"):
            self._env.reset(num_players=players, seed=seed)
            self._state = self._env.state
            # The environment does not count the moves that it rejects.
            self._state.refusals = 0
            if hasattr(self._state, "set_invalid_move"):
                self._state.set_invalid_move = MethodType(_refuse_and_count, self._state)
            self._observe()
        self.uses_brackets = any(isinstance(each, ActionFormattingWrapper) for each in _wrappers(self._env))
        """Whether text without square brackets gets some: only bracketed text counts as a move then."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "TextArenaEnvironment":
        # Messages never change, and a long game has thousands: their lists are copied, and they are not.
        memo.update({id(messages): messages.copy() for messages in _message_lists(self._env, self._state)})
        copied = memo[id(self)] = object.__new__(type(self))
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def step(self, message: str) -> bool:
        """Submit a message, and return whether it was rejected; after a ``GameError`` it is unusable."""
        before = self._state.refusals
        with self._chance, self._stepping:
            self.done = bool(self._env.step(action=message)[0])
            if not self.done:
                self._observe()
        return bool(self._state.refusals > before)

    def refuses(self, message: str) -> bool:
        """Whether a message of the seat to move would be rejected, tested on a copy; ``GameError`` without one."""
        with self._copying:
            trial = copy.deepcopy(self)
        try:
            return trial.step(message)
        except GameError:
            return True

    def listed_moves(self) -> list[str]:
        """Moves of the seat to move that may be legal, from the position; empty where ``moves`` has no listing."""
        listing = FROM_POSITION.get(self.name.partition("-")[0])
        if listing is None:
            return []
        env = self._env
        for wrapper in _wrappers(env):
            env = wrapper.env
        with EnvironmentCall(self._label, "shows no position"):
            return list(listing(env, self.mover))

    def rewards(self, players: int) -> list[float]:
        """The rewards of a finished environment; ``GameError`` unless there is a number for each player."""
        with self._chance, EnvironmentCall(self._label, "has no end"):
            rewards = self._env.close()[0] or {}
        scores = [rewards.get(player) for player in range(players)]
        if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
            raise GameError(f"{self._label}: rewards {rewards}; expected a number for each of {players} players")
        return [float(score) for score in scores if score is not None]

    def sides(self, players: int) -> SeatSides:
        """Teams and roles of the players."""
        env = self._env
        for wrapper in _wrappers(env):
            env = wrapper.env
        with self._chance, EnvironmentCall(self._label, "does not tell its teams"):
            return seat_sides(env, players)

    def reason(self) -> str:
        """The reason for the end, in the environment's words."""
        by_player = getattr(self._state, "game_info", {})
        return str(next((info["reason"] for info in by_player.values() if info.get("reason")), ""))

    def _observe(self) -> None:
        player, seen = self._env.get_observation()
        self.mover = int(player)
        self.observation = seen if isinstance(seen, str) else "\n".join(str(message[1]) for message in seen)


def _wrappers(env: Any) -> Iterator[Any]:
    while isinstance(env, textarena.Wrapper):
        yield env
        env = env.env


def _message_lists(env: Any, state: Any) -> Iterator[list[Any]]:
    """The lists of messages of an environment: its log, what each player has not seen yet, and what each has seen."""
    yield vars(state).get("logs", [])
    yield from vars(state).get("observations", {}).values()
    for wrapper in _wrappers(env):
        yield from vars(wrapper).get("full_observations", {}).values()


def check_name(name: str, key: str) -> None:
    """Raise ``ConfigError``, with similar names, unless an environment is registered."""
    if name not in ENV_REGISTRY:
        near = get_close_matches(name, sorted(ENV_REGISTRY), n=6, cutoff=0.3)
        raise ConfigError(
            f"game.settings.{key}: TextArena has no {name!r}; expected a registered one, as {format_choices(near)}"
        )


@cache
def resolve_player_count(name: str, count: int | None) -> int:
    """Resolve ``count``, or else the smallest number of players (from two, then one) that the environment accepts."""
    reason: GameError | None = None
    tried = [*range(2, MAX_PLAYERS + 1), 1] if count is None else [count]
    for players in tried:
        try:
            TextArenaEnvironment(name, players, 0)
        except GameError as error:
            reason = error
            if isinstance(error, EnvironmentUnavailableError):
                break
        else:
            return players
    key = "env" if count is None else "players"
    number = "any number of" if count is None else count
    raise ConfigError(f"game.settings.{key}: {name} does not begin with {number} players: {reason}")


def _refuse_and_count(state: Any, *args: Any, **kwargs: Any) -> Any:
    state.refusals += 1
    return type(state).set_invalid_move(state, *args, **kwargs)
