"""Every error of the project, in one tree.

    LeagueError                     (exit code 1)
    ├── UsageError                  the command line or a call is wrong (exit code 2)
    │   ├── ConfigError             a configuration key or value (exit code 2)
    │   └── NoLeagueError           no league was opened there (exit code 2)
    ├── LogError                    the event log
    │   ├── LogUnavailableError     no broker at that address, or it went away
    │   ├── StoreFullError          the broker's store rejected a write for want of space
    │   │   └── DiskError           a disk of this machine is full or read-only
    │   ├── AccessError             the broker rejects these credentials, or what was tried with them
    │   ├── MissingStreamError      the broker has no such stream
    │   ├── ConflictError           an expected-sequence condition failed: another writer was first
    │   ├── MessageIdError          a message id is taken by another message: a bug, or an attempt to hide an event
    │   ├── WorkerConflictError     another live process has this worker's name, or trains its policy
    │   ├── MessageTooLargeError    the broker takes no message of this size
    │   └── BackpressureError       a bounded stream is full for now: wait and retry
    ├── VersionError                this process and the league are too far apart: one of them needs an upgrade
    ├── DecodeError                 bytes that are not the message they should be
    ├── ArtifactError               a stored file is missing or is not what its digest says
    ├── ModelError                  a model or adapter directory that cannot be used
    │   ├── EngineError             the engine failed on requests that are not at fault
    │   ├── MemoryShortError        no memory for another adapter, or for so many requests at once
    │   └── NoServerError           no inference server answers
    ├── BusyError                   a file that another process is using: wait and retry
    ├── MissingPackageError         an optional package is not installed; the message names the extra
    ├── RemoteError                 a remote agent's server did not give a reply
    ├── GameError                   a game was asked for something its rules do not allow
    ├── EpisodeError                an episode that cannot come to a result: a reply, a reward, an empty store
    └── ReplayError                 recorded history and its refold disagree

Messages say where, what was found, and what was expected. All take one message, so all survive pickling.
"""

import contextlib
import difflib
import errno
import importlib.util
from collections.abc import Iterable, Iterator
from enum import IntEnum
from unicodedata import category


class ExitCode(IntEnum):
    """Exit codes of the ``league`` command; ``docs/commands.md`` has the table."""

    SUCCESS = 0
    """Done; of ``league verify``: sound."""
    ERROR = 1
    """An error, explained in one paragraph; of a command that compares or judges: the verdict is negative."""
    DAMAGED = 1
    """``league verify``: something is missing, or not as it was archived."""
    USAGE = 2
    """Wrong usage or configuration."""
    UNREADABLE = 2
    """``league verify``: the history could not be read to its end, so there is no verdict."""
    DISK_UNWRITABLE = 73
    """A disk of this machine is full or read-only; a supervisor does not restart the worker (``EX_CANTCREAT``)."""
    STORE_FULL = 74
    """The broker's store is full; a supervisor does not restart the worker (``EX_IOERR`` of sysexits.h)."""
    REFUSED = 77
    """The broker rejects a supervised worker's credentials; not restarted either (``EX_NOPERM``)."""
    INTERRUPTED = 130
    """Ended by Ctrl-C (SIGINT), after it has cleaned up."""
    TERMINATED = 143
    """Ended by SIGTERM, after it has cleaned up."""


def describe_error(error: BaseException) -> str:
    """Type and message of an error; for one without a message the type, and what it means where that is unclear."""
    meaning = "the operating system refused this process memory" if isinstance(error, MemoryError) else ""
    return ": ".join(part for part in (type(error).__name__, str(error) or meaning) if part)


class LeagueError(Exception):
    """Base of all errors that are meant for users rather than for debugging."""

    exit_code = ExitCode.ERROR


class UsageError(LeagueError, ValueError):
    """The command line or a call is wrong."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A configuration key or value is not what it should be."""


class NoLeagueError(UsageError):
    """No league was opened in that folder or on that broker; one may be opened later."""


class LogError(LeagueError, OSError):
    """An operation on the event log failed."""


class LogUnavailableError(LogError, ConnectionError):
    """No broker answers at the address, or the connection was lost."""


