"""The places of a completion: one small trie per unit, strung together in the order of units.

Tries are shared by all decisions that give a unit the same choices; places are shared by all decisions that agree
from there to the end. Both memos are bounded; a place that was forgotten is made again as a different object.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from arena.games.base import Phrases, Pieces
from arena.games.diplomacy import board
from arena.games.diplomacy.orders import Choices
from arena.games.diplomacy.position import Position

CLOSE = "</orders>"


class Trie:
    """Ways to go on within one unit's order; at its end there are none."""

    __slots__ = ("branches",)

    def __init__(self, codes: Iterable[Pieces] = ()) -> None:
        self.branches: dict[str, Trie] = {}
        for code in codes:
            self._grow(code)

    def _grow(self, code: Pieces) -> None:
        trie = self
        for piece in code:
            branch = trie.branches.get(piece)
            if branch is None:
                branch = trie.branches[piece] = Trie()
            trie = branch


class Place:
    """A place in a trie, and the place that follows when the trie has come to its end."""

    __slots__ = ("__weakref__", "_options", "_rest", "_trie")

    def __init__(self, trie: Trie, rest: Phrases) -> None:
        self._trie = trie
        self._rest = rest
        self._options: dict[str, Phrases] | None = None

    def options(self) -> Mapping[str, Phrases]:
        """Next pieces and where each leads; one entry means forced, none means the completion is finished."""
        if self._options is None:
            rest = self._rest
            self._options = {
                piece: Place(branch, rest) if branch.branches else rest for piece, branch in self._trie.branches.items()
            }
        return self._options


class Junction:
    """A place with its options given."""

    __slots__ = ("__weakref__", "_options")

    def __init__(self, options: Mapping[str, Phrases]) -> None:
        self._options = options

    def options(self) -> Mapping[str, Phrases]:
        """Next pieces and where each leads; one entry means forced, none means the completion is finished."""
        return self._options


CLOSING = Junction({CLOSE: Junction({})})


@lru_cache(maxsize=1 << 16)
def code_of(order: str) -> Pieces:
    """The pieces that say an order: the unit's location, then a code of which none begins another."""
    if order == "WAIVE":
        return (order,)
    word = order.split()
    place, verb = word[1], word[2]
    if verb in "HD":
        return (place, verb)
    if verb == "B":
        return (place, word[0])
    if verb in "-R":
        return (place, "VIA" if word[-1] == "VIA" else verb, word[3])
    # Support and convoy name the other unit by its place alone; the board says of which kind it is.
    return (place, verb, word[4], word[6] if len(word) > 5 else "H")


@lru_cache(maxsize=8192)
def _unit_trie(choices: Choices) -> Trie:
    return Trie(map(code_of, choices.orders))


@lru_cache(maxsize=16384)
def _place(trie: Trie, rest: Place | Junction) -> Place:
    return Place(trie, rest)


def unit_walk(units: tuple[Choices, ...]) -> Phrases:
    """Completions that give each unit one order, in turn."""
    place: Place | Junction = CLOSING
    for unit in reversed(units):
        place = _place(_unit_trie(unit), place)
    return place


def adjustment_walk(position: Position, seat: int) -> Phrases:
    """Completions of an adjustment phase: places in ascending order, so that each adjustment is said in one way."""
    due = position.adjustment(seat)
    if due > 0:
        return _builds(position.sites(seat), due)
    return _disbands(by_place(position.units[seat]), -due)


def by_place(units: Iterable[str]) -> tuple[str, ...]:
    """Units sorted by location, whatever their kind."""
    return tuple(sorted(units, key=lambda unit: unit[2:]))


@lru_cache(maxsize=4096)
def _builds(sites: tuple[str, ...], due: int) -> Phrases:
    """Some builds in order, then waive the rest."""
    if not due:
        return CLOSING
    options: dict[str, Phrases] = {}
    for i, site in enumerate(sites):
        builds = Trie(map(code_of, board.builds_at(site)))
        options.update(Place(builds, _builds(sites[i + 1 :], due - 1)).options())
    options["WAIVE"] = _builds((), due - 1)
    return Junction(options)


@lru_cache(maxsize=4096)
def _disbands(units: tuple[str, ...], due: int) -> Phrases:
    """Exactly ``due`` units, in order; the last ones are forced where too few are left."""
    if not due:
        return CLOSING
    return Junction(
        {
            unit[2:]: Junction({"D": _disbands(units[i + 1 :], due - 1)})
            for i, unit in enumerate(units[: len(units) - due + 1])
        }
    )
