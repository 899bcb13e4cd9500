"""Diplomacy bots that move their units at random."""

from collections.abc import Mapping
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

    name = "mover"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return unit_preserving_action(table, seat, rng)
        return tuple(rng.choice(list(plain_moves(unit))) for unit in table.legal_orders(seat))


def plain_moves(unit: "UnitOrders") -> Mapping[str, str]:
    """Returns the destination of each order that moves the unit without a convoy, in the sorted order of orders."""
    return {} if unit.retreats else _movement_phase_moves(unit.unit)


@cache
def _movement_phase_moves(unit: str) -> Mapping[str, str]:
    """The movement-phase case of ``plain_moves``, cached: it follows from the map, and bots ask for little else."""
    from arena.games.diplomacy import board

    start = len(unit) + 1
    moves = sorted(order for order in board.hold_and_move_orders(unit) if order.startswith("- ", start))
    return {order: order[start + 2 :] for order in moves}


def unit_preserving_action(table: "DiplomacyGame", seat: int, rng: Random) -> Action:
    """Draws retreats and adjustments that keep as many units as possible, otherwise uniformly."""
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

    name = "chaos_bot"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """See ``Bot.act``."""
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
