"""Diplomacy: takes every centre it can reach; six random bots hardly ever stop it.

Each unit holds a centre that is about to become its own, else enters one next to it, else supports a unit of its own
that does, else walks toward the nearest.
"""

from random import Random
from typing import TYPE_CHECKING, cast

from arena.bots import register
from arena.bots.mover import eager_aftermath, plain_moves
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.orders import Choices


@register("greedy", games=["diplomacy"])
class Greedy:
    """One step of look-ahead and no two units to the same place."""

    name = "greedy"

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Take what can be taken."""
        table = cast("DiplomacyGame", game)
        if table.position.kind != "M":
            return eager_aftermath(table, seat, rng)
        return _Plan(table, seat, rng).orders()


class _Plan:
    """One turn of one seat; ``taken`` are the provinces that its units will stand in."""

    def __init__(self, table: "DiplomacyGame", seat: int, rng: Random) -> None:
        from arena.games.diplomacy import board

        self._distances = board.distances
        self._units = list(table.choices(seat))
        self._rng = rng
        self._occupied = table.position.occupied
        self._wanted = [c for c in board.CENTERS if table.position.owner.get(c) != seat]
        self._taken: set[str] = set()
        self._chosen: dict[str, str] = {}

    def orders(self) -> Action:
        rng = self._rng
        rng.shuffle(self._units)
        for step in (self._hold, self._enter, self._support, self._approach):
            for unit in self._units:
                if unit.unit not in self._chosen:
                    step(unit)
        return tuple(sorted(self._chosen.values()))

    def _choose(self, unit: "Choices", order: str, place: str) -> None:
        self._chosen[unit.unit] = order
        self._taken.add(place[:3])

    def _hold(self, unit: "Choices") -> None:
        if unit.unit[2:5] in self._wanted:
            self._choose(unit, f"{unit.unit} H", unit.unit[2:])

    def _enter(self, unit: "Choices") -> None:
        moves = {order: dest for order, dest in plain_moves(unit).items() if self._is_open(dest)}
        centers = [order for order, dest in moves.items() if dest[:3] in self._wanted]
        empty = [order for order in centers if moves[order][:3] not in self._occupied]
        if centers:
            order = self._rng.choice(empty or centers)
            self._choose(unit, order, moves[order])

    def _support(self, unit: "Choices") -> None:
        helps = [f"{unit.unit} S {order}" for order in self._chosen.values() if " - " in order]
        legal = [order for order in helps if order in unit]
        if legal:
            self._choose(unit, self._rng.choice(legal), unit.unit[2:])

    def _approach(self, unit: "Choices") -> None:
        moves = {order: dest for order, dest in plain_moves(unit).items() if self._is_open(dest)}
        if not moves:
            self._choose(unit, f"{unit.unit} H", unit.unit[2:])
            return
        far = {order: self._away(f"{unit.unit[0]} {dest}") for order, dest in moves.items()}
        order = self._rng.choice([order for order, steps in far.items() if steps == min(far.values())])
        self._choose(unit, order, moves[order])

    def _is_open(self, dest: str) -> bool:
        return dest[:3] not in self._taken

    def _away(self, unit: str) -> int:
        steps = self._distances(unit)
        return min((steps[center] for center in self._wanted if center in steps), default=99)
