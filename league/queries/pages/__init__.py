"""Queries behind the browser's and the terminal's pages: one module a subject, one function a path.

A module registers its functions with ``@route``; ``routes`` imports all modules of this package and lists them, so that
a new module needs no other line.

- ``overview``  the league, its newest events, workers, problems, and the tables for SQL
- ``agents``    agents: search, results, opponents, matches, gradient steps
- ``matches``   the list of matches; one match with its record, maps and decisions
- ``ratings``   rating histories, the leaderboard, payoffs and the lineage
- ``training``  gradient steps, the ledger, matchmaking beside its target; ratings and benchmarks over training
"""

import asyncio
import importlib
import pkgutil
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from league.queries.live_league import LiveLeague
from schemas.errors import UsageError, format_choices

MAX_ROWS = 500
"""Rows of one response; longer lists are paged."""
MAX_INTEGER = 2**62
"""Bound in queries without a limit: above every sequence and gradient step."""
_MAX_TEXT_LENGTH = 1_000


class RequestParams:
    """The parameters of a request; its methods raise ``UsageError`` for a value that is not as they expect.

    ``path`` has the parts of the path that the route names.
    """

    def __init__(self, query: Mapping[str, str], path: Mapping[str, str]) -> None:
        self._query = query
        self._path = path

    def path_part(self, name: str) -> str:
        """A part of the path."""
        return self._path[name]

    def text(self, name: str) -> str | None:
        """A text of at most ``_MAX_TEXT_LENGTH`` characters; None where it is missing or empty."""
        value = self._query.get(name) or None
        if value is not None and len(value) > _MAX_TEXT_LENGTH:
            raise UsageError(f"{name}: {len(value):,} characters; expected at most {_MAX_TEXT_LENGTH:,}")
        return value

    def choice(self, name: str, options: Collection[str]) -> str | None:
        """One of several words; None where it is missing."""
        value = self.text(name)
        if value is not None and value not in options:
            raise UsageError(f"{name} {value!r}: expected {format_choices(options)}")
        return value

    def integer(self, name: str, least: int = 0, most: int = 2**53) -> int | None:
        """A whole number in a range; None where it is missing."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= 16 and least <= int(value) <= most):
            raise UsageError(f"{name} {value!r}: expected a whole number from {least} to {most}")
        return int(value)

    def names(self, name: str, most: int = 50) -> list[str]:
        """Names separated by commas, at most ``most``."""
        parts = [part for part in (self.text(name) or "").split(",") if part]
        if len(parts) > most:
            raise UsageError(f"{name}: {len(parts)} names; expected at most {most}")
        return parts

    def limit(self, usual: int = 50) -> int:
        """Rows to return at most."""
        return self.integer("limit", least=1, most=MAX_ROWS) or usual

    def at(self) -> int | None:
        """The sequence up to which events count, from 1; None for now."""
        return self.integer("at", least=1)

    def as_of(self, league: LiveLeague) -> int:
        """The sequence up to which events count: ``at``, or the newest in the tables."""
        return min(self.at() or league.position, league.position)

    def span(self) -> tuple[int, int]:
        """The ends ``from`` and ``to`` of a range of steps, events or times, both inclusive; by default everything."""
        last = self.integer("to")
        return self.integer("from") or 0, MAX_INTEGER if last is None else last


QueryHandler = Callable[[LiveLeague, RequestParams], Awaitable[Any]]


class EncodedResponse(NamedTuple):
    """A response that is not JSON."""

    body: bytes
    content_type: str
    max_age_s: int
    """How long clients may cache it."""


class Route(NamedTuple):
    """The handler of ``GET path``; it returns a value for JSON, or an ``EncodedResponse``."""

    path: str
    """Path with ``{parts}``."""
    handler: QueryHandler
    ttl_s: float | None
    """Seconds for which a response may be reused; None until the history moves on."""


_ROUTES: list[Route] = []


def route(path: str, stays_s: float | None = None) -> Callable[[QueryHandler], QueryHandler]:
    """Register a function as the handler of a path below ``/api``, which may have ``{parts}``.

    ``stays_s``, for responses that depend on more than the history, is for how long they may be reused.
    """

    def add(work: QueryHandler) -> QueryHandler:
        _ROUTES.append(Route(f"/api{path}", work, stays_s))
        return work

    return add


def routes() -> list[Route]:
    """Every registered route, by path."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(_ROUTES)


_MAX_RESULTS = 16


_Results = OrderedDict[Hashable, tuple[float, Any]]
_QUEUES: "WeakKeyDictionary[LiveLeague, tuple[asyncio.Lock, _Results]]" = WeakKeyDictionary()
"""Locks for the slow queries of each league, and their newest results with their start times."""


async def run_single_flight(league: LiveLeague, question: Hashable, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run slow queries of a league one at a time, and share results between equal ones.

    A live league moves on while callers wait, so equal queries keep coming in. A caller that waited gets a result whose
    computation began after its call: as new as if it had computed it itself. Equal ``question``s share the result of
    ``work``.
    """
    called_s = time.monotonic()
    lock, results = _QUEUES.setdefault(league, (asyncio.Lock(), OrderedDict()))
    async with lock:
        begun_s, result = results.get(question, (-1.0, None))
        if begun_s < called_s:
            begun_s = time.monotonic()
            result = await work()
            results[question] = begun_s, result
            results.move_to_end(question)
            while len(results) > _MAX_RESULTS:
                results.popitem(last=False)
    return result
