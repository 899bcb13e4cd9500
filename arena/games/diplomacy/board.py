"""Precomputed tables of the map: moves and supports of each unit, and the seas that each convoy needs.

A *unit* is the package's string, ``A PAR`` or ``F STP/SC``; a *location* may name a coast, a *province* does not.
Sets of units and of seas are bit masks, so that the legal orders of a unit depend on a few integers.
"""

from collections import defaultdict
from collections.abc import Container
from functools import cache, lru_cache
from typing import NamedTuple

from arena.games.diplomacy.engine import MAP, POWERS, ROUTES


class Convoy(NamedTuple):
    """All convoy routes of an army from one province to another, given the fleets at sea."""

    used_seas: int
    """Seas that lie on at least one route."""
    required_seas: int
    """Seas that lie on every route."""


def province(location: str) -> str:
    """The location without its coast."""
    return location[:3]


LOCATIONS = tuple(sorted(loc.upper() for loc in MAP.locs if MAP.area_type(loc) != "SHUT"))
PROVINCES = tuple(sorted({province(loc) for loc in LOCATIONS}))
CENTERS = tuple(sorted(MAP.scs))
CENTER_SET = frozenset(CENTERS)
HOMES: dict[str, tuple[str, ...]] = {power: tuple(sorted(MAP.homes[power])) for power in POWERS}
UNITS = tuple(f"{kind} {loc}" for kind in "AF" for loc in LOCATIONS if MAP.is_valid_unit(f"{kind} {loc}"))
UNIT_BIT = {unit: 1 << i for i, unit in enumerate(UNITS)}


def _reachable_locations(kind: str, start: str, how: str) -> list[str]:
    """The locations that a unit can move to (``-``) or support into (``S``)."""
    return [dest for dest in sorted(MAP.dest_with_coasts[start]) if MAP.abuts(kind, start, how, dest)]


MOVES: dict[str, tuple[str, ...]] = {unit: tuple(_reachable_locations(unit[0], unit[2:], "-")) for unit in UNITS}
"""Locations that each unit can move to without a convoy, sorted."""
_SUPPORT_TARGETS = {unit: _reachable_locations(unit[0], unit[2:], "S") for unit in UNITS}
CONVOY_SUPPORT_TARGETS = {
    unit: [loc for loc in targets if "/" not in loc] for unit, targets in _SUPPORT_TARGETS.items()
}
"""Provinces into which each unit can support a convoyed army."""


@cache
def hold_and_move_orders(unit: str) -> tuple[str, ...]:
    """The orders that depend on the map alone: to hold, and to move without a convoy."""
    return (f"{unit} H", *(f"{unit} - {dest}" for dest in MOVES[unit]))


@cache
def adjacent_provinces(unit: str) -> tuple[str, ...]:
    """The provinces that ``unit`` can move to without a convoy, sorted."""
    return tuple(sorted({province(dest) for dest in MOVES[unit]}))


@cache
def distances(unit: str) -> dict[str, int]:
    """The number of moves from ``unit`` to each province that it can ever reach without a convoy."""
    steps: dict[str, int] = {}
    edge, seen, step = {unit}, {unit}, 0
    while edge:
        for at in edge:
            steps.setdefault(province(at[2:]), step)
        edge = {f"{at[0]} {dest}" for at in edge for dest in MOVES[at]} - seen
        seen |= edge
        step += 1
    return steps


@cache
def _centers_by_distance(unit: str) -> tuple[tuple[int, str], ...]:
    return tuple(sorted((step, place) for place, step in distances(unit).items() if place in CENTER_SET))


def distance_to_nearest(unit: str, goals: Container[str], default: int | None = None) -> int:
    """The number of moves to the nearest goal; ``default`` or more than any distance if none is reachable."""
    for step, center in _centers_by_distance(unit):
        if center in goals:
            return step
    return len(PROVINCES) if default is None else default


@cache
def support_orders(unit: str) -> dict[int, tuple[str, ...]]:
    """The orders by which ``unit`` supports each other unit without a convoy, by the supported unit's bit."""
    table: dict[str, set[str]] = defaultdict(set)
    for dest in _SUPPORT_TARGETS[unit]:
        for other in {f"A {dest}", f"F {dest}"} & UNIT_BIT.keys():
            table[other].add(f"{unit} S {other}")
    for other in UNITS:
        if province(other[2:]) == province(unit[2:]):
            continue
        for dest in set(_SUPPORT_TARGETS[unit]).intersection(MOVES[other]):
            # A support may omit the coast that the fleet moves to.
            table[other] |= {f"{unit} S {other} - {dest}", f"{unit} S {other} - {province(dest)}"}
    return {UNIT_BIT[other]: tuple(sorted(orders)) for other, orders in sorted(table.items())}


@cache
def supported_unit_bits(unit: str) -> dict[str, int]:
    """The bit of the supported unit, for each order in ``support_orders``."""
    return {line: bit for bit, lines in support_orders(unit).items() for line in lines}


@cache
def supportable_mask(unit: str) -> int:
    """The mask of units whose presence adds support orders to ``unit``."""
    return sum(support_orders(unit))


_ROUTES_FROM: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
for _mask, (_start, _, _dests) in ROUTES:
    _ROUTES_FROM.setdefault(_start, []).append((_mask, tuple(sorted(_dests))))


@lru_cache(maxsize=16384)
def convoys_from(start: str, seas: int) -> dict[str, Convoy]:
    """The convoy routes of an army in a province, by destination, given the mask of seas with a fleet."""
    ways: dict[str, Convoy] = {}
    for mask, dests in _ROUTES_FROM.get(start, ()):
        if mask & seas == mask:
            for dest in dests:
                some, every = ways.get(dest, (0, mask))
                ways[dest] = Convoy(some | mask, every & mask)
    return ways


@cache
def build_orders(site: str) -> tuple[str, ...]:
    """The orders that build a unit in a province, one per kind and location."""
    units = [unit for unit in UNITS if province(unit[2:]) == site]
    return tuple(f"{unit} B" for unit in sorted(units, key=lambda unit: unit[2:]))
