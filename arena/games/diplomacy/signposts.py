"""Diplomacy's compact language with signposts: forced pieces before each unit's order that describe its surroundings.

A position lists places but not adjacencies, which a small model has to learn by trial and error. Signs state what a
person reads off the board: what a unit stands on, which centres it can enter and how many rivals can, the direction of
the nearest, and which friendly move it could support. Each sign's target has a number, which alone encodes the order,
so every action has one completion. Units nearer to a centre come first, and signs take account of the orders already
given.

Surroundings are signposts without a list of the board before movement orders. Signs tell nearly all that a small model
reads, so these prompts hold only the power, the season, the years left and the lead over the strongest rival; they are
a fourteenth as long, which a model spends on learning. The signs also count, in the same piece, the friendly units that
can still help there and the help given already, and include supports of units that stay where rivals could attack them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple
from weakref import WeakKeyDictionary

from arena.games.base import Action, Game
from arena.games.diplomacy import board, order_trie
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position, UnitOrders
from arena.games.diplomacy.text import CODE_LENGTH, OPEN, POWER_PIECES, SEASONS, YEARS_LEFT, DiplomacyText, require_turn
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
        """The state in which the next unit's order begins, after these orders of earlier units."""
        if len(earlier) == len(self.units):
            return order_trie.CLOSING_STATE
        if earlier not in self._states:
            unit, signs = self.units[len(earlier)], self._get_signs(earlier)
            codes = {order_trie.encode_order(order)[1:]: number for number, order in signs.orders.items()}
            trie = order_trie.signposted_trie(unit, signs.pieces, codes)
            self._states[earlier] = self._walk(earlier, trie, ())
        return self._states[earlier]

    def _walk(self, earlier: tuple[str, ...], trie: order_trie.Trie, code: Pieces) -> Phrases:
        """The state in the trie of the next unit, after these pieces of its code."""

        def advance(piece: str, branch: order_trie.Trie) -> Phrases:
            if branch.branches:
                # A unit's place and signs are not recorded: its code begins after them.
                return self._walk(earlier, branch, () if piece == ORDER_MARK else (*code, piece))
            return self.next_state((*earlier, self.read_order(earlier, (*code, piece))))

        return order_trie.TrieState(trie, advance)

    def write_order(self, earlier: tuple[str, ...], order: str) -> Pieces:
        """Spell the next unit's order in pieces."""
        signs = self._get_signs(earlier)
        place, *code = order_trie.encode_order(order)
        number = next((number for number, pointed in signs.orders.items() if pointed == order), None)
        return (place, *signs.pieces, *(code if number is None else (number,)))

    def read_order(self, earlier: tuple[str, ...], code: Pieces) -> str:
        """Read the next unit's order, given its number or the pieces after its place."""
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
        """Yield kind and destination of moves worth a sign, those with the fewest rivals first."""
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
        """Yield at most two adjacent provinces with the shortest path to a centre."""
        goals = self._goals.difference(moving)
        blocked = {*moving, *(place for place, seat in self._occupied.items() if seat == self._seat)}
        open_moves = (dest for dest in board.MOVES[unit] if board.province(dest) not in blocked)
        steps = {dest: board.distance_to_nearest(f"{unit[0]} {dest}", goals) for dest in open_moves}
        nearest = min(steps.values(), default=0)
        return islice((dest for dest, count in steps.items() if count == nearest), 2)

    def _support_signs(
        self, unit: UnitOrders, moving: Mapping[str, str], words: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, str, str]]:
        """Yield the friendly moves, ``moving`` by destination, that the unit can support and rivals could contest."""
        for center, order in moving.items():
            support = f"{unit.unit} S {order.removesuffix(' VIA')}"
            held, count = self._occupied.get(center) not in (None, self._seat), self._rival_count(center)
            if (held or count) and support in unit:
                yield f"{'held' if held else 'free'}-{count}", center, support

    def _rival_count(self, province: str) -> int:
        return min(self._rivals[province], MAX_RIVALS)


