"""Diplomacy bot that concentrates its units: as many attack a centre as are likely to be needed.

It chooses centres as Greedy does, but takes the unopposed ones first, then those that several of its units together
can force. The others enter centres alone, support units that rivals could attack, or approach.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.bots.greedy import Plan
from arena.bots.mover import plain_moves, unit_preserving_action
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.position import UnitOrders


@register("tactician", games=["diplomacy"])
class Tactician:
    """Greedy with supported attacks and defence."""

    name = "tactician"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return unit_preserving_action(table, seat, rng)
        return _SupportedPlan(table, seat, rng).orders()


class _SupportedPlan(Plan):
    """Plan with supported attacks; each step sees the orders of the steps before."""

    def __init__(self, table: "DiplomacyGame", seat: int, rng: Random) -> None:
        super().__init__(table, seat, rng)
        from arena.games.diplomacy import board

        position = table.position
        self._adjacent = {unit.unit: frozenset(board.adjacent_provinces(unit.unit)) for unit in self._units}
        self._rivals = Counter(
            place
            for other, units in enumerate(position.units)
            if other != seat
            for unit in units
            for place in board.adjacent_provinces(unit)
        )
        self._own = {c for c in board.CENTERS if position.owner.get(c) == seat}
        self._seat = seat

    def orders(self) -> Action:
        """Returns the orders of all units."""
        self._rng.shuffle(self._units)
        for unit in self._units:
            self._hold(unit)
        self._attack()
        for step in (self._enter, self._defend, self._support, self._approach):
            for unit in self._units:
                if unit.unit not in self._orders_by_unit:
                    step(unit)
        return tuple(sorted(self._orders_by_unit.values()))

    def _free_units(self, center: str) -> "list[UnitOrders]":
        return [u for u in self._units if u.unit not in self._orders_by_unit and center in self._adjacent[u.unit]]

    def _needed_strength(self, center: str) -> int:
        """Strength that is likely to take the centre: above that of its holder, or of the rivals beside it."""
        rivals = self._rivals[center]
        if center in self._occupied:
            return 2 + min(rivals, 1) * (self._rng.random() < 0.5)
        return 1 + min(rivals, 1)

    def _attack(self) -> None:
        """Sends units against centres, those that need the least strength first."""
        goals = [center for center in sorted(self._target_centers) if self._occupied.get(center) != self._seat]
        self._rng.shuffle(goals)
        needed = {center: self._needed_strength(center) for center in goals if self._is_unclaimed(center)}
        for center in sorted(needed, key=needed.__getitem__):
            free = self._free_units(center)
            if len(free) >= needed[center]:
                # A unit on no centre of its own, with the fewest others to enter, goes; others support it.
                free.sort(key=lambda unit: (unit.unit[2:5] in self._own, self._choices(unit)))
                self._send(free[0], center, free[1:], needed[center] - 1)

    def _send(self, unit: "UnitOrders", center: str, others: "list[UnitOrders]", supports: int) -> None:
        order = self._rng.choice([o for o, dest in plain_moves(unit).items() if dest[:3] == center])
        helpers = [other for other in others if f"{other.unit} S {order}" in other]
        if len(helpers) < supports:
            return
        self._give_order(unit, order, center)
        for other in helpers[:supports]:
            self._give_order(other, f"{other.unit} S {order}", other.unit[2:])

    def _choices(self, unit: "UnitOrders") -> int:
        return sum(c in self._adjacent[unit.unit] for c in self._target_centers)

    def _defend(self, unit: "UnitOrders") -> None:
        """Lets a unit support another one that stays where several rivals could attack."""
        helps = [
            f"{unit.unit} S {other}"
            for other, order in self._orders_by_unit.items()
            if " - " not in order and other[2:5] in self._own | self._target_centers and self._rivals[other[2:5]] > 1
        ]
        legal = [order for order in helps if order in unit]
        if legal:
            self._give_order(unit, self._rng.choice(legal), unit.unit[2:])
