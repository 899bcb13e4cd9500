"""Diplomacy bots that look one step ahead at most: random movers, and attackers of every centre in reach."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.position import UnitOrders


@register("mover", games=["diplomacy"])
class Mover:
    """Uniform over plain moves; retreats rather than disbands, builds rather than waives.

    Against six random bots to 1905 it has strictly the most centres in about 37 of 100 games, a random bot in about 9:
    a useful bar for a policy that has learned a little.
    """

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Draw a move for every unit."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return unit_preserving_action(table, seat, rng)
        return tuple(rng.choice(list(plain_moves(unit))) for unit in table.legal_orders(seat))


def plain_moves(unit: "UnitOrders") -> Mapping[str, str]:
    """The destination of each order that moves the unit without a convoy, in the sorted order of orders."""
    return {} if unit.retreats else _movement_phase_moves(unit.unit)


@cache
def _movement_phase_moves(unit: str) -> Mapping[str, str]:
    """The movement-phase case of ``plain_moves``, cached: it follows from the map, and bots ask for little else."""
    from arena.games.diplomacy import board

    start = len(unit) + 1
    moves = sorted(order for order in board.hold_and_move_orders(unit) if order.startswith("- ", start))
    return {order: order[start + 2 :] for order in moves}


def unit_preserving_action(table: "DiplomacyGame", seat: int, rng: Random) -> Action:
    """Draw retreats and adjustments that keep as many units as possible, otherwise uniformly."""
    if table.position.kind == "R":
        units = table.legal_orders(seat)
        return tuple(rng.choice([order for order in unit.orders if " R " in order] or unit.orders) for unit in units)
    action = table.random_action(seat, rng)
    while "WAIVE" in action:
        action = table.random_action(seat, rng)
    return action


# A unit that always moves wins as often as ``mover``, which is no floor.
MOVE_SHARE = 0.5


@register("chaos_bot", games=["diplomacy"])
class ChaosBot:
    """Attacks at random, without a plan and without support.

    With probability one half a unit attacks an adjacent unit, or makes any move if there is none; otherwise it gives
    any legal order. Unsupported attacks mostly bounce, so this stays a floor: against six random bots to 1905 it has
    strictly the most centres in about 25 of 100 games. Not to be confused with the bot of the same name that prefers
    orders containing an arrow, which are mostly supports.
    """

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Draw an attack, a move or any order for every unit, each by itself."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return table.random_action(seat, rng)
        occupied = table.position.occupied
        orders = []
        for unit in table.legal_orders(seat):
            moves = plain_moves(unit)
            attacks = [order for order, dest in moves.items() if occupied.get(dest[:3], seat) != seat]
            prefers = rng.random() < MOVE_SHARE
            orders.append(rng.choice((attacks or list(moves)) if prefers else unit.orders))
        return tuple(orders)


class Plan:
    """Plan of one seat's turn: orders, and the provinces that its units will occupy."""

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
        """The orders of all units, sorted; each step sees the orders of the steps before."""
        self._rng.shuffle(self._units)
        for unit in self._units:
            if unit.unit[2:5] in self._target_centers:
                self._give_order(unit, f"{unit.unit} H", unit.unit[2:])
        self._attack()
        for step in (self._enter, self._defend, self._support, self._approach):
            for unit in self._units:
                if unit.unit not in self._orders_by_unit:
                    step(unit)
        return tuple(sorted(self._orders_by_unit.values()))

    def _attack(self) -> None:
        """Orders several units together; none here."""

    def _defend(self, unit: "UnitOrders") -> None:
        """Let the unit guard another one; never here."""

    def _give_order(self, unit: "UnitOrders", order: str, place: str) -> None:
        self._orders_by_unit[unit.unit] = order
        self._claimed_provinces.add(place[:3])

    def _enter(self, unit: "UnitOrders") -> None:
        moves = {order: dest for order, dest in plain_moves(unit).items() if self._is_unclaimed(dest)}
        centers = [order for order, dest in moves.items() if dest[:3] in self._target_centers]
        empty = [order for order in centers if moves[order][:3] not in self._occupied]
        if centers:
            order = self._rng.choice(empty or centers)
            self._give_order(unit, order, moves[order])

    def _support(self, unit: "UnitOrders") -> None:
        moves = [order.removesuffix(" VIA") for order in self._orders_by_unit.values() if " - " in order]
        self._support_one(unit, [f"{unit.unit} S {order}" for order in moves])

    def _support_one(self, unit: "UnitOrders", orders: Sequence[str]) -> None:
        if legal := [order for order in orders if order in unit]:
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


@register("greedy", games=["diplomacy"])
class Greedy:
    """One-step look-ahead that never sends two units to the same place; six random bots rarely stop it.

    Each unit holds a centre that is about to become its own, else enters an adjacent one, else supports a friendly unit
    that does, else moves toward the nearest.
    """

    plan = Plan

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Orders of the plan; retreats and builds keep as many units as possible."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return unit_preserving_action(table, seat, rng)
        return self.plan(table, seat, rng).orders()


