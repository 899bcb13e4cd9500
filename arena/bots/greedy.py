"""Diplomacy bot that takes every centre in reach; six random bots rarely stop it.

Each unit holds a centre that is about to become its own, else enters an adjacent one, else supports a friendly unit
that does, else moves toward the nearest.
"""

from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.bots.mover import plain_moves, unit_preserving_action
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.position import UnitOrders


@register("greedy", games=["diplomacy"])
class Greedy:
    """Greedy one-step look-ahead that never sends two units to the same place."""

    name = "greedy"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return unit_preserving_action(table, seat, rng)
        return Plan(table, seat, rng).orders()


class Plan:
    """Plan of one seat's turn; ``taken`` holds the provinces that its units will occupy."""

    def __init__(self, table: "DiplomacyGame", seat: int, rng: Random) -> None:
        from arena.games.diplomacy import board

        self._distance_to_nearest = board.distance_to_nearest
        self._units = list(table.legal_orders(seat))
        self._rng = rng
        self._occupied = table.position.occupied
        self._target_centers = frozenset(c for c in board.CENTERS if table.position.owner.get(c) != seat)
        self._claimed_provinces: set[str] = set()
        self._orders_by_unit: dict[str, str] = {}

    def orders(self) -> Action:
        """Returns the orders of all units, sorted."""
        rng = self._rng
        rng.shuffle(self._units)
        for step in (self._hold, self._enter, self._support, self._approach):
            for unit in self._units:
                if unit.unit not in self._orders_by_unit:
                    step(unit)
        return tuple(sorted(self._orders_by_unit.values()))

    def _give_order(self, unit: "UnitOrders", order: str, place: str) -> None:
        self._orders_by_unit[unit.unit] = order
        self._claimed_provinces.add(place[:3])

    def _hold(self, unit: "UnitOrders") -> None:
        if unit.unit[2:5] in self._target_centers:
            self._give_order(unit, f"{unit.unit} H", unit.unit[2:])

    def _enter(self, unit: "UnitOrders") -> None:
        moves = {order: dest for order, dest in plain_moves(unit).items() if self._is_unclaimed(dest)}
        centers = [order for order, dest in moves.items() if dest[:3] in self._target_centers]
        empty = [order for order in centers if moves[order][:3] not in self._occupied]
        if centers:
            order = self._rng.choice(empty or centers)
            self._give_order(unit, order, moves[order])

    def _support(self, unit: "UnitOrders") -> None:
        helps = [f"{unit.unit} S {order}" for order in self._orders_by_unit.values() if " - " in order]
        legal = [order for order in helps if order in unit]
        if legal:
            self._give_order(unit, self._rng.choice(legal), unit.unit[2:])

    def _approach(self, unit: "UnitOrders") -> None:
        moves = {order: dest for order, dest in plain_moves(unit).items() if self._is_unclaimed(dest)}
        if not moves:
            self._give_order(unit, f"{unit.unit} H", unit.unit[2:])
            return
        far = {order: self._distance_to_target(f"{unit.unit[0]} {dest}") for order, dest in moves.items()}
        order = self._rng.choice([order for order, steps in far.items() if steps == min(far.values())])
        self._give_order(unit, order, moves[order])

    def _is_unclaimed(self, dest: str) -> bool:
        return dest[:3] not in self._claimed_provinces

    def _distance_to_target(self, unit: str) -> int:
        return self._distance_to_nearest(unit, self._target_centers, 99)