class StoreFullError(LogError):
    """The broker rejected a write for want of space; nothing was recorded."""


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class DiskError(StoreFullError):
    """A disk of this machine is full or read-only; nothing was recorded."""

    @classmethod
    def of(cls, error: OSError, where: object = None) -> "DiskError | None":
        """The error for a failed write to ``where``, by default the error's own file; None if no disk is at fault."""
        if isinstance(error, cls):
            return error
        if error.errno not in _UNWRITABLE:
            return None
        return cls.at(where or error.filename or "a file of this process", (error.strerror or str(error)).lower())

    @classmethod
    def at(cls, where: object, reason: str) -> "DiskError":
        """The error for a file or folder, with instructions."""
        return cls(
            f"{where}: {reason}. What was recorded is safe: make room or make the disk writable, then run the same "
            "command again"
        )


class AccessError(LogError):
    """The broker rejects the credentials, or an operation with them; retrying does not help."""


class MissingStreamError(LogError):
    """The broker has no stream of this name."""


class ConflictError(LogError):
    """An expected-sequence condition failed: another writer was first."""


class MessageIdError(LogError):
    """Another message was stored under the id of this one; the message names both, and nothing was recorded."""


class WorkerConflictError(LogError):
    """Another live process has this worker's name, or trains its policy; the message names it."""


class MessageTooLargeError(LogError):
    """The broker accepts no message of this size; retrying does not help."""


class BackpressureError(LogError):
    """A bounded stream is full for now; the writer waits and tries again."""


class VersionError(LeagueError):
    """This process and the league are too far apart; the message names the side to upgrade."""


class DecodeError(LeagueError, ValueError):
    """Bytes that are not the message they should be."""


class ArtifactError(LeagueError, OSError):
    """A stored file is missing, damaged, or not what its digest says."""


class ModelError(LeagueError, ValueError):
    """A model or adapter directory that cannot be used."""


class EngineError(ModelError):
    """The engine failed; the same request may succeed later, or in another process."""


class MemoryShortError(ModelError):
    """Not enough memory for another adapter, or for so many requests at once; fewer may succeed."""


class NoServerError(ModelError):
    """No inference server answers; once one does, the same request may succeed."""


class FileContentError(UsageError):
    """A file that is not read: its kind or its size is not what a file of that name has."""


class BusyError(LeagueError):
    """A file that another process is using."""


class MissingPackageError(LeagueError, ImportError):
    """An optional package is not installed."""


class RemoteError(LeagueError, ConnectionError):
    """A remote agent's server could not be reached, rejected the request, or sent something that is no reply."""


class GameError(LeagueError, ValueError):
    """A game was asked for something its rules do not allow."""


class EpisodeError(LeagueError, ValueError):
    """An episode cannot come to a result; it is recorded as failed, and others go on."""


class ReplayError(LeagueError):
    """Recorded history and its refold disagree."""


EXTRAS = {
    "huggingface_hub": "train",
    "matplotlib": "plots",
    "peft": "train",
    "pyarrow": "arrow",
    "safetensors": "train",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
}
"""The extra of ``pip install 'event-sourced-league[…]'`` that brings an optional package."""


@contextlib.contextmanager
def translate_missing_package() -> Iterator[None]:
    """Translate the failed import of a package in ``EXTRAS``: ``MissingPackageError`` if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS or importlib.util.find_spec(name) is not None:
            raise
        extra = EXTRAS[name]
        use = {"arrow": "Arrow tables", "plots": "pictures"}.get(extra, "models and training")
        raise MissingPackageError(
            f"{use} need {name}, which is not installed; expected: pip install 'event-sourced-league[{extra}]'"
        ) from error


def format_choices(names: Iterable[str], value: str = "") -> str:
    """Spell the valid names for a message: ``'a', 'b' or 'c'``; ``none`` when there are none.

    With the name that was found instead, it adds the one that was probably meant: ``'a' or 'b'; did you mean 'a'?``.
    """
    known = sorted(names)
    quoted = [repr(name) for name in known] or ["none"]
    text = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
    return text + suggest(value, known)


def suggest(value: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: ``; did you mean 'a'?``; empty where no valid name is close."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(value.lower(), by_lower, n=1) if value else []
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def escape_unprintable(text: str, lines: bool = False) -> str:
    """Escape control characters, terminal sequences and changes of text direction.

    With ``lines`` line breaks and tabs are kept. Spaces of any width are visible.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or (lines and c in "\n\t") or category(c) == "Zs" else f"\\u{ord(c):04x}" for c in text
    )