class _SupportedPlan(Plan):
    def __init__(self, table: "DiplomacyGame", seat: int, rng: Random) -> None:
        super().__init__(table, seat, rng)
        from arena.games.diplomacy import board

        position = table.position
        self._adjacent = {unit.unit: frozenset(board.adjacent_provinces(unit.unit)) for unit in self._units}
        others = (units for other, units in enumerate(position.units) if other != seat)
        self._rivals = Counter(place for units in others for unit in units for place in board.adjacent_provinces(unit))
        self._own = {c for c in board.CENTERS if position.owner.get(c) == seat}
        self._seat = seat

    def _needed_strength(self, center: str) -> int:
        """Strength that is likely to take the centre: above its holder's, or the rivals' beside it."""
        rivals = self._rivals[center]
        if center in self._occupied:
            return 2 + min(rivals, 1) * (self._rng.random() < 0.5)
        return 1 + min(rivals, 1)

    def _attack(self) -> None:
        """Send units against centres, those that need the least strength first."""
        goals = [center for center in sorted(self._target_centers) if self._occupied.get(center) != self._seat]
        self._rng.shuffle(goals)
        needed = {center: self._needed_strength(center) for center in goals if self._is_unclaimed(center)}
        for center in sorted(needed, key=needed.__getitem__):
            idle = [unit for unit in self._units if unit.unit not in self._orders_by_unit]
            free = [unit for unit in idle if center in self._adjacent[unit.unit]]
            if len(free) >= needed[center]:
                # A unit on no centre of its own, with the fewest others to enter, goes; others support it.
                choices = {unit.unit: len(self._adjacent[unit.unit] & self._target_centers) for unit in free}
                free.sort(key=lambda unit: (unit.unit[2:5] in self._own, choices[unit.unit]))
                self._send(free[0], center, free[1:], needed[center] - 1)

    def _send(self, unit: "UnitOrders", center: str, others: "list[UnitOrders]", supports: int) -> None:
        order = self._rng.choice([o for o, dest in plain_moves(unit).items() if dest[:3] == center])
        helpers = [other for other in others if f"{other.unit} S {order}" in other]
        if len(helpers) < supports:
            return
        self._give_order(unit, order, center)
        for other in helpers[:supports]:
            self._give_order(other, f"{other.unit} S {order}", other.unit[2:])

    def _defend(self, unit: "UnitOrders") -> None:
        """Let a unit support another one that stays where several rivals could attack."""
        centers = self._own | self._target_centers
        staying = [other for other, order in self._orders_by_unit.items() if " - " not in order]
        attacked = [other for other in staying if other[2:5] in centers and self._rivals[other[2:5]] > 1]
        self._support_one(unit, [f"{unit.unit} S {other}" for other in attacked])


@register("tactician", games=["diplomacy"])
class Tactician(Greedy):
    """Greedy with supported attacks and defence: as many units attack a centre as are likely to be needed.

    It takes the unopposed centres first, then those that several of its units together can force. The others enter
    centres alone, support units that rivals could attack, or approach.
    """

    plan = _SupportedPlan


class _ConvoyPlan(_SupportedPlan):
    """Supported plan in which each free fleet first looks for an army to carry."""

    def _attack(self) -> None:
        for fleet in self._units:
            if fleet.unit not in self._orders_by_unit:
                self._carry(fleet)
        super()._attack()

    def _carry(self, fleet: "UnitOrders") -> None:
        """Convoys an army by this fleet alone: to a centre, an empty one if it can, or to where one is nearer."""
        free = [army for army in self._units if army.by_sea and army.unit not in self._orders_by_unit]
        landings = [
            (army, to)
            for army in free
            if army.unit[2:5] in self._adjacent[fleet.unit]
            for to in sorted(self._adjacent[fleet.unit] - self._adjacent[army.unit])
            if f"{army.unit} - {to} VIA" in army.by_sea and f"{fleet.unit} C {army.unit} - {to}" in fleet.by_sea
        ]
        landings = [(army, to) for army, to in landings if self._is_unclaimed(to)]
        centers = [(army, to) for army, to in landings if to in self._target_centers]
        empty = [(army, to) for army, to in centers if to not in self._occupied]
        nearer = [(army, to) for army, to in landings if self._distance_to_target(f"A {to}") < self._walk(army)]
        if choices := empty or centers or nearer:
            army, to = self._rng.choice(choices)
            self._give_order(army, f"{army.unit} - {to} VIA", to)
            self._give_order(fleet, f"{fleet.unit} C {army.unit} - {to}", fleet.unit[2:])

    def _walk(self, army: "UnitOrders") -> int:
        """Distance to a centre after the best move by land."""
        return min((self._distance_to_target(f"A {to}") for to in self._adjacent[army.unit]), default=99)


@register("convoyer", games=["diplomacy"])
class Convoyer(Greedy):
    """Tactician whose fleets at sea carry armies to centres, or nearer to them.

    Above all a proposal for search: of a convoy's two orders neither is worth anything alone, so that replacing single
    orders does not find it.
    """

    plan = _ConvoyPlan
