"""The boundary to environments of other packages, and what their games have in common.

A missing package is a ``ConfigError``; an error of an environment, or a call without an end, a ``GameError``. Positions
are restored by playing all moves again. A small model reads positions, and writes moves, letter by letter.
"""

import contextlib
import re
import signal
import sys
import threading
import time
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from arena.enumerable import InPlaceGame, ListedSpec
from arena.enumerable.game import S
from arena.games.texts import LETTERS, Pieces, to_letters
from schemas.errors import ConfigError, DecodeError, GameError

CALL_LIMIT_S = 60.0
"""Seconds that an environment has for one call; then its match fails."""
MAX_OBSERVATION_LETTERS = 1_200
"""Maximum length of a position that a small model reads; only its end is kept."""
_CHECK_INTERVAL_S = 0.5
_MAIN_THREAD = threading.main_thread().ident


@contextlib.contextmanager
def require_package(name: str, package: str) -> Iterator[None]:
    """Raise ``ConfigError`` for a failed import of the game ``name``, also the name of the extra that brings it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"game.name: {name!r} needs the package {package}: pip install 'event-sourced-league[{name}]'"
        ) from error


class LetteredGame(InPlaceGame[S]):
    """A play-through whose positions are texts, under settings with ``max_turns``."""

    label: str
    """Name of the environment, for messages."""

    @abstractmethod
    def play(self, moves: Mapping[int, str]) -> None:
        """Play legal moves of all seats to move; after a ``GameError`` only ``replay`` may follow."""

    @abstractmethod
    def replay(self) -> None:
        """Play all moves so far anew, those before the first position included; ``GameError`` if they fail."""

    def restore(self) -> None:
        """Replay the moves of a saved position; ``DecodeError`` if they fail."""
        try:
            self.replay()
        except (GameError, ValueError, IndexError) as error:
            raise DecodeError(f"{self.name}: a saved position cannot be reached ({error})") from None

    def advance(self, moves: Mapping[int, str]) -> None:
        """Advance by legal moves; ``GameError`` if the environment raises, or at ``max_turns``."""
        if self.clock >= self.spec.settings.max_turns:
            raise GameError(
                f"{self.name}, {self.label}: not over after {self.clock} turns; settings.max_turns allows no more"
            )
        try:
            self.play(moves)
        except GameError:
            self.replay()
            raise

    def sees(self, seat: int) -> Pieces:
        """The end of the seat's observation, spelled letter by letter."""
        return to_letters(self.tells(seat), MAX_OBSERVATION_LETTERS)


class LetteredSpec(ListedSpec[S]):
    """Factory of such play-throughs; subclasses have ``new``."""

    def start(self, seed: int) -> S:
        """The first position of a new play-through."""
        return self.new(seed).state

    def pieces(self) -> Sequence[str]:
        """The letters."""
        return LETTERS

    def spell(self, move: str) -> Pieces:
        """Spell a move letter by letter."""
        return to_letters(move)

    def spell_moves(self, moves: Sequence[str]) -> Mapping[str, Pieces]:
        """Spell moves; those that differ outside of ASCII alone get numbers."""
        spelled = {move: self.spell(move) for move in moves}
        if len(set(spelled.values())) == len(spelled):
            return spelled
        counts: Counter[Pieces] = Counter()
        for move, pieces in spelled.items():
            counts[pieces] += 1
            if counts[pieces] > 1:
                spelled[move] = (*pieces, *to_letters(f" #{counts[pieces]}"))
        return spelled


class CallTimeoutError(BaseException):
    """Raised within a call that takes too long. Not an ``Exception``, which environments catch."""


class Watchdog:
    """Interrupts a call of the main thread that takes too long: by a signal, which ends a wait too.

    Calls of other threads, and code in C that never returns to Python, are not interrupted.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        """Start of the main thread's call; None outside of one."""
        self._is_running = False

    def run(self) -> None:
        """Check now and then, in a thread of its own; begins once."""
        if self._is_running:
            return
        self._is_running = True
        signal.signal(signal.SIGUSR2, self._interrupt)
        threading.Thread(target=self._check, name="environment-watchdog", daemon=True).start()

    def _check(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL_S)
            if self._is_overdue() and _MAIN_THREAD is not None:
                signal.pthread_kill(_MAIN_THREAD, signal.SIGUSR2)

    def _is_overdue(self) -> bool:
        began = self.began
        return began is not None and time.monotonic() - began > CALL_LIMIT_S

    def _interrupt(self, *_: object) -> None:
        # The call may have ended since the signal was sent.
        if self._is_overdue():
            self.began = None
            raise CallTimeoutError


_WATCHDOG = Watchdog()


class EnvironmentCall:
    """A block that calls an environment; an error in it becomes a ``GameError``. Can be used again."""

    def __init__(self, where: str, call: str, error_type: type[GameError] = GameError) -> None:
        """``where`` and ``call`` begin the message: ``pettingzoo, classic/go-v5``, ``raises``."""
        self._where = where
        self._what = call
        self._error_type = error_type

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN_THREAD:
            _WATCHDOG.run()
            _WATCHDOG.began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.get_ident() == _MAIN_THREAD:
            _WATCHDOG.began = None
        if error is None or isinstance(error, GameError | ConfigError):
            return
        if isinstance(error, CallTimeoutError):
            raise self._error_type(f"{self._where}: no answer of the environment within {CALL_LIMIT_S:g} s") from error
        if isinstance(error, Exception):  # environments are third-party code and may raise anything
            raise self._error_type(f"{self._where}: the environment {self._what} ({_describe(error)})") from error


def _describe(error: Exception) -> str:
    """The cause of an environment's error, the line that raised it, and what to do where that is known."""
    if isinstance(error, SyntaxError):
        have = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"{Path(error.filename or '').name}:{error.lineno} is not the syntax of Python {have}; try a newer one"
    if data := re.search(r"Resource\s+\W*(\w+)\W.*NLTK Downloader", str(error), re.DOTALL):
        return f"data of nltk are missing; expected them from `python -m nltk.downloader {data[1]}`"
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{place}"
