"""States of a completion: one small trie per unit, chained in the order of units.

Tries are shared by all decisions that give a unit the same choices; states are shared by all decisions that agree
from there to the end. Both caches are bounded; an evicted state is rebuilt as a different object.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache

from arena.games.diplomacy import board
from arena.games.diplomacy.position import Position, UnitOrders
from arena.games.texts import OptionsState, Phrases, Pieces
from schemas.errors import GameError

CLOSE = "</orders>"
OrderEncoder = Callable[[str], Pieces]
"""Encodes an order as pieces, none of which begins another's."""


class Trie:
    """Continuations within one unit's order; empty at its end. Shared parts are never changed."""

    __slots__ = ("branches",)

    def __init__(self, branches: Mapping[str, "Trie"]) -> None:
        self.branches = branches


LEAF = Trie({})


def build_trie(codes: Iterable[Pieces]) -> Trie:
    """Build the trie of these codes, none of which may be a prefix of another."""
    by_first: dict[str, list[Pieces]] = {}
    for code in codes:
        if code:
            by_first.setdefault(code[0], []).append(code[1:])
    return Trie({piece: build_trie(rests) for piece, rests in by_first.items()}) if by_first else LEAF


class TrieState(Mapping[str, Phrases]):
    """A state in a trie that is its own mapping of options.

    ``advance`` makes the state after a piece, whose branch of the trie it is given: inside of that, or past its end.
    Each state visited has many successors and only one of them is visited, so they are made on access.
    """

    __slots__ = ("__weakref__", "_advance", "_made", "_trie")

    # Compared and hashed by identity, unlike other mappings: caches are keyed by the state object.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, trie: Trie, advance: Callable[[str, Trie], Phrases]) -> None:
        self._trie = trie
        self._advance = advance
        self._made: dict[str, Phrases] = {}

    def options(self) -> Mapping[str, Phrases]:
        """The state itself, which is the mapping."""
        return self

    def __getitem__(self, piece: str) -> Phrases:
        made = self._made.get(piece)
        if made is None:
            made = self._made[piece] = self._advance(piece, self._trie.branches[piece])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._trie.branches)

    def __len__(self) -> int:
        return len(self._trie.branches)


def _walk(trie: Trie, rest: Phrases) -> TrieState:
    """The state at the beginning of a trie, whose end ``rest`` follows."""

    def advance(piece: str, branch: Trie) -> Phrases:
        return TrieState(branch, advance) if branch.branches else rest

    return TrieState(trie, advance)


CLOSING_STATE = OptionsState({CLOSE: OptionsState({})})


@lru_cache(maxsize=1 << 16)
def encode_order(order: str) -> Pieces:
    """Encode an order as pieces: the unit's location, then a prefix-free code."""
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
    # Support and convoy name the other unit by its place alone; the board determines its kind.
    return (place, verb, word[4], word[6] if len(word) > 5 else "H")


def decode_order(choices: UnitOrders, code: Pieces) -> str:
    """Decode the unit's only legal order with this code."""
    for order in _orders_by_code(choices.unit).get(code, ()):
        if order in choices:
            return order
    return next(order for order in choices.retreats or choices.by_sea if encode_order(order) == code)


@cache
def _orders_by_code(unit: str) -> dict[Pieces, tuple[str, ...]]:
    """Map codes to orders; a support may name an army or a fleet in the same place."""
    table: dict[Pieces, tuple[str, ...]] = {}
    for order in (*board.hold_and_move_orders(unit), *board.supported_unit_bits(unit)):
        table[encode_order(order)] = (*table.get(encode_order(order), ()), order)
    return table


@lru_cache(maxsize=8192)
def unit_trie(choices: UnitOrders) -> Trie:
    """Build the trie of a unit's orders, by the codes of ``encode_order``."""
    if choices.retreats:
        return build_trie(map(encode_order, choices.retreats))
    by_sea = build_trie(encode_order(order)[1:] for order in choices.by_sea).branches
    verbs = {**_solo_verbs(choices.unit), **by_sea}
    supports = {place: trie for bit, place, trie in _support_tries(choices.unit) if bit & choices.neighbours}
    for place, trie in by_sea.get("S", LEAF).branches.items():
        supports[place] = Trie({**supports.get(place, LEAF).branches, **trie.branches})
    if supports:
        verbs["S"] = Trie(supports)
    return Trie({choices.unit[2:]: Trie(verbs)})


