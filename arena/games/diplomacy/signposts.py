"""Diplomacy's compact language with signposts: forced pieces before each unit's order that describe its surroundings.

A position lists places but not adjacencies, which a small model has to learn by trial and error. Signs state what a
person reads off the board: what a unit stands on, which centres it can enter and how many rivals can, the direction of
the nearest, and which friendly move it could support. Each sign's target has a number, which alone encodes the order,
so every action has one completion. Units nearer to a centre come first, and signs take account of the orders already
given.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from arena.games.base import Action, Game
from arena.games.diplomacy import board, order_trie
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position, UnitOrders
from arena.games.diplomacy.text import CODE_LENGTH, DiplomacyText, require_turn
from arena.games.texts import Phrases, Pieces

ORDER_MARK = "<do>"
"""Ends the signs of a unit; its order follows."""
GOAL, OWN, FIELD = "<on-goal>", "<on-own>", "<on-field>"
"""Kind of place that a unit stands on: a centre its side does not own, one that it owns, neither."""
MAX_RIVALS = 3
"""Higher counts are capped to this."""
MAX_MOVE_SIGNS, MAX_SUPPORT_SIGNS = 4, 2
"""Maximum number of moves and of supports that a unit has signs for."""
SIGN_KINDS = tuple(f"{kind}-{count}" for kind in ("free", "held", "guard") for count in range(MAX_RIVALS + 1))
"""Destinations of moves: a centre to take, vacant or held by a rival, or a vacant centre of its own side that rivals
can reach; each with the number of rivals that can also move there.
"""
APPROACH = "way"
"""Kind of a move toward the nearest centre, for a unit with none to take next to it."""

RIVALS_HERE = tuple(f"<here-{count}>" for count in range(MAX_RIVALS + 1))
"""Number of rivals that can move to the unit's own place."""
MOVE_NUMBERS = tuple(f"<{number}>" for number in range(1, MAX_MOVE_SIGNS + 1))
SUPPORT_NUMBERS = tuple(f"<help-{number}>" for number in range(1, MAX_SUPPORT_SIGNS + 1))
_SIGNS = (
    *(ORDER_MARK, GOAL, OWN, FIELD, *RIVALS_HERE, *MOVE_NUMBERS, *SUPPORT_NUMBERS),
    *(f"{number[:-1]}-{kind}>" for number in MOVE_NUMBERS for kind in (*SIGN_KINDS, APPROACH)),
    *(f"{number[:-1]}-{kind}>" for number in SUPPORT_NUMBERS for kind in SIGN_KINDS if kind[0] in "fh"),
)


class SignpostedText(DiplomacyText):
    """The ``TextFormat`` of Diplomacy with signposts; retreats and adjustments are those of the compact format."""

    def vocabulary(self) -> Sequence[str]:
        """See ``TextFormat.vocabulary``."""
        return sorted({*super().vocabulary(), *_SIGNS})

    def completions(self, game: Game, seat: int) -> Phrases:
        """See ``TextFormat.completions``."""
        table = require_turn(game, seat)
        if table.position.kind != "M":
            return super().completions(game, seat)
        return self._get_turn(table, seat).next_state(())

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """See ``TextFormat.write``."""
        table = require_turn(game, seat)
        if table.position.kind != "M" or not table.is_legal(seat, action):
            return super().write(game, seat, action)
        turn = self._get_turn(table, seat)
        by_unit = dict(zip((unit.unit for unit in table.legal_orders(seat)), action, strict=True))
        orders = tuple(by_unit[unit.unit] for unit in turn.units)
        written = [turn.write_order(orders[:index], order) for index, order in enumerate(orders)]
        return (*(piece for pieces in written for piece in pieces), order_trie.CLOSE)

    def split_orders(self, table: DiplomacyGame, seat: int, completion: Pieces) -> Iterable[tuple[str, int]]:
        """Yields the orders of a legal completion in turn, with the number of pieces of each, signs included."""
        if table.position.kind != "M":
            yield from super().split_orders(table, seat, completion)
            return
        turn, start, earlier = self._get_turn(table, seat), 0, list[str]()
        while start < len(completion) - 1:
            at = completion.index(ORDER_MARK, start) + 1
            stop = at + CODE_LENGTH.get(completion[at], 2) - 1
            earlier.append(turn.read_order(tuple(earlier), completion[at:stop]))
            yield earlier[-1], stop - start
            start = stop

    def make_turn(self, table: DiplomacyGame, seat: int) -> "SignpostedTurn":
        """Makes the signs and orders of a seat in this movement phase."""
        return SignpostedTurn(table, seat)

    def _get_turn(self, table: DiplomacyGame, seat: int) -> "SignpostedTurn":
        turns = _TURNS.setdefault(table.position, {})
        key = (type(self), seat)
        if key not in turns:
            turns[key] = self.make_turn(table, seat)
        return turns[key]