_KIND_RANK = {kind: rank for rank, kind in enumerate((*SIGN_KINDS, APPROACH))}


_TURNS: WeakKeyDictionary[Position, dict[tuple[type, int], SignpostedTurn]] = WeakKeyDictionary()
"""Cache by position, which is needed several times: for the completions, for parsing, and again for validation."""


class SignpostedText(DiplomacyText):
    """The ``TextFormat`` of Diplomacy with signposts; retreats and adjustments are as in the compact format."""

    turn_type = SignpostedTurn

    def vocabulary(self) -> Sequence[str]:
        """Pieces of the compact format and the signposts, sorted."""
        return sorted({*super().vocabulary(), *_SIGNS})

    def completions(self, game: Game, seat: int) -> Phrases:
        """The walk with signposts before each unit's order."""
        table = require_turn(game, seat)
        if table.position.kind != "M":
            return super().completions(game, seat)
        return self._get_turn(table, seat).next_state(())

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Write the orders behind their signposts; ``GameError`` if they are not legal."""
        table = require_turn(game, seat)
        if table.position.kind != "M" or not table.is_legal(seat, action):
            return super().write(game, seat, action)
        turn = self._get_turn(table, seat)
        by_unit = dict(zip((unit.unit for unit in table.legal_orders(seat)), action, strict=True))
        orders = tuple(by_unit[unit.unit] for unit in turn.units)
        written = [turn.write_order(orders[:index], order) for index, order in enumerate(orders)]
        return (*(piece for pieces in written for piece in pieces), order_trie.CLOSE)

    def split_orders(self, table: DiplomacyGame, seat: int, completion: Pieces) -> Iterable[tuple[str, int]]:
        """Yield the orders of a legal completion in turn, with the number of pieces of each, signs included."""
        if table.position.kind != "M":
            yield from super().split_orders(table, seat, completion)
            return
        turn = self._get_turn(table, seat)
        earlier: list[str] = []
        start = 0
        while start < len(completion) - 1:
            at = completion.index(ORDER_MARK, start) + 1
            stop = at + CODE_LENGTH.get(completion[at], 2) - 1
            earlier.append(turn.read_order(tuple(earlier), completion[at:stop]))
            yield earlier[-1], stop - start
            start = stop

    def _get_turn(self, table: DiplomacyGame, seat: int) -> SignpostedTurn:
        turns = _TURNS.setdefault(table.position, {})
        key = (type(self), seat)
        if key not in turns:
            turns[key] = self.turn_type(table, seat)
        return turns[key]


MAX_HELP = 2
"""Higher counts of friendly units are capped to this."""
MAX_NEXT = 3
"""Higher counts of centres beside a destination are capped to this."""
MAX_YEARS_LEFT = 3
"""Higher numbers are written as this, so that a game longer than those of training asks in known pieces."""
MAX_LEAD = 4
LEADS = {lead: f"<lead-{lead}>" for lead in range(-MAX_LEAD, MAX_LEAD + 1)}
"""Centres more than the strongest rival has, within limits."""
STAY = "stay"
"""Kind of a support for a friendly unit that stays."""

_SUPPORTS = (
    *(kind for kind in SIGN_KINDS if kind[0] in "fh"),
    *(f"{STAY}-{count}" for count in range(1, MAX_RIVALS + 1)),
)
_HELP = range(MAX_HELP + 1)
_HERE = {
    (kind, rivals, helpers): f"<{kind[1:-1]}-{rivals}-{helpers}>"
    for kind, rivals, helpers in product((GOAL, OWN, FIELD), range(MAX_RIVALS + 1), _HELP)
}
_SURROUNDINGS_SIGNS = (
    *(ORDER_MARK, *MOVE_NUMBERS, *SUPPORT_NUMBERS, *_HERE.values(), *LEADS.values()),
    *(
        f"{number[:-1]}-{kind}-{count}>"
        for number, kind, count in (
            *product(MOVE_NUMBERS, SIGN_KINDS, _HELP),
            *product(MOVE_NUMBERS, [APPROACH], range(MAX_NEXT + 1)),
            *product(SUPPORT_NUMBERS, _SUPPORTS, _HELP),
        )
    ),
)


class _SurroundingsTurn(SignpostedTurn):
    def __init__(self, table: DiplomacyGame, seat: int) -> None:
        super().__init__(table, seat)
        self._adjacent = [frozenset(board.adjacent_provinces(unit.unit)) for unit in self.units]

    def _place_signs(self, unit: UnitOrders, kind: str, location: str) -> Pieces:
        """One sign, with the number of helpers."""
        return (_HERE[kind, self._rival_count(location), self._later_helpers(unit, location)],)

    def _move_signs(self, unit: UnitOrders, moving: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Add the number of helpers to the kind; that of centres beyond, where the unit approaches one."""
        for kind, dest in super()._move_signs(unit, moving):
            if kind == APPROACH:
                near = board.adjacent_provinces(f"{unit.unit[0]} {dest}")
                count = min(sum(place in self._goals for place in near), MAX_NEXT)
            else:
                count = self._later_helpers(unit, board.province(dest))
            yield f"{kind}-{count}", dest

    def _later_helpers(self, unit: UnitOrders, province: str) -> int:
        after = self.units.index(unit) + 1
        return min(sum(province in near for near in self._adjacent[after:]), MAX_HELP)

    def _support_signs(
        self, unit: UnitOrders, moving: Mapping[str, str], words: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, str, str]]:
        """Add supports of units that stay, and the number of supports given to each already, least helped first."""
        signs = [
            (kind, _help_given(words, board.province(moving[center].split()[1]), center), center, order)
            for kind, center, order in super()._support_signs(unit, moving, words)
        ]
        for word in words:
            # Units that stay on centres where rivals could attack.
            place, support = board.province(word[1]), f"{unit.unit} S {word[0]} {word[1]}"
            rivals = self._rival_count(place)
            if word[2] != "-" and place in board.CENTER_SET and rivals >= 2 and support in unit:
                signs.append((f"{STAY}-{rivals}", _help_given(words, place, ""), place, support))
        signs.sort(key=lambda sign: (sign[0][0] == "s", sign[1]))
        return [(f"{kind}-{count}", dest, order) for kind, count, dest, order in signs]


