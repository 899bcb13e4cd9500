"""Legal orders, exactly those of the package's own enumerator, many times faster.

What a unit may do depends on the map, on which of its neighbours are occupied and on the convoys in reach. The
first is a table, the second one mask, the third empty for most units: so the same few choices come up again and
again, and are shared objects. Others remember things about them by identity.
"""

from functools import lru_cache
from itertools import combinations, product
from random import Random

from arena.games.diplomacy import board
from arena.games.diplomacy.position import Position


class Choices:
    """The legal orders of one unit, sorted. Equal choices are mostly the same object."""

    __slots__ = ("orders", "unit")

    def __init__(self, unit: str, orders: tuple[str, ...]) -> None:
        self.unit = unit
        self.orders = orders


@lru_cache(maxsize=16384)
def _movement(unit: str, neighbours: int, by_sea: tuple[str, ...]) -> Choices:
    orders = {*board.holds_and_moves(unit), *by_sea}
    for other, lines in board.supports(unit).items():
        if board.UNIT_BIT[other] & neighbours:
            orders.update(lines)
    return Choices(unit, tuple(sorted(orders)))


def _by_sea(position: Position, unit: str) -> tuple[str, ...]:
    """Orders of ``unit`` that need a convoy: to go by it, to be part of it, or to support what it brings."""
    orders: list[str] = []
    here = unit[2:]
    sea = board.SEA_BIT.get(here, 0)
    targets = board.convoy_supports(unit)
    for army, ways in position.convoyable:
        if army == here:
            orders.extend(f"{unit} - {dest} VIA" for dest in ways)
            continue
        for dest, way in ways.items():
            if sea & way.some:
                orders.append(f"{unit} C A {army} - {dest}")
            # A fleet cannot support an army that it must itself carry.
            if dest in targets and not sea & way.every and army != here[:3]:
                orders.append(f"{unit} S A {army} - {dest}")
    return tuple(orders)


@lru_cache(maxsize=4096)
def _retreat(unit: str, free: tuple[str, ...]) -> Choices:
    return Choices(unit, tuple(sorted([f"{unit} D", *(f"{unit} R {dest}" for dest in free)])))


def unit_choices(position: Position, seat: int) -> tuple[Choices, ...]:
    """Legal orders of each unit that the seat must order, in the sorted order of units.

    In movement phases these are the units on the board, in retreat phases the dislodged ones.
    """
    if position.kind == "M":
        mask = position.unit_mask
        has_convoys = bool(position.convoyable)
        return tuple(
            _movement(unit, mask & board.supportable(unit), _by_sea(position, unit) if has_convoys else ())
            for unit in position.units[seat]
        )
    occupied = position.occupied
    return tuple(
        _retreat(unit, tuple(dest for dest in places if dest[:3] not in occupied))
        for unit, places in position.retreats[seat].items()
    )


@lru_cache(maxsize=1024)
def build_actions(sites: tuple[str, ...], count: int) -> tuple[tuple[str, ...], ...]:
    """All ways to use ``count`` builds at these free home centres, each a sorted action; what is not used is waived."""
    builds = (
        units
        for built in range(min(count, len(sites)) + 1)
        for where in combinations(sites, built)
        for units in product(*map(board.builds_at, where))
    )
    return tuple(sorted(tuple(sorted([*units, *["WAIVE"] * (count - len(units))])) for units in builds))


def random_adjustment(position: Position, seat: int, rng: Random) -> tuple[str, ...]:
    """One of the legal adjustments, each as likely as any other."""
    due = position.adjustment(seat)
    if due > 0:
        return rng.choice(build_actions(position.sites(seat), due))
    return tuple(sorted(f"{unit} D" for unit in rng.sample(position.units[seat], -due)))


def is_legal_adjustment(position: Position, seat: int, action: tuple[str, ...]) -> bool:
    """Whether the action is a sorted, complete and legal adjustment."""
    due = position.adjustment(seat)
    if due > 0:
        return action in build_actions(position.sites(seat), due)
    units = {f"{unit} D" for unit in position.units[seat]}
    return len(action) == -due and list(action) == sorted(set(action)) and units.issuperset(action)