_TURNS: WeakKeyDictionary[Position, dict[tuple[type, int], "SignpostedTurn"]] = WeakKeyDictionary()
"""Cache by position, which is needed several times: for the completions, for parsing, and again for validation."""


class Signs(NamedTuple):
    """Signs of one unit, and the orders that their numbers encode."""

    pieces: Pieces
    orders: Mapping[str, str]
    """Orders by number."""


class SignpostedTurn:
    """The orders of one seat in one movement phase."""

    def __init__(self, table: DiplomacyGame, seat: int) -> None:
        position = table.position
        self._seat = seat
        self._owner, self._occupied = position.owner, position.occupied
        self._goals = frozenset(center for center in board.CENTERS if self._owner.get(center) != seat)
        others = (units for other, units in enumerate(position.units) if other != seat)
        self._rivals = Counter(place for units in others for unit in units for place in board.adjacent_provinces(unit))
        self._signs_cache: dict[tuple[str, ...], Signs] = {}
        self._states: dict[tuple[str, ...], Phrases] = {}
        self.units = sorted(
            table.legal_orders(seat), key=lambda unit: (board.distance_to_nearest(unit.unit, self._goals), unit.unit)
        )

    def next_state(self, earlier: tuple[str, ...]) -> Phrases:
        """Returns the state in which the next unit's order begins, after these orders of earlier units."""
        if len(earlier) == len(self.units):
            return order_trie.CLOSING_STATE
        if earlier not in self._states:
            unit, signs = self.units[len(earlier)], self._get_signs(earlier)
            codes = {order_trie.encode_order(order)[1:]: number for number, order in signs.orders.items()}
            trie = order_trie.signposted_trie(unit, signs.pieces, codes)
            self._states[earlier] = _SignpostedState(self, earlier, trie, ())
        return self._states[earlier]

    def write_order(self, earlier: tuple[str, ...], order: str) -> Pieces:
        """Returns the pieces of the next unit's order."""
        signs = self._get_signs(earlier)
        place, *code = order_trie.encode_order(order)
        number = next((number for number, pointed in signs.orders.items() if pointed == order), None)
        return (place, *signs.pieces, *(code if number is None else (number,)))

    def read_order(self, earlier: tuple[str, ...], code: Pieces) -> str:
        """Returns the next unit's order, given its number or the pieces after its place."""
        unit = self.units[len(earlier)]
        return self._get_signs(earlier).orders.get(code[0]) or order_trie.decode_order(unit, (unit.unit[2:], *code))

    def _get_signs(self, earlier: tuple[str, ...]) -> Signs:
        if earlier in self._signs_cache:
            return self._signs_cache[earlier]
        unit, words = self.units[len(earlier)], [order.split() for order in earlier]
        moving = {board.province(word[3]): order for word, order in zip(words, earlier, strict=True) if word[2] == "-"}
        location = board.province(unit.unit[2:])
        kind = FIELD if location not in board.CENTER_SET else OWN if self._owner.get(location) == self._seat else GOAL
        forced, orders = [*self._place_signs(unit, kind, location)], {}
        for number, (sign, dest) in zip(MOVE_NUMBERS, self._move_signs(unit, moving), strict=False):
            forced += [f"{number[:-1]}-{sign}>", dest]
            orders[number] = f"{unit.unit} - {dest}"
        for number, (sign, dest, order) in zip(SUPPORT_NUMBERS, self._support_signs(unit, moving, words), strict=False):
            forced += [f"{number[:-1]}-{sign}>", dest]
            orders[number] = order
        signs = self._signs_cache[earlier] = Signs((*forced, ORDER_MARK), orders)
        return signs

    def _place_signs(self, unit: UnitOrders, kind: str, location: str) -> Pieces:
        """Signs of the province that the unit stands in, given its kind."""
        return (kind, RIVALS_HERE[self._rival_count(location)])

    def _move_signs(self, unit: UnitOrders, moving: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        """Yields kind and destination of moves worth a sign, those with the fewest rivals first."""
        signs = []
        for dest in board.MOVES[unit.unit]:
            center = board.province(dest)
            if center not in board.CENTER_SET or center in moving:
                continue
            holder, count = self._occupied.get(center), self._rival_count(center)
            # A friendly unit on a goal stays there until it is owned.
            if self._owner.get(center) != self._seat and holder != self._seat:
                signs.append((f"{'free' if holder is None else 'held'}-{count}", dest))
            elif self._owner.get(center) == self._seat and holder is None and count:
                signs.append((f"guard-{count}", dest))
        if not any(kind[0] in "fh" for kind, _ in signs):
            guarded = {dest for _, dest in signs}
            signs += [(APPROACH, dest) for dest in self._approach_moves(unit.unit, moving) if dest not in guarded]
        return sorted(signs, key=lambda sign: _KIND_RANK[sign[0]])

    def _approach_moves(self, unit: str, moving: Mapping[str, str]) -> Iterable[str]:
        """Yields at most two adjacent provinces with the shortest path to a centre."""
        goals = self._goals.difference(moving)
        blocked = {*moving, *(place for place, seat in self._occupied.items() if seat == self._seat)}
        open_moves = (dest for dest in board.MOVES[unit] if board.province(dest) not in blocked)
        steps = {dest: board.distance_to_nearest(f"{unit[0]} {dest}", goals) for dest in open_moves}
        nearest = min(steps.values(), default=0)
        return islice((dest for dest, count in steps.items() if count == nearest), 2)

    def _support_signs(
        self, unit: UnitOrders, moving: Mapping[str, str], words: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, str, str]]:
        """Yields the friendly moves, ``moving`` by destination, that the unit can support and rivals could contest."""
        for center, order in moving.items():
            support = f"{unit.unit} S {order.removesuffix(' VIA')}"
            held, count = self._occupied.get(center) not in (None, self._seat), self._rival_count(center)
            if (held or count) and support in unit:
                yield f"{'held' if held else 'free'}-{count}", center, support

    def _rival_count(self, province: str) -> int:
        return min(self._rivals[province], MAX_RIVALS)


_KIND_RANK = {kind: rank for rank, kind in enumerate((*SIGN_KINDS, APPROACH))}


class _SignpostedState(order_trie.LazyTrieState):
    """A state in the trie of one unit; what follows its end depends on the earlier orders."""

    __slots__ = ("_code", "_said", "_turn")

    def __init__(self, turn: SignpostedTurn, earlier: tuple[str, ...], trie: order_trie.Trie, code: Pieces) -> None:
        super().__init__(trie)
        self._turn, self._said, self._code = turn, earlier, code

    def _make_next(self, piece: str, branch: order_trie.Trie) -> Phrases:
        if branch.branches:
            # A unit's place and signs are not recorded: its code begins after them.
            code = () if piece == ORDER_MARK else (*self._code, piece)
            return _SignpostedState(self._turn, self._said, branch, code)
        return self._turn.next_state((*self._said, self._turn.read_order(self._said, (*self._code, piece))))