def _help_given(words: Sequence[Sequence[str]], place: str, dest: str) -> int:
    """Count the supports of the unit in a place, moving to ``dest`` or staying where that is empty."""
    supports = sum(
        word[2] == "S" and word[4][:3] == place and (word[6][:3] if len(word) > 6 else "") == dest for word in words
    )
    return min(supports, MAX_HELP)


class SurroundingsText(SignpostedText):
    """The ``TextFormat`` of Diplomacy with each unit's surroundings only; other phases are as in the compact format."""

    turn_type = _SurroundingsTurn

    def vocabulary(self) -> Sequence[str]:
        """Pieces of the compact format and the signs of surroundings, sorted."""
        return sorted({*super(SignpostedText, self).vocabulary(), *_SURROUNDINGS_SIGNS})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """Power, season, years left and lead; no board, which the signposts of each unit describe."""
        table = require_turn(game, seat)
        position = table.position
        years_left = YEARS_LEFT[min(table.settings.max_year - position.year, MAX_YEARS_LEFT)]
        if position.kind != "M":
            power, season, _, *rest = super().prompt(game, seat)
            return (power, season, years_left, *rest)
        season = SEASONS[position.phase[0] + position.phase[-1]]
        counts = [len(owned) for owned in position.centers]
        lead = counts.pop(seat) - max(counts)
        lead_piece = LEADS[max(-MAX_LEAD, min(lead, MAX_LEAD))]
        return (POWER_PIECES[table.seats[seat]], season, years_left, lead_piece, OPEN)
