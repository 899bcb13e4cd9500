"""A simplified DumbBot: the kind of opponent behind the 80 % that a league-trained language model was published with.

The rules of the port in ``bglick13/diplomacy-v2``, which differ from DumbBot's in most points: a power's size is its
number of units, one set of weights serves all seasons, averages grow from round to round, only centres and occupied
provinces have values, coasts are ignored, supports are rated like moves to the place that they support into, and a unit
takes its best order without chance. Builds and removals are random; dislodged units disband. Much weaker than
``dumbbot``: compare published figures with the variant that they were measured against.
"""

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import TYPE_CHECKING, cast

import numpy as np

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.position import Position

SIZE_WEIGHT = 100
UNOWNED_SIZE = 5
"""Size of the owner that an unowned centre counts as having."""
ROUND_SHARES = (10.0, 0.3, 0.1, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
"""Share of the neighbours' average that each round adds to a value."""
UNIT_WEIGHT = 1000
"""Weight of an adjacent unit, friendly or hostile."""
HOLD_FACTOR, SECOND_SUPPORT_FACTOR = 1.1, 0.9
"""Factors on the value of the own place, and of a place that another unit has taken already."""


@cache
def _neighbours() -> tuple[np.ndarray, np.ndarray]:
    """Indices of each province's neighbours, shape (provinces, most neighbours), and their numbers, at least 1.

    The last index is nowhere: in the map's own list, a name with a coast or in lower case matches no province.
    """
    from arena.games.diplomacy import board
    from arena.games.diplomacy.engine import MAP

    index = {province: i for i, province in enumerate(board.PROVINCES)}
    near = [[index.get(name, len(index)) for name in MAP.abut_list(province)] for province in board.PROVINCES]
    most = max(map(len, near))
    rows = [row + [len(index)] * (most - len(row)) for row in near]
    return np.array(rows), np.array([max(len(row), 1) for row in near])


def _province_values(position: "Position", seat: int) -> dict[str, float]:
    from arena.games.diplomacy import board

    index = {province: i for i, province in enumerate(board.PROVINCES)}
    standing = np.zeros((len(position.units), len(index) + 1), np.int64)
    for units, row in zip(position.units, standing, strict=True):
        row[[index[unit[2:5]] for unit in units]] = 1
    neighbours, counts = _neighbours()
    near = standing[:, neighbours].sum(axis=2)
    values = np.zeros(len(index) + 1)
    has_value = np.asarray(standing.any(axis=0))
    for center in board.CENTERS:
        values[index[center]] = SIZE_WEIGHT * _size(position, seat, center, near[:, index[center]])
        has_value[index[center]] = True
    for share in ROUND_SHARES:
        values[:-1] += share * values[neighbours].sum(axis=1) / counts
        values *= has_value
    values[:-1] += UNIT_WEIGHT * (near[seat] - np.delete(near, seat, axis=0).max(axis=0, initial=0))
    return dict(zip(board.PROVINCES, (values * has_value)[:-1].tolist(), strict=True))


def _size(position: "Position", seat: int, center: str, near: np.ndarray) -> int:
    """Units of a centre's owner, or of the largest rival next to an own centre."""
    owner = position.owner.get(center)
    if owner is None:
        return UNOWNED_SIZE
    if owner != seat:
        return len(position.units[owner])
    sizes = (len(units) for rival, units in enumerate(position.units) if rival != seat and near[rival])
    return max(sizes, default=0)


@register("dumbbot_simple", games=["diplomacy"])
class DumbBotSimple:
    """Every unit takes the order with the best destination, in random order of units."""

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Orders to the best destinations; builds and disbands are drawn."""
        from arena.games.diplomacy import board

        table = cast("DiplomacyGame", game)
        position = table.position
        if position.kind == "A":
            due = position.adjustment_due(seat)
            if due < 0:
                return tuple(sorted(f"{unit} D" for unit in rng.sample(position.units[seat], -due)))
            sites = rng.sample(position.free_build_sites(seat), due)
            return tuple(sorted(rng.choice(board.build_orders(site)) for site in sites))
        choices = table.legal_orders(seat)
        if position.kind == "R":
            return tuple(f"{unit.unit} D" for unit in choices)
        values = _province_values(position, seat)
        occupied: set[str] = set()
        orders: dict[str, str] = {}
        for unit in rng.sample(choices, len(choices)):
            orders[unit.unit], target = _best_order(unit.orders, unit.unit[2:5], values, occupied)
            if target != unit.unit[2:5]:
                occupied.add(target)
        return tuple(orders[unit.unit] for unit in choices)


def _best_order(
    orders: tuple[str, ...], location: str, values: Mapping[str, float], occupied: set[str]
) -> tuple[str, str]:
    """The first of the orders with the highest score, and its destination."""
    best: tuple[float, str, str] | None = None
    for order, (target, is_support) in zip(orders, map(_target, orders), strict=True):
        if target not in occupied:
            # A move to Holland is taken for a hold too.
            score = HOLD_FACTOR * values.get(location, 0.0) if " H" in order else values.get(target, 0.0)
        elif is_support:
            score = SECOND_SUPPORT_FACTOR * values.get(target, 0.0)
        else:
            continue
        if best is None or score > best[0]:
            best = score, order, target
    if best is None:
        return orders[0], location
    return best[1], best[2]


@cache
def _target(order: str) -> tuple[str, bool]:
    """The province that an order moves or supports into, and whether it supports; the unit's own for other orders."""
    is_support = " S " in order
    if " C " in order or not (is_support or " - " in order):
        return order[2:5], False
    moved = order.rpartition(" - ")[2] if " - " in order else order.rpartition(" S ")[2][2:]
    return moved[:3], is_support