@cache
def _solo_verbs(unit: str) -> Mapping[str, Trie]:
    return build_trie(encode_order(order)[1:] for order in board.hold_and_move_orders(unit)).branches


@cache
def _support_tries(unit: str) -> tuple[tuple[int, str, Trie], ...]:
    """The bit and place of each unit that ``unit`` can support, with the trie after that place."""
    return tuple(
        (bit, encode_order(lines[0])[2], build_trie(encode_order(line)[3:] for line in lines))
        for bit, lines in board.support_orders(unit).items()
    )


_shared_walk = lru_cache(maxsize=16384)(_walk)


def chain_tries(tries: Iterable[Trie]) -> TrieState | OptionsState:
    """Chain the tries, followed by the end of a completion."""
    place: TrieState | OptionsState = CLOSING_STATE
    for trie in reversed([*tries]):
        place = _shared_walk(trie, place)
    return place


def signposted_trie(unit: UnitOrders, signs: Pieces, numbers: Mapping[Pieces, str]) -> Trie:
    """Build a trie of the unit's place, its signs, which are forced, and its orders of a movement phase.

    ``numbers`` are pieces that stand for an order instead of its code, by the code after the place.
    """
    ((place, orders),) = unit_trie(unit).branches.items()
    for code in numbers:
        orders = _remove_code(orders, code)
    orders = Trie({**orders.branches, **dict.fromkeys(numbers.values(), LEAF)})
    for piece in reversed(signs):
        orders = Trie({piece: orders})
    return Trie({place: orders})


def _remove_code(trie: Trie, code: Pieces) -> Trie:
    piece, *rest = code
    left = dict(trie.branches)
    branch = left.pop(piece, LEAF)
    if rest and (shorter := _remove_code(branch, tuple(rest))).branches:
        left[piece] = shorter
    return Trie(left)


def check_completion(place: Phrases, completion: Pieces) -> None:
    """Raise ``GameError`` unless a completion goes through the walk from ``place`` to its end."""
    for i, piece in enumerate(completion):
        options = place.options()
        if piece not in options:
            expected = sorted(options)
            raise GameError(f"diplomacy text: piece {i} of {completion} is {piece!r}; expected one of {expected}")
        place = options[piece]
    if place.options():
        raise GameError(f"diplomacy text: {completion} ends too early; expected {sorted(place.options())}")


def adjustment_completions(position: Position, seat: int, encode: OrderEncoder = encode_order) -> OptionsState:
    """The completions of an adjustment phase; ascending places make each adjustment's completion unique."""
    due = position.adjustment_due(seat)
    if due > 0:
        places = [board.build_orders(site) for site in position.free_build_sites(seat)]
    else:
        places = [(f"{unit} D",) for unit in sorted(position.units[seat], key=lambda unit: unit[2:])]
    return _adjustments(tuple(places), abs(due), due > 0, encode)


@lru_cache(maxsize=16384)
def _adjustments(places: tuple[tuple[str, ...], ...], due: int, may_waive: bool, encode: OrderEncoder) -> OptionsState:
    """Completions with exactly ``due`` orders at different places, the last ones of which may be waived."""
    if not due:
        return CLOSING_STATE
    options: dict[str, Phrases] = {}
    # The last orders are forced where too few places are left.
    for i, orders in enumerate(places if may_waive else places[: len(places) - due + 1]):
        rest = _adjustments(places[i + 1 :], due - 1, may_waive, encode)
        options.update(_walk(build_trie(map(encode, orders)), rest))
    if may_waive:
        rest = _adjustments((), due - 1, may_waive, encode)
        options.update(_walk(build_trie([encode("WAIVE")]), rest))
    return OptionsState(options)
