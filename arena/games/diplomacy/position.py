"""Immutable positions, the public state of a phase in sorted order, and their legal orders.

The orders are exactly those of the package's own enumerator, many times faster: a table by the map, one mask of the
neighbours, and the convoys in reach, which most units have none of. The same few choices recur and are shared objects,
which other modules use as cache keys by identity.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, product

import msgspec

from arena.games.base import Outcome, ranks, sole_leader
from arena.games.diplomacy import Settings, board
from arena.games.diplomacy.engine import SEA_BIT
from arena.games.diplomacy.engine import SavedPosition as SavedPosition
from schemas.codec import DECODE_ERRORS
from schemas.errors import DecodeError

_PHASE = re.compile(r"[SF]\d{4}[MR]|W\d{4}A|COMPLETED").fullmatch


class Position:
    """One phase, seat by seat; seats are the playing powers in the order of ``POWERS``. Immutable."""

    def __init__(self, saved: SavedPosition) -> None:
        self.saved = saved
        self.phase = saved.phase
        self.kind = saved.phase[-1]
        """``M`` movement, ``R`` retreats, ``A`` adjustments; anything else: the package ended the game."""
        self.year = saved.year
        self.powers = tuple(sorted(saved.units))
        """The playing powers, in seat order."""
        self.units = tuple(tuple(saved.units[power]) for power in self.powers)
        self.centers = tuple(tuple(saved.centers[power]) for power in self.powers)
        self.retreats: tuple[Mapping[str, list[str]], ...] = tuple(saved.retreats[power] for power in self.powers)

    @cached_property
    def occupied(self) -> dict[str, int]:
        """The seat of the unit in each occupied province; dislodged units occupy none."""
        return {unit[2:5]: seat for seat, units in enumerate(self.units) for unit in units}

    @cached_property
    def owner(self) -> dict[str, int]:
        """The seat that owns each owned supply centre."""
        return {center: seat for seat, centers in enumerate(self.centers) for center in centers}

    @cached_property
    def unit_mask(self) -> int:
        """The mask of all units on the board, as in ``board.UNIT_BIT``."""
        return sum({board.UNIT_BIT[unit] for units in self.units for unit in units})

    @cached_property
    def sea_mask(self) -> int:
        """The mask of seas that hold a fleet, as in ``engine.SEA_BIT``."""
        bits = SEA_BIT
        return sum(bits.get(unit[2:], 0) for units in self.units for unit in units)

    @cached_property
    def convoyable(self) -> tuple[tuple[str, Mapping[str, board.Convoy]], ...]:
        """The province and destinations of every army that could be convoyed, sorted."""
        if not self.sea_mask:
            return ()
        armies = sorted(unit[2:] for units in self.units for unit in units if unit[0] == "A")
        ways = ((army, board.convoys_from(army, self.sea_mask)) for army in armies)
        return tuple((army, way) for army, way in ways if way)

    def adjustment_due(self, seat: int) -> int:
        """The units to build (positive, at most the number of free home centres) or to disband (negative)."""
        surplus = len(self.centers[seat]) - len(self.units[seat])
        return min(surplus, len(self.free_build_sites(seat))) if surplus > 0 else surplus

    def free_build_sites(self, seat: int) -> tuple[str, ...]:
        """The vacant home centres that the seat owns, sorted."""
        owned, occupied = self.centers[seat], self.occupied
        return tuple(home for home in board.HOMES[self.powers[seat]] if home in owned and home not in occupied)

    def adjustment_orders(self, seat: int) -> list[str]:
        """Orders to choose ``adjustment_due`` of: disbands, or builds on the free sites."""
        if self.adjustment_due(seat) < 0:
            return [f"{unit} D" for unit in self.units[seat]]
        return [order for site in self.free_build_sites(seat) for order in board.build_orders(site)]

    def is_legal_adjustment(self, seat: int, action: tuple[str, ...]) -> bool:
        """Whether the action is a sorted, complete and legal adjustment."""
        due = self.adjustment_due(seat)
        if due > 0:
            return action in legal_build_actions(self.free_build_sites(seat), due)
        units = {f"{unit} D" for unit in self.units[seat]}
        return len(action) == -due and list(action) == sorted(set(action)) and units.issuperset(action)

    def legal_orders(self, seat: int) -> "tuple[UnitOrders, ...]":
        """The legal orders of each unit on the board, of each dislodged one in retreats; sorted by unit."""
        if self.kind == "M":
            mask, units, has_convoys = self.unit_mask, self.units[seat], bool(self.convoyable)
            by_sea = [_convoy_orders(self, unit) if has_convoys else () for unit in units]
            near = [mask & board.supportable_mask(unit) for unit in units]
            return tuple(map(_shared_movement_orders, units, near, by_sea))
        occupied, retreats = self.occupied, self.retreats[seat]
        free = [tuple(dest for dest in places if dest[:3] not in occupied) for places in retreats.values()]
        return tuple(map(_shared_retreat_orders, retreats, free))

    def outcome(self, settings: Settings) -> Outcome:
        """Scores a finished game: centres, half a point per unit, and a bonus for a sole leader with enough centres."""
        centers = [len(owned) for owned in self.centers]
        units = [len(standing) for standing in self.units]
        scores = [owned + 0.5 * standing for owned, standing in zip(centers, units, strict=True)]
        winner = sole_leader(centers)
        if winner is not None and centers[winner] >= settings.winner_threshold_sc:
            scores[winner] += settings.win_bonus
        metrics = tuple(
            {"centers": float(owned), "units": float(standing), "survived": float(owned + standing > 0)}
            for owned, standing in zip(centers, units, strict=True)
        )
        reason = "year_cap" if self.kind in "MRA" else "solo"
        return Outcome(tuple(scores), ranks(scores), winner, metrics, reason, self.saved.turns)


def decode_position(saved: bytes, powers: Sequence[str]) -> Position:
    """Decode ``DiplomacyGame.save`` for a game of these powers; ``DecodeError`` for other bytes or powers."""
    try:
        decoded = msgspec.json.decode(saved, type=SavedPosition)
    except DECODE_ERRORS as error:
        raise DecodeError(f"diplomacy position: {error}") from None
    # The adjudicator would silently drop what it does not know.
    for table in (decoded.units, decoded.retreats, decoded.centers):
        if table.keys() != set(powers):
            raise DecodeError(f"diplomacy position: powers {sorted(table)}; expected {', '.join(powers)}")
    units = {unit for table in (decoded.units, decoded.retreats) for held in table.values() for unit in held}
    unknown = {
        "units": units - board.UNIT_BIT.keys(),
        "centers": {center for centers in decoded.centers.values() for center in centers}.difference(board.CENTERS),
        "phase": set() if _PHASE(decoded.phase) else {decoded.phase},
    }
    for what, names in unknown.items():
        if names:
            raise DecodeError(f"diplomacy position: {what} {sorted(names)}; expected those of the standard map")
    return Position(decoded)


class UnitOrders:
    """The legal orders of one unit. Equal choices are mostly the same object."""

    __slots__ = ("__weakref__", "_listed", "by_sea", "neighbours", "retreats", "unit")

    def __init__(
        self, unit: str, neighbours: int = 0, by_sea: tuple[str, ...] = (), retreats: tuple[str, ...] = ()
    ) -> None:
        self.unit = unit
        self.neighbours = neighbours
        """Mask of the units that it could support, in movement phases."""
        self.by_sea = by_sea
        """Its orders that need a convoy, in movement phases."""
        self.retreats = retreats
        """Its orders in retreat phases; empty in movement phases."""
        self._listed: tuple[str, ...] | None = None

    @property
    def orders(self) -> tuple[str, ...]:
        """All legal orders, sorted."""
        if self._listed is None:
            supports = board.support_orders(self.unit).items()
            near = (line for bit, lines in supports if bit & self.neighbours for line in lines)
            # An army next to its goal that could also be convoyed there is supported by the same order.
            self._listed = self.retreats or tuple(sorted({*board.hold_and_move_orders(self.unit), *near, *self.by_sea}))
        return self._listed

    def __contains__(self, order: str) -> bool:
        """Whether the order is legal; cheaper than listing all of them."""
        if self.retreats:
            return order in self.retreats
        return (
            order in board.hold_and_move_orders(self.unit)
            or bool(board.supported_unit_bits(self.unit).get(order, 0) & self.neighbours)
            or order in self.by_sea
        )


_shared_movement_orders = lru_cache(maxsize=16384)(UnitOrders)


def _convoy_orders(position: Position, unit: str) -> tuple[str, ...]:
    """The orders of ``unit`` that need a convoy: to be convoyed, to convoy, or to support a convoyed army."""
    orders: list[str] = []
    location = unit[2:]
    sea = SEA_BIT.get(location, 0)
    targets = board.CONVOY_SUPPORT_TARGETS[unit]
    for army, ways in position.convoyable:
        if army == location:
            orders.extend(f"{unit} - {dest} VIA" for dest in ways)
            continue
        if sea:
            orders.extend(f"{unit} C A {army} - {dest}" for dest, way in ways.items() if sea & way.used_seas)
        if army == location[:3]:
            continue
        # A fleet cannot support an army that it must itself carry. Few places are in reach, and many by sea.
        orders.extend(
            f"{unit} S A {army} - {dest}" for dest in targets if dest in ways and not sea & ways[dest].required_seas
        )
    return tuple(orders)


@lru_cache(maxsize=4096)
def _shared_retreat_orders(unit: str, free: tuple[str, ...]) -> UnitOrders:
    return UnitOrders(unit, retreats=tuple(sorted([f"{unit} D", *(f"{unit} R {dest}" for dest in free)])))


@lru_cache(maxsize=1024)
def legal_build_actions(sites: tuple[str, ...], count: int) -> tuple[tuple[str, ...], ...]:
    """List the ways to use ``count`` builds at vacant home centres, each a sorted action padded with waives."""
    chosen = (where for built in range(min(count, len(sites)) + 1) for where in combinations(sites, built))
    builds = (orders for where in chosen for orders in product(*map(board.build_orders, where)))
    return tuple(sorted(tuple(sorted([*orders, *["WAIVE"] * (count - len(orders))])) for orders in builds))
